"""The SQLite file of a trace store: how it is opened, and what goes wrong with it."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import open_store
from lgov_core.store.sqlite import TRACE_STORE, SQLiteStore
from lgov_core.types import CapturedCall, Reward, Rollout, Span
from tests.store.sqlite_parts import FORMAT_1, call, in_child, span


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
    assert len(row[1]) == 20  # -0.5 is the same in 32 bits
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


def file_of_format_1(path: Path, *more: str) -> None:
    ids = b"".join(i.to_bytes(4, "little") for i in range(30))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(FORMAT_1)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("INSERT INTO rollouts VALUES (3, 'r1', 't1', 'run', '{\"q\":1}', 5.0)")
    connection.execute("INSERT INTO attempts VALUES (1, 'r1', 1, 6.0, 7.0, 'succeeded', NULL, '[1]')")
    for seq, name in ((4, "c4"), (2, "c2")):
        connection.execute(
            "INSERT INTO calls VALUES (?, ?, 'm', '{\"messages\":[\"x\"]}', '{}', ?, ?, ?, 'stop', 0, 1.0, 1.0, 1.0, 2.0,"
            " 'r1', 1, 'a', '[\"t1\"]', 'e')",
            (seq, name, ids, ids[:8], b"\0\0\0\0\0\0\xb9\xbf\x9a\x99\x99\x99\x99\x99\xb9\xbf"),
        )
    connection.execute("INSERT INTO rewards VALUES (1, 'w1', 1.5, 'task', 'r1', 1, NULL, NULL, 's')")
    connection.execute("INSERT INTO spans VALUES (1, 's1', 'chat', 1.0, NULL, '{\"a\":1}', 'r1', 1, 'p')")
    for statement in more:
        connection.execute(statement)
    connection.close()


def test_a_file_of_format_1_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    file_of_format_1(path)
    for _ in range(2):
        with SQLiteStore(path) as store:
            assert store.rollouts() == [Rollout("r1", "t1", "run", {"q": 1}, 5.0)]
            assert [(a.outcome, a.result) for a in store.attempts()] == [("succeeded", [1])]
            calls = list(store.calls(["r1"]))
            assert [c.response_id for c in calls] == ["c2", "c4"]
            assert (calls[0].prompt_ids, calls[0].response_ids) == (tuple(range(30)), (0, 1))
            assert calls[0].logprobs == (-0.09765625, -0.1)
            assert (calls[0].choice, calls[0].route, calls[0].request) == (0, "chat", {"messages": ["x"]})
            assert store.rewards() == [Reward(1.5, "task", "r1", 1, None, None, "s", "w1")]
            assert store.spans() == [Span("chat", "s1", 1.0, None, {"a": 1}, "r1", 1, "p")]
            assert store.queue_entries() == []
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE attempts SET ended_at = NULL, outcome = NULL")
    # What is written after it goes behind what was there, and may refer to it.
    with SQLiteStore(path) as store:
        long = CapturedCall("c5", "m", {"messages": ["x"]}, {}, (*range(30), 0, 1, 8), (7,), None, "stop", 0, 1.0, 1.0,
                            1.0, 2.0, "r1", 1)  # fmt: skip
        store.add_call(long)
        assert list(store.calls())[2] == long
        store.add_span(span("s2"))
        store.flush()
        assert [s.span_id for s in store.spans()] == ["s1", "s2"]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT seq, base > 0 FROM calls ORDER BY seq").fetchall() == [
        (2, None),
        (4, None),
        (5, 1),
    ]
    migrated = connection.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall()
    connection.close()
    SQLiteStore(tmp_path / "new.sqlite").close()
    connection = sqlite3.connect(tmp_path / "new.sqlite")
    assert connection.execute("SELECT name FROM sqlite_master ORDER BY 1").fetchall() == migrated
    connection.close()


def test_a_file_of_format_2_is_read_as_it_is_and_an_older_lgov_refuses_it_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    reply = {"prompt_token_ids": [1, 2], "choices": []}
    before = CapturedCall("c1", "m", {}, reply, (1, 2), (3,), None, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1)
    with SQLiteStore(path) as store:
        store.add_call(before)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE calls SET response = ?", (json.dumps(reply),))  # as format 2 has it
    connection.executescript(
        "DROP TABLE decisions; DROP TABLE decision_kinds; DROP INDEX rollouts_of_task; DELETE FROM rollouts;"
        " ALTER TABLE rollouts DROP COLUMN added; CREATE INDEX rollouts_of_run ON rollouts (run_id);"
        " ALTER TABLE rewards DROP COLUMN choice"
    )
    connection.execute("PRAGMA user_version=2")
    connection.commit()
    connection.close()
    after = CapturedCall("c2", "m", {}, reply, (1, 2), (3,), None, "stop", 0, 1.0, 1.0, 1.0, 2.0, "r1", 1)
    with SQLiteStore(path) as store:
        store.add_call(after)
        assert list(store.calls()) == [before, after]
        rewards = [Reward(1.0, response_id="c2", choice=1)]
        store.add_rewards(rewards)
        assert store.rewards() == rewards
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (TRACE_STORE.version,)
    connection.close()


def test_a_file_that_cannot_be_brought_up_to_date_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    file_of_format_1(path, "CREATE TABLE queue (taken INTEGER)")
    with pytest.raises(StoreError, match=r"old\.sqlite.*queue"):
        SQLiteStore(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert connection.execute("SELECT count(prompt_ids) FROM calls").fetchone() == (2,)
    assert connection.execute("SELECT count(*) FROM pragma_table_info('spans')").fetchone() == (9,)
    connection.execute("DROP TABLE queue")
    connection.close()
    with SQLiteStore(path) as store:
        assert len(list(store.calls())) == 2


def test_several_that_open_an_old_file_at_once_bring_it_up_to_date_once(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    file_of_format_1(path)
    code = (
        "import sys; from lgov_core.store import open_store; s = open_store(sys.argv[1]); print(len(list(s.calls())))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [child.communicate(timeout=60) for child in children] == [(b"2\n", b"")] * 3


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
    with pytest.raises(StoreError, match=r"company\.sqlite is a SQLite database, but not an lgov trace store"):
        SQLiteStore(company)
    assert company.read_bytes() == before

    with pytest.raises(StoreError, match="is a directory"):
        SQLiteStore(tmp_path)
    with pytest.raises(StoreError, match="does not exist"):
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
        with pytest.raises(StoreError, match="is gone"):
            store.add_call(call("c2"))
        with pytest.raises(StoreError, match="is gone"):
            list(store.calls())
        assert not path.exists()
        (tmp_path / "elsewhere").rename(path)
        store.add_call(call("c3"))
        assert [c.response_id for c in store.calls()] == ["c1", "c3"]


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
        with pytest.raises(StoreError, match=r"locked .*another process holds the file"):
            impatient.add_call(call("c1"))
        waiting = patient.submit_call(call("c2"))
        assert list(impatient.calls()) == []  # readers are not held up
        assert not waiting.done()
        holder.execute("ROLLBACK")
        holder.close()
        waiting.result(30)
        impatient.add_call(call("c1"))
        assert [c.response_id for c in patient.calls()] == ["c2", "c1"]
