"""What a decision costs: with a hundred rules, committed to the audit record, on SQL and shell texts, seen before and new.

Run it with ``make bench``, which installs agent-os-kernel beside lgov in an environment of its own: the same questions are
then asked of both, in turns, in one process. Times are wall clock in one thread, garbage collection included. A row is
measured in slices, all rows in turns, so that a busy moment of the machine falls on all alike. Beside the median of all
calls stands that of the quietest slice: where a core's other hardware thread is busy, everything takes half as long again.
What the libraries underneath take alone, the parser and SQLite, stands beside what lgov makes of them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import itertools
import json
import logging
import sqlite3
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlglot.parser
from sqlglot.dialects.dialect import Dialect

from lgov_core import Action, AuditLog, Effect, Governor, Point, PolicySet, SQLPolicy, ToolPolicy
from lgov_core.policies import ConstantPolicy, FlowPolicy, Rule, ShellPolicy
from lgov_core.scope import RolloutScope, enter_scope

RULES = 100
#: The rows are measured in turns, so many times.
SLICES = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to measure. ``goal`` is what the median may take, in microseconds, and ``goal_p99`` the 99th percentile.

    ``beside`` is the row of lgov with which a row of the peer is compared; ``share`` of all calls are made. A row with
    ``floor_of`` is the part of that row's work that a library does, alone: lgov cannot be faster than that.
    """

    what: str
    call: Callable[[], object]
    goal: float | None = None
    goal_p99: float | None = None
    beside: str | None = None
    share: float = 1.0
    floor_of: str | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """One row measured: microseconds a call, over ``calls`` calls.

    ``quiet_us`` is the lowest median of a slice. ``met`` is None without a goal; it and ``met_quiet`` say whether the goal
    is met by the median of all calls, and by that of the quietest slice.
    """

    what: str
    calls: int
    p50_us: float
    quiet_us: float
    p99_us: float
    goal_us: float | None
    goal_p99_us: float | None
    met: bool | None
    met_quiet: bool | None
    beside: str | None
    floor_of: str | None

    @property
    def verdict(self) -> str:
        """What there is to say about the goal."""
        if self.met is None:
            return ""
        return ": met" if self.met else ": met in the quietest slice only" if self.met_quiet else ": NOT met"


def measure(rows: list[Row], calls: int) -> list[Measure]:
    took: list[list[list[int]]] = [[] for _ in rows]
    counts = [max(5, int(calls * row.share / SLICES)) for row in rows]
    for row in rows:
        for _ in range(50):
            row.call()
    for _ in range(SLICES):
        for row, slices, count in zip(rows, took, counts, strict=True):
            call, times = row.call, []
            slices.append(times)
            for _ in range(count):
                began = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - began)
    return [_measured(row, times) for row, times in zip(rows, took, strict=True)]


def _measured(row: Row, slices: list[list[int]]) -> Measure:
    times = [took for times in slices for took in times]
    cuts = statistics.quantiles(times, n=100)
    p50, p99 = cuts[49] / 1000, cuts[98] / 1000
    quiet = min(statistics.median(times) for times in slices) / 1000
    met = met_quiet = None
    if row.goal is not None:
        late = row.goal_p99 is not None and p99 > row.goal_p99
        met, met_quiet = p50 <= row.goal and not late, quiet <= row.goal and not late
    return Measure(
        row.what, len(times), p50, quiet, p99, row.goal, row.goal_p99, met, met_quiet, row.beside, row.floor_of
    )


def hundred_rules(*further: Rule, **more: Any) -> PolicySet:
    """A hundred rules, of which the last covers the tool ``search`` and allows it, and ``further`` ones."""
    others = [Rule(ConstantPolicy(Effect.DENY), name=f"r{n}", tools=(f"tool_{n}",)) for n in range(RULES - 1)]
    return PolicySet([*others, Rule(ToolPolicy(allow=["search"]), name="search", tools=("search",), **more), *further])


def action(tool: str, **arguments: str) -> Action:
    return Action(Point.PRE_TOOL_CALL, tool, arguments=arguments, call_id="call_1", agent="bench")


