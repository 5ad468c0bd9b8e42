"""Tampering with a signed audit record is found."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lgov_core.audit import AuditLog, SigningKey, make_key, verify
from lgov_core.audit.signing import heads_path
from lgov_core.errors import AuditError
from tests.audit.audit_proof_parts import DENY, Signed, action, make_signed
from tests.slow import slow


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return make_signed(tmp_path_factory.mktemp("signed"))


def rehash(db: sqlite3.Connection, start: int) -> None:
    """Makes the chains right again from a position on, as an attacker with the source code would."""
    heads: dict[str, bytes] = {}
    for position, writer, body, old in db.execute(
        "SELECT position, writer, body, hash FROM entries ORDER BY position"
    ).fetchall():
        if position >= start:
            prev = heads.get(writer, bytes(32))
            new = hashlib.sha256(b"lgov-audit-v2\0" + prev + body.encode()).digest()
            db.execute("UPDATE entries SET prev_hash = ?, hash = ? WHERE position = ?", (prev, new, position))
            old = new
        heads[writer] = old


def resign(db: sqlite3.Connection, key: SigningKey) -> None:
    """Makes all heads anew with another key."""
    previous, covered = "0" * 64, 0
    for number, old in db.execute("SELECT number, body FROM heads ORDER BY number").fetchall():
        last = min(json.loads(old)["last"], db.execute("SELECT max(position) FROM entries").fetchone()[0])
        rows = db.execute(
            "SELECT hash FROM entries WHERE position BETWEEN ? AND ? ORDER BY position", (covered + 1, last)
        )
        fields = json.loads(old) | {
            "first": covered + 1,
            "last": last,
            "entries_sha256": hashlib.sha256(b"".join(row[0] for row in rows)).hexdigest(),
            "previous_sha256": previous,
            "key": key.public.hex(),
        }
        body = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        signature = key.sign(b"lgov-audit-head-v2\0" + body.encode())
        db.execute("UPDATE heads SET body = ?, signature = ? WHERE number = ?", (body, signature, number))
        previous, covered = hashlib.sha256(body.encode() + signature).hexdigest(), last


EDITS = [
    ("body", "replace(body, '\"format\":2', '\"format\":3')"),
    ("rollout_id", "'rx'"),
    ("hash", "randomblob(32)"),
    ("prev_hash", "randomblob(32)"),
    ("writer", "writer || 'x'"),
    ("seq", "seq + 1"),
    ("salt", "randomblob(16)"),
    ("salt", "NULL"),
    ("arguments", "'{\"i\":-1}'"),
    ("content", "NULL"),
]


def edit(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    column, value = rng.choice(EDITS)
    db.execute(f"UPDATE entries SET {column} = {value} WHERE position = ?", (n,))


def edit_and_rehash(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    db.execute('UPDATE entries SET body = replace(body, \'"name":"tool\', \'"name":"fool\') WHERE position = ?', (n,))
    rehash(db, n)


def flip_and_rehash(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    (position,) = rng.choice(
        db.execute('SELECT position FROM entries WHERE body LIKE \'%"effect":"deny"%\'').fetchall()
    )
    db.execute(
        'UPDATE entries SET body = replace(body, \'"effect":"deny"\', \'"effect":"allow"\') WHERE position = ?',
        (position,),
    )
    rehash(db, position)


def delete(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    db.execute("DELETE FROM entries WHERE position = ?", (n,))


def delete_and_close_up(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    db.execute("DELETE FROM entries WHERE position = ?", (n,))
    db.execute("UPDATE entries SET position = -position WHERE position > ?", (n,))
    db.execute("UPDATE entries SET position = -position - 1 WHERE position < 0")
    if rng.random() < 0.5:
        rehash(db, n)


def insert(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    db.execute("UPDATE entries SET position = -position WHERE position > ?", (n,))
    db.execute("UPDATE entries SET position = -position + 1 WHERE position < 0")
    copied = "seq, rollout_id, body, prev_hash, hash, salt, arguments, content"
    writer = rng.choice(["writer", "'stranger'"])
    db.execute(f"INSERT INTO entries SELECT ?, {writer}, {copied} FROM entries WHERE position = ?", (n + 1, n))
    if rng.random() < 0.5:
        rehash(db, n)


def append_duplicate(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    db.execute(
        "INSERT INTO entries SELECT (SELECT max(position) + 1 FROM entries), writer, seq, rollout_id, body, prev_hash, hash,"
        " salt, arguments, content FROM entries WHERE position = ?",
        (n,),
    )


def reorder(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    other = rng.choice([m for m in range(1, 73) if m != n])
    for old, new in ((n, -1), (other, n), (-1, other)):
        db.execute("UPDATE entries SET position = ? WHERE position = ?", (new, old))


def truncate(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    db.execute("DELETE FROM entries WHERE position > ?", (n,))
    if rng.random() < 0.7:
        for number, body in db.execute("SELECT number, body FROM heads").fetchall():
            if json.loads(body)["last"] > n:
                db.execute("DELETE FROM heads WHERE number = ?", (number,))


def another_key(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    key = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
    if rng.random() < 0.5:
        flip_and_rehash(db, rng, n)
    resign(db, SigningKey(key.public_key().public_bytes_raw(), key))


def heads_changed(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    number = rng.randint(1, db.execute("SELECT max(number) FROM heads").fetchone()[0])
    db.execute(
        rng.choice(
            [
                "DELETE FROM heads WHERE number = ?",
                "UPDATE heads SET signature = randomblob(64) WHERE number = ?",
                "UPDATE heads SET body = replace(body, '\"format\":2', '\"format\":3') WHERE number = ?",
                "UPDATE heads SET number = number + 100 WHERE number = ?",
                "UPDATE heads SET signature = (SELECT h.signature FROM heads AS h WHERE h.number != heads.number)"
                " WHERE number = ?",
            ]
        ),
        (number,),
    )


def texts_swapped(db: sqlite3.Connection, rng: random.Random, n: int) -> None:
    texts = db.execute("SELECT position, salt, arguments, content FROM entries WHERE arguments IS NOT NULL").fetchall()
    (a, *of_a), (b, *of_b) = rng.sample(texts, 2)
    for position, (salt, arguments, content) in ((a, of_b), (b, of_a)):
        db.execute(
            "UPDATE entries SET salt = ?, arguments = ?, content = ? WHERE position = ?",
            (salt, arguments, content, position),
        )


def everything(db: sqlite3.Connection) -> list[list[tuple[object, ...]]]:
    return [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("entries", "heads")]


TAMPERINGS: list[Callable[[sqlite3.Connection, random.Random, int], None]] = [
    edit,
    edit_and_rehash,
    flip_and_rehash,
    delete,
    delete_and_close_up,
    insert,
    append_duplicate,
    reorder,
    truncate,
    another_key,
    heads_changed,
    texts_swapped,
]


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=slow)])
def test_random_tamperings_are_found(count: int, signed: Signed, tmp_path: Path) -> None:
    rng, missed = random.Random(20260101), []
    for number in range(count):
        tampering = TAMPERINGS[number % len(TAMPERINGS)]
        path = tmp_path / f"copy{number}.db"
        shutil.copy(signed.path, path)
        db = sqlite3.connect(path, isolation_level=None)
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        before = everything(db)
        tampering(db, rng, rng.randint(1, 71))
        changed = everything(db) != before
        db.execute("PRAGMA journal_mode=DELETE")
        db.close()
        report = verify(path, key=signed.key.public, head=signed.heads)
        assert changed, f"{tampering.__name__} number {number} changed nothing"
        if report.ok or not report.problem:
            missed.append((number, tampering.__name__))
        path.unlink()
    assert missed == []


def test_an_older_copy_is_found_by_the_heads_kept_elsewhere(signed: Signed) -> None:
    assert verify(signed.older, key=signed.key.public).ok  # it is a true record, of an earlier time
    report = verify(signed.older, key=signed.key.public, head=signed.heads)
    assert not report.ok
    assert "older copy" in (report.problem or "")


def test_the_first_bad_entry_is_named(signed: Signed, tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    shutil.copy(signed.path, path)
    db = sqlite3.connect(path)
    db.execute("DROP TRIGGER entries_are_not_changed")
    (entry_id,) = db.execute("SELECT json_extract(body, '$.entry_id') FROM entries WHERE position = 41").fetchone()
    db.execute("UPDATE entries SET body = replace(body, '\"tool', '\"fool') WHERE position = 41")
    db.commit()
    db.close()
    report = verify(path)
    assert (report.first_bad, report.first_bad_id, report.entries) == (41, entry_id, 40)


def test_a_record_without_heads_is_whole_but_not_signed(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.db") as log:
        log.commit(action(1), DENY)
    report = verify(tmp_path / "audit.db")
    assert (report.ok, report.heads, report.signed, report.unsigned, report.anchored) == (True, 0, 0, 1, None)
    strict = verify(tmp_path / "audit.db", require_signed=True)
    assert (strict.ok, strict.first_bad) == (False, 1)


def test_entries_behind_the_last_head_are_counted(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    log = AuditLog(tmp_path / "audit.db", signer=key, sign_every=4)
    for number in range(6):
        log.commit(action(number), DENY)
    report = verify(tmp_path / "audit.db", key=key.public, head=heads_path(tmp_path / "audit.db"))
    assert (report.ok, report.heads, report.signed, report.unsigned) == (True, 2, 4, 2)
    assert verify(tmp_path / "audit.db", require_signed=True).first_bad == 5
    log.close()
    assert verify(tmp_path / "audit.db", key=key.public, require_signed=True).signed == 6


def test_a_key_that_was_not_compared_is_not_trusted(signed: Signed) -> None:
    report = verify(signed.path)
    assert (report.ok, report.key, report.key_trusted) == (True, signed.key.public.hex(), False)
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    wrong = verify(signed.path, key=other.hex())
    assert not wrong.ok
    assert "not with the one given" in (wrong.problem or "")
    missing = str(signed.path.parent / "no.key.pub")
    assert f"there is no key file {missing}, and that is not an Ed25519" in (
        verify(signed.path, key=missing).problem or ""
    )
    nonsense = signed.path.parent / "nonsense.pub"
    nonsense.write_text("nonsense")
    assert f"{nonsense} is not an Ed25519 public key" in (verify(signed.path, key=str(nonsense)).problem or "")


def test_a_line_that_a_crash_cut_off_the_heads_is_passed_over_and_damage_is_not(signed: Signed, tmp_path: Path) -> None:
    text = signed.heads.read_text()
    cut, damaged = tmp_path / "cut.jsonl", tmp_path / "damaged.jsonl"
    cut.write_text(text[:-20])
    damaged.write_text("{}\n" + text)
    report = verify(signed.path, head=cut)
    assert report.ok
    assert report.anchored == report.heads - 1
    assert "not a head" in (verify(signed.path, head=damaged).problem or "")
    assert not verify(signed.path, head=tmp_path / "absent").ok


def test_a_head_that_cannot_be_kept_elsewhere_is_said(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    (elsewhere := tmp_path / "disk").mkdir()
    log = AuditLog(tmp_path / "audit.db", signer=key, sign_every=1, heads=elsewhere / "heads.jsonl")
    (elsewhere / "heads.jsonl").unlink()
    elsewhere.rmdir()
    assert log.commit(action(1), DENY)  # the decision is durable all the same
    assert "second place" in str(log.signing_error)
    with pytest.raises(AuditError, match="second place"):
        log.close()
    assert verify(tmp_path / "audit.db", key=key.public).signed == 1


def test_a_record_does_not_begin_without_the_place_of_its_heads(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="there is no folder"):
        AuditLog(tmp_path / "audit.db", signer=make_key(tmp_path / "key"), heads=tmp_path / "disk" / "heads.jsonl")
    assert not (tmp_path / "audit.db").exists()
