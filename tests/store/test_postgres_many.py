"""Many workers and processes on one PostgreSQL trace store."""

from __future__ import annotations

import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from lgov_core.errors import StoreError
from lgov_core.store import RolloutConfig, RolloutState
from lgov_core.store.postgres import PostgresStore
from lgov_core.store.postgres_database import _END, PostgresTransaction
from lgov_core.types import Outcome, Reward, Rollout
from tests.postgres_server import PROCESSES, PostgresServer
from tests.store.postgres_parts import in_child, span


def _worker(address: str, name: str, threads: int, out: Any) -> None:
    """Claims and finishes until nothing waits, on several threads; sends what it got."""
    with PostgresStore(address) as store:
        got: list[tuple[str, int]] = []

        def work(thread: int) -> None:
            while claims := store.claim(f"{name}{thread}", 3, lease_s=60):
                for claim in claims:
                    got.append((claim.rollout.rollout_id, claim.attempt.attempt))
                    store.finish_attempt(
                        claim.rollout.rollout_id, claim.attempt.attempt, Outcome.SUCCEEDED, rewards=[Reward(1.0)]
                    )

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        out.send(got)


def test_no_two_of_many_claimers_in_two_processes_get_the_same(address: str) -> None:
    rollouts = [Rollout(f"r{i}", "t", "run", {}) for i in range(150)]
    with PostgresStore(address) as store:
        store.enqueue(rollouts)
        pipes = [PROCESSES.Pipe(duplex=False) for _ in range(2)]
        children = [
            PROCESSES.Process(target=_worker, args=(address, f"p{i}-", 8, out)) for i, (_, out) in enumerate(pipes)
        ]
        for child in children:
            child.start()
        seen: list[str] = []
        cursor = 0
        while len(seen) < len(rollouts):  # everyone who ends is seen once, while two processes end them
            ended = store.ended_since(cursor, limit=50)
            seen += [entry.rollout_id for entry in ended.entries]
            cursor = ended.cursor
            assert any(child.is_alive() for child in children) or ended.entries
        got = [pipe.recv() for pipe, _ in pipes]
        for child in children:
            child.join(30)
            assert child.exitcode == 0
        assert Counter(seen) == Counter(rollout.rollout_id for rollout in rollouts)
        assert Counter(got[0] + got[1]) == Counter((rollout.rollout_id, 1) for rollout in rollouts)
        assert {entry.state for entry in store.queue_entries()} == {RolloutState.SUCCEEDED}
        assert len(store.rewards()) == len(rollouts)


def test_an_ending_is_not_seen_before_those_that_came_before_it(address: str) -> None:
    with PostgresStore(address) as store, psycopg.connect(address) as other:
        store.enqueue([Rollout(name, "t", "run", {}) for name in ("r1", "r2")])
        store.claim("w", 2, lease_s=60)
        # Another store ends r1, and its commit takes a while.
        other.execute("SET search_path TO lgov")
        other.execute("UPDATE queue SET state = 'failed' WHERE rollout_id = 'r1'")
        PostgresTransaction(other).change(_END, (["r1"],))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(address) as watch:
            ending = pool.submit(store.finish_attempt, "r2", 1, Outcome.SUCCEEDED)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
            while watch.execute(waits).fetchone() == (0,) and not ending.done():
                watch.rollback()
                time.sleep(0.01)
            first = store.ended_since()
            other.commit()
            ending.result(30)
        second = store.ended_since(first.cursor)
        assert [entry.rollout_id for entry in first.entries + second.entries] == ["r1", "r2"]


def test_what_another_holds_is_passed_over(server: PostgresServer, address: str) -> None:
    with PostgresStore(address) as store, psycopg.connect(address) as other:
        store.enqueue([Rollout("r1", "t", "run", {}), Rollout("r2", "t", "run", {})])
        other.execute("SELECT 1 FROM lgov.queue WHERE rollout_id = 'r1' FOR UPDATE")
        assert [claim.rollout.rollout_id for claim in store.claim("w", 5, lease_s=60)] == ["r2"]
        other.rollback()
        assert [claim.rollout.rollout_id for claim in store.claim("w", 5, lease_s=60)] == ["r1"]


