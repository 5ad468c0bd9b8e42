"""Composes bash texts that run one command from the grammar in ``shell_grammar.yaml``, and runs them in bash.

Slots of a template: ``{command}`` is a list of commands, ``{word}`` a word that is expanded, ``{number}`` an arithmetic
expression, ``{ticks}`` the inside of backticks, ``{text}`` a command and ``{value}`` a word as one quoted word, and ``{item}``
a name or value whose evaluation runs the command.
"""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import yaml

GRAMMAR: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("shell_grammar.yaml").read_text())
RULES: dict[str, list[str]] = {
    rule: [*GRAMMAR[rule].splitlines(), *GRAMMAR.get(f"{rule}_of_lines", [])]
    for rule in ("command", "word", "number", "leaves", "readers")
}
#: What is put into a finished text at a random place.
SIGNS = [*"'\"\\`$ \n#{}()[];&|<=x", "<<E\n", "\\\n", "$'", "${", "$(("]
#: Files that a text may read: their names and contents are not known to the policy.
FILES = {
    "command": "touch marker\n",
    "item": "a[$(touch marker)]",
    "array": "(<(touch marker))",
    "b[$(touch marker)]": "a\n",
}


class Composer:
    """Composes texts from the grammar; the same seed gives the same texts."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)

    def text(self) -> str:
        """A text of one to four templates inside each other, some with a sign more or a letter less."""
        text = self._made("command", self._pick.randint(1, 4))
        at, way = self._pick.randrange(len(text)), self._pick.random()
        if way < 0.6:
            return text
        return text[:at] + (self._pick.choice(SIGNS) + text[at:] if way < 0.9 else text[at + 1 :])

    def each(self) -> list[str]:
        """A text for every template."""
        around = {
            "command": "{}",
            "word": "echo {}",
            "number": "echo $(({}))",
            "leaves": "{}",
            "readers": 'x="$({})"; echo $((x))',
        }
        return [around[rule].format(self.filled(template)) for rule in around for template in RULES[rule]]

    def filled(self, template: str, depth: int = 0) -> str:
        """A template with something in each of its slots. ``{{`` is a brace."""
        parts = re.split(r"(\{\{|\}\}|\{\w+\})", template)
        slots = ("{{", "}}")
        return "".join(
            part if not at % 2 else part[0] if part in slots else self._slot(part[1:-1], depth)
            for at, part in enumerate(parts)
        )

    def _made(self, rule: str, depth: int) -> str:
        if depth > 0:
            return self.filled(self._pick.choice(RULES[rule]), depth - 1)
        leaf = self._pick.choice([self._pick.choice(RULES["leaves"]), "touch marker"])
        return leaf if rule == "command" else f"$({leaf})"

    def _slot(self, slot: str, depth: int) -> str:
        if slot == "text":
            return self._quoted(self._made("command", depth))
        if slot == "value":
            return self._quoted(self._made("word", depth))
        if slot == "ticks":
            return re.sub(r"[\\`]", r"\\\g<0>", self._made("command", depth))
        if slot == "item":
            item = f"a[{self._made('number' if depth else 'word', depth)}]"
            ways = (item, f'"$({self._pick.choice(RULES["readers"])})"', *[self._quoted(item)] * 3)
            return self._pick.choice(ways)
        return self._made(slot, depth)

    def _quoted(self, text: str) -> str:
        """One word that becomes ``text``."""
        way = self._pick.randrange(4)
        if way == 0:
            return '"' + re.sub(r'[\\"$`]', r"\\\g<0>", text) + '"'
        if way == 1 and re.fullmatch(r"[\w $()\[\]]+", text):
            return re.sub(r"\W", r"\\\g<0>", text)
        return shlex.quote(text)


def makes_the_file(text: str, folder: Path) -> bool:
    """Whether bash makes ``marker`` in ``folder`` when it runs ``text`` there."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    marker = folder / "marker"
    marker.unlink(missing_ok=True)
    subprocess.run(
        ["bash", "--norc", "-c", text],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    return marker.exists()