def decide(governor: Governor, subject: Action, *, blocks: bool = False) -> Callable[[], object]:
    def call() -> None:
        if governor.decide(subject).blocks != blocks:
            raise AssertionError(f"the subject of a measure was judged wrongly: {subject}")

    return call


def after_50_turns(*further: Rule) -> Callable[[], object]:
    """A decision with a hundred rules and ``further`` ones, in a rollout of 50 turns and 200 kB of results."""
    governor = Governor(hundred_rules(*further))
    with enter_scope(RolloutScope("ro_1")):
        governor.decide(
            Action(Point.INPUT, "bench", text="Tell ann@example.org the pay of the sales department", source="user")
        )
        for turn in range(50):
            row = {"id": turn, "name": f"worker {turn}", "mail": f"w{turn}@example.org", "text": f"word{turn} " * 5}
            text = json.dumps([row] * (4_000 // len(json.dumps(row))))
            result = Action(Point.POST_TOOL_CALL, "read", arguments={"page": turn}, text=text, source="tool")
            governor.decide(result)
    subject = action("search", query="pay of the sales department", to="w49@example.org", name="worker 7")
    return in_rollout(decide(governor, subject))


def new_tools(governor: Governor) -> Callable[[], object]:
    numbers: Iterator[int] = itertools.count()

    def call() -> None:
        if not governor.decide(action(f"unheard_of_{next(numbers)}")).blocks:
            raise AssertionError("a tool that no rule covers was allowed")

    return call


def in_rollout(call: Callable[[], object]) -> Callable[[], object]:
    scope = RolloutScope("ro_1")

    def scoped() -> None:
        with enter_scope(scope):
            call()

    return scoped


def a_query(number: int) -> str:
    return f"SELECT name, pay FROM staff WHERE dept = 'd{number}' ORDER BY pay DESC LIMIT 5"


def parse_alone() -> Callable[[], object]:
    """The parser by itself, on the same statements."""
    numbers, dialect = itertools.count(), Dialect.get_or_raise("sqlite")
    return lambda: dialect.parse(a_query(next(numbers)))


def insert_alone(folder: Path) -> Callable[[], object]:
    """SQLite by itself: the rows that the audit record would keep, each committed to a table without triggers or index."""
    with AuditLog(folder / "source.db") as log:
        Governor(hundred_rules(), audit=log).decide(action("search", query="pay of the sales department"))
    with contextlib.closing(sqlite3.connect(folder / "source.db")) as source:
        columns = "writer, seq, rollout_id, body, prev_hash, hash, salt, arguments, content"
        row = source.execute(f"SELECT {columns} FROM entries").fetchone()
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",
        "PRAGMA wal_autocheckpoint=4000",
        f"CREATE TABLE entries (position INTEGER PRIMARY KEY, {columns})",
    ):
        connection.execute(statement)
    insert = f"INSERT INTO entries ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    return lambda: connection.execute(insert, row)


def chain_alone(folder: Path) -> Callable[[], object]:
    """The least that an audit record can be: a decision as canonical JSON, chained by SHA-256, each entry committed.

    Append-only by triggers. Nothing is judged, no text is kept apart, nothing is signed.
    """
    connection = sqlite3.connect(folder / "chain.db", isolation_level=None)
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",
        "PRAGMA wal_autocheckpoint=4000",
        "CREATE TABLE entries (position INTEGER PRIMARY KEY, body TEXT, previous BLOB, hash BLOB)",
        *(
            f"CREATE TRIGGER no_{what} BEFORE {what} ON entries BEGIN SELECT RAISE(ABORT, 'append-only'); END"
            for what in ("UPDATE", "DELETE")
        ),
    ):
        connection.execute(statement)
    numbers, head = itertools.count(), bytes(32)
    encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

    def call() -> None:
        nonlocal head
        said = {
            "seq": next(numbers), "time_ns": time.time_ns(), "point": "pre_tool_call", "name": "search", "agent": "bench",
            "arguments": {"query": "pay of the sales department"}, "call_id": "call_1", "effect": "allow",
            "policy": "tool", "rule": "search", "reason": "the tool is allowed", "severity": "low",
        }  # fmt: skip
        body = encode(said)
        previous, head = head, hashlib.sha256(head + body.encode()).digest()
        connection.execute("INSERT INTO entries (body, previous, hash) VALUES (?, ?, ?)", (body, previous, head))

    return call


