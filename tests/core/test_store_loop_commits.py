"""What tasks of an event loop want written is committed by the loop, unless that means to wait."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.sqlite.pending_write import PendingWrite
from lgov_core.store.sqlite.schema import TRACE_STORE
from lgov_core.store.sqlite.store import SQLiteStore
from lgov_core.store.sqlite.writer import GroupCommitWriter
from lgov_core.store.sqlite.writing_connection import WritingConnection
from lgov_core.types import CapturedCall

REWARD = rows.insert("rewards", rows.REWARD_COLUMNS)


def call(name: str) -> CapturedCall:
    return CapturedCall(name, "m", {}, {}, (1,), (2,), None, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1)


def paying(name: str, threads: list[int] | None = None) -> Callable[[sqlite3.Connection], None]:
    """Writes a reward of this name, and notes the thread that does."""

    def run(connection: sqlite3.Connection) -> None:
        if threads is not None:
            threads.append(threading.get_ident())
        connection.execute(REWARD, (name, 1.0, "task", None, None, None, None, "", None))

    return run


def written(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [name for (name,) in connection.execute("SELECT reward_id FROM rewards ORDER BY seq")]
    connection.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def writer(path: Path) -> Iterator[GroupCommitWriter]:
    made = GroupCommitWriter(TRACE_STORE, path, busy_timeout_s=30, span_limit=10)
    yield made
    made.close()


@pytest.fixture
def holder(path: Path, writer: GroupCommitWriter) -> Iterator[sqlite3.Connection]:
    """Another process that is writing, as it were."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


async def test_one_turn_of_the_loop_is_one_transaction_in_its_own_thread(path: Path, writer: GroupCommitWriter) -> None:
    threads: list[int] = []
    seen: list[list[str]] = []

    def look(connection: sqlite3.Connection) -> None:
        seen.append(written(path))

    waiting = [writer.submit_in_loop(paying(f"w{i}", threads)) for i in range(3)]
    await asyncio.gather(*waiting, writer.submit_in_loop(look))
    assert set(threads) == {threading.get_ident()}
    assert seen == [[]]  # none was committed before all were
    assert written(path) == ["w0", "w1", "w2"]


async def test_a_file_that_somebody_else_holds_does_not_hold_up_the_loop(
    path: Path, writer: GroupCommitWriter, holder: sqlite3.Connection
) -> None:
    threads: list[int] = []
    holder.execute("BEGIN IMMEDIATE")
    first = asyncio.ensure_future(writer.submit_in_loop(paying("w0", threads)))
    turns = 0
    while not threads and turns < 20:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        assert time.monotonic() - began < 10  # of the thirty seconds that a write may wait
        turns += 1
    assert not first.done()
    assert written(path) == []
    # What comes now goes behind it: nothing overtakes.
    second = asyncio.ensure_future(writer.submit_in_loop(paying("w1", threads)))
    await asyncio.sleep(0.01)
    holder.execute("ROLLBACK")
    await asyncio.gather(first, second)
    assert written(path) == ["w0", "w1"]
    assert threading.get_ident() not in threads
    await writer.submit_in_loop(paying("w2", threads))  # and the loop does it again
    assert threads[-1] == threading.get_ident()


async def test_each_write_learns_its_own_fate(path: Path, writer: GroupCommitWriter) -> None:
    names = ("a", "b", "a", "c")
    found = await asyncio.gather(*(writer.submit_in_loop(paying(name)) for name in names), return_exceptions=True)
    assert [isinstance(one, StoreError) for one in found] == [False, False, True, False]
    assert written(path) == ["a", "b", "c"]


async def test_whoever_no_longer_waits_keeps_nothing_from_the_others(path: Path, writer: GroupCommitWriter) -> None:
    gone, *waiting = [writer.submit_in_loop(paying(f"w{i}")) for i in range(3)]
    gone.cancel()
    await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert written(path) == ["w0", "w1", "w2"]


