"""Reads a store page by page, for people who look at it: small columns only, and never more rows than asked for.

``seq`` is a row's place in the order of writing. Every method is one query or a few; none decodes a call or a span.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lgov_core.store.rows import Row
from lgov_core.store.sql.database import Database
from lgov_core.trace import semconv

#: Characters of an attempt's error in a list.
ERROR_SHOWN: Final = 500
_TABLES: Final = ("rollouts", "attempts", "calls", "rewards", "spans")
_HEAD: Final = "seq, rollout_id, task_id, run_id, created_at"
#: A decision that did more than allow: its attributes are JSON text without spaces.
_NOT_ALLOWED: Final = (
    f"name = '{semconv.DECISION_SPAN_NAME}' AND claimed = 0 AND (attributes NOT LIKE ? OR attributes LIKE ?)"
)
_PATTERNS: Final = (f'%"{semconv.DECISION_EFFECT}":"allow"%', f'%"{semconv.DECISION_WOULD}":%')


@dataclass(frozen=True, slots=True)
class RolloutHead:
    """A rollout without its input."""

    seq: int
    rollout_id: str
    task_id: str
    run_id: str
    created_at: float


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The rollouts of one task in one run: how many, and the places of the first and the last."""

    run_id: str
    task_id: str
    count: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CallFigures:
    """The calls of an attempt that one agent made. Token counts are None where a call has no token ids."""

    rollout_id: str
    attempt: int
    agent: str | None
    calls: int
    prompt_tokens: int | None
    response_tokens: int | None
    truncated: int
    oldest_weights: int | None
    newest_weights: int | None


