"""Rows, folded calls, deletion and processes of a PostgreSQL trace store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from lgov_core.errors import StoreError
from lgov_core.store.postgres import PostgresStore
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout
from tests.postgres_server import PostgresServer
from tests.store.postgres_parts import call, span, submit_rewards, submit_spans


def test_a_bad_write_of_a_batch_fails_alone(address: str) -> None:
    with PostgresStore(address) as store:
        store.add_call(call("taken"))
        store.add_spans([span("s3")])
        wait = threading.Event()
        first = store._submit(lambda _: wait.wait(30))  # what follows waits together
        calls = [store.submit_call(call("taken" if i in (7, 70) else f"c{i}")) for i in range(100)]
        rewards = [submit_rewards(store, Reward(i, source="a\tb\\\n"), Reward(i)) for i in range(30)]
        many = submit_spans(store, [span(f"s{i}", text="\t\\N\n") for i in range(30)] + [span("s3"), span("s3")])
        bad = submit_spans(store, [span("good"), span("nul\x00")])
        for i in range(30):
            store.add_span(span(f"q{i}"))
        wait.set()
        assert first.result()
        failed = {i: str(one.exception()) for i, one in enumerate(calls) if one.exception()}
        assert failed.keys() == {7, 70}
        assert all(text.startswith("call taken exists already") for text in failed.values())
        assert not any(one.exception() for one in rewards)
        assert many.result() == 30
        with pytest.raises(StoreError, match="NUL"):
            bad.result()
        store.flush()
        assert [one.response_id for one in store.calls()] == [
            "taken",
            *(f"c{i}" for i in range(100) if i not in (7, 70)),
        ]
        assert [one.value for one in store.rewards()] == [float(i) for i in range(30) for _ in range(2)]
        assert store.rewards()[0].source == "a\tb\\\n"
        spans = store.spans()
        assert Counter(one.span_id for one in spans) == Counter(
            [*(f"s{i}" for i in range(30)), "s3", *(f"q{i}" for i in range(30))]
        )
        assert store.dropped_spans == 0


def test_text_that_postgresql_cannot_hold(address: str) -> None:
    with PostgresStore(address) as store:
        store.add_rollouts([Rollout("r1", "t", "run", {"text": "\x00 \ud800"})])
        assert store.rollouts()[0].input == {"text": "\x00 \ud800"}
        store.start_attempt("r1", 1)
        assert store.finish_attempt("r1", 1, Outcome.FAILED, error="\x00 \ud800").error == "\\x00 \\ud800"
        for changes in ({"agent": "a\x00"}, {"agent": "\ud800"}, {"attempt": 2**63}):
            with pytest.raises(StoreError):
                store.add_call(call("c1", **changes))
        assert list(store.calls()) == []
        with pytest.raises(StoreError):
            store.rollouts(ids=["\ud800"])
        assert len(store.rollouts()) == 1


def test_a_full_queue_drops_spans_and_counts_them(address: str) -> None:
    with PostgresStore(address, span_queue=5) as store:
        wait = threading.Event()
        store._submit(lambda _: wait.wait(30))
        for i in range(20):
            store.add_span(span(f"s{i}"))
        wait.set()
        store.flush()
        assert len(store.spans()) + store.dropped_spans == 20
        assert store.dropped_spans >= 14


async def test_calls_from_tasks(address: str) -> None:
    with PostgresStore(address) as store:
        await asyncio.gather(*(store.add_call_async(call(f"c{i}")) for i in range(50)))
        with pytest.raises(StoreError, match="call c7 exists"):
            await store.add_call_async(call("c7"))
        assert len(list(store.calls())) == 50


def turns(tag: str, count: int, *, rollout: str = "r1") -> list[CapturedCall]:
    """A conversation, each call of which sends all that was said before."""
    tokens: tuple[int, ...] = tuple(range(300))
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are careful. " * 30}]
    calls: list[CapturedCall] = []
    for turn in range(count):
        tokens = (*tokens, *(1000 * len(tag) + 10 * turn + i % 7 for i in range(40)))
        response = tuple(9_000 + turn + i for i in range(15))
        messages = [*messages, {"role": "user", "content": f"{tag} {turn} " * 9}]
        request = {"messages": messages, "seed": turn, "tools": ["t" * 2000]}
        calls.append(
            call(
                f"{tag}-{turn}",
                request=request,
                prompt_ids=tokens,
                response_ids=response,
                logprobs=None,
                attempt=1,
                rollout_id=rollout,
            )
        )
        tokens = (*tokens, *response)
    return calls


def stored(server: PostgresServer, address: str) -> tuple[int, int, int]:
    """How many bytes are stored of token ids, how many of requests, and how many calls are stored whole."""
    name = str(conninfo_to_dict(address)["dbname"])
    ((ids, requests, whole),) = server.execute(
        "SELECT coalesce(sum(length(prompt_rest) + length(response_ids)), 0), coalesce(sum(length(request)), 0),"
        " count(*) FILTER (WHERE base IS NULL) FROM lgov.calls",
        database=name,
    )
    return ids, requests, whole


def test_twenty_turns_cost_no_more_than_what_is_new_in_them(server: PostgresServer, address: str) -> None:
    calls = turns("a", 20)
    with PostgresStore(address) as store:
        for one in calls:
            store.add_call(one)
        assert list(store.calls()) == calls
    ids, requests, whole = stored(server, address)
    distinct = len(calls[-1].prompt_ids or ()) + 15
    assert ids == 4 * distinct
    assert whole == 1
    assert requests < 2 * len(str(calls[-1].request))
    with PostgresStore(address) as again:
        assert list(again.calls(["r1"])) == calls


def test_stores_that_take_turns_find_what_the_others_wrote(server: PostgresServer, address: str) -> None:
    calls = [one for pair in zip(turns("a", 10), turns("bb", 10), strict=True) for one in pair]
    with PostgresStore(address) as first, PostgresStore(address) as second, PostgresStore(address) as third:
        for i, one in enumerate(calls):
            (first, second, third)[i % 3].add_call(one)
        assert list(first.calls()) == list(second.calls()) == calls
    assert stored(server, address)[2] <= 2


def test_calls_that_go_together_refer_to_each_other(server: PostgresServer, address: str) -> None:
    calls = [one for pair in zip(turns("a", 15), turns("bb", 15, rollout="r2"), strict=True) for one in pair]
    with PostgresStore(address) as store:
        wait = threading.Event()
        store._submit(lambda _: wait.wait(30))
        futures = [store.submit_call(one) for one in calls]
        again = store.submit_call(calls[3])  # it fails, and everything is written one by one
        more = [store.submit_call(one) for one in turns("a", 18)[15:]]
        wait.set()
        assert [future.result() for future in futures + more] == [None] * 33
        with pytest.raises(StoreError, match="call bb-1 exists"):
            again.result()
        assert list(store.calls()) == calls + turns("a", 18)[15:]
    assert stored(server, address)[2] == 2


def test_a_call_that_was_deleted_is_not_referred_to(server: PostgresServer, address: str) -> None:
    calls = turns("a", 6)
    with PostgresStore(address) as store, PostgresStore(address) as other:
        for one in calls[:3]:
            store.add_call(one)
        assert other.prune(run_id="nobody").calls == 0
        assert other.prune(keep_last=0).calls == 3
        for one in calls[3:]:
            store.add_call(one)
        assert list(other.calls()) == calls[3:]
        assert stored(server, address)[2] == 1
        other.prune(keep_last=0)
        other.add_call(calls[0])
        store.add_call(calls[5])
        assert list(other.calls()) == [calls[0], calls[5]]


def test_who_deletes_keeps_others_from_writing(address: str) -> None:
    with PostgresStore(address) as store, PostgresStore(address) as other:
        begun, go_on = threading.Event(), threading.Event()

        def delete(_: Any) -> bool:
            begun.set()
            return go_on.wait(30)

        deleting = other._submit(delete, alone=True)
        assert begun.wait(30)
        written = store.submit_call(call("c1"))
        with psycopg.connect(address) as watch:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
            while watch.execute(waits).fetchone() == (0,) and not written.done():
                watch.rollback()  # what it sees changes between transactions
                time.sleep(0.01)
        assert not written.done()
        go_on.set()
        assert deleting.result()
        assert written.result(30) is None


def test_nobody_writes_while_somebody_deletes(server: PostgresServer, address: str) -> None:
    calls = turns("a", 40)
    stop = threading.Event()
    pruned: list[int] = []

    def delete(store: PostgresStore) -> None:
        while not stop.is_set():
            pruned.append(store.prune(keep_last=0).calls)

    with PostgresStore(address) as store, PostgresStore(address) as other:
        thread = threading.Thread(target=delete, args=(other,))
        thread.start()
        for one in calls:
            store.add_call(one)
        stop.set()
        thread.join()
        left = list(store.calls())  # one that refers to a call which is not there would raise
        assert left == calls[len(calls) - len(left) :]
        assert sum(pruned) == len(calls) - len(left)


def test_only_the_owner_gives_space_back(server: PostgresServer, database: str) -> None:
    with PostgresStore(server.url(database)) as store:
        for one in turns("a", 5):
            store.add_call(one)
        assert store.statistics().size_bytes > 0
        store.prune(keep_last=0)
        store.vacuum()
    server.execute("DROP ROLE IF EXISTS janitor")
    server.execute("CREATE ROLE janitor LOGIN")
    server.execute(
        "GRANT USAGE ON SCHEMA lgov TO janitor; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lgov TO janitor",
        database=database,
    )
    with (
        PostgresStore(server.url(database, user="janitor")) as store,
        pytest.raises(StoreError, match=r"vacuum.*\(do it as the owner"),
    ):
        store.vacuum()
