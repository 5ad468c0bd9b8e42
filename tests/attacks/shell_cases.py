"""The attack and everyday cases of the ``shell`` policy, and how many of them are judged as expected.

A row names its ``setting``, what the policy is made with. A harmless one with ``in: box`` runs code or sends something: it is
allowed in a box only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lgov_core.policies import ShellPolicy
from lgov_core.types import Action, Point

HERE = Path(__file__).parent
SETTINGS: dict[str, dict[str, Any]] = {
    "project": {"cwd": "/srv/project", "writable": ["/srv/project", "/tmp"]},
    "desk": {"cwd": "/srv/desk", "writable": ["/srv/desk", "/tmp"]},
    "narrow": {"cwd": "/srv/desk", "writable": ["/srv/desk"]},
}


def cases(kind: str) -> list[dict[str, Any]]:
    """The rows of one kind: ``malicious`` or ``benign``."""
    text = (HERE / f"shell_{kind}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def policies(**options: Any) -> dict[str, ShellPolicy]:
    """A policy for each setting."""
    return {name: ShellPolicy(argument="command", **setting, **options) for name, setting in SETTINGS.items()}


def blocked(rows: list[dict[str, Any]], *, box: bool) -> list[dict[str, Any]]:
    """The rows that are denied outside a box, or in one."""
    judges = policies(unknown="allow") if box else policies()
    denied: list[dict[str, Any]] = []
    for row in rows:
        action = Action(Point.PRE_TOOL_CALL, "bash", arguments={"command": row["command"]})
        decision = judges[row["setting"]].judge(action)
        assert decision is not None
        if decision.blocks:
            denied.append(row)
    return denied


def plain() -> list[dict[str, Any]]:
    """The harmless rows that are allowed outside a box: they read, search, edit and list."""
    return [row for row in cases("benign") if "in" not in row]


def scores() -> dict[str, tuple[int, int]]:
    """Hostile texts denied outside a box, plain ones allowed there, and all harmless ones in a box; each with how many are."""
    malicious, harmless = cases("malicious"), cases("benign")
    return {
        "denied": (len(blocked(malicious, box=False)), len(malicious)),
        "plain": (len(plain()) - len(blocked(plain(), box=False)), len(plain())),
        "box": (len(harmless) - len(blocked(harmless, box=True)), len(harmless)),
    }
