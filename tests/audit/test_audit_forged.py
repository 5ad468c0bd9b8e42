"""A signed record holds what its own writers wrote: every edit of somebody who can write the file and has no key is noticed.

Either `verify` says so, or the next commit does, with a sentence that names the file and the entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, SigningKey, make_key, verify
from lgov_core.audit.signing import heads_path
from lgov_core.audit.verify import in_words
from lgov_core.errors import AuditError
from lgov_core.governor import Governor
from tests.audit.audit_proof_parts import ALLOW, DENY, Signed, action, make_signed

Edit = Callable[[sqlite3.Connection], Any]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return make_signed(tmp_path_factory.mktemp("forged"))


def edited(path: Path, edit: Edit) -> None:
    """Changes the record at ``path`` with SQLite, and leaves its tables and triggers as they were."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        edit(db)
        for _, statement in triggers:
            db.execute(statement)


def put(db: sqlite3.Connection, body: dict[str, Any], prev_hash: bytes = bytes(32), seal: str | None = None) -> None:
    """Appends an entry with a right hash; ``seal`` is put into it."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    if seal is not None:
        text = f'{{"_seal":"{seal}",{text[1:]}'
    chained = hashlib.sha256(b"lgov-audit-v2\0" + prev_hash + text.encode()).digest()
    db.execute(
        "INSERT INTO entries (writer, seq, rollout_id, body, prev_hash, hash) VALUES (?, ?, ?, ?, ?, ?)",
        (body["writer"], body["seq"], body.get("rollout_id"), text, prev_hash, chained),
    )


def last_of(db: sqlite3.Connection, which: str = "DESC") -> tuple[dict[str, Any], bytes]:
    """The body and the hash of the last entry, or of the first (``ASC``)."""
    body, entry_hash = db.execute(f"SELECT body, hash FROM entries ORDER BY position {which} LIMIT 1").fetchone()
    return json.loads(body), entry_hash


def allowed(writer: str, seq: int) -> dict[str, Any]:
    body = {"entry_id": f"aud_{writer[:16]}_{seq}", "writer": writer, "seq": seq, "kind": "decision", "format": 2}
    return {**body, "effect": "allow", "name": "transfer", "policy": "p", "rule": "r", "time_ns": 1, "monotonic_ns": 1}


def append_of_a_writer_of_its_own(db: sqlite3.Connection) -> None:
    put(db, allowed("f" * 32, 1))


def append_to_the_chain_of_the_last_writer(db: sqlite3.Connection) -> None:
    body, entry_hash = last_of(db)
    put(db, allowed(body["writer"], body["seq"] + 1), entry_hash)


def append_to_a_chain_with_the_seal_of_its_last_entry(db: sqlite3.Connection) -> None:
    body, entry_hash = last_of(db)
    put(db, allowed(body["writer"], body["seq"] + 1), entry_hash, body["_seal"])


def append_with_a_made_up_seal(db: sqlite3.Connection) -> None:
    body, entry_hash = last_of(db)
    put(db, allowed(body["writer"], body["seq"] + 1), entry_hash, "0" * 64)


def begin_a_writer_with_the_seal_of_another(db: sqlite3.Connection) -> None:
    put(db, allowed("f" * 32, 1), seal=last_of(db, "ASC")[0]["_seal"])


def begin_a_writer_with_another_key(db: sqlite3.Connection) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, body = Ed25519PrivateKey.generate(), allowed("f" * 32, 1)
    (record,) = db.execute("SELECT id FROM record").fetchone()
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    signature = key.sign(b"lgov-audit-writer-v1\0" + record.encode() + hashlib.sha256(text).digest())
    put(db, body, seal="0" * 64 + key.public_key().public_bytes_raw().hex() + signature.hex())


def begin_a_writer_again(db: sqlite3.Connection) -> None:
    row = "writer, seq, rollout_id, body, prev_hash, hash, salt, arguments, content"
    db.execute(f"INSERT INTO entries ({row}) SELECT {row} FROM entries WHERE position = 1")


def insert_in_the_middle(db: sqlite3.Connection) -> None:
    db.execute("UPDATE entries SET position = -position WHERE position > 3")
    append_of_a_writer_of_its_own(db)
    db.execute("UPDATE entries SET position = 1 - position WHERE position < 0")


def delete_the_last(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM entries WHERE position = (SELECT max(position) FROM entries)")


def delete_the_last_heads_and_all_behind_them(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM heads WHERE number > 1 AND number > (SELECT max(number) FROM heads) - 2")
    covered = json.loads(db.execute("SELECT body FROM heads ORDER BY number DESC LIMIT 1").fetchone()[0])["last"]
    db.execute("DELETE FROM entries WHERE position > ?", (covered,))


def swap_the_last_two(db: sqlite3.Connection) -> None:
    last = db.execute("SELECT max(position) FROM entries").fetchone()[0]
    for old, new in ((last, -1), (last - 1, last), (-1, last - 1)):
        db.execute("UPDATE entries SET position = ? WHERE position = ?", (new, old))


def flip_the_last(db: sqlite3.Connection) -> None:
    position, body, prev_hash = db.execute(
        "SELECT position, body, prev_hash FROM entries ORDER BY position DESC LIMIT 1"
    ).fetchone()
    body = body.replace('"effect":"deny"', '"effect":"allow"').replace('"name":"tool', '"name":"fool')
    chained = hashlib.sha256(b"lgov-audit-v2\0" + prev_hash + body.encode()).digest()
    db.execute("UPDATE entries SET body = ?, hash = ? WHERE position = ?", (body, chained, position))


def remove_the_seal_of_the_last(db: sqlite3.Connection) -> None:
    position, body, prev_hash = db.execute(
        "SELECT position, body, prev_hash FROM entries ORDER BY position DESC LIMIT 1"
    ).fetchone()
    fields = json.loads(body)
    del fields["_seal"]
    body = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    chained = hashlib.sha256(b"lgov-audit-v2\0" + prev_hash + body.encode()).digest()
    db.execute("UPDATE entries SET body = ?, hash = ? WHERE position = ?", (body, chained, position))


EDITS: list[Edit] = [
    append_of_a_writer_of_its_own,
    append_to_the_chain_of_the_last_writer,
    append_to_a_chain_with_the_seal_of_its_last_entry,
    append_with_a_made_up_seal,
    begin_a_writer_with_the_seal_of_another,
    begin_a_writer_with_another_key,
    begin_a_writer_again,
    insert_in_the_middle,
    delete_the_last,
    delete_the_last_heads_and_all_behind_them,
    swap_the_last_two,
    flip_the_last,
    remove_the_seal_of_the_last,
]


@pytest.mark.parametrize("edit", EDITS)
def test_verify_finds_every_edit_of_a_closed_record(signed: Signed, tmp_path: Path, edit: Edit) -> None:
    path = tmp_path / "audit.db"
    shutil.copy(signed.path, path)
    edited(path, edit)
    assert not verify(path, key=signed.key.public, head=signed.heads).ok
    if edit is not delete_the_last_heads_and_all_behind_them:  # which only the heads that are kept elsewhere show
        assert not verify(path).ok


def test_entries_of_another_record_with_the_same_key_are_foreign(signed: Signed, tmp_path: Path) -> None:
    path, other = tmp_path / "audit.db", tmp_path / "other.db"
    shutil.copy(signed.path, path)
    shutil.copy(signed.heads, heads_path(path))
    with AuditLog(other, signer=signed.key, heads=tmp_path / "heads") as log:
        log.commit(action(1), ALLOW)

    def splice(db: sqlite3.Connection) -> None:
        row = "writer, seq, rollout_id, body, prev_hash, hash, salt, arguments, content"
        db.execute("ATTACH ? AS other", (str(other),))
        db.execute(f"INSERT INTO entries ({row}) SELECT {row} FROM other.entries")

    edited(path, splice)
    report = verify(path, key=signed.key.public)
    assert (report.ok, report.first_bad) == (False, 73)
    assert "no writer with the record's key wrote it" in str(report.problem)
    with pytest.raises(AuditError, match="entry 73, which no writer"), AuditLog(path, signer=signed.key) as log:
        log.commit(action(2), ALLOW)


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path / "audit.key")


KILLED = """
import os, sys
from pathlib import Path
from lgov_core.audit import AuditLog
from lgov_core.audit.signing import load_key
from tests.audit.audit_proof_parts import ALLOW, DENY, action
log = AuditLog(sys.argv[1], signer=load_key(Path(sys.argv[2])))
for number in range(6):
    log.commit(action(number), (ALLOW, DENY)[number % 2])
