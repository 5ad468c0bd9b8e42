"""The table of decisions: written with the spans that they are, and made once from the spans of an older store.

A decision's *kind* is what many decisions are alike in: policy, rule, action, agent, effect, what shadow mode would have done,
point and kind of action. Its number is a hash of these texts, so that every process that writes gives it the same one. Texts
are cut at 200 characters, and written as every database can store them (`lgov_core.store.rows.readable`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from lgov_core.store import rows
from lgov_core.store.database import Transaction
from lgov_core.store.rows import readable
from lgov_core.trace import semconv

#: Characters of each text of a kind.
LONGEST: Final = 200
#: The columns of a kind after its number, and the attribute of the span that each is from.
KIND_COLUMNS: Final = {
    "policy": semconv.DECISION_POLICY,
    "rule": semconv.DECISION_RULE,
    "action": semconv.ACTION_NAME,
    "agent": semconv.AGENT_NAME,
    "effect": semconv.DECISION_EFFECT,
    "would": semconv.DECISION_WOULD,
    "point": semconv.POINT,
    "action_kind": semconv.ACTION_KIND,
}
_INSERT_KIND: Final = (
    rows.insert("decision_kinds", f"kind, {', '.join(KIND_COLUMNS)}") + " ON CONFLICT (kind) DO NOTHING"
)
_INSERT_DECISION: Final = (
    "INSERT INTO decisions (span, kind, second, rollout_id, attempt)"
    " SELECT seq, ?, ?, rollout_id, attempt FROM spans WHERE {of} = ? ON CONFLICT (span) DO NOTHING"
)
#: Times further from 1970 count as 0.
_MOST_SECONDS: Final = 2.0**50
#: Spans of an older store that are read together.
_PORTION: Final = 5_000
#: What gives a rollout of an older store its row: those that nobody added, in the order in which they began.
ADD_ROLLOUTS: Final = (
    "INSERT INTO rollouts (rollout_id, task_id, run_id, input, created_at, added)"
    " SELECT rollout_id, rollout_id, '', '{}', min(at), 0 FROM ("
    " SELECT rollout_id, min(started_at) AS at FROM calls WHERE rollout_id IS NOT NULL GROUP BY rollout_id"
    " UNION ALL SELECT rollout_id, min(started_at) FROM spans WHERE rollout_id IS NOT NULL GROUP BY rollout_id"
    ") AS named WHERE NOT EXISTS (SELECT 1 FROM rollouts WHERE rollouts.rollout_id = named.rollout_id)"
    " GROUP BY rollout_id ORDER BY min(at), rollout_id"
)
_OLD_DECISIONS: Final = (
    f"SELECT seq, started_at, attributes FROM spans WHERE name = '{semconv.DECISION_SPAN_NAME}' AND claimed = 0"
    f" AND seq > ? ORDER BY seq LIMIT {_PORTION}"
)


def cut(text: str) -> str:
    """A text as the columns of a kind have it."""
    return readable(text[:LONGEST])


def insert_decisions(transaction: Transaction, spans: Iterable[tuple[rows.Row, bytes]]) -> None:
    """Writes the decisions among these rows of ``SPAN_COLUMNS``, which are in the table of spans, each with its digest."""
    decided = [
        (_kind_of(row[rows.SPAN_ATTRIBUTES]), _second(row[rows.SPAN_STARTED]), digest)
        for row, digest in spans
        if row[rows.SPAN_NAME] == semconv.DECISION_SPAN_NAME and not row[rows.SPAN_CLAIMED]
    ]
    _insert(transaction.change_each, decided, "digest")


def migrate_decisions(
    execute: Callable[[str, Sequence[Any]], list[rows.Row]],
    change_each: Callable[[str, Sequence[Sequence[Any]]], Any],
) -> None:
    """Fills the tables of decisions from the spans of an older store, inside the transaction that brings it up to date."""
    last = 0
    while spans := execute(_OLD_DECISIONS, (last,)):
        last = spans[-1][0]
        _insert(change_each, [(_kind_of(text), _second(started_at), seq) for seq, started_at, text in spans], "seq")


def _insert(
    change_each: Callable[[str, Sequence[Sequence[Any]]], Any], decided: Sequence[tuple[rows.Row, int, Any]], of: str
) -> None:
    """Writes decisions: of each its kind, its second, and which span it is, by the column ``of``."""
    if decided:
        change_each(_INSERT_KIND, list({kind[0]: kind for kind, _, _ in decided}.values()))
        change_each(_INSERT_DECISION.format(of=of), [(kind[0], second, which) for kind, second, which in decided])


def _kind_of(attributes: str) -> rows.Row:
    """A row of ``decision_kinds``, from the JSON text of a span's attributes."""
    values: dict[str, Any] = json.loads(attributes)
    texts = [cut(str(values.get(name) or "")) for name in KIND_COLUMNS.values()]
    digest = hashlib.blake2b(json.dumps(texts).encode("ascii"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1, *texts)


def _second(started_at: float) -> int:
    return int(started_at) if abs(started_at) < _MOST_SECONDS else 0
