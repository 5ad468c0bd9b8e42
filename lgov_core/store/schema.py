"""The tables of a SQLite trace store, format 1.

``seq`` is the order of writing in every table. Rollouts and attempts are bound to each other; calls, rewards and spans
may name a rollout that nobody announced, because what was seen is kept even when its rollout is not known. Times are
Unix seconds. Token ids are little-endian int32, logprobs little-endian float64, both as blobs; mappings are JSON text.
"""

from __future__ import annotations

from typing import Final

from lgov_core.errors import StoreError
from lgov_core.sqlite_file import FileKind

_TABLES = (
    """CREATE TABLE rollouts (
        seq INTEGER PRIMARY KEY,
        rollout_id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        input TEXT NOT NULL,
        created_at REAL NOT NULL
    )""",
    "CREATE INDEX rollouts_of_run ON rollouts (run_id)",
    """CREATE TABLE attempts (
        seq INTEGER PRIMARY KEY,
        rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id),
        attempt INTEGER NOT NULL,
        started_at REAL NOT NULL,
        ended_at REAL,
        outcome TEXT,
        error TEXT,
        result TEXT,
        UNIQUE (rollout_id, attempt)
    )""",
    """CREATE TABLE calls (
        seq INTEGER PRIMARY KEY,
        response_id TEXT NOT NULL UNIQUE,
        model TEXT NOT NULL,
        request TEXT NOT NULL,
        response TEXT NOT NULL,
        prompt_ids BLOB,
        response_ids BLOB,
        logprobs BLOB,
        finish_reason TEXT NOT NULL,
        weights_version INTEGER,
        temperature REAL NOT NULL,
        top_p REAL NOT NULL,
        started_at REAL NOT NULL,
        ended_at REAL NOT NULL,
        rollout_id TEXT,
        attempt INTEGER,
        agent TEXT,
        tool_call_ids TEXT NOT NULL,
        engine TEXT NOT NULL
    )""",
    "CREATE INDEX calls_of_rollout ON calls (rollout_id)",
    """CREATE TABLE rewards (
        seq INTEGER PRIMARY KEY,
        reward_id TEXT NOT NULL UNIQUE,
        value REAL NOT NULL,
        dimension TEXT NOT NULL,
        rollout_id TEXT,
        attempt INTEGER,
        response_id TEXT,
        tool_call_id TEXT,
        source TEXT NOT NULL
    )""",
    "CREATE INDEX rewards_of_rollout ON rewards (rollout_id)",
    """CREATE TABLE spans (
        seq INTEGER PRIMARY KEY,
        span_id TEXT NOT NULL,
        name TEXT NOT NULL,
        started_at REAL NOT NULL,
        ended_at REAL,
        attributes TEXT NOT NULL,
        rollout_id TEXT,
        attempt INTEGER,
        parent_id TEXT
    )""",
    "CREATE INDEX spans_of_rollout ON spans (rollout_id)",
)

TRACE_STORE: Final = FileKind(
    what="trace store",
    application_id=int.from_bytes(b"lgvS"),
    version=1,
    schema=_TABLES,
    error=StoreError,
)
