"""The page that sorts problems by message names messages that lgov has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/troubleshooting.md"
SECTIONS = ("The program was not run: status 78", "A call was denied", "The closing report of `lgov run`")
ROWS = [row for title in SECTIONS for row in re.findall(r"^\| `([^`]+)` \|", page_text(f"{PAGE}#{title}"), re.M)]


@pytest.fixture(scope="module")
def texts() -> str:
    """Every text of lgov's code, with ``…`` for what is filled in."""
    found: list[str] = []
    for path in sorted(ROOT.glob("lgov_*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("message", ROWS)
def test_the_message_is_one_of_lgov(message: str, texts: str) -> None:
    parts = [part.strip() for part in message.split("…") if part.strip()]
    assert [part for part in parts if part not in texts] == []
