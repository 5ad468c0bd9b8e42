"""The log of an audit record is written back into its file beside those who decide."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from lgov_core._util.sqlite_file import file_identity
from lgov_core.audit import AuditLog, verify
from lgov_core.audit.schema import AUDIT_RECORD
from lgov_core.audit.writing_back import WritingBack
from lgov_core.types import Action, Decision, Effect, Point

ACTION = Action(Point.PRE_TOOL_CALL, "t", arguments={"text": "x" * 1000})
ALLOWED = Decision(Effect.ALLOW, "p")


def written_back(path: Path, before: int) -> bool:
    """Whether the file itself has grown, within half a minute."""
    until = time.monotonic() + 30
    while path.stat().st_size <= before and time.monotonic() < until:
        time.sleep(0.01)
    return path.stat().st_size > before


def test_the_log_is_written_back_while_the_record_is_open(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        size = path.stat().st_size
        for _ in range(1999):
            log.commit(ACTION, ALLOWED)
        assert path.stat().st_size == size
        log.commit(ACTION, ALLOWED)
        assert written_back(path, size)
        log.commit(ACTION, ALLOWED)
    assert not Path(f"{path}-wal").exists()
    assert verify(path).entries == 2001


def test_long_texts_are_written_back_sooner(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        size = path.stat().st_size
        long = Action(Point.PRE_TOOL_CALL, "t", arguments={"text": "x" * 9 * 4096})  # ten entries' worth
        for _ in range(199):
            log.commit(long, ALLOWED)
        assert path.stat().st_size == size
        log.commit(long, ALLOWED)
        assert written_back(path, size)


def test_a_record_is_whole_when_it_has_been_closed_in_the_middle_of_it(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"audit{number}.sqlite"
        with AuditLog(path) as log:
            for _ in range(2000):
                log.commit(ACTION, ALLOWED)
        assert not Path(f"{path}-wal").exists()
        assert verify(path).entries == 2000


def test_it_is_done_once_at_a_time_and_again_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        log.commit(ACTION, ALLOWED)
        back = WritingBack(AUDIT_RECORD, path, file_identity(path))
        back.hold()
        size = path.stat().st_size
        back.begin()  # nothing: it is held
        assert "lgov-audit-write-back" not in {thread.name for thread in threading.enumerate()}
        back.release()
        back.begin()
        back.hold()  # waits for its end
        assert path.stat().st_size > size
        back.release()


def test_a_record_that_was_replaced_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        log.commit(ACTION, ALLOWED)
        identity = file_identity(path)
        os.replace(path, tmp_path / "moved.sqlite")
        path.write_text("somebody else's")
        back = WritingBack(AUDIT_RECORD, path, identity)
        back.begin()
        back.hold()
        back.release()
        assert path.read_text() == "somebody else's"
        os.replace(tmp_path / "moved.sqlite", path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_the_middle_of_it_leaves_both_able_to_write(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        for _ in range(2000):
            log.commit(ACTION, ALLOWED)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(2001):
                    log.commit(ACTION, ALLOWED)
                log.close()
            except BaseException:
                os._exit(1)
            os._exit(0)
        for _ in range(2001):
            log.commit(ACTION, ALLOWED)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    report = verify(path)
    assert (report.ok, report.entries) == (True, 2000 + 2001 + 2001)
