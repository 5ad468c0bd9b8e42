"""Times of the window's pages on a large store: ``python -m tests.bench.window [rollouts] [calls of each]``."""

from __future__ import annotations

import json
import random
import resource
import sqlite3
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from lgov_core.store import open_store
from lgov_core.store.rows import FOLDED_COLUMNS, REWARD_COLUMNS, SPAN_COLUMNS, insert
from lgov_core.store.tables import migrate_decisions
from lgov_core.views.web.app import served_window
from lgov_core.views.web.window import Window

_GROUP = 8
_PORTION = 2_000


def make_store(path: Path, rollouts: int, calls: int) -> None:
    """A store as a training leaves it, written with SQL: its own writer would take many minutes."""
    open_store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA synchronous=OFF")
    draw = random.Random(0)
    for first in range(0, rollouts, _PORTION):
        numbers = range(first, min(first + _PORTION, rollouts))
        connection.executemany(
            "INSERT INTO rollouts (rollout_id, task_id, run_id, input, created_at) VALUES (?, ?, 'big', ?, ?)",
            [
                (f"ro_{n}", f"i{n // 1024}-{n // _GROUP}", json.dumps({"question": f"number {n // _GROUP}"}), n)
                for n in numbers
            ],
        )
        connection.executemany(
            "INSERT INTO attempts (rollout_id, attempt, started_at, ended_at, outcome) VALUES (?, 1, ?, ?, ?)",
            [(f"ro_{n}", n, n + 5.0, "succeeded" if n % 3 else "failed") for n in numbers],
        )
        connection.executemany(
            insert("calls", FOLDED_COLUMNS), [_call(n, turn) for n in numbers for turn in range(calls)]
        )
        connection.executemany(
            insert("rewards", REWARD_COLUMNS),
            [(f"rw_{n}", draw.random(), "task", f"ro_{n}", 1, None, None, "", None) for n in numbers],
        )
        connection.executemany(insert("spans", SPAN_COLUMNS), [row for n in numbers for row in _spans(n, calls)])
        connection.commit()
    migrate_decisions(lambda query, values: connection.execute(query, values).fetchall(), connection.executemany)
    connection.commit()
    connection.close()


def _call(n: int, turn: int) -> tuple[Any, ...]:
    messages = [{"role": "user", "content": f"turn {turn} of {n} " + "words " * 60}]
    request = json.dumps({"messages": messages}, separators=(",", ":"))
    message = {"role": "assistant", "content": None, "tool_calls": [_tool_call(n, turn)]}
    response = json.dumps({"choices": [{"index": 0, "message": message}]})
    ids, logprobs = array("i", range(100)).tobytes(), array("f", [-0.1] * 40).tobytes()
    head = (f"c_{n}_{turn}", 0, "chat", "model", request, response, ids, ids[:160], logprobs, "tool_calls")
    rest = (
        n // 1024,
        1.0,
        1.0,
        n + turn,
        n + turn + 0.5,
        f"ro_{n}",
        1,
        "agent",
        json.dumps([f"t_{n}_{turn}"]),
        "engine",
    )
    return (*head, *rest, None, 0, None)


def _tool_call(n: int, turn: int) -> dict[str, Any]:
    return {"id": f"t_{n}_{turn}", "type": "function", "function": {"name": "search", "arguments": '{"q": "words"}'}}


def _spans(n: int, calls: int) -> Iterator[tuple[Any, ...]]:
    for turn in range(calls):
        denied = n % 500 == 0 and turn == 0
        common = {"gen_ai.agent.name": "agent", "lgov.rollout_id": f"ro_{n}", "lgov.attempt": 1}
        decided = common | {
            "lgov.point": "pre_tool_call",
            "lgov.action.kind": "function",
            "lgov.action.name": "search",
            "gen_ai.tool.call.id": f"t_{n}_{turn}",
            "lgov.decision.effect": "deny" if denied else "allow",
            "lgov.decision.policy": "tools",
            "lgov.decision.rule": "rare" if denied else "default",
            "lgov.decision.reason": "It is not allowed today." if denied else "Nothing is against it.",
        }
        text = json.dumps(decided, separators=(",", ":"))
        yield (f"s_{n}_{turn}", "lgov.decision", n + turn, n + turn, text, f"ro_{n}", 1, None, None, None, 0)


def measure(path: Path, say: Callable[[str], None] = print) -> dict[str, float]:
    """The seconds that each page takes over HTTP, the longest of its first twelve; says each and the memory of the process.

    ``memory`` is by how many MB the process grew after the first page.
    """
    began = time.perf_counter()
    window = Window(str(path))
    found: dict[str, float] = {}
    with ExitStack() as opened:
        server, address = opened.enter_context(served_window(window, host="127.0.0.1", port=0, say=lambda _: None))
        with httpx.Client(base_url=f"{server.url}/view/api/", timeout=120) as client:
            client.get(address)

            def timed(name: str, place: str) -> dict[str, Any]:
                start = time.perf_counter()
                answer = client.get(place)
                answer.raise_for_status()
                took = time.perf_counter() - start
                found[name] = max(found.get(name, 0.0), took)
                return answer.json()

            timed("sources", "sources")
            timed("first page of rollouts", "rollouts")
            found["from start to the first page"] = time.perf_counter() - began
            memory = _memory_mb()
            say(f"memory {memory:.0f} MB after the first page")
            for name, place in _PAGES.items():
                cursor: str | None = ""
                for _ in range(12):
                    if cursor is None:
                        break
                    given = f"{'&' if '?' in place else '?'}cursor={cursor}" if cursor else ""
                    cursor = timed(name, place + given).get("cursor")
            middle = timed("a rollout", "rollouts/ro_50")["steps"][0]["call"]
            timed("its tokens", f"rollouts/ro_50/calls/{middle}/tokens")
            began, requests = time.process_time(), 0
            while True:
                requests += 1
                counted = timed("counts of decisions", "governance").get("progress")
                if counted is None or counted["done"] == counted["total"]:
                    break
            say(f"{time.process_time() - began:8.3f} s of CPU, {requests} answers until all decisions are counted")
            timed("changes", "changes")
    window.close()
    for name, seconds in found.items():
        say(f"{seconds * 1000:8.0f} ms  {name}")
    say(f"memory {_memory_mb():.0f} MB at the end")
    return {**found, "memory": _memory_mb() - memory}


_PAGES = {
    "rollouts": "rollouts",
    "rollouts that were denied": "rollouts?denied=1",
    "rollouts of an outcome": "rollouts?outcome=failed",
    "rollouts of no outcome": "rollouts?outcome=timeout",
    "rollouts of an agent": "rollouts?agent=nobody",
    "rollouts with a text": "rollouts?text=turn%203%20of%2077777",
    "rollouts of a task": "rollouts?task=i3-400",
    "tasks": "tasks",
    "tasks that were denied": "tasks?denied=1",
    "tasks that teach nothing": "tasks?teaches=nothing",
    "decisions": "governance/decisions",
    "decisions of a rule": "governance/decisions?rule=none",
    "filters": "filters",
    "sides": "compare/sides",
    "runs": "runs",
}


def _memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Makes the store in a temporary folder and measures."""
    rollouts, calls = (int(one) for one in (*sys.argv[1:3], "100000", "5")[:2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        start = time.perf_counter()
        make_store(path, rollouts, calls)
        size, took = path.stat().st_size / 1e6, time.perf_counter() - start
        print(f"{rollouts} rollouts, {rollouts * calls} calls: {size:.0f} MB, made in {took:.0f} s")
        measure(path)


if __name__ == "__main__":
    main()
