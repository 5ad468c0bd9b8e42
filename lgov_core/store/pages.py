"""Reads a store page by page, for people who look at it: small columns only, and never more rows than asked for.

``seq`` is a row's place in the order of writing, and a page begins at such a place, so that what is written meanwhile moves no
page. Every method is one query or a few over indexes; none decodes a call. A query that takes longer than `LIMIT_S` is stopped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lgov_core.store.database import Database
from lgov_core.store.rows import Row
from lgov_core.store.tables import KIND_COLUMNS, cut
from lgov_core.trace import semconv
from lgov_core.types import BLOCKING

#: Characters of an attempt's error in a list.
ERROR_SHOWN: Final = 500
_TABLES: Final = ("rollouts", "attempts", "calls", "rewards", "spans")
_HEAD: Final = "seq, rollout_id, task_id, run_id, created_at"
#: Seconds after which a query is stopped.
LIMIT_S: Final = 5.0
#: Outcomes of attempts that have none: those that run, and those that nobody opened.
RUNNING: Final = "running"
UNKNOWN: Final = "unknown"

_BLOCKING: Final = ", ".join(f"'{effect}'" for effect in sorted(BLOCKING))
#: Kinds of decisions by what they did.
_BLOCKED: Final = f"effect IN ({_BLOCKING})"
_WOULD_BLOCK: Final = f"would IN ({_BLOCKING})"
_NOT_ONLY_ALLOWED: Final = "(effect <> 'allow' OR would <> '')"
_OUTCOME: Final = (
    f"coalesce((SELECT coalesce(outcome, '{RUNNING}') FROM attempts WHERE attempts.rollout_id = {{of}}.rollout_id"
    f" ORDER BY attempt DESC LIMIT 1), '{UNKNOWN}')"
)
_KIND: Final = ", ".join(f"kinds.{name}" for name in KIND_COLUMNS)


def _with_decision(of: str, which: str) -> str:
    """A condition: a decision of a kind for which ``which`` holds is about the rollout of the table ``of``."""
    return (
        f"EXISTS (SELECT 1 FROM decisions WHERE decisions.rollout_id = {of}.rollout_id"
        f" AND decisions.kind IN (SELECT kind FROM decision_kinds WHERE {which}))"
    )


@dataclass(frozen=True, slots=True)
class Filters:
    """Narrows a list of rollouts; None does not.

    ``denied``: ``1`` something was blocked, ``would`` shadow mode kept something from being blocked, ``0`` neither. ``policy``
    and ``rule``: one decision of both that did more than allow. ``outcome`` is that of the last attempt.
    """

    run: str | None = None
    task: str | None = None
    agent: str | None = None
    outcome: str | None = None
    denied: str | None = None
    policy: str | None = None
    rule: str | None = None
    text: str | None = None

    def conditions(self, of: str) -> tuple[str, list[Any]]:
        """Conditions on the table of rollouts called ``of``, each after an AND, and their values; ``text`` has none."""
        kinds = {"policy = ?": self.policy, "rule = ?": self.rule}
        named = {term: cut(value) for term, value in kinds.items() if value}
        blocked, would = _with_decision(of, _BLOCKED), _with_decision(of, _WOULD_BLOCK)
        terms: list[tuple[str, list[Any]]] = [
            *([(f"{of}.run_id = ?", [self.run])] if self.run is not None else []),
            *([(f"{of}.task_id = ?", [self.task])] if self.task is not None else []),
            *([(f"{_OUTCOME.format(of=of)} = ?", [self.outcome])] if self.outcome is not None else []),
            *([(blocked, [])] if self.denied == "1" else []),
            *([(would, [])] if self.denied == "would" else []),
            *([(f"NOT {blocked} AND NOT {would}", [])] if self.denied == "0" else []),
        ]
        if self.agent is not None:
            call = f"SELECT 1 FROM calls WHERE calls.rollout_id = {of}.rollout_id AND calls.agent = ?"
            terms.append((f"EXISTS ({call})", [self.agent]))
        if named:
            terms.append((_with_decision(of, " AND ".join([_NOT_ONLY_ALLOWED, *named])), list(named.values())))
        return "".join(f" AND {term}" for term, _ in terms), [value for _, values in terms for value in values]


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


@dataclass(frozen=True, slots=True)
class DecisionKind:
    """The texts that many decisions share, "" where one lacks. ``would``: what shadow mode did not enforce."""

    policy: str
    rule: str
    action: str
    agent: str
    effect: str
    would: str
    point: str
    action_kind: str

    @property
    def blocks(self) -> bool:
        """True where such a decision kept something from being done."""
        return self.effect in BLOCKING

    @property
    def would_block(self) -> bool:
        """True where such a decision would have blocked, but for shadow mode."""
        return self.would in BLOCKING

    @property
    def only_allows(self) -> bool:
        """True where such a decision did no more than allow."""
        return self.effect == "allow" and not self.would

    @property
    def tool(self) -> str:
        """The name of the tool; of a model call or a text, which have none, the point in brackets."""
        return f"({self.point})" if self.action_kind in _NO_TOOL and not self.would else self.action


#: Kinds of actions whose name is not that of a tool.
_NO_TOOL: Final = ("model", "text", "agent")


@dataclass(frozen=True, slots=True)
class DecisionsOverTime:
    """How many decisions of each kind there are, by the second at which each bin of ``width_s`` seconds begins."""

    width_s: int
    counts: Mapping[DecisionKind, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class ListedDecision:
    """A decision in a list. ``attributes`` are those of its span, as JSON text; ``at`` is in Unix seconds."""

    seq: int
    at: float
    rollout_id: str | None
    attempt: int | None
    attributes: str


class StorePages:
    """The queries of `TraceStore.pages`. Callable from any thread; raises `StoreError`."""

    def __init__(self, reading: Database) -> None:
        self._reading = reading

    def _fetch(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._reading.fetch(query, values, limit_s=LIMIT_S)

    def marks(self) -> dict[str, int]:
        """The greatest ``seq`` of each table, 0 for an empty one: it grows with every row that is added."""
        ((*newest,),) = self._fetch("SELECT " + ", ".join(f"(SELECT max(seq) FROM {name})" for name in _TABLES))
        return {name: seq or 0 for name, seq in zip(_TABLES, newest, strict=True)}

    def open_attempts(self) -> int:
        """How many attempts have not ended."""
        return self._fetch("SELECT count(*) FROM attempts WHERE ended_at IS NULL")[0][0]

    def last_active(self) -> float | None:
        """When the newest rollout was made, or call, span or attempt began or ended (Unix seconds); None without one."""
        newest = [
            "SELECT max(created_at) FROM rollouts WHERE seq = (SELECT max(seq) FROM rollouts)",
            *(
                f"SELECT max(coalesce(ended_at, started_at)) FROM {name} WHERE seq > (SELECT max(seq) - 50 FROM {name})"
                for name in ("calls", "spans", "attempts")
            ),
        ]
        times = [at for query in newest for (at,) in self._fetch(query) if at is not None]
        return max(times, default=None)

    def first_created(self) -> float | None:
        """When the first rollout was made (Unix seconds); None without one."""
        fetched = self._fetch("SELECT created_at FROM rollouts ORDER BY seq LIMIT 1")
        return fetched[0][0] if fetched else None

    def counts(self) -> tuple[int, int]:
        """How many rollouts and calls there are."""
        ((rollouts, calls),) = self._fetch("SELECT (SELECT count(*) FROM rollouts), (SELECT count(*) FROM calls)")
        return rollouts, calls

    def runs(self, limit: int) -> list[str]:
        """The ids of runs, in the order of the alphabet."""
        fetched = self._fetch("SELECT DISTINCT run_id FROM rollouts WHERE added = 1 ORDER BY run_id LIMIT ?", (limit,))
        return [run_id for (run_id,) in fetched]

    def rollouts_before(self, seq: int | None, limit: int, filters: Filters) -> list[RolloutHead]:
        """At most ``limit`` rollouts that fit, before the place ``seq`` (None: from the newest on), the newest first.

        The text of the filters is not looked for (see `containing`).
        """
        where, values = filters.conditions("rollouts")
        before = ("", []) if seq is None else (" AND seq < ?", [seq])
        fetched = self._fetch(
            f"SELECT {_HEAD} FROM rollouts WHERE 1 = 1{before[0]}{where} ORDER BY seq DESC LIMIT ?",
            (*before[1], *values, limit),
        )
        return [RolloutHead(*row) for row in fetched]

    def groups_before(self, seq: int | None, limit: int, filters: Filters) -> list[TaskGroup]:
        """At most ``limit`` groups in which a rollout fits, by the place of their last rollout, the newest first.

        ``seq`` is a place that the last rollouts are before; None: from the newest on.
        """
        where, values = filters.conditions("members")
        before = ("", []) if seq is None else (" AND last.seq < ?", [seq])
        same = "{0}.run_id = last.run_id AND {0}.task_id = last.task_id"
        fits = f" AND EXISTS (SELECT 1 FROM rollouts AS members WHERE {same.format('members')}{where})" if where else ""
        fetched = self._fetch(
            "SELECT last.run_id, last.task_id,"
            f" (SELECT count(*) FROM rollouts AS every WHERE {same.format('every')}),"
            f" (SELECT min(seq) FROM rollouts AS every WHERE {same.format('every')}), last.seq"
            f" FROM rollouts AS last WHERE NOT EXISTS (SELECT 1 FROM rollouts AS later WHERE {same.format('later')}"
            f" AND later.seq > last.seq){before[0]}{fits} ORDER BY last.seq DESC LIMIT ?",
            (*before[1], *values, limit),
        )
        return [TaskGroup(*row) for row in fetched]

    def added_groups(self) -> list[TaskGroup]:
        """All groups of rollouts that were added, by the place of their last rollout, the newest first."""
        fetched = self._fetch(
            "SELECT run_id, task_id, count(*), min(seq), max(seq) FROM rollouts WHERE added = 1"
            " GROUP BY run_id, task_id ORDER BY max(seq) DESC"
        )
        return [TaskGroup(*row) for row in fetched]

    def rollouts_of_groups(self, groups: Sequence[TaskGroup]) -> list[RolloutHead]:
        """The rollouts of these groups, in the order of writing."""
        if not groups:
            return []
        first, last = min(group.first for group in groups), max(group.last for group in groups)
        fetched = self._fetch(
            f"SELECT {_HEAD} FROM rollouts WHERE seq BETWEEN ? AND ? AND task_id = ANY(?) ORDER BY seq",
            (first, last, sorted({group.task_id for group in groups})),
        )
        meant = {(group.run_id, group.task_id) for group in groups}
        return [head for row in fetched if ((head := RolloutHead(*row)).run_id, head.task_id) in meant]

    def group_of(self, run_id: str, task_id: str) -> list[str]:
        """The ids of the rollouts of a task in a run, in the order of writing."""
        fetched = self._fetch(
            "SELECT rollout_id FROM rollouts WHERE run_id = ? AND task_id = ? ORDER BY seq", (run_id, task_id)
        )
        return [rollout_id for (rollout_id,) in fetched]

    def attempts_of(self, ids: Sequence[str]) -> list[Row]:
        """``rollout_id, attempt, started_at, ended_at, outcome, error`` (its beginning), by rollout and attempt."""
        return self._fetch(
            f"SELECT rollout_id, attempt, started_at, ended_at, outcome, substr(error, 1, {ERROR_SHOWN}) FROM attempts"
            " WHERE rollout_id = ANY(?) ORDER BY rollout_id, attempt",
            (list(ids),),
        )

    def call_figures(self, ids: Sequence[str]) -> list[CallFigures]:
        """The calls of these rollouts, summed up by attempt and agent."""
        fetched = self._fetch(
            "SELECT rollout_id, coalesce(attempt, 1), agent, count(*),"
            " CASE WHEN count(*) = count(prompt_rest) THEN sum(prompt_shared + length(prompt_rest) / 4) END,"
            " CASE WHEN count(*) = count(response_ids) THEN sum(length(response_ids) / 4) END,"
            " sum(CASE WHEN finish_reason IN ('length', 'max_tokens', 'max_output_tokens', 'MAX_TOKENS') THEN 1 ELSE 0 END),"
            " min(weights_version), max(weights_version)"
            " FROM calls WHERE rollout_id = ANY(?) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            (list(ids),),
        )
        return [
            CallFigures(*row[:4], *(count if count is None else int(count) for count in row[4:])) for row in fetched
        ]

    def chats_of(self, ids: Sequence[str]) -> dict[tuple[str, int], int]:
        """How many model calls adapters recorded as spans, by rollout and attempt."""
        fetched = self._fetch(
            "SELECT rollout_id, coalesce(attempt, 1), count(*) FROM spans WHERE rollout_id = ANY(?) AND claimed = 0"
            " AND attributes LIKE ? GROUP BY 1, 2",
            (list(ids), f'%"{semconv.OPERATION}":"{semconv.CHAT}"%'),
        )
        return {(rollout_id, attempt): count for rollout_id, attempt, count in fetched}

    def decisions_of(self, ids: Sequence[str]) -> list[tuple[str, int | None, DecisionKind]]:
        """The rollout, the attempt and the kind of each decision on these rollouts that did more than allow."""
        fetched = self._fetch(
            f"SELECT decisions.rollout_id, decisions.attempt, {_KIND} FROM decisions"
            " JOIN decision_kinds AS kinds ON kinds.kind = decisions.kind"
            f" WHERE decisions.rollout_id = ANY(?) AND {_NOT_ONLY_ALLOWED}",
            (list(ids),),
        )
        return [(rollout_id, attempt, DecisionKind(*kind)) for rollout_id, attempt, *kind in fetched]

    def decisions_before(
        self, seq: int | None, limit: int, effect: str | None, columns: Mapping[str, str]
    ) -> list[ListedDecision]:
        """At most ``limit`` decisions before the place ``seq`` (None: from the newest on), the newest first.

        ``effect`` is an effect, ``blocked`` or ``would``; None: all that did more than allow. ``columns`` has values that
        decisions must have, by ``policy``, ``rule``, ``tool`` and ``agent``.
        """
        done = {None: _NOT_ONLY_ALLOWED, "blocked": _BLOCKED, "would": _WOULD_BLOCK}.get(effect)
        terms, values = [done or "effect = ?"], [] if done else [effect]
        if effect not in (None, "blocked", "would", "allow"):
            terms.append(_NOT_ONLY_ALLOWED)
        for name, value in columns.items():
            if name == "tool":
                terms.append("(action = ? OR (point = ? AND would = '' AND action_kind IN ('model', 'text', 'agent')))")
                values += [cut(value), value.removeprefix("(").removesuffix(")") if value.startswith("(") else None]
            else:
                terms.append(f"{name} = ?")
                values.append(cut(value))
        before = ("", []) if seq is None else (" AND span < ?", [seq])
        # The sign keeps the database from collecting the decisions of each kind where the newest ones are asked for.
        fetched = self._fetch(
            "SELECT span, spans.started_at, spans.rollout_id, spans.attempt, spans.attributes FROM decisions"
            f" JOIN spans ON spans.seq = span WHERE +kind IN (SELECT kind FROM decision_kinds WHERE {' AND '.join(terms)})"
            f"{before[0]} ORDER BY span DESC LIMIT ?",
            (*values, *before[1], limit),
        )
        return [ListedDecision(*row) for row in fetched]

    def decisions_over_time(self, most_bins: int) -> DecisionsOverTime:
        """Counts all decisions, in at most about ``most_bins`` bins: a bin is 1, 2, 4, ... seconds wide."""
        ((first, last),) = self._fetch("SELECT min(second), max(second) FROM decisions")
        width_s = 1
        while first is not None and (last - first) // width_s >= most_bins:
            width_s *= 2
        kinds = {
            row[0]: DecisionKind(*row[1:]) for row in self._fetch(f"SELECT kind, {_KIND} FROM decision_kinds AS kinds")
        }
        counts: dict[DecisionKind, Counter[int]] = {}
        for kind, number, count in self._fetch(
            f"SELECT kind, second / {width_s:d}, count(*) FROM decisions GROUP BY kind, second / {width_s:d}"
        ):
            counts.setdefault(kinds[kind], Counter())[number * width_s] = count
        return DecisionsOverTime(width_s, counts)

    def decision_kinds(self) -> list[DecisionKind]:
        """The kinds of which there are decisions."""
        fetched = self._fetch(
            f"SELECT {_KIND} FROM decision_kinds AS kinds"
            " WHERE EXISTS (SELECT 1 FROM decisions WHERE decisions.kind = kinds.kind)"
        )
        return [DecisionKind(*row) for row in fetched]

    def first_blocked(self, rollout_id: str | None = None, attempt: int | None = None) -> tuple[str, int] | None:
        """The rollout and attempt of the first decision on a rollout that blocked something, or would have; None without.

        Of all rollouts and attempts, or of those named.
        """
        fetched = self._fetch(
            "SELECT decisions.rollout_id, coalesce(decisions.attempt, 1) FROM decisions JOIN spans ON spans.seq = span"
            f" WHERE decisions.kind IN (SELECT kind FROM decision_kinds WHERE {_BLOCKED} OR {_WOULD_BLOCK})"
            " AND decisions.rollout_id = coalesce(?, decisions.rollout_id)"
            " AND coalesce(decisions.attempt, 1) = coalesce(?, decisions.attempt, 1) ORDER BY spans.started_at, span LIMIT 1",
            (rollout_id, attempt),
        )
        return (fetched[0][0], fetched[0][1]) if fetched else None

    def agents_between(self, after: int, last: int) -> list[str]:
        """The agents of the calls with ``after`` < seq <= ``last``."""
        fetched = self._fetch(
            "SELECT DISTINCT agent FROM calls WHERE seq > ? AND seq <= ? AND agent IS NOT NULL", (after, last)
        )
        return [agent for (agent,) in fetched]

    def fitting(self, ids: Sequence[str], filters: Filters) -> set[str]:
        """Which of these rollouts fit the filters, their text among them."""
        where, values = filters.conditions("rollouts")
        query = f"SELECT rollout_id FROM rollouts WHERE rollout_id = ANY(?){where}"
        fit = {rollout_id for (rollout_id,) in self._fetch(query, (list(ids), *values))}
        return self.containing(sorted(fit), filters.text) if filters.text else fit

    def containing(self, ids: Sequence[str], text: str) -> set[str]:
        """Which of these rollouts contain a text: in id, task, input, result or error, in a call, or in a span. Case does not
        count.
        """
        inside = json.dumps(text)[1:-1].lower()
        for special in "!%_":
            inside = inside.replace(special, f"!{special}")
        columns = {
            "rollouts": ("CASE WHEN added = 1 THEN input END", "rollout_id", "task_id"),
            "attempts": ("result", "error"),
            "calls": ("request", "response"),
            "spans": ("attributes",),
        }
        containing: set[str] = set()
        for table, names in columns.items():
            remaining = [id_ for id_ in ids if id_ not in containing]
            if not remaining:
                break
            where = " OR ".join(f"lower({name}) LIKE ? ESCAPE '!'" for name in names)
            rows = self._fetch(
                f"SELECT DISTINCT rollout_id FROM {table} WHERE rollout_id = ANY(?) AND ({where})",
                (remaining, *[f"%{inside}%"] * len(names)),
            )
            containing.update(rollout_id for (rollout_id,) in rows)
        return containing
