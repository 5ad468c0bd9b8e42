"""What a signed audit record proves: every kind of tampering is found, nothing honest is."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lgov_core.audit import AuditLog, SigningKey, make_key, verify
from lgov_core.audit import verify as verify_function
from lgov_core.audit.heads import heads_path
from lgov_core.audit.verify import Ed25519PublicKey
from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, Effect, Point, Severity, ToolOutcome

DENY = Decision(Effect.DENY, "sql", "no-drop", "it destroys a table", Severity.CRITICAL)
ALLOW = Decision(Effect.ALLOW, "sql", "reads")
VERIFIER = Path(sys.modules[verify_function.__module__].__file__ or "")


def action(number: int) -> Action:
    return Action(
        Point.PRE_TOOL_CALL,
        f"tool{number}",
        arguments={"i": number},
        rollout_id=f"r{number % 3}",
        call_id=f"c{number}",
        text=f"text {number}",
    )


@dataclass(frozen=True)
class Signed:
    """A record of two writers, 72 entries, several heads; ``older`` is a copy of it from halfway."""

    path: Path
    older: Path
    heads: Path
    key: SigningKey


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    folder = tmp_path_factory.mktemp("signed")
    key = make_key(folder / "audit.key")
    path, older, heads = folder / "audit.db", folder / "older.db", folder / "elsewhere" / "heads.jsonl"
    heads.parent.mkdir()
    with (
        AuditLog(path, signer=key, sign_every=24, heads=heads) as one,
        AuditLog(path, signer=key, sign_every=24, heads=heads) as two,
    ):
        for number in range(60):
            log = (one, two)[number % 7 % 2]
            decision = ALLOW if number % 4 else DENY
            decision_id = log.commit(action(number), decision)
            if number % 5 == 0:
                log.commit_outcome(ToolOutcome(action(number), "ok", result=f"{number} rows"), decision_id)
            if number == 30:
                with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(older)) as copy:
                    source.backup(copy)
    report = verify(path, key=key.public, head=heads, require_signed=True)
    assert report.ok, report
    assert (report.entries, report.signed, report.unsigned, report.key_trusted) == (72, 72, 0, True)
    assert report.heads >= 3
    assert report.anchored == report.heads
    return Signed(path, older, heads, key)


# ---------------------------------------------------------------------- a thousand ways to tamper


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


def test_a_thousand_tamperings_are_found(signed: Signed, tmp_path: Path) -> None:
    rng, missed = random.Random(20260101), []
    for number in range(1000):
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


# ---------------------------------------------------------------------- what is not proved is said


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
    assert "no Ed25519 public key" in (verify(signed.path, key="nonsense").problem or "")


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
    log = AuditLog(tmp_path / "audit.db", signer=key, sign_every=1, heads=tmp_path / "no" / "such" / "folder")
    assert log.commit(action(1), DENY)  # the decision is durable all the same
    assert "second place" in str(log.signing_error)
    with pytest.raises(AuditError, match="second place"):
        log.close()
    assert verify(tmp_path / "audit.db", key=key.public).signed == 1


# ---------------------------------------------------------------------- keys and signatures


RFC_8032 = [  # section 7.1: secret key, public key, message, signature
    ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"),
    ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"),
    ("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"),
]  # fmt: skip


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_the_verifiers_own_ed25519_on_the_vectors_of_the_rfc(
    secret: str, public: str, message: str, signature: str
) -> None:
    key = Ed25519PublicKey(bytes.fromhex(public))
    text, sig = bytes.fromhex(message), bytes.fromhex(signature)
    assert Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).sign(text) == sig
    assert key.verify(text, sig)
    assert not key.verify(text + b"x", sig)
    assert not key.verify(text, sig[:-1] + bytes([sig[-1] ^ 1]))
    order = 2**252 + 27742317777372353535851937790883648493
    too_large = (int.from_bytes(sig[32:], "little") + order).to_bytes(32, "little")
    assert not key.verify(text, sig[:32] + too_large)


def test_the_verifiers_own_ed25519_agrees_with_cryptography() -> None:
    rng = random.Random(7)
    for size in range(40):
        secret = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
        message = rng.randbytes(size)
        signature = bytearray(secret.sign(message))
        key = Ed25519PublicKey(secret.public_key().public_bytes_raw())
        assert key.verify(message, bytes(signature))
        signature[rng.randrange(64)] ^= 1 << rng.randrange(8)
        assert not key.verify(message, bytes(signature))


def test_keys_are_private_and_never_replaced(tmp_path: Path) -> None:
    from lgov_core.audit import load_key

    path = tmp_path / "keys" / "audit.key"
    made = make_key(path)
    assert load_key(path).public == made.public
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    with pytest.raises(AuditError, match="already"):
        make_key(path)
    os.chmod(path, 0o644)
    with pytest.raises(AuditError, match="others may read"):
        load_key(path)
    (tmp_path / "junk").write_text("hello")
    os.chmod(tmp_path / "junk", 0o600)
    for wrong in (tmp_path / "junk", tmp_path / "absent"):
        with pytest.raises(AuditError):
            load_key(wrong)


# ---------------------------------------------------------------------- the verifier by itself


def test_a_copy_of_the_verifier_runs_without_lgov(signed: Signed, tmp_path: Path) -> None:
    script = tmp_path / "verify.py"
    shutil.copy(VERIFIER, script)
    command = [
        sys.executable,
        "-I",
        "-S",
        str(script),
        str(signed.path),
        "--key",
        signed.key.public.hex(),
        "--head",
        str(signed.heads),
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["signed"] == 72
    broken = subprocess.run(
        [*command[:4], str(signed.older), *command[5:]], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert broken.returncode == 4
    assert "BROKEN" in broken.stdout