os._exit(0)
"""


@pytest.mark.parametrize("edit", EDITS)
def test_the_next_commit_notices_an_edit_behind_a_writer_that_was_killed(
    tmp_path: Path, key: SigningKey, edit: Edit
) -> None:
    path = tmp_path / "audit.db"
    subprocess.run([sys.executable, "-c", KILLED, path, tmp_path / "audit.key"], check=True, timeout=60)
    assert (verify(path, key=key.public).ok, verify(path).unsigned) == (True, 6)
    if edit in (delete_the_last, delete_the_last_heads_and_all_behind_them):
        pytest.skip("what no head covers yet and no process remembers can be cut off")
    edited(path, edit)
    denied = False
    with suppress(AuditError), AuditLog(path, signer=key) as log:
        try:
            log.commit(action(9), ALLOW)
        except AuditError as error:
            denied = str(path) in str(error)
    assert denied or not verify(path, key=key.public).ok
    assert verify(path).heads == 1  # no head covers it


@pytest.mark.parametrize("edit", EDITS)
def test_the_next_commit_of_an_open_writer_notices(tmp_path: Path, key: SigningKey, edit: Edit) -> None:
    path = tmp_path / "audit.db"
    log, other = (AuditLog(path, signer=key, sign_every=4) for _ in range(2))
    for number in range(7):
        (log, other)[number % 2].commit(action(number), DENY)
    edited(path, edit)
    problems: list[str] = []
    for _ in range(2):
        for writer in (log, other):
            try:
                writer.commit(action(9), ALLOW)
            except AuditError as error:
                problems.append(str(error))
    for writer in (log, other):
        with suppress(AuditError):
            writer.close()
    report = verify(path, key=key.public, head=path.with_name("audit.db.heads.jsonl"))
    assert problems or not report.ok
    assert all(str(path) in problem for problem in problems)
    if edit in EDITS[:6]:
        assert len(problems) >= 3
        assert not report.ok


def copy_over(path: Path, source: Path) -> None:
    path.write_bytes(source.read_bytes())


def copy_over_without_its_log(path: Path, source: Path) -> None:
    path.write_bytes(source.read_bytes())
    path.with_name(path.name + "-wal").unlink()
    path.with_name(path.name + "-shm").unlink()


def put_in_its_place(path: Path, source: Path) -> None:
    os.replace(source, path)


def cut_to_nothing(path: Path, source: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("source", ["older", "another"])
@pytest.mark.parametrize("is_signed", [True, False])
@pytest.mark.parametrize("replaced", [copy_over, copy_over_without_its_log, put_in_its_place, cut_to_nothing])
def test_a_record_that_is_replaced_under_an_open_writer_denies_the_next_call(
    tmp_path: Path, key: SigningKey, source: str, is_signed: bool, replaced: Callable[[Path, Path], None]
) -> None:
    path, signer = tmp_path / "audit.db", key if is_signed else None
    log = AuditLog(path, signer=signer)
    governor = Governor(audit=log)
    for number in range(5):
        log.commit(action(number), ALLOW)
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(tmp_path / "older")) as copy:
        db.backup(copy)
    with AuditLog(tmp_path / "another", signer=signer) as other:
        for number in range(30):
            other.commit(action(number), ALLOW)
    log.commit(action(6), ALLOW)
    replaced(path, tmp_path / source)
    for number in range(2):
        with pytest.raises(AuditError, match=str(path)):
            log.commit(action(number), ALLOW)
        assert governor.decide(action(number)).rule == "audit-failed"
    with suppress(AuditError):
        log.close()


def test_checkpoints_of_sqlite_replace_nothing(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    with AuditLog(path, signer=key) as log, AuditLog(path, signer=key) as other:
        for number in range(40):
            (log, other)[number % 2].commit(action(number), ALLOW)
            if number % 5 == 0:
                with closing(sqlite3.connect(path)) as db:
                    db.execute(f"PRAGMA wal_checkpoint({('PASSIVE', 'FULL', 'TRUNCATE')[number % 3]})")
    report = verify(path, key=key.public, require_signed=True)
    assert (report.ok, report.entries) == (True, 40)


def test_a_key_that_came_later_does_not_say_who_wrote_what_was_there(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    for signer in (None, key):
        with AuditLog(path, signer=signer) as log:
            log.commit(action(1), ALLOW)
    report = verify(path, key=key.public)
    assert (report.ok, report.signed, report.before_key) == (True, 2, 1)
    assert "1 entry from before there was a key" in in_words(report)
    strict = verify(path, key=key.public, require_signed=True)
    assert (strict.ok, strict.first_bad) == (False, 1)


def test_a_writer_without_the_records_key_writes_nothing_and_may_read(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    with AuditLog(path, signer=key) as log:
        log.commit(action(1), ALLOW)
    for signer in (None, make_key(tmp_path / "another.key")):
        with AuditLog(path, signer=signer) as log:
            with pytest.raises(AuditError, match=f"signed with the key {key.public.hex()}"):
                log.commit(action(2), ALLOW)
            assert len(log.entries()) == 1
    assert verify(path, key=key.public, require_signed=True).entries == 1


def test_a_record_that_was_begun_before_entries_were_sealed_goes_on_sealed(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    with AuditLog(path, signer=None) as log:  # as the entries of older versions are
        log.commit(action(1), ALLOW)
    with AuditLog(path, signer=key) as log:
        log.commit(action(2), ALLOW)
    assert verify(path, key=key.public).ok
    edited(path, append_of_a_writer_of_its_own)
    assert verify(path, key=key.public).first_bad == 3
