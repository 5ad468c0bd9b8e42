"""Recorders and entries for the tests of the emitter."""

from __future__ import annotations

from datetime import datetime
from typing import Any


class Recorder:
    """The smallest recorder there is: a list of entries."""

    def __init__(self, *entries: Any) -> None:
        self.entries = list(entries)
        self.reads = 0

    def get_log(self) -> list[Any]:
        self.reads += 1
        return list(self.entries)


CHECK = {
    "entry_type": "policy_check",
    "entry_id": "e1",
    "agent_id": "agent-42",
    "policy_name": "SQLPolicy",
    "policy_verdict": "blocked",
    "violation_reason": "it destroys a table",
    "severity": "critical",
    "timestamp": "2026-11-21T10:00:00Z",
    "rollout_id": "r1",
}


SIGNAL = {"entry_type": "signal", "entry_id": "e2", "agent_id": "agent-42", "signal_type": "SIGTERM", "timestamp": 5.5}


CALL = {
    "entry_type": "tool_call",
    "entry_id": "e3",
    "agent_id": "agent-42",
    "tool_name": "run_sql",
    "tool_args": {"query": "x" * 2000},
    "tool_result": "y" * 2000,
    "timestamp": datetime(2026, 11, 21, 10, 0, 1),
    "execution_time_ms": 250.0,
    "metadata": {"step": 3},
}


OTHER = {"entry_type": "note", "entry_id": "e4"}


ALL = (CHECK, SIGNAL, CALL, OTHER)
