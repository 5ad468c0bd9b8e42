"""Several writers of one audit record, and the verification of it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog, verify
from tests.audit.audit_parts import DENY, action, in_child


def test_threads_share_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        ids: list[str] = []

        def write(i: int) -> None:
            ids.extend(log.commit(action(f"tool{i}"), DENY) for _ in range(50))

        threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        entries = log.entries()
    assert sorted(entry.entry_id for entry in entries) == sorted(ids)
    assert [entry.seq for entry in entries] == list(range(1, 401))
    report = verify(path)
    assert (report.ok, report.entries, report.writers) == (True, 400, 1)


def test_processes_have_a_chain_each(tmp_path: Path) -> None:
    code = """
        import sys
        from lgov_core.audit import AuditLog
        from lgov_core.types import Action, Decision, Effect, Point
        with AuditLog(sys.argv[1]) as log:
            for i in range(100):
                log.commit(Action(Point.PRE_TOOL_CALL, f"tool{i}", agent=sys.argv[2]), Decision(Effect.ALLOW, "p"))
    """
    path = tmp_path / "audit.sqlite"
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    children = [subprocess.Popen([*arguments, f"p{i}"], stderr=subprocess.PIPE) for i in range(3)]
    for child in children:
        _, stderr = child.communicate(timeout=60)
        assert (child.returncode, stderr) == (0, b"")
    with AuditLog(path) as log:
        for i in range(3):
            mine = [entry for entry in log.entries() if entry.agent == f"p{i}"]
            assert [entry.name for entry in mine] == [f"tool{j}" for j in range(100)]
            assert len({entry.writer for entry in mine}) == 1
    report = verify(path)
    assert (report.ok, report.entries, report.writers) == (True, 300, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on_with_a_chain_of_its_own(tmp_path: Path) -> None:
    code = """
        import os, sqlite3, sys, threading
        from lgov_core.audit import AuditLog, verify
        from lgov_core.types import Action, Decision, Effect, Point
        log = AuditLog(sys.argv[1])
        action, decision = Action(Point.PRE_TOOL_CALL, "t"), Decision(Effect.ALLOW, "p")
        log.commit(action, decision)
        stop = threading.Event()
        written = []
        def write():
            while not stop.is_set():
                written.append(log.commit(action, decision))
        thread = threading.Thread(target=write)
        thread.start()  # so that forks happen in mid-commit
        children = []
        for _ in range(5):
            pid = os.fork()
            if pid == 0:
                for _ in range(20):
                    log.commit(action, decision)
                os._exit(0)
            children.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        stop.set(); thread.join()
        assert codes == [0] * 5, codes
        log.close()
        report = verify(sys.argv[1])
        assert report.ok and report.writers == 6 and report.entries == 1 + 100 + len(written), report
        salts = {salt for (salt,) in sqlite3.connect(sys.argv[1]).execute("SELECT salt FROM entries")}
        assert len(salts) == report.entries  # what was drawn before the fork salts nothing behind it
        print("done")
    """
    done = in_child(code, tmp_path / "audit.sqlite")
    assert done.stdout == "done\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_that_write_one_signed_record_at_once_lose_no_entry(tmp_path: Path) -> None:
    code = """
        import multiprocessing, sys
        from pathlib import Path
        from lgov_core.audit import AuditLog, make_key
        from lgov_core.types import Action, Decision, Effect, Point
        path, key, processes = sys.argv[1], make_key(Path(sys.argv[2])), 24
        fork = multiprocessing.get_context("fork")
        start = fork.Barrier(processes)
        def write(number):
            with AuditLog(path, signer=key, sign_every=4, busy_timeout_s=30) as log:
                start.wait(30)
                for i in range(10):
                    log.commit(Action(Point.PRE_TOOL_CALL, f"tool{i}", agent=str(number)), Decision(Effect.ALLOW, "p"))
        children = [fork.Process(target=write, args=(number,)) for number in range(processes)]
        for child in children: child.start()
        for child in children: child.join()
        print([child.exitcode for child in children], key.public.hex())
    """
    path = tmp_path / "audit.sqlite"
    done = in_child(code, path, tmp_path / "audit.key")
    codes, _, public = done.stdout.rpartition(" ")
    assert codes == str([0] * 24), done.stderr
    report = verify(path, key=public.strip(), require_signed=True)
    assert (report.ok, report.problem, report.entries, report.writers) == (True, None, 240, 24)
    with AuditLog(path, signer=None) as log:
        written = [(entry.agent, entry.name) for entry in log.entries()]
    assert sorted(written) == sorted((str(number), f"tool{i}") for number in range(24) for i in range(10))


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "audit.sqlite"
    with AuditLog(path) as one, AuditLog(path) as two:
        for i in range(10):
            (one, two)[i % 2].commit(action(f"tool{i}", arguments={"i": i}, text=f"text {i}"), DENY)
    return path


TAMPERING = {
    "verdict flipped": (4, "UPDATE entries SET body = replace(body, '\"deny\"', '\"allow\"') WHERE position = 4"),
    "name edited": (1, "UPDATE entries SET body = replace(body, 'tool0', 'tool9') WHERE position = 1"),
    "hash edited": (6, "UPDATE entries SET hash = zeroblob(32) WHERE position = 6"),
    "previous hash edited": (6, "UPDATE entries SET prev_hash = zeroblob(32) WHERE position = 6"),
    "entry removed": (5, "DELETE FROM entries WHERE position = 5"),
    "first entry removed": (1, "DELETE FROM entries WHERE position = 1"),
    "entry removed, the rest moved up": (
        5,
        "DELETE FROM entries WHERE position = 4;"
        "UPDATE entries SET position = -position WHERE position > 4;"
        "UPDATE entries SET position = -position - 1 WHERE position < 0",
    ),
    "entries swapped": (
        3,
        "UPDATE entries SET position = 99 WHERE position = 3;"
        "UPDATE entries SET position = 3 WHERE position = 5; UPDATE entries SET position = 5 WHERE position = 99",
    ),
    "entry doubled": (
        11,
        "INSERT INTO entries SELECT 11, writer, seq, rollout_id, body, prev_hash, hash, salt, arguments, content FROM entries"
        " WHERE position = 10",
    ),
    "rollout moved": (2, "UPDATE entries SET rollout_id = 'r2' WHERE position = 2"),
    "writer changed": (2, "UPDATE entries SET writer = 'me' WHERE position = 2"),
    "arguments edited": (7, "UPDATE entries SET arguments = '{\"i\":7}' WHERE position = 7"),
    "arguments emptied": (7, "UPDATE entries SET arguments = NULL WHERE position = 7"),
    "text edited": (8, 'UPDATE entries SET content = \'{"text":""}\' WHERE position = 8'),
}


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_found_where_it_happened(tmp_path: Path, record: Path, name: str) -> None:
    path = tmp_path / "copy.sqlite"
    shutil.copy(record, path)
    assert verify(path).ok
    assert verify(path).entries == 10
    first_bad, script = TAMPERING[name]
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA foreign_keys=OFF")
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.executescript(script)
    connection.close()
    report = verify(path)
    assert (report.ok, report.first_bad, report.entries) == (False, first_bad, first_bad - 1)
    assert report.problem


def test_an_edit_with_its_own_hash_recomputed_is_found_at_the_next_entry_of_the_chain(
    tmp_path: Path, record: Path
) -> None:
    path = tmp_path / "copy.sqlite"
    shutil.copy(record, path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_are_not_changed")
    body, prev = connection.execute("SELECT body, prev_hash FROM entries WHERE position = 4").fetchone()
    body = body.replace('"deny"', '"allow"')
    forged = hashlib.sha256(b"lgov-audit-v2\0" + prev + body.encode()).digest()
    connection.execute("UPDATE entries SET body = ?, hash = ? WHERE position = 4", (body, forged))
    connection.commit()
    connection.close()
    assert verify(path).first_bad == 6


def test_the_verifier_imports_nothing_of_lgov(record: Path) -> None:
    code = """
        import sys, runpy
        source = runpy.run_path(sys.argv[1], run_name="verify")
        assert not [name for name in sys.modules if name.startswith("lgov")]
        print(source["verify"](sys.argv[2]).entries)
    """
    spec = importlib.util.find_spec("lgov_core.audit.verify")
    assert spec is not None
    assert spec.origin is not None
    done = in_child(code, spec.origin, record)
    assert done.stdout == "10\n", done.stderr
