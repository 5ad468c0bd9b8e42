"""Calls and spans of the SQLite tests, and child processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from lgov_core.types import CapturedCall, Span

#: The tables as the first lgov made them.
FORMAT_1 = """
    CREATE TABLE rollouts (seq INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL UNIQUE, task_id TEXT NOT NULL,
        run_id TEXT NOT NULL, input TEXT NOT NULL, created_at REAL NOT NULL);
    CREATE INDEX rollouts_of_run ON rollouts (run_id);
    CREATE TABLE attempts (seq INTEGER PRIMARY KEY, rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id),
        attempt INTEGER NOT NULL, started_at REAL NOT NULL, ended_at REAL, outcome TEXT, error TEXT, result TEXT,
        UNIQUE (rollout_id, attempt));
    CREATE TABLE calls (seq INTEGER PRIMARY KEY, response_id TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
        request TEXT NOT NULL, response TEXT NOT NULL, prompt_ids BLOB, response_ids BLOB, logprobs BLOB,
        finish_reason TEXT NOT NULL, weights_version INTEGER, temperature REAL NOT NULL, top_p REAL NOT NULL,
        started_at REAL NOT NULL, ended_at REAL NOT NULL, rollout_id TEXT, attempt INTEGER, agent TEXT,
        tool_call_ids TEXT NOT NULL, engine TEXT NOT NULL);
    CREATE INDEX calls_of_rollout ON calls (rollout_id);
    CREATE TABLE rewards (seq INTEGER PRIMARY KEY, reward_id TEXT NOT NULL UNIQUE, value REAL NOT NULL,
        dimension TEXT NOT NULL, rollout_id TEXT, attempt INTEGER, response_id TEXT, tool_call_id TEXT,
        source TEXT NOT NULL);
    CREATE INDEX rewards_of_rollout ON rewards (rollout_id);
    CREATE TABLE spans (seq INTEGER PRIMARY KEY, span_id TEXT NOT NULL, name TEXT NOT NULL, started_at REAL NOT NULL,
        ended_at REAL, attributes TEXT NOT NULL, rollout_id TEXT, attempt INTEGER, parent_id TEXT);
    CREATE INDEX spans_of_rollout ON spans (rollout_id);
    PRAGMA application_id=1818719827;
    PRAGMA user_version=1;
"""


def call(response_id: str, size: int = 0) -> CapturedCall:
    ids = tuple(range(5))
    return CapturedCall(
        response_id, "tiny", {"messages": "x" * size}, {}, ids, ids, (-0.5,) * 5, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1
    )


def span(span_id: str, size: int = 0) -> Span:
    return Span("chat tiny", span_id, 1.0, 2.0, {"text": "x" * size}, "r1", 1)


def in_child(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