async def test_a_transaction_that_is_lost_is_tried_again_by_the_thread(
    path: Path, writer: GroupCommitWriter, holder: sqlite3.Connection
) -> None:
    holder.execute(
        "CREATE TRIGGER boom BEFORE INSERT ON rewards WHEN NEW.reward_id = 'boom' BEGIN SELECT RAISE(ROLLBACK, 'boom'); END"
    )
    found = await asyncio.gather(
        *(writer.submit_in_loop(paying(name)) for name in ("a", "boom", "c")), return_exceptions=True
    )
    assert [isinstance(one, StoreError) for one in found] == [False, True, False]
    assert written(path) == ["a", "c"]


async def test_a_flush_takes_what_waits_in_the_loop(path: Path, writer: GroupCommitWriter) -> None:
    waiting = writer.submit_in_loop(paying("w0"))
    writer.flush()
    assert written(path) == ["w0"]
    await waiting


async def test_closing_writes_what_waits_and_what_comes_later_is_refused(path: Path) -> None:
    store = SQLiteStore(path)
    waiting = asyncio.ensure_future(store.add_call_async(call("c1")))
    await asyncio.to_thread(store.close)
    await waiting
    with pytest.raises(StoreError, match="is closed"):
        await store.add_call_async(call("c2"))
    with SQLiteStore(path) as again:
        assert [one.response_id for one in again.calls()] == ["c1"]


def test_what_a_loop_leaves_behind_is_written(path: Path) -> None:
    store = SQLiteStore(path)

    async def leave() -> None:
        _ = store.add_call_async(call("c1"))
        asyncio.get_running_loop().stop()

    loop = asyncio.new_event_loop()
    task = loop.create_task(leave())
    loop.run_forever()
    task.cancel()
    loop.close()
    store.close()
    with SQLiteStore(path) as again:
        assert [one.response_id for one in again.calls()] == ["c1"]


def test_many_loops_and_threads_write_to_one_store(path: Path) -> None:
    with SQLiteStore(path) as store:

        async def write(who: int) -> None:
            for turn in range(10):
                await asyncio.gather(*(store.add_call_async(call(f"{who}-{turn}-{i}")) for i in range(5)))

        threads = [threading.Thread(target=asyncio.run, args=(write(who),)) for who in range(4)]
        for thread in threads:
            thread.start()
        for i in range(50):
            store.add_call(call(f"direct-{i}"))
        for thread in threads:
            thread.join()
        assert len({one.response_id for one in store.calls()}) == 250


async def test_the_log_is_written_back_by_the_thread(path: Path) -> None:
    with SQLiteStore(path) as store:
        reader = sqlite3.connect(path, isolation_level=None)
        before = reader.execute("SELECT page_count FROM pragma_page_count").fetchone()[0]
        size = path.stat().st_size
        for turn in range(25):
            await asyncio.gather(*(store.add_call_async(call(f"{turn}-{i}")) for i in range(50)))
        until = time.monotonic() + 30
        while path.stat().st_size == size and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert path.stat().st_size > size
        assert reader.execute("SELECT page_count FROM pragma_page_count").fetchone()[0] > before
        reader.close()


def test_the_log_is_due_by_rows_or_by_bytes(path: Path) -> None:
    connection = WritingConnection(
        TRACE_STORE, path, busy_timeout_s=1, on_loss=lambda: None, on_lost_span=lambda error: None
    )

    def write(names: Iterator[str], count: int, size: int) -> None:
        text = "x" * size
        for _ in range(count):

            def run(connection: sqlite3.Connection, name: str = next(names)) -> None:
                connection.execute(REWARD, (name, 1.0, text, None, None, None, None, "", None))

            future: Any = asyncio.Future(loop=loop)
            assert connection.write_at_once([PendingWrite(run, 1, future)])

    loop = asyncio.new_event_loop()
    names = iter(f"w{i}" for i in range(10_000))
    write(names, 999, 1)
    assert not connection.checkpoint_is_due
    write(names, 1, 1)
    assert connection.checkpoint_is_due
    connection.checkpoint()
    assert not connection.checkpoint_is_due
    other = sqlite3.connect(path)
    _, in_log, written_back = other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    other.close()
    assert in_log == written_back
    write(names, 99, 200_000)
    assert not connection.checkpoint_is_due
    write(names, 1, 200_000)
    assert connection.checkpoint_is_due
    connection.close()
    loop.close()