def new_sql(governor: Governor) -> Callable[[], object]:
    numbers: Iterator[int] = itertools.count()

    def call() -> None:
        query = a_query(next(numbers))
        if governor.decide(action("run_sql", query=query)).blocks:
            raise AssertionError(query)

    return call


#: Shell texts of plain reading and editing; each is made new by a number.
SHELL_TEXTS = (
    "ls -la src{n}",
    "grep -rn 'def main' src | head -{n}",
    "sed -n '{n},20p' src/main.py",
    "cat a{n}.txt | sort | uniq -c",
    'for f in src/*.py; do wc -l "$f"; done; echo {n}',
    "mkdir -p out{n} && cp a.txt out{n}/",
)


def new_shell(folder: Path) -> Callable[[], object]:
    governor = Governor(PolicySet.of(ShellPolicy(cwd=str(folder))))
    numbers: Iterator[int] = itertools.count()

    def call() -> None:
        number = next(numbers)
        text = SHELL_TEXTS[number % len(SHELL_TEXTS)].format(n=number)
        if governor.decide(action("bash", command=text)).blocks:
            raise AssertionError(text)

    return call


ALLOWED, DENIED = f"decision, {RULES} rules, allowed", f"decision, {RULES} rules, denied"
AUDITED = f"decision, {RULES} rules, committed to the audit record"
NEW_SQL = "decision on SQL, new statement"
#: Whether sqlglot's compiled modules are there (the extra ``fast``).
COMPILED = not str(sqlglot.parser.__file__).endswith(".py")
PARSER = f"sqlglot alone, {'compiled' if COMPILED else 'pure Python'}"


def our_rows(audit: AuditLog, folder: Path) -> list[Row]:
    search = action("search", query="pay of the sales department")
    dry = Governor(hundred_rules())
    when = {"all": [{"field": "arguments.query", "contains": "pay"}, {"field": "agent", "glob": "ben*"}]}
    flow = Rule(FlowPolicy(allow=["user", "fields"]), name="flow", tools=("search",))
    policy = SQLPolicy(dialect="sqlite", mode="read_only")
    sql = Governor(PolicySet.of(policy))
    known = action("run_sql", query="SELECT name, pay FROM staff WHERE dept = 'sales'")
    return [
        Row(ALLOWED, decide(dry, search), 15, 100),
        Row(DENIED, decide(dry, action("tool_7"), blocks=True), 15, 100),
        Row(f"decision, {RULES} rules, a tool never heard of", new_tools(dry), 15, 100),
        Row(f"decision, {RULES} rules, in a rollout", in_rollout(decide(dry, search)), 15, 100),
        Row(f"decision, {RULES} rules, with a condition", decide(Governor(hundred_rules(when=when)), search), 15, 100),
        Row(f"decision, {RULES} rules, after 50 turns and 200 kB of results", after_50_turns(), 15, 100),
        Row(f"decision, {RULES} rules and flows, after 50 turns and 200 kB of results", after_50_turns(flow), 45, 300),
        Row(AUDITED, decide(Governor(hundred_rules(), audit=audit), search), 40, share=0.4),
        Row("SQLPolicy alone, statement seen before", lambda: policy.judge(known), 5),
        Row("decision on SQL, statement seen before", decide(sql, known)),
        Row(NEW_SQL, new_sql(sql), 250, share=0.1),
        Row("decision on a plain shell text, never seen before", new_shell(folder), 400, share=0.1),
        Row("SQLite alone, one such row committed", insert_alone(folder), share=0.4, floor_of=AUDITED),
        Row("a hash chain in SQLite and nothing else", chain_alone(folder), share=0.4, floor_of=AUDITED),
        Row(f"{PARSER}, the same statement", parse_alone(), share=0.1, floor_of=NEW_SQL),
    ]


