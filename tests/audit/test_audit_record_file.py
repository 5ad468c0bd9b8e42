"""What an entry's row is made of, when a head is due, and what an open writer notices before and after each entry."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, SigningKey, make_key
from lgov_core.audit.entry import Payload
from lgov_core.audit.record_file import EntryChain, EntryRow
from lgov_core.audit.signing import ForeignEntry, Seals
from lgov_core.errors import AuditError
from lgov_core.types import ToolOutcome
from tests.audit.audit_parts import DENY, action
from tests.audit.test_audit_forged import (
    allowed,
    append_of_a_writer_of_its_own,
    delete_the_last,
    edited,
    flip_the_last,
    put,
)

HINT = "keep a copy, check it with lgov audit verify, and begin a new record"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.db"


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path / "audit.key")


_OPEN: list[AuditLog] = []


def opened(path: Path, **options: Any) -> AuditLog:
    """A log that the test leaves open, whatever becomes of its record."""
    _OPEN.append(AuditLog(path, **options))
    return _OPEN[-1]


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    while _OPEN:
        with suppress(AuditError):
            _OPEN.pop().close()


def commits(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.commit(action(f"tool{number}"), DENY)


def heads_in(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT count(*) FROM heads").fetchone()[0]


def checkpoint(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


def forge(count: int) -> Callable[[sqlite3.Connection], None]:
    """Entries of somebody without the key."""

    def append(db: sqlite3.Connection) -> None:
        for number in range(count):
            put(db, allowed("f" * 32, number + 1))

    return append


# ---------------------------------------------------------------------- one row


def row_of(
    chain: EntryChain, arguments: Payload | None = None, content: Payload | None = None, **fields: Any
) -> EntryRow:
    return chain.next_row(chain.next_id("aud"), {"kind": "x", **fields}, arguments, content)


def test_a_row_holds_its_body_what_it_follows_and_the_hash_of_both() -> None:
    chain = EntryChain(None)
    assert (chain.next_id("aud"), chain.length) == (f"aud_{chain.writer[:16]}_1", 0)
    row = row_of(chain, rollout_id="r1", left_out=None)
    assert json.loads(row.body) == {
        "kind": "x", "rollout_id": "r1", "entry_id": chain.next_id("aud"), "writer": chain.writer, "seq": 1
    }  # fmt: skip
    assert (row.writer, row.seq, row.rollout_id, row.prev_hash) == (chain.writer, 1, "r1", bytes(32))
    assert (row.salt, row.arguments, row.content) == (None, None, None)
    assert row.hash == hashlib.sha256(b"lgov-audit-v2\0" + bytes(32) + row.body.encode()).digest()
    assert len(chain.writer) == 32
    assert chain.writer != EntryChain(None).writer


def test_the_chain_moves_only_when_a_row_is_appended() -> None:
    chain = EntryChain(None)
    first = row_of(chain)
    assert row_of(chain) == first
    chain.append(first)
    second = row_of(chain)
    assert (chain.length, second.seq, second.prev_hash) == (1, 2, first.hash)


@pytest.mark.parametrize("there", [(True, False), (False, True), (True, True)])
def test_a_body_says_the_salted_hash_and_the_full_size_of_its_texts(there: tuple[bool, bool]) -> None:
    texts = {"arguments": Payload("{cut}", 700), "content": Payload("text", 4)}
    arguments, content = (texts[name] if is_there else None for name, is_there in zip(texts, there, strict=True))
    row = row_of(EntryChain(None), arguments, content)
    body = json.loads(row.body)
    assert row.salt is not None
    assert len(row.salt) == 16
    for name, text, stored in (("arguments", arguments, row.arguments), ("content", content, row.content)):
        if text is None:
            assert stored is None
            assert f"{name}_sha256" not in body
        else:
            assert stored == text.stored
            assert body[f"{name}_size"] == text.size
            assert body[f"{name}_sha256"] == hashlib.sha256(row.salt + text.stored.encode()).hexdigest()
    assert row_of(EntryChain(None), arguments, content).salt != row.salt


def test_seals_seal_each_row_and_the_first_with_the_key(key: SigningKey) -> None:
    seals = Seals(key, "record")
    chain = EntryChain(seals)
    first = row_of(chain)
    chain.append(first)
    second = row_of(chain)
    assert seals.is_right(first.prev_hash, first.body)
    assert seals.is_right(second.prev_hash, second.body)
    assert not seals.is_right(first.prev_hash, second.body)
    assert len(json.loads(first.body)["_seal"]) > len(json.loads(second.body)["_seal"]) == 64
    assert second.hash == hashlib.sha256(b"lgov-audit-v2\0" + first.hash + second.body.encode()).digest()


# ---------------------------------------------------------------------- what each entry says


def test_an_entry_is_stamped_with_its_format_its_times_and_its_versions(path: Path) -> None:
    digests = iter(["d1", None])
    with AuditLog(path, signer=None, policy_digest=lambda: next(digests)) as log:
        log.code_version = "1.2.3"
        before = time.time_ns(), time.monotonic_ns()
        commits(log, 2)
        log.policy_digest = "d2"
        commits(log, 1)
        after = time.time_ns(), time.monotonic_ns()
        log.commit(action(), DENY.changed(policy_digest="of the decision"))
    with closing(sqlite3.connect(path)) as db:
        bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM entries ORDER BY position")]
    assert [body["policy_digest"] for body in bodies] == ["d1", "", "d2", "of the decision"]
    assert {(body["format"], body["code_version"]) for body in bodies} == {(2, "1.2.3")}
    assert before[0] <= bodies[0]["time_ns"] <= bodies[2]["time_ns"] <= after[0]
    assert before[1] <= bodies[0]["monotonic_ns"] <= bodies[2]["monotonic_ns"] <= after[1]


def test_an_entry_that_cannot_be_made_is_named(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        with pytest.raises(AuditError, match="the arguments of 'transfer' cannot be recorded"):
            log.commit(action("transfer"), DENY.changed(latency_us=float("nan")))
        with pytest.raises(AuditError, match="the arguments of 'note' cannot be recorded"):
            log.append("note", {"size": float("nan")}, arguments=None, content={})
        endless: dict[str, Any] = {}
        endless["itself"] = endless
        with pytest.raises(AuditError, match="the arguments of 'trace' cannot be recorded"):
            log.append("trace", {}, arguments=endless, content={})
        assert log.append("note", {"size": 1}, arguments=None, content={}).startswith("not_")
        assert [entry.seq for entry in log.entries()] == [1]


def test_an_entry_of_another_kind_keeps_what_belongs_to_it_without_what_is_redacted(path: Path) -> None:
    with AuditLog(path, signer=None, redact=["secret"]) as log:
        texts = {"note": "a", "secret": "b"}
        first = log.append("note", {"size": 1}, arguments=texts, content=texts)
        second = log.append("trace", {}, arguments=None, content={"note": None})
        third = log.commit_outcome(ToolOutcome(action(), "ok", result="done"), None)
        entries = log.entries()
    assert [entry.entry_id for entry in entries] == [first, second, third]
    assert [entry_id.partition("_")[0] for entry_id in (first, second, third)] == ["not", "tra", "out"]
    assert json.loads(entries[0].arguments or "")["note"] == json.loads(entries[0].content or "")["note"] == "a"
    assert '"b"' not in f"{entries[0].arguments}{entries[0].content}"
    assert (entries[1].arguments, entries[1].content) == (None, None)
    assert json.loads(entries[2].content or "") == {"result": "done"}


# ---------------------------------------------------------------------- heads


def test_a_head_is_due_after_so_many_entries(path: Path, key: SigningKey) -> None:
    with AuditLog(path, signer=key, sign_every=3) as log:
        counts = []
        for _ in range(7):
            commits(log, 1)
            counts.append(heads_in(path))
        assert counts == [1, 1, 2, 2, 2, 3, 3]
    assert heads_in(path) == 4


@pytest.mark.parametrize(("seconds", "heads"), [(60.0, 1), (0.0, 3), (float("nan"), 3)])
def test_a_head_is_due_after_a_time(path: Path, key: SigningKey, seconds: float, heads: int) -> None:
    with AuditLog(path, signer=key) as log:
        assert log.sign_after_s == 60
        log.sign_after_s = seconds
        commits(log, 2)
        assert heads_in(path) == heads


def test_a_forked_child_counts_its_own_entries_until_its_head(path: Path, key: SigningKey) -> None:
    with AuditLog(path, signer=key, sign_every=3) as log:
        commits(log, 2)
        process = os.fork()
        if not process:
            status = 1
            try:
                commits(log, 2)
                two = heads_in(path)
                commits(log, 1)
                status = 0 if (two, heads_in(path)) == (1, 2) else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


# ---------------------------------------------------------------------- what a writer refuses


def test_a_record_that_other_threads_hold_denies(path: Path) -> None:
    with AuditLog(path, signer=None, busy_timeout_s=0.01) as log:
        with log._lock, pytest.raises(AuditError, match=r"other threads held it for 0\.01 s") as raised:
            commits(log, 1)
        assert raised.value.hint == "look for a slow disk, or raise the busy timeout"
        commits(log, 1)


def test_a_record_that_another_connection_holds_denies_at_once_and_goes_on_afterwards(path: Path) -> None:
    with AuditLog(path, signer=None, busy_timeout_s=0.01) as log:
        commits(log, 1)
        connection = log._connection
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(AuditError):
                commits(log, 1)
            with pytest.raises(sqlite3.ProgrammingError):
                connection.execute("SELECT 1")  # type: ignore[union-attr]
        commits(log, 1)
        assert [entry.seq for entry in log.entries()] == [1, 1], "unknown whether the entry was written: a new chain"
        assert len({entry.writer for entry in log.entries()}) == 2


def test_after_a_failed_write_a_signed_record_goes_on_sealed(path: Path, key: SigningKey) -> None:
    with AuditLog(path, signer=key, busy_timeout_s=0.01) as log, AuditLog(path, signer=key) as other:
        with closing(sqlite3.connect(path, isolation_level=None)) as third:
            third.execute("BEGIN IMMEDIATE")
            with pytest.raises(AuditError):
                commits(log, 1)
        commits(log, 1)
        commits(other, 1)


def test_a_closed_record_denies(path: Path) -> None:
    log = opened(path, signer=None)
    log.close()
    log.close()
    with pytest.raises(AuditError, match="is closed") as raised:
        commits(log, 1)
    assert raised.value.hint == "open it again to go on"


def noticed(log: AuditLog, problem: str) -> None:
    """The next commit and every later one raise the same ``problem``."""
    for _ in range(2):
        with pytest.raises(ForeignEntry, match=problem) as raised:
            commits(log, 1)
        assert raised.value.hint == HINT


def test_another_record_in_the_place_of_the_one_that_was_opened_is_not_written_to(path: Path, tmp_path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 1)
    with AuditLog(tmp_path / "other", signer=None) as other:
        commits(other, 3)
    os.replace(tmp_path / "other", path)
    with pytest.raises(AuditError, match="is no longer the file that was opened"):
        commits(log, 1)
    path.unlink()
    with pytest.raises(AuditError, match="is gone"):
        commits(log, 1)


def test_a_connection_that_is_opened_again_is_to_the_same_file(path: Path, tmp_path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 1)
    log.before_fork()
    log.after_fork_in_parent()
    log._watch.require_same_file = lambda: os.replace(tmp_path / "other", path)  # type: ignore[method-assign]
    AuditLog(tmp_path / "other", signer=None).close()
    with pytest.raises(AuditError, match="is no longer the file that was opened"):
        commits(log, 1)


def test_a_file_that_was_cut_is_noticed(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 3)
    checkpoint(path)
    commits(log, 1)
    os.truncate(path, path.stat().st_size - 4096)
    noticed(log, "is shorter than it was")


def test_entries_that_are_gone_are_noticed_by_the_position_of_the_next(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 3)
    edited(path, delete_the_last)
    noticed(log, "has lost entries: the entry after 3 became entry 3")


def test_an_older_copy_of_the_file_is_noticed(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 1)
    checkpoint(path)
    older = path.read_bytes()
    commits(log, 2)
    checkpoint(path)
    commits(log, 1)
    assert len(older) == path.stat().st_size
    path.write_bytes(older)
    noticed(log, "was replaced by an older copy")


def test_a_checkpoint_is_none(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        for _ in range(4):
            commits(log, 1)
            checkpoint(path)
        for _ in range(2):
            os.utime(path)
            commits(log, 1)
        assert len(log.entries()) == 6


def test_a_record_without_entries_is_not_older_than_it_was(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        checkpoint(path)
        os.utime(path)
        commits(log, 1)


def test_a_change_of_the_files_time_alone_is_none(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        for _ in range(3):
            commits(log, 1)
            os.utime(path)


def test_a_record_that_holds_entries_goes_on_though_another_writer_has_the_log_written_back(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        commits(log, 2)
    with AuditLog(path, signer=None) as log, AuditLog(path, signer=None) as other:
        commits(other, 1)
        checkpoint(path)
        os.utime(path)
        commits(log, 1)
        assert len(log.entries()) == 4


def test_a_file_of_something_else_is_noticed(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 1)
    checkpoint(path)
    path.write_bytes(b"x" * path.stat().st_size)
    noticed(log, "is damaged: ")


def test_a_file_that_cannot_be_read_now_denies_and_goes_on_afterwards(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 1)
    checkpoint(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        log._watch._read = busy  # type: ignore[method-assign]
        with pytest.raises(AuditError, match="database is locked") as raised:
            commits(log, 1)
        assert not isinstance(raised.value, ForeignEntry)
        del log._watch._read
        other.execute("SELECT 1")
    commits(log, 1)


def busy(options: str) -> Any:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    raise error


def edited_without_a_trace(path: Path, edit: Callable[[sqlite3.Connection], None]) -> None:
    """Changes the record, with the number of its schema as it was."""

    def change(db: sqlite3.Connection) -> None:
        edit(db)
        db.execute(f"PRAGMA schema_version = {before}")

    with closing(sqlite3.connect(path)) as db:
        before = db.execute("PRAGMA schema_version").fetchone()[0]
        triggers = db.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()[0]
    before -= triggers  # which are made again
    edited(path, change)
    checkpoint(path)
    os.utime(path)


def test_a_last_entry_that_was_changed_is_noticed_once_it_is_in_the_file(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 2)
    edited_without_a_trace(path, flip_the_last)
    noticed(log, "does not hold the last entry as it was written: it was replaced by a copy, or changed")


def test_the_last_entry_of_those_before_is_remembered_when_a_record_is_opened(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        commits(log, 2)
    log = opened(path, signer=None)
    edited_without_a_trace(path, flip_the_last)
    noticed(log, "does not hold the last entry as it was written")


def test_a_copy_that_sqlite_made_is_another_file(path: Path, tmp_path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 2)
    checkpoint(path)
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        db.backup(copy)
    path.write_bytes((tmp_path / "copy").read_bytes())
    noticed(log, "was replaced by another file or a copy")


@pytest.mark.parametrize("count", [1, 4])
def test_a_few_entries_of_somebody_without_the_key_are_noticed_at_the_next_entry(
    path: Path, key: SigningKey, count: int
) -> None:
    log = opened(path, signer=key)
    commits(log, 2)
    edited(path, forge(count))
    noticed(log, "holds entry 3, which no writer with the record's key wrote")


def test_many_of_them_are_noticed_at_the_next_head(path: Path, key: SigningKey) -> None:
    log = opened(path, signer=key, sign_every=4)
    commits(log, 2)
    edited(path, forge(5))
    commits(log, 1)
    noticed(log, "holds entry 3, which no writer with the record's key wrote")
    assert heads_in(path) == 1


def test_the_last_of_them_is_noticed_too(path: Path, key: SigningKey) -> None:
    log, other = (opened(path, signer=key) for _ in range(2))
    commits(log, 1)
    commits(other, 2)
    edited(path, append_of_a_writer_of_its_own)
    noticed(log, "holds entry 4, which")


def test_entries_of_other_writers_with_the_key_are_passed_over(path: Path, key: SigningKey) -> None:
    logs = [opened(path, signer=key, sign_every=5) for _ in range(3)]
    for number in range(24):
        commits(logs[number % 3], 1)
    for log in logs:
        log.close()


def test_what_a_writer_without_a_key_finds_of_others_it_does_not_look_at(path: Path) -> None:
    log = opened(path, signer=None)
    commits(log, 1)
    edited(path, forge(2))
    commits(log, 1)


def lose_the_first(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM entries WHERE position = 1")


def lose_the_second(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM entries WHERE position = 2")


def flip_the_second(db: sqlite3.Connection) -> None:
    db.execute("UPDATE entries SET hash = zeroblob(32) WHERE position = 2")


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lose_the_first, r"has lost entry 1 \("),
        (lose_the_second, r"has lost entry 2 \("),
        (flip_the_second, "holds another entry 2 than was written"),
    ],
)
@pytest.mark.parametrize("sees_others", [False, True])
def test_no_head_is_signed_over_entries_that_are_not_as_they_were_seen(
    path: Path, key: SigningKey, edit: Callable[[sqlite3.Connection], None], problem: str, sees_others: bool
) -> None:
    log, other = (opened(path, signer=key, sign_every=6) for _ in range(2))
    commits(other if sees_others else log, 3)
    commits(log, 2)
    edited(path, edit)
    log._unsigned = 5
    with pytest.raises(ForeignEntry, match=problem) as raised:
        commits(log, 1)
    assert raised.value.hint == HINT
    assert heads_in(path) == 1
    noticed(log, problem)


def test_after_a_head_only_what_is_behind_it_is_remembered(path: Path, key: SigningKey) -> None:
    log = opened(path, signer=key, sign_every=2)
    commits(log, 7)
    assert list(log._watch._seen) == [5, 6, 7]
    log.close()
