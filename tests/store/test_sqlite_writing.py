"""The writer of a SQLite trace store: group commit, processes and forks."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.types import Reward, Rollout, Span
from tests.store.sqlite_parts import call, in_child, span


def commits_in_log(path: Path) -> int:
    """How many transactions the write-ahead log of ``path`` holds: frames that carry a database size end one each."""
    log = Path(f"{path}-wal").read_bytes()
    page = int.from_bytes(log[8:12], "big")
    frames = [log[at : at + 24] for at in range(32, len(log), 24 + page)]
    return sum(1 for frame in frames if frame[8:16] == log[16:24] and frame[4:8] != bytes(4))


def test_what_waits_is_committed_together_and_a_bad_write_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with SQLiteStore(path, busy_timeout_s=30) as store:
        store.add_call(call("taken"))
        # While another process writes, everything below has to wait, so that it goes into as few commits as can be.
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        futures = [store.submit_call(call("taken" if i in (10, 20) else f"c{i}")) for i in range(150)]
        reward = Reward(1.0)
        doubled = store._submit(
            lambda t: t.insert("rewards", [rows.reward_row(one) for one in (reward, Reward(2.0), reward)])
        )
        for i in range(30):
            store.add_span(span(f"s{i}"))
        before = commits_in_log(path)
        assert not any(future.done() for future in futures)
        holder.execute("COMMIT")
        for i, future in enumerate(futures):
            if i in (10, 20):
                assert "taken exists" in str(future.exception(30))
            else:
                future.result(30)
        assert "exists" in str(doubled.exception(30))
        store.flush()
        assert 1 <= commits_in_log(path) - before <= 25
        assert [c.response_id for c in store.calls()] == [
            "taken",
            *(f"c{i}" for i in range(150) if i not in (10, 20)),
        ]
        assert store.rewards() == []
        assert len(store.spans()) == 30
        holder.close()


def test_a_full_queue_drops_spans_and_counts_them_but_never_a_call(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with SQLiteStore(path, busy_timeout_s=30, span_queue=10) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        first = store.submit_call(call("first"))
        while store._writer._waiting:  # until the writer has taken it and waits for the file
            time.sleep(0.001)
        for i in range(25):
            store.add_span(span(f"s{i}"))
        calls = [store.submit_call(call(f"c{i}")) for i in range(25)]
        assert store.dropped_spans == 15
        holder.execute("ROLLBACK")
        holder.close()
        for future in (first, *calls):
            future.result(30)
        store.flush()
        assert [s.span_id for s in store.spans()] == [f"s{i}" for i in range(10)]
        assert len(list(store.calls())) == 26


def test_a_bad_span_does_not_take_others_with_it(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.sqlite") as store:
        holder = sqlite3.connect(store.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")  # so that they are written in one go
        store.add_span(span("s1"))
        store.add_span(Span("lone \ud800 surrogate", "s2", 1.0, 2.0, {}))
        store.add_span(span("s3"))
        holder.execute("ROLLBACK")
        holder.close()
        with pytest.raises(StoreError, match="surrogate"):
            store.flush()
        store.flush()
        assert [s.span_id for s in store.spans()] == ["s1", "s3"]
        assert store.dropped_spans == 1
        with pytest.raises(StoreError, match="attributes of span"):
            store.add_span(Span("x", "s4", 1.0, 2.0, {"x": object()}))  # type: ignore[dict-item]


async def test_a_cancelled_task_does_not_lose_its_call(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.sqlite", busy_timeout_s=30) as store:
        await store.add_call_async(call("c1"))
        with pytest.raises(StoreError, match="c1 exists"):
            await store.add_call_async(call("c1"))
        holder = sqlite3.connect(store.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        async def write() -> None:
            await store.add_call_async(call("c2"))

        task = asyncio.create_task(write())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        holder.execute("ROLLBACK")
        holder.close()
        await asyncio.gather(*(store.add_call_async(call(f"d{i}")) for i in range(50)))
        assert len(list(store.calls())) == 52


def test_what_is_queued_when_the_program_ends_is_written(tmp_path: Path) -> None:
    code = """
        import sys
        from lgov_core.store import open_store
        from lgov_core.types import Span
        store = open_store(sys.argv[1])
        for i in range(500):
            store.add_span(Span("x", f"s{i}", 1.0, 2.0, {}))
    """
    done = in_child(code, tmp_path / "store.sqlite")
    assert (done.returncode, done.stderr) == (0, "")
    with SQLiteStore(tmp_path / "store.sqlite") as store:
        assert len(store.spans()) == 500


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    code = """
        import sys
        from lgov_core.store import open_store
        from lgov_core.types import Reward, Span
        store = open_store(sys.argv[1])
        for i in range(100):
            store.add_rewards([Reward(i, rollout_id=sys.argv[2])])
            store.add_span(Span("x", f"{sys.argv[2]}-{i}", 1.0, 2.0, {}, sys.argv[2]))
        store.close()
    """
    path = tmp_path / "store.sqlite"
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    children = [subprocess.Popen([*arguments, f"p{i}"], stderr=subprocess.PIPE) for i in range(3)]
    for child in children:
        _, stderr = child.communicate(timeout=60)
        assert (child.returncode, stderr) == (0, b"")
    with SQLiteStore(path) as store:
        for i in range(3):
            assert [r.value for r in store.rewards([f"p{i}"])] == list(range(100))
            assert [s.span_id for s in store.spans([f"p{i}"])] == [f"p{i}-{j}" for j in range(100)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_must_open_its_own(tmp_path: Path) -> None:
    code = """
        import os, sys
        from lgov_core.store import open_store
        from lgov_core.errors import StoreError
        from lgov_core.types import Reward
        store = open_store(sys.argv[1])
        store.add_rewards([Reward(1.0)])
        reading = store.calls()
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
                os._exit(7)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 7, status
        store.add_rewards([Reward(4.0)])
        assert [r.value for r in store.rewards()] == [1.0, 3.0, 4.0]
        store.close()
        print("done")
    """
    done = in_child(code, tmp_path / "store.sqlite")
    assert done.stdout == "done\n", done.stderr


def test_a_forgotten_store_ends_its_thread_and_keeps_what_was_queued(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    thread = store._writer._thread
    store.add_rollouts([Rollout("r1", "t", "run", {})])
    store.add_span(span("s1"))
    del store
    thread.join(30)
    assert not thread.is_alive()
    with SQLiteStore(tmp_path / "store.sqlite") as again:
        assert [s.span_id for s in again.spans()] == ["s1"]


def test_spans_that_come_together_share_a_transaction_and_arrive_without_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SQLiteStore(path) as store, closing(sqlite3.connect(path)) as other:
        before = other.execute("PRAGMA data_version").fetchone()[0]
        seen: set[int] = set()
        for number in range(50):
            store.add_span(span(f"s{number}"))
            seen.add(other.execute("PRAGMA data_version").fetchone()[0])
        deadline = time.monotonic() + 30
        while len(store.spans()) < 50 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [one.span_id for one in store.spans()] == [f"s{number}" for number in range(50)]
        assert len(seen - {before}) < 25, "a transaction for nearly each of them"