class StorePages:
    """The queries of `TraceStore.pages`. Callable from any thread; raises `StoreError`."""

    def __init__(self, reading: Database) -> None:
        self._reading = reading

    def marks(self) -> dict[str, int]:
        """The greatest ``seq`` of each table, 0 for an empty one: it grows with every row that is added."""
        ((*found,),) = self._reading.fetch("SELECT " + ", ".join(f"(SELECT max(seq) FROM {name})" for name in _TABLES))
        return {name: seq or 0 for name, seq in zip(_TABLES, found, strict=True)}

    def open_attempts(self) -> int:
        """How many attempts have not ended."""
        return self._reading.fetch("SELECT count(*) FROM attempts WHERE ended_at IS NULL")[0][0]

    def last_active(self) -> float | None:
        """When the newest rollout was made, or call, span or attempt began or ended (Unix seconds); None without one."""
        newest = [
            "SELECT max(created_at) FROM rollouts WHERE seq = (SELECT max(seq) FROM rollouts)",
            *(
                f"SELECT max(coalesce(ended_at, started_at)) FROM {name} WHERE seq > (SELECT max(seq) - 50 FROM {name})"
                for name in ("calls", "spans", "attempts")
            ),
        ]
        times = [at for query in newest for (at,) in self._reading.fetch(query) if at is not None]
        return max(times, default=None)

    def first_created(self) -> float | None:
        """When the first rollout was made (Unix seconds); None without one."""
        found = self._reading.fetch("SELECT created_at FROM rollouts ORDER BY seq LIMIT 1")
        return found[0][0] if found else None

    def counts(self) -> tuple[int, int]:
        """How many rollouts and calls there are."""
        ((rollouts, calls),) = self._reading.fetch(
            "SELECT (SELECT count(*) FROM rollouts), (SELECT count(*) FROM calls)"
        )
        return rollouts, calls

    def runs(self, limit: int) -> list[str]:
        """The ids of runs, in the order of the alphabet."""
        found = self._reading.fetch("SELECT DISTINCT run_id FROM rollouts ORDER BY run_id LIMIT ?", (limit,))
        return [run_id for (run_id,) in found]

    def rollouts_before(
        self, seq: int, limit: int, *, run_id: str | None = None, task_id: str | None = None
    ) -> list[RolloutHead]:
        """At most ``limit`` rollouts whose place is before ``seq``, the newest first."""
        where, given = "", [seq]
        for column, value in (("run_id", run_id), ("task_id", task_id)):
            if value is not None:
                where, given = f"{where} AND {column} = ?", [*given, value]
        found = self._reading.fetch(
            f"SELECT {_HEAD} FROM rollouts WHERE seq < ?{where} ORDER BY seq DESC LIMIT ?", (*given, limit)
        )
        return [RolloutHead(*row) for row in found]

    def rollouts_of_tasks(self, tasks: Sequence[str], first: int, last: int) -> list[RolloutHead]:
        """The rollouts of these tasks between two places, both included, in the order of writing."""
        found = self._reading.fetch(
            f"SELECT {_HEAD} FROM rollouts WHERE seq BETWEEN ? AND ? AND task_id = ANY(?) ORDER BY seq",
            (first, last, list(tasks)),
        )
        return [RolloutHead(*row) for row in found]

    def unannounced_between(self, table: str, after: int, last: int) -> list[tuple[str, int, float]]:
        """Rollouts that are named by rows of ``table`` (calls or spans) with ``after`` < seq <= ``last``, and have no row.

        Each with the place of its first such row and when that began.
        """
        found = self._reading.fetch(
            f"SELECT rollout_id, min(seq), min(started_at) FROM {table} WHERE seq > ? AND seq <= ?"
            " AND rollout_id IS NOT NULL AND NOT EXISTS"
            f" (SELECT 1 FROM rollouts WHERE rollouts.rollout_id = {table}.rollout_id) GROUP BY rollout_id",
            (after, last),
        )
        return [(rollout_id, seq, started_at) for rollout_id, seq, started_at in found]

    def groups_after(self, seq: int) -> list[TaskGroup]:
        """The groups among the rollouts whose place is after ``seq``."""
        found = self._reading.fetch(
            "SELECT run_id, task_id, count(*), min(seq), max(seq) FROM rollouts WHERE seq > ? GROUP BY run_id, task_id",
            (seq,),
        )
        return [TaskGroup(*row) for row in found]

    def attempts_of(self, ids: Sequence[str]) -> list[Row]:
        """``rollout_id, attempt, started_at, ended_at, outcome, error`` (its beginning), by rollout and attempt."""
        return self._reading.fetch(
            f"SELECT rollout_id, attempt, started_at, ended_at, outcome, substr(error, 1, {ERROR_SHOWN}) FROM attempts"
            " WHERE rollout_id = ANY(?) ORDER BY rollout_id, attempt",
            (list(ids),),
        )

    def call_figures(self, ids: Sequence[str]) -> list[CallFigures]:
        """The calls of these rollouts, summed up by attempt and agent."""
        found = self._reading.fetch(
            "SELECT rollout_id, coalesce(attempt, 1), agent, count(*),"
            " CASE WHEN count(*) = count(prompt_rest) THEN sum(prompt_shared + length(prompt_rest) / 4) END,"
            " CASE WHEN count(*) = count(response_ids) THEN sum(length(response_ids) / 4) END,"
            " sum(CASE WHEN finish_reason IN ('length', 'max_tokens', 'max_output_tokens', 'MAX_TOKENS') THEN 1 ELSE 0 END),"
            " min(weights_version), max(weights_version)"
            " FROM calls WHERE rollout_id = ANY(?) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            (list(ids),),
        )
        return [CallFigures(*row[:4], *(one if one is None else int(one) for one in row[4:])) for row in found]

    def chats_of(self, ids: Sequence[str]) -> dict[tuple[str, int], int]:
        """How many model calls adapters recorded as spans, by rollout and attempt."""
        found = self._reading.fetch(
            "SELECT rollout_id, coalesce(attempt, 1), count(*) FROM spans WHERE rollout_id = ANY(?) AND claimed = 0"
            " AND attributes LIKE ? GROUP BY 1, 2",
            (list(ids), f'%"{semconv.OPERATION}":"{semconv.CHAT}"%'),
        )
        return {(rollout_id, attempt): count for rollout_id, attempt, count in found}

    def decisions_of(self, ids: Sequence[str]) -> list[Row]:
        """``rollout_id, attempt, attributes`` (JSON text) of each decision on these rollouts that did more than allow."""
        return self._reading.fetch(
            f"SELECT rollout_id, attempt, attributes FROM spans WHERE rollout_id = ANY(?) AND {_NOT_ALLOWED}",
            (list(ids), *_PATTERNS),
        )

    def decisions_between(self, after: int, last: int, *, allowed: bool) -> list[Row]:
        """``seq, started_at, rollout_id, attempt, attributes`` of decisions with ``after`` < seq <= ``last``, in that order.

        Without ``allowed`` those that only allowed are left out.
        """
        which = f"name = '{semconv.DECISION_SPAN_NAME}' AND claimed = 0" if allowed else _NOT_ALLOWED
        return self._reading.fetch(
            f"SELECT seq, started_at, rollout_id, attempt, attributes FROM spans WHERE seq > ? AND seq <= ? AND {which}"
            " ORDER BY seq",
            (after, last, *(() if allowed else _PATTERNS)),
        )

    def agents_between(self, after: int, last: int) -> list[str]:
        """The agents of the calls with ``after`` < seq <= ``last``."""
        found = self._reading.fetch(
            "SELECT DISTINCT agent FROM calls WHERE seq > ? AND seq <= ? AND agent IS NOT NULL", (after, last)
        )
        return [agent for (agent,) in found]

    def containing(self, ids: Sequence[str], text: str) -> set[str]:
        """Which of these rollouts contain a text: in input, result or error, in a call, or in a span. Case does not count."""
        inside = json.dumps(text)[1:-1].lower()
        for special in "!%_":
            inside = inside.replace(special, f"!{special}")
        wanted, columns = f"%{inside}%", {"rollouts": ("input",), "attempts": ("result", "error")}
        columns |= {"calls": ("request", "response"), "spans": ("attributes",)}
        found: set[str] = set()
        for table, names in columns.items():
            left = [one for one in ids if one not in found]
            if not left:
                break
            where = " OR ".join(f"lower({name}) LIKE ? ESCAPE '!'" for name in names)
            rows = self._reading.fetch(
                f"SELECT DISTINCT rollout_id FROM {table} WHERE rollout_id = ANY(?) AND ({where})",
                (left, *[wanted] * len(names)),
            )
            found.update(rollout_id for (rollout_id,) in rows)
        return found