def test_leases_go_by_the_servers_clock(server: PostgresServer, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresStore(address) as store:
        store.enqueue([Rollout("r1", "t", "run", {}, created_at=0.0)], RolloutConfig(max_attempts=2, timeout_s=1000))
        monkeypatch.setattr("time.time", lambda: 12.0)  # this machine's clock is wrong
        (claim,) = store.claim("w", lease_s=100)
        ((now,),) = server.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert claim.attempt.started_at <= now < claim.lease_until <= now + 100
        assert claim.deadline == claim.attempt.started_at + 1000
        assert store.expire() == []
        (held,) = store.heartbeat("w", lease_s=100)
        assert held == claim.attempt
        assert store.finish_attempt("r1", 1, Outcome.INFRASTRUCTURE).ended_at >= claim.attempt.started_at  # type: ignore[operator]


def test_what_is_queued_when_the_program_ends_is_written(address: str) -> None:
    code = """
        import sys
        from lgov_core.store import open_store
        from lgov_core.types import Span
        store = open_store(sys.argv[1])
        for i in range(500):
            store.add_span(Span("x", f"s{i}", 1.0, 2.0, {}))
    """
    done = in_child(code, address)
    assert (done.returncode, done.stderr) == (0, "")
    with PostgresStore(address) as store:
        assert len(store.spans()) == 500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_must_open_its_own(address: str) -> None:
    code = """
        import os, sys
        from lgov_core.store import open_store
        from lgov_core.errors import StoreError
        from lgov_core.types import Reward
        store = open_store(sys.argv[1])
        store.add_rewards([Reward(1.0)])
        assert len(store.rewards()) == 1
        pid = os.fork()
        if pid == 0:
            try:
                store.add_rewards([Reward(2.0)])
            except StoreError as error:
                assert "opened by the parent" in str(error)
                store.close()
                own = open_store(sys.argv[1])
                own.add_rewards([Reward(3.0)])
                own.close()
                sys.exit(7)  # with everything that Python does at the end
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 7, status
        store.add_rewards([Reward(4.0)])
        assert [r.value for r in store.rewards()] == [1.0, 3.0, 4.0]
        store.close()
        print("done")
    """
    done = in_child(code, address)
    assert done.stdout == "done\n", done.stderr


def test_a_forgotten_store_ends_its_thread_and_keeps_what_was_queued(server: PostgresServer, address: str) -> None:
    store = PostgresStore(address)
    thread = store._writer._thread
    store.add_rollouts([Rollout("r1", "t", "run", {})])
    store.add_span(span("s1"))
    del store
    thread.join(30)
    assert not thread.is_alive()
    with PostgresStore(address) as again:
        assert [one.span_id for one in again.spans()] == ["s1"]
    name = str(conninfo_to_dict(address)["dbname"])
    assert server.execute("SELECT count(*) FROM lgov.writers", database=name) == [(0,)]


def test_a_rollout_that_another_process_adds_meanwhile_is_not_overwritten(server: PostgresServer, address: str) -> None:
    insert = "INSERT INTO lgov.rollouts (rollout_id, task_id, run_id, input, created_at) VALUES ('r1', 'theirs', '', '{}', 1)"
    with PostgresStore(address) as store, ThreadPoolExecutor(1) as pool, psycopg.connect(address) as other:
        other.execute(insert.encode())
        adding = pool.submit(store.add_rollouts, [Rollout("r1", "ours", "run", {})])
        while not server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
            time.sleep(0.01)
        other.commit()
        with pytest.raises(StoreError, match="rollout r1 exists already"):
            adding.result()
        assert [rollout.task_id for rollout in store.rollouts()] == ["theirs"]
