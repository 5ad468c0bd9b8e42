"""The attack and everyday cases of the ``shell`` policy, and how many of them are judged as expected.

A row names its ``setting``, what the policy is made with.
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


def misjudged(kind: str) -> list[dict[str, Any]]:
    """The rows of one kind that are judged otherwise than expected."""
    policies = {name: ShellPolicy(argument="command", **setting) for name, setting in SETTINGS.items()}
    wrong: list[dict[str, Any]] = []
    for row in cases(kind):
        action = Action(Point.PRE_TOOL_CALL, "bash", arguments={"command": row["command"]})
        decision = policies[row["setting"]].judge(action)
        assert decision is not None
        if decision.blocks != (kind == "malicious"):
            wrong.append(row)
    return wrong


def scores() -> tuple[int, int, int, int]:
    """Malicious denied, malicious in all, benign allowed, benign in all."""
    malicious, benign = len(cases("malicious")), len(cases("benign"))
    return malicious - len(misjudged("malicious")), malicious, benign - len(misjudged("benign")), benign
