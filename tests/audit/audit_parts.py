"""Values and helpers of these tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from lgov_core.types import Action, Decision, Effect, Point, Severity

DENY = Decision(Effect.DENY, "sql", "no-drop", "it destroys a table", Severity.CRITICAL, latency_us=12.5)


def action(name: str = "run_sql", **changes: object) -> Action:
    values: dict[str, object] = {
        "arguments": {"query": "DROP TABLE staff", "limit": 3},
        "agent": "clerk",
        "framework": "langchain",
        "session_id": "s1",
        "rollout_id": "r1",
        "attempt": 2,
        "call_id": "call_1",
    }
    return Action(Point.PRE_TOOL_CALL, name, **{**values, **changes})  # type: ignore[arg-type]


def in_child(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