def peer_rows(folder: Path) -> list[Row]:
    """The same questions to agent-os-kernel, or nothing where it is not installed.

    A hundred rules on the tool's name, of which the last matches; and its record of one act, each entry written at once
    as lgov's is, and in batches as it does by default.
    """
    if importlib.util.find_spec("agent_os") is None:
        return []
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from agent_os.policies import PolicyDocument, PolicyEvaluator

    names = [*(f"tool_{n}" for n in range(RULES - 1)), "search"]
    rules = [
        {
            "name": name,
            "condition": {"field": "tool_name", "operator": "eq", "value": name},
            "action": "allow" if name == "search" else "deny",
            "priority": RULES - place,
        }
        for place, name in enumerate(names)
    ]
    document = {"version": "1.0", "name": "bench", "rules": rules, "defaults": {"action": "deny"}}
    evaluator = PolicyEvaluator(policies=[PolicyDocument.model_validate(document)])

    def evaluate(tool: str, allowed: bool) -> Callable[[], object]:
        subject = {"tool_name": tool, "query": "pay of the sales department"}

        def call() -> None:
            if evaluator.evaluate(subject).allowed != allowed:
                raise AssertionError("the subject of a measure was judged wrongly")

        return call

    rows = [
        Row(f"agent-os-kernel, {RULES} rules, allowed", evaluate("search", True), beside=ALLOWED),
        Row(f"agent-os-kernel, {RULES} rules, denied", evaluate("tool_7", False), beside=DENIED),
    ]
    try:
        from agent_control_plane.flight_recorder import FlightRecorder
    except ImportError:
        return rows
    judge = evaluate("search", True)

    def recorded(batching: bool) -> Callable[[], object]:
        recorder = FlightRecorder(db_path=str(folder / f"peer-{batching}.db"), enable_batching=batching)

        def call() -> None:
            judge()
            trace = recorder.start_trace("bench", "search", {"query": "pay of the sales department"}, None)
            recorder.log_success(trace)

        return call

    name = f"agent-os-kernel, {RULES} rules, and its recorder"
    return [
        *rows,
        Row(f"{name}, at once", recorded(False), beside=AUDITED, share=0.2),
        Row(f"{name}, in batches", recorded(True), beside=AUDITED, share=0.4),
    ]


def compared(found: list[Measure]) -> list[str]:
    by_name = {row.what: row for row in found}
    floors = [
        f"{row.what}: {row.p50_us / by_name[row.floor_of].p50_us:.0%} of the median of: {row.floor_of}"
        for row in found
        if row.floor_of is not None
    ]
    return floors + _peers(found, by_name)


def _peers(found: list[Measure], by_name: dict[str, Measure]) -> list[str]:
    return [
        f"{row.what}: {row.p50_us / by_name[row.beside].p50_us:.2f} times lgov's median"
        for row in found
        if row.beside is not None
    ] or ["agent-os-kernel is not installed: no comparison (make bench installs it in .venv-peer)"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        audit = AuditLog(Path(folder) / "audit.db")
        try:
            found = measure([*our_rows(audit, Path(folder)), *peer_rows(Path(folder))], options.calls)
        finally:
            audit.close()
    comparison = compared(found)
    if options.json:
        json.dump({"measures": [asdict(row) for row in found], "comparison": comparison}, sys.stdout, indent=2)
        print()
        return
    width = max(len(row.what) for row in found)
    print(f"{'':{width}}  {'calls':>7}  {'p50 µs':>9}  {'quietest':>9}  {'p99 µs':>9}  goal")
    for row in found:
        goal = "" if row.goal_us is None else f"p50 {row.goal_us:g}"
        goal += "" if row.goal_p99_us is None else f", p99 {row.goal_p99_us:g}"
        times = f"{row.p50_us:>9.1f}  {row.quiet_us:>9.1f}  {row.p99_us:>9.1f}"
        print(f"{row.what:{width}}  {row.calls:>7}  {times}  {goal}{row.verdict}")
    print(*comparison, sep="\n")


if __name__ == "__main__":
    main()
