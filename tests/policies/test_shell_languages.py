"""The closed grammars of sed, awk, jq and sqlite3 against the programs themselves: no allowed text has an effect.

Texts are composed from pieces, hostile ones among them. What the policy allows is run by bash in a scratch folder with marks: a
file that must not be made, a secret that must not be printed. The same pieces are shown to have their effects when they run.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lgov_core.policies import ShellPolicy
from tests.slow import SLOW

SECRET = "s3cr3t-of-the-owner"
#: Texts a program and seed: all of them together take about half a minute without slow tests.
COUNT = 1200 if SLOW else 250

PIECES: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_name("shell_languages.yaml").read_text())
SED, AWK, JQ, SQL = (PIECES[language] for language in ("sed", "awk", "jq", "sql"))
SIGNS = [*'/;|>$"\\(){}[]\n #&!,@=-', "\\\n", "]/", "[^", ">>", "|&", "//", "\\("]
Composer = Callable[[random.Random], list[str]]


def _filled(pick: random.Random, text: str, expressions: list[str]) -> str:
    """A piece with an expression in each of its slots ``{e}``."""
    for _ in range(3):
        while "{e}" in text:
            text = text.replace("{e}", pick.choice(expressions), 1)
        if "{e}" not in text:
            break
    return text.replace("{{", "{").replace("}}", "}")


def _joined(pick: random.Random, piece: Callable[[], str], between: list[str]) -> str:
    """Some pieces with text between them; now and then with a sign more, or a letter less."""
    text = piece()
    for _ in range(pick.choice((0, 0, 1, 1, 2, 3))):
        text += pick.choice(between) + piece()
    at, way = pick.randrange(len(text)), pick.random()
    if way < 0.7:
        return text
    return text[:at] + (pick.choice(SIGNS) + text[at:] if way < 0.9 else text[at + 1 :])


def sed(pick: random.Random) -> list[str]:
    def piece() -> str:
        return pick.choice(SED["address"]) + pick.choice(SED["hostile"] if pick.random() < 0.25 else SED["plain"])

    scripts = [_joined(pick, piece, SED["between"]) for _ in range(pick.choice((1, 1, 2)))]
    flags = pick.choice(([], ["-n"], ["-E"], ["-s"], ["-nz"]))
    return ["sed", *flags, *[word for script in scripts for word in ("-e", script)], "input", "lines"]


def awk(pick: random.Random) -> list[str]:
    def piece() -> str:
        pieces = AWK["hostile"] if pick.random() < 0.2 else AWK["statement"]
        return _filled(pick, pick.choice(pieces), AWK["expression"])

    def rule() -> str:
        condition = pick.choice(["", "BEGIN", "END", _filled(pick, "{e}", AWK["expression"]), "NR > 1"])
        return condition + " {" + _joined(pick, piece, AWK["between"]) + "}"

    program = _joined(pick, rule, [" ", "\n", "; "])
    return [pick.choice([name for name in ("awk", "mawk", "gawk") if shutil.which(name)]), program, "input", "lines"]


def jq(pick: random.Random) -> list[str]:
    def piece() -> str:
        pieces = JQ["hostile"] if pick.random() < 0.2 else JQ["expression"]
        return _filled(pick, pick.choice(pieces), [*JQ["expression"][:8], pick.choice(JQ["hostile"])])

    return [
        "jq",
        *pick.choice(([], ["-n"], ["-r"])),
        "--arg",
        "v",
        ".",
        _joined(pick, piece, JQ["between"]),
        "data.json",
    ]


def sqlite(pick: random.Random) -> list[str]:
    def piece() -> str:
        return pick.choice(SQL["hostile"] if pick.random() < 0.4 else SQL["plain"])

    return ["sqlite3", *pick.choice(([], ["-json"])), "a.db", _joined(pick, piece, SQL["between"])]


LANGUAGES: dict[str, Composer] = {"sed": sed, "awk": awk, "jq": jq, "sqlite3": sqlite}


class Scratch:
    """A folder with files of known contents; ``effect`` says what a text has changed or shown there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "input").write_text("a/b\ntouch marker\nw marker\n")
        (folder / "lines").write_text("touch marker\nb\n")
        (folder / "secret").write_text(SECRET)
        (folder / "secret.sql").write_text(f"select '{SECRET}';")
        (folder / "data.json").write_text('{"a": [1, "touch marker"], "b": {"c": 2}}')
        if shutil.which("sqlite3"):
            subprocess.run(["sqlite3", "a.db", "create table t(a); insert into t values ('x')"], cwd=folder, check=True)
        self.before = self.state()

    def state(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def effect(self, text: str) -> str:
        """What the text does that it must not; nothing where it only prints what it may."""
        ran = subprocess.run(
            ["bash", "--norc", "-c", text],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "OWNER": SECRET},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        after = self.state()
        for name in after.keys() - self.before.keys():
            (self.folder / name).unlink()
        for name, content in self.before.items():
            if after.get(name) != content:
                (self.folder / name).write_bytes(content)
        if after != self.before:
            return "changes files"
        return "shows the secret" if SECRET.encode() in ran.stdout + ran.stderr else ""


def composed(language: str, seed: int) -> list[str]:
    pick = random.Random(f"{language} {seed}")
    return list(dict.fromkeys(shlex.join(LANGUAGES[language](pick)) for _ in range(COUNT)))


@pytest.mark.parametrize("seed", range(2 if SLOW else 1))
@pytest.mark.parametrize("language", LANGUAGES)
def test_no_allowed_text_has_an_effect(language: str, seed: int, tmp_path: Path) -> None:
    if shutil.which(language) is None:
        pytest.skip(f"there is no {language} here")
    scratch = Scratch(tmp_path)
    policy = ShellPolicy(cwd=str(tmp_path), writable=["/nowhere"])
    texts = composed(language, seed)
    allowed = [text for text in texts if not policy.judge_command(text).blocks]
    assert len(texts) > 0.5 * COUNT
    assert len(allowed) > 0.05 * len(texts)
    assert [(text, effect) for text in allowed if (effect := scratch.effect(text))] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_hostile_pieces_have_effects(language: str, tmp_path: Path) -> None:
    if shutil.which(language) is None:
        pytest.skip(f"there is no {language} here")
    scratch = Scratch(tmp_path)
    assert sum(bool(scratch.effect(text)) for text in composed(language, 7)[:200]) >= 5
