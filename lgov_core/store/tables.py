"""The tables that both databases have, in SQLite's types (`lgov_core.store.postgres` translates them), and their decisions.

``seq`` is the order of writing in every table. Rollouts, attempts and the queue are bound to each other; calls, rewards and
spans may name a rollout that was never added: they are kept even so. Times are Unix seconds. Token ids are little-endian
int32 in blobs; mappings are JSON text. Logprobs are little-endian floats in a blob: of 32 bits where that keeps each of them
exactly, else of 64; the length tells which.

Of a call's prompt and request only what is new is stored. ``base`` is the ``seq`` of an earlier call of the same attempt,
NULL when nothing is left out. The prompt begins with the first ``prompt_shared`` tokens of that call's prompt and response,
and ``prompt_rest`` is what follows. ``request_repeats`` has, by name, of which values of the request only what is new is
stored, as ``{name: [head, tail]}``: as a JSON text, such a value begins with the first ``head`` characters of that call's
value of the name, ends with its last ``tail``, and the string under the name in ``request`` is the text in between.
The prompt's token ids are left out of ``response`` too (see `lgov_core.store.rows`).
A ``seq`` is never used twice, so that a reference cannot come to mean another call, and an attempt is only deleted as a whole.

``digest`` of a span is over all its fields: the same span sent again is not written again.

Every rollout that a call or a span names has a row in ``rollouts``. ``added`` is 0 where nobody added the rollout: then it is
a task of its own, of no run and with an empty input, and ``created_at`` is when the first of its calls and spans began.

``decisions`` has a row for each span that is a decision of a policy and was not reported from outside (``claimed``), named by
``span``, the span's ``seq``; ``second`` is when it began. Decisions that are alike in all but the time and the rollout share a
row of ``decision_kinds``: policy, rule, action, agent, effect, what shadow mode would have done, point and kind of action. The
number of a kind is a hash of these texts, so that every process that writes gives it the same one. Texts are cut at 200
characters, and written as every database can store them (`lgov_core.store.rows.readable`). Decisions are written with the spans
that they are, and made once from the spans of an older store.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from lgov_core.store import rows
from lgov_core.store.rows import readable
from lgov_core.trace import semconv

CALLS: Final = """CREATE TABLE calls (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        response_id TEXT NOT NULL,
        choice INTEGER NOT NULL,
        route TEXT NOT NULL,
        model TEXT NOT NULL,
        request TEXT NOT NULL,
        response TEXT NOT NULL,
        prompt_rest BLOB,
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
        engine TEXT NOT NULL,
        base INTEGER,
        prompt_shared INTEGER NOT NULL DEFAULT 0,
        request_repeats TEXT,
        UNIQUE (response_id, choice)
    )"""

QUEUE: Final = (
    """CREATE TABLE queue (
        seq INTEGER PRIMARY KEY,
        rollout_id TEXT NOT NULL UNIQUE REFERENCES rollouts (rollout_id),
        run_id TEXT NOT NULL,
        state TEXT NOT NULL,
        config TEXT NOT NULL,
        enqueued_at REAL NOT NULL,
        available_at REAL NOT NULL,
        attempt INTEGER NOT NULL DEFAULT 0,
        outcome TEXT,
        worker_id TEXT,
        lease_until REAL,
        deadline REAL,
        ended_at REAL,
        reason TEXT
    )""",
    "CREATE INDEX queue_waits ON queue (seq) WHERE state IN ('queued', 'requeued')",
    "CREATE INDEX queue_waits_of_run ON queue (run_id, seq) WHERE state IN ('queued', 'requeued')",
    "CREATE INDEX queue_runs ON queue (least(lease_until, deadline)) WHERE state = 'running'",
    "CREATE INDEX queue_of_worker ON queue (worker_id) WHERE state = 'running'",
    "CREATE INDEX queue_of_run ON queue (run_id)",
)

#: The rollouts of a run, and those of a task in a run, in the order of writing.
ROLLOUTS_INDEX: Final = "CREATE INDEX rollouts_of_task ON rollouts (run_id, task_id, seq)"

DECISIONS: Final = (
    """CREATE TABLE decision_kinds (
        kind INTEGER PRIMARY KEY,
        policy TEXT NOT NULL,
        rule TEXT NOT NULL,
        action TEXT NOT NULL,
        agent TEXT NOT NULL,
        effect TEXT NOT NULL,
        would TEXT NOT NULL,
        point TEXT NOT NULL,
        action_kind TEXT NOT NULL
    )""",
    """CREATE TABLE decisions (
        span INTEGER PRIMARY KEY REFERENCES spans (seq) ON DELETE CASCADE,
        kind INTEGER NOT NULL REFERENCES decision_kinds (kind),
        second INTEGER NOT NULL,
        rollout_id TEXT,
        attempt INTEGER
    )""",
    "CREATE INDEX decisions_over_time ON decisions (kind, second)",
    "CREATE INDEX decisions_of_rollout ON decisions (rollout_id, kind)",
)

TABLES: Final = (
    """CREATE TABLE rollouts (
        seq INTEGER PRIMARY KEY,
        rollout_id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        input TEXT NOT NULL,
        created_at REAL NOT NULL,
        added INTEGER NOT NULL DEFAULT 1
    )""",
    ROLLOUTS_INDEX,
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
    CALLS,
    """CREATE TABLE rewards (
        seq INTEGER PRIMARY KEY,
        reward_id TEXT NOT NULL UNIQUE,
        value REAL NOT NULL,
        dimension TEXT NOT NULL,
        rollout_id TEXT,
        attempt INTEGER,
        response_id TEXT,
        tool_call_id TEXT,
        source TEXT NOT NULL,
        choice INTEGER
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
        parent_id TEXT,
        trace_id TEXT,
        events TEXT,
        claimed INTEGER NOT NULL DEFAULT 0,
        digest BLOB
    )""",
    "CREATE INDEX spans_of_rollout ON spans (rollout_id)",
    "CREATE UNIQUE INDEX spans_once ON spans (digest)",
    *DECISIONS,
    *QUEUE,
)


#: Runs a statement once for each item of a sequence.
ChangeEach: TypeAlias = "Callable[[str, Sequence[Sequence[Any]]], Any]"

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


def insert_decisions(change_each: ChangeEach, spans: Iterable[tuple[rows.Row, bytes]]) -> None:
    """Writes the decisions among these rows of ``SPAN_COLUMNS``, which are in the table of spans, each with its digest."""
    decided = [
        (_kind_of(row[rows.SPAN_ATTRIBUTES]), _second(row[rows.SPAN_STARTED]), digest)
        for row, digest in spans
        if row[rows.SPAN_NAME] == semconv.DECISION_SPAN_NAME and not row[rows.SPAN_CLAIMED]
    ]
    _insert(change_each, decided, "digest")


def migrate_decisions(
    execute: Callable[[str, Sequence[Any]], list[rows.Row]],
    change_each: ChangeEach,
) -> None:
    """Fills the tables of decisions from the spans of an older store, inside the transaction that brings it up to date."""
    last = 0
    while spans := execute(_OLD_DECISIONS, (last,)):
        last = spans[-1][0]
        _insert(change_each, [(_kind_of(text), _second(started_at), seq) for seq, started_at, text in spans], "seq")


def _insert(change_each: ChangeEach, decided: Sequence[tuple[rows.Row, int, Any]], of: str) -> None:
    """Writes decisions: of each its kind, its second, and which span it is, by the column ``of``."""
    if decided:
        change_each(_INSERT_KIND, list({kind[0]: kind for kind, _, _ in decided}.values()))
        change_each(_INSERT_DECISION.format(of=of), [(kind[0], second, which) for kind, second, which in decided])


def _kind_of(attributes: str) -> rows.Row:
    """A row of ``decision_kinds``, from the JSON text of a span's attributes."""
    values: dict[str, Any] = json.loads(attributes)
    return _numbered(*(str(values.get(name) or "") for name in KIND_COLUMNS.values()))


@functools.lru_cache(maxsize=1024)  # decisions are many and their kinds few
def _numbered(*texts: str) -> rows.Row:
    """The row of the kind with these texts, which it cuts."""
    texts = tuple(map(cut, texts))
    digest = hashlib.blake2b(json.dumps(texts).encode("ascii"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1, *texts)


def _second(started_at: float) -> int:
    return int(started_at) if abs(started_at) < _MOST_SECONDS else 0
