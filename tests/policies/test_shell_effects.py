"""What allowed texts do to files, in real bash: nothing that governs or that other programs run changes, no secret is shown.

Texts of one to three commands are composed from commands that change or read files and from words that name the same files in
many ways: links, wildcards, braces, folders, archives that hold them. What the policy allows is run.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from lgov_core.policies import ShellPolicy
from tests.slow import SLOW

SECRET = "s3cr3t-of-the-owner"
COUNT = 3000 if SLOW else 500
CLOSED = {
    "policy.yaml": "version: 1\n",
    "lgov.toml": "[lgov]\n",
    ".lgov/audit.db": SECRET,
    ".git/config": "[core]\n",
    ".git/hooks/pre-commit": "#!/bin/sh\n",
    "../outside/notes.txt": SECRET,
    "../outside/policy.yaml": "version: 1\n",
}
OPEN = {
    ".env": f"KEY={SECRET}\n",  # it may be written: cp .env.example .env
    "a.txt": "a\nb\n",
    "sub/b.txt": "b\n",
    "evil/lgov.toml": "evil\n",
    "evil/policy.yaml": "evil\n",
    "evil/.git/config": "evil\n",
    "evil/.env": "evil\n",
    "--target-directory=.git": "evil\n",
    "-t.git": "evil\n",
    "config": "evil\n",
    "pre-commit": "evil\n",
}
LINKS = {
    "here": ".",
    "dotgit": ".git",
    "out": "../outside",
    "rules": "policy.yaml",
    "sub/up": "..",
    "sub/secret": "../.env",
    "sub/top": "../..",
    "sub/notes.txt": "../../outside/notes.txt",
}
#: Members of an archive.
PACKED_LINKS = {"l": "../../outside", "gov": "../policy.yaml", "up": ".", "notes.txt": "../../outside/notes.txt"}
PIECES: dict[str, str] = yaml.safe_load(Path(__file__).with_name("shell_effects.yaml").read_text())
WORDS, COMMANDS = (PIECES[kind].splitlines() for kind in ("words", "commands"))


def fill(folder: Path) -> None:
    for name, content in {**CLOSED, **OPEN}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    (folder / "policy.yaml.gz").write_bytes(gzip.compress(b"evil"))
    for name in ("x.tar", "evil.tar"):
        with tarfile.open(folder / name, "w") as archive:
            archive.add(folder / "evil", arcname=".")
    for name in ("links.tar", "sub/links.tar"):
        with tarfile.open(folder / name, "w") as archive:
            for member, target in PACKED_LINKS.items():
                link = tarfile.TarInfo(member)
                link.type, link.linkname = tarfile.SYMTYPE, target
                archive.addfile(link)


def composed(seed: int) -> list[str]:
    pick = random.Random(seed)

    def command() -> str:
        text = pick.choice(COMMANDS)
        while "{w}" in text:
            text = text.replace("{w}", pick.choice(WORDS), 1)
        return text

    def text() -> str:
        return "".join(command() + pick.choice((" && ", "; ", "\n")) for _ in range(pick.choice((1, 1, 2, 3))))

    return list(dict.fromkeys(text().rstrip("&; \n") for _ in range(COUNT)))


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize("seed", range(3 if SLOW else 1))
def test_no_allowed_text_changes_what_governs_or_shows_a_secret(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    fill(folder)
    policy = ShellPolicy(cwd=str(folder), writable=[str(folder)])
    texts = composed(seed)
    allowed = [text for text in texts if not policy.judge_command(text).blocks]
    wrong: list[str] = []
    for text in allowed:
        shutil.rmtree(tmp_path)
        fill(folder)
        ran = subprocess.run(
            ["bash", "--norc", "-c", text],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "outside")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
        kept = all((folder / name).is_file() and (folder / name).read_text() == CLOSED[name] for name in CLOSED)
        if not kept or SECRET.encode() in ran.stdout:
            wrong.append(text)
    assert len(allowed) > 0.05 * len(texts)
    assert wrong == []
