"""The tables of a SQLite trace store (`lgov_core.store.sql.tables`), format 5, and how files of earlier formats become one.

In format 2 the prompt's token ids were never left out of replies. Spans that were moved from format 1 have no ``digest``.
Rewards of formats before 4 say no ``choice``. Before format 5, decisions were spans only, and rollouts that nobody added had no
row.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Callable
from typing import Final

from lgov_core._util.sqlite_file import FileKind
from lgov_core.errors import StoreError
from lgov_core.store.sql.decisions import ADD_ROLLOUTS, migrate_decisions
from lgov_core.store.sql.tables import CALLS, DECISIONS, QUEUE, ROLLOUTS_INDEX, TABLES

#: What SQLite writes differently. A row needs no lock: one process writes at a time.
_TRANSLATIONS: Final = (
    (r" FOR UPDATE( OF \w+)?( SKIP LOCKED)?", ""),
    (r"= ANY\(\?\)", "IN (SELECT value FROM json_each(?))"),
    (r"least\(lease_until, deadline\)", "min(lease_until, ifnull(deadline, lease_until))"),
    (r"greatest\(", "max("),
)


@functools.cache
def translate(statement: str) -> str:
    """A statement of the shared store in SQLite's SQL."""
    for theirs, ours in _TRANSLATIONS:
        statement = re.sub(theirs, ours, statement)
    return statement


_CALLS_INDEX: Final = "CREATE INDEX calls_of_rollout ON calls (rollout_id, attempt)"
_ENDED: Final = """CREATE TABLE ended (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        rollout_id TEXT NOT NULL UNIQUE REFERENCES queue (rollout_id)
    )"""

#: A call has one choice in format 1, and spoke the chat API.
_FROM_1 = (
    "ALTER TABLE calls RENAME TO calls_of_format_1",
    "DROP INDEX calls_of_rollout",
    CALLS,
    "INSERT INTO calls (seq, response_id, choice, route, model, request, response, prompt_rest, response_ids, logprobs,"
    " finish_reason, weights_version, temperature, top_p, started_at, ended_at, rollout_id, attempt, agent, tool_call_ids,"
    " engine) SELECT seq, response_id, 0, 'chat', model, request, response, prompt_ids, response_ids, logprobs,"
    " finish_reason, weights_version, temperature, top_p, started_at, ended_at, rollout_id, attempt, agent, tool_call_ids,"
    " engine FROM calls_of_format_1 ORDER BY seq",
    "DROP TABLE calls_of_format_1",
    _CALLS_INDEX,
    "ALTER TABLE spans ADD COLUMN trace_id TEXT",
    "ALTER TABLE spans ADD COLUMN events TEXT",
    "ALTER TABLE spans ADD COLUMN claimed INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE spans ADD COLUMN digest BLOB",
    "CREATE UNIQUE INDEX spans_once ON spans (digest)",
    *map(translate, QUEUE),
    _ENDED,
)


def _fill_decisions(connection: sqlite3.Connection) -> None:
    migrate_decisions(
        lambda query, values: connection.execute(query, values).fetchall(),
        lambda statement, values: connection.executemany(statement, values),
    )


_FROM_4: Final[tuple[str | Callable[[sqlite3.Connection], None], ...]] = (
    "ALTER TABLE rollouts ADD COLUMN added INTEGER NOT NULL DEFAULT 1",
    "DROP INDEX rollouts_of_run",
    ROLLOUTS_INDEX,
    *DECISIONS,
    ADD_ROLLOUTS,
    _fill_decisions,
)

TRACE_STORE: Final = FileKind(
    what="trace store",
    application_id=int.from_bytes(b"lgvS"),
    version=5,
    schema=(*map(translate, TABLES), _CALLS_INDEX, _ENDED),
    error=StoreError,
    migrations={1: _FROM_1, 2: (), 3: ("ALTER TABLE rewards ADD COLUMN choice INTEGER",), 4: _FROM_4},
)
