"""What is SQLite's own about the default trace store: the file, what goes wrong with it, processes and forks."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import open_store
from lgov_core.store.schema import TRACE_STORE
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.types import CapturedCall, Reward, Rollout, Span


def call(response_id: str, size: int = 0) -> CapturedCall:
    ids = tuple(range(5))
    return CapturedCall(
        response_id, "tiny", {"messages": "x" * size}, {}, ids, ids, (-0.5,) * 5, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1
    )


def span(span_id: str, size: int = 0) -> Span:
    return Span("chat tiny", span_id, 1.0, 2.0, {"text": "x" * size}, "r1", 1)


def in_child(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


# ------------------------------------------------------------------ the file


def test_the_file_is_private_and_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with SQLiteStore(path) as store:
        store.add_call(call("c1"))
        for name in os.listdir(tmp_path):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
        assert (tmp_path / "store.sqlite-wal").exists()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA user_version").fetchone() == (TRACE_STORE.version,)
    row = connection.execute("SELECT prompt_rest, logprobs FROM calls").fetchone()
    assert row[0] == b"".join(i.to_bytes(4, "little") for i in range(5))
    assert len(row[1]) == 40
    connection.close()


def test_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place, file in (
        (f"sqlite:///{tmp_path}/a.sqlite", "a.sqlite"),
        ("sqlite:///b.sqlite", "b.sqlite"),
        ("c?d#e%41.sqlite", "c?d#e%41.sqlite"),
        (tmp_path / "f.sqlite", "f.sqlite"),
    ):
        open_store(place).close()
        assert (tmp_path / file).exists()
    for place in ("postgres://host/db", "sqlite:memory", ":memory:", "", "sqlite:///"):
        with pytest.raises(StoreError):
            open_store(place)


def test_a_store_of_a_newer_lgov_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    SQLiteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={TRACE_STORE.version + 1}")
    connection.close()
    with pytest.raises(StoreError, match=rf"format {TRACE_STORE.version + 1}.*upgrade lgov"):
        SQLiteStore(path)


def test_what_is_no_store_is_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("a shopping list, long enough to be no SQLite header " * 20)
    with pytest.raises(StoreError, match=r"notes\.txt: file is not a database .*another file"):
        SQLiteStore(text)
    assert text.read_text().startswith("a shopping list")

    company = tmp_path / "company.sqlite"
    connection = sqlite3.connect(company)
    connection.execute("CREATE TABLE staff (name TEXT)")
    connection.commit()
    connection.close()
    before = company.read_bytes()
    with pytest.raises(StoreError, match=r"company\.sqlite is a SQLite database, but no trace store"):
        SQLiteStore(company)
    assert company.read_bytes() == before

    with pytest.raises(StoreError, match="is a directory"):
        SQLiteStore(tmp_path)
    with pytest.raises(StoreError, match="no folder"):
        SQLiteStore(tmp_path / "missing" / "store.sqlite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["company.sqlite", "notes.txt"]


def test_no_permission() -> None:
    # A folder of its own: the child may not be root, so it must be able to reach it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        SQLiteStore(folder / "old.sqlite").close()
        (folder / "old.sqlite").chmod(0o444)
        code = """
            import os, sys
            from lgov_core.store.sqlite import SQLiteStore
            from lgov_core.errors import StoreError
            os.chmod(sys.argv[1], 0o555)
            if os.getuid() == 0:
                os.setgroups([]); os.setgid(65534); os.setuid(65534)
            for name in ("new.sqlite", "old.sqlite"):
                try:
                    SQLiteStore(os.path.join(sys.argv[1], name))
                    print("opened")
                except StoreError as error:
                    print(error)
        """
        done = in_child(code, folder)
        folder.chmod(0o755)
        new, old = done.stdout.splitlines()
        assert "new.sqlite" in new
        assert "must be readable and writable" in new
        assert "old.sqlite" in old
        assert "opened" not in done.stdout
        assert not (folder / "new.sqlite").exists()


def test_a_store_whose_file_is_taken_away_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with SQLiteStore(path) as store:
        store.add_call(call("c1"))
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match="no longer the file"):
            store.add_call(call("c2"))
        with pytest.raises(StoreError, match="no longer the file"):
            list(store.calls())
        assert not path.exists()
        (tmp_path / "elsewhere").rename(path)
        store.add_call(call("c3"))
        assert [c.response_id for c in store.calls()] == ["c1", "c3"]


# ------------------------------------------------------------------ a full disk, a busy file

FULL = """
    import resource, sys
    from pathlib import Path
    from lgov_core.store.sqlite import SQLiteStore
    from lgov_core.errors import StoreError
    from lgov_core.types import CapturedCall, Reward, Rollout, Span

    def call(i, size):
        return CapturedCall(f"c{i}", "m", {"x": "x" * size}, {}, None, None, None, "stop", 0, 1.0, 1.0, 1.0, 2.0)

    store = SQLiteStore(sys.argv[1])
    store.add_rollouts([Rollout("r1", "t", "run", {})])
    store.start_attempt("r1", 1)
    # From here on no file may grow past 256 KiB: writing fails as on a full disk.
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    acknowledged, refused = [], []
    for i in range(40):
        try:
            store.add_call(call(i, 20_000))
            acknowledged.append(f"c{i}")
        except StoreError as error:
            refused.append(str(error))
    assert acknowledged and refused, (acknowledged, refused)
    assert all(sys.argv[1] in text and "full disk" in text for text in refused), refused[0]
    # Many at once, of which none fits: each of them hears of it.
    futures = [store.submit_call(call(100 + i, 300_000)) for i in range(5)]
    assert all(isinstance(f.exception(), StoreError) for f in futures)
    # A closing that does not fit with its rewards leaves the attempt open.
    many = [Reward(1.0, source="x" * 20_000) for _ in range(40)]
    try:
        store.finish_attempt("r1", 1, "succeeded", rewards=many)
        raise SystemExit("it fitted")
    except StoreError:
        pass
    assert store.attempts()[0].outcome is None and store.rewards() == []
    store.add_span(Span("big", "s1", 1.0, 2.0, {"x": "x" * 300_000}))
    try:
        store.flush()
        raise SystemExit("flush hid a lost span")
    except StoreError:
        assert store.dropped_spans == 1
    assert [c.response_id for c in store.calls()] == acknowledged
    # Space returns: the same object goes on.
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.add_call(call(999, 20_000))
    store.finish_attempt("r1", 1, "succeeded", rewards=many)
    store.flush()
    assert [c.response_id for c in store.calls()] == [*acknowledged, "c999"]
    assert len(store.rewards()) == 40
    store.close()
    print("done", len(acknowledged), len(refused))
"""


def test_a_full_disk_fails_the_write_and_nothing_else(tmp_path: Path) -> None:
    done = in_child(FULL, tmp_path / "store.sqlite")
    assert done.stdout.startswith("done"), done.stderr
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_busy_file_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    with SQLiteStore(path, busy_timeout_s=0.05) as impatient, SQLiteStore(path, busy_timeout_s=30) as patient:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"locked .*busy timeout"):
            impatient.add_call(call("c1"))
        waiting = patient.submit_call(call("c2"))
        assert list(impatient.calls()) == []  # readers are not held up
        assert not waiting.done()
        holder.execute("ROLLBACK")
        holder.close()
        waiting.result(30)
        impatient.add_call(call("c1"))
        assert [c.response_id for c in patient.calls()] == ["c2", "c1"]


# ------------------------------------------------------------------ group commit


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
        doubled = store.submit_rewards([reward, Reward(2.0), reward])
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
        assert 1 <= commits_in_log(path) - before <= 4
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


# ------------------------------------------------------------------ processes


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
