"""What the trace store costs: spans written and read back, calls with their conversations, rollouts handed out.

``python -m tests.bench.store``. Spans are written as adapters do (queued one by one) and as the endpoint does (batches that
are durable when the call returns), then read back by rollout. Calls are those of conversations of twenty turns; their row
also says how many bytes the file took for each byte of distinct tokens. ``--postgres`` adds
a PostgreSQL server. Wall clock is what counts for the goals; CPU is of
this process and tells how far a busy machine is to blame. With ``--peer PYTHON``, an interpreter that can import
agentlightning 0.3, its in-memory store is measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lgov_core.store import RolloutConfig, RolloutQueue
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.types import CapturedCall, Outcome, Rollout, Span

PEER = Path(__file__).with_name("store_peer.py")
TURNS = 20
BATCH = 200


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured. ``met`` is None without a goal."""

    what: str
    count: int
    wall_s: float
    cpu_s: float
    goal: str = ""
    met: bool | None = None

    @property
    def a_second(self) -> float:
        return self.count / self.wall_s


def measured(what: str, count: int, run: Callable[[], object], goal: str = "", limit: float | None = None) -> Row:
    """``limit``: how many seconds ``run`` may take for the goal to be met."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    took = time.perf_counter() - wall
    return Row(what, count, took, time.process_time() - cpu, goal, None if limit is None else took <= limit)


def span(i: int, name: str) -> Span:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": f"chatcmpl-{i}",
        "gen_ai.usage.input_tokens": 512,
        "gen_ai.usage.output_tokens": 64,
        "gen_ai.agent.name": "clerk",
        "lgov.framework": "langchain",
        "gen_ai.tool.call.arguments": "SELECT count(*) FROM staff WHERE city = 'Bern' " * 2,
    }
    at = 1.7e9 + i * 0.01
    return Span("chat tiny", f"{name}-{i}", at, at + 0.5, attributes, f"{name}-{i // TURNS}", 1, f"parent-{i // TURNS}")


def conversation(number: int) -> list[CapturedCall]:
    tokens, messages, calls = tuple(range(400)), [{"role": "system", "content": "You are careful. " * 60}], []
    for turn in range(TURNS):
        new = tuple(number * 1000 + turn * 37 + i for i in range(64))
        prompt, response = tokens + new, new[:32]
        messages = [*messages, {"role": "user", "content": f"{number} {turn} " + "and then? " * 20}]
        request = {"model": "tiny", "messages": messages, "tools": [{"name": "run_sql", "description": "x" * 800}]}
        calls.append(
            CapturedCall(
                f"c{number}-{turn}", "tiny", request, {"choices": [{"message": {"content": "SELECT 1; " * 10}}]}, prompt,
                response, tuple(-0.25 * i for i in range(32)), "stop", 0, 1.0, 1.0, 1.7e9, 1.7e9 + 1, f"r{number}", 1,
                "clerk",
            )
        )  # fmt: skip
        tokens, messages = prompt + response, [*messages, {"role": "assistant", "content": "SELECT 1; " * 10}]
    return calls


def run(spans: int, calls: int, opened: Callable[[str, int], Any]) -> list[Row]:
    """``opened`` makes a store: its name, and how many spans may wait in it."""
    found: list[Row] = []
    goal = f"{20_000:,} a second"
    queued = [span(i, "q") for i in range(spans)]
    batches = [[span(i, "b") for i in range(first, first + BATCH)] for first in range(0, spans, BATCH)]
    with opened("spans", spans) as store:

        def one_by_one() -> None:
            for one in queued:
                store.add_span(one)
            store.flush()

        def in_batches() -> None:
            for one in batches:
                store.add_spans(one)

        found.append(measured("spans queued, then flushed", spans, one_by_one, goal, spans / 20_000))
        found.append(measured(f"spans in durable batches of {BATCH}", spans, in_batches, goal, spans / 20_000))
        ids = [f"b-{i}" for i in range(spans // TURNS)]
        limit = 3.0 * spans / 100_000
        found.append(measured("spans read back", spans, lambda: store.spans(ids), "100,000 in 3 s", limit))
        assert store.dropped_spans == 0
        assert len(store.spans(ids)) == spans
    made = [one for number in range(calls // TURNS) for one in conversation(number)]
    with opened("calls", spans) as store:
        futures = []
        found.append(measured("calls, twenty turns each", len(made), lambda: futures.extend(map(store.submit_call, made))
                              or [one.result() for one in futures]))  # fmt: skip
        found.append(measured("calls read back", len(made), lambda: sum(1 for _ in store.calls())))
        assert list(store.calls(["r0"])) == made[:TURNS]
    found.append(_handed_out(opened("queue", spans), min(calls, 2000)))
    return found


def _handed_out(store: RolloutQueue, count: int) -> Row:
    store.enqueue([Rollout(f"r{i}", "t", "run", {}) for i in range(count)], RolloutConfig(max_attempts=3))

    def work() -> None:
        while claims := store.claim("w", 20, lease_s=60.0):
            for one in claims:
                store.finish_attempt(one.rollout.rollout_id, one.attempt.attempt, Outcome.SUCCEEDED)

    row = measured("rollouts claimed and finished", count, work)
    store.close()
    return row


def on_postgres(spans: int, calls: int) -> list[Row]:
    """The same on the server that the tests start, which does not wait for the disk; its CPU is not counted."""
    from lgov_core.store.postgres import PostgresStore
    from tests.postgres_server import PostgresServer

    server = PostgresServer()
    try:
        address = server.url(server.new_database())
        rows = run(spans, calls, lambda name, queue: PostgresStore(address, schema=name, span_queue=queue))
    finally:
        server.close()
    return [replace(row, what=f"PostgreSQL: {row.what}", goal="", met=None) for row in rows]


def bytes_for_tokens(place: Path) -> float:
    """Bytes stored of token ids, for each byte of distinct ones."""
    import sqlite3

    connection = sqlite3.connect(place / "calls.sqlite")
    stored, rollouts = connection.execute(
        "SELECT sum(length(prompt_rest) + length(response_ids)), count(DISTINCT rollout_id) FROM calls"
    ).fetchone()
    connection.close()
    return stored / (4 * rollouts * (400 + TURNS * (64 + 32)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--postgres", action="store_true", help="measure a PostgreSQL server of the tests too")
    parser.add_argument("--peer", help="Python interpreter that can import agentlightning 0.3")
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of the table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(
            options.spans, options.calls, lambda name, queue: SQLiteStore(f"{folder}/{name}.sqlite", span_queue=queue)
        )
        ratio = bytes_for_tokens(Path(folder))
    if options.postgres:
        found += on_postgres(options.spans, options.calls)
    peer: list[Row] = []
    if options.peer:
        said = subprocess.run([options.peer, str(PEER), str(options.spans // 20)], capture_output=True, text=True)
        if said.returncode:
            raise SystemExit(f"the peer failed: {said.stderr[-2000:]}")
        peer = [Row(**one) for one in json.loads(said.stdout.splitlines()[-1])]
    if options.json:
        rows = [{**asdict(row), "a_second": row.a_second} for row in (*found, *peer)]
        print(json.dumps({"rows": rows, "stored_bytes_per_distinct_token_byte": ratio}, indent=2))
        return
    print(f"{'':48}{'count':>9}{'wall s':>9}{'CPU s':>9}{'a second':>11}  goal")
    for row in (*found, *peer):
        met = "" if row.met is None else ("met" if row.met else "MISSED")
        print(f"{row.what:48}{row.count:9,}{row.wall_s:9.2f}{row.cpu_s:9.2f}{row.a_second:11,.0f}  {row.goal} {met}")
    print(f"token ids: {ratio:.2f} bytes stored for each byte of distinct ones (goal: 2 at most)")
    if not peer:
        print("agentlightning 0.3 is not there: no comparison (--peer PYTHON)")
    if any(row.met is False for row in found) or ratio > 2:
        sys.exit(1)


if __name__ == "__main__":
    main()
