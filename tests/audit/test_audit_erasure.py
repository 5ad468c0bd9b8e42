"""Only the holder of a signed record's key may erase texts from it."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.audit import AuditLog, SigningKey, make_key, verify
from lgov_core.audit.reading import EntrySelection
from lgov_core.commands import cli
from lgov_core.errors import AuditError
from tests.audit.audit_proof_parts import DENY, action


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path / "audit.key")


@pytest.fixture
def path(tmp_path: Path, key: SigningKey) -> Path:
    """A signed record of four denials, of the rollouts r0, r1, r2 and r0."""
    with AuditLog(tmp_path / "audit.db", signer=key) as log:
        for number in range(4):
            log.commit(action(number), DENY)
    return tmp_path / "audit.db"


def forge(path: Path, fields: Mapping[str, Any], positions: str) -> str:
    """Appends an erasure in a chain of its own and takes the texts away, as anybody can who may write the file."""
    body = {"entry_id": "era_forged_1", "writer": "f" * 32, "seq": 1, "kind": "erasure", "format": 2, **fields}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    chained = hashlib.sha256(b"lgov-audit-v2\0" + bytes(32) + text.encode()).digest()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(
            "INSERT INTO entries (writer, seq, body, prev_hash, hash) VALUES (?, 1, ?, ?, ?)",
            (body["writer"], text, bytes(32), chained),
        )
        db.execute(f"UPDATE entries SET salt = NULL, arguments = NULL, content = NULL WHERE position IN ({positions})")
    return str(body["entry_id"])


def stated(path: Path, position: int) -> dict[str, str]:
    """What an erasure of the entry at a position names: its id and hash."""
    with AuditLog(path) as log:
        entry = log.entries(after=position - 1)[0]
    return {entry.entry_id: entry.hash.hex()}


def erasures(path: Path) -> list[dict[str, Any]]:
    with AuditLog(path) as log:
        return [dict(entry.body) for entry in log.entries() if entry.kind == "erasure"]


@pytest.mark.parametrize("as_list", [True, False])
def test_an_erasure_without_the_key_is_named(path: Path, key: SigningKey, as_list: bool) -> None:
    erased = stated(path, 2)
    forged = forge(path, {"erased": list(erased) if as_list else erased}, "2")
    for given in (key.public, None):
        report = verify(path, key=given)
        assert (report.ok, report.first_bad, report.first_bad_id) == (False, 5, forged), report
        assert "not signed" in (report.problem or "")
    with AuditLog(path, signer=key) as log, pytest.raises(AuditError, match="entry 5, which no writer"):
        log.commit(action(9), DENY)  # no honest head covers the forged entry
    report = verify(path, key=key.public, require_signed=True)
    assert (report.ok, report.first_bad_id) == (False, forged), report


def test_an_erasure_signed_with_another_key_is_named(path: Path, key: SigningKey, tmp_path: Path) -> None:
    stranger, erased = make_key(tmp_path / "other.key"), stated(path, 2)
    said = json.dumps({"erased": erased, "reason": None}, sort_keys=True, separators=(",", ":"))
    signature = stranger.sign(b"lgov-audit-erasure-v1\0" + said.encode()).hex()
    forged = forge(path, {"erased": erased, "key": stranger.public.hex(), "signature": signature}, "2")
    for given in (key.public, None):
        report = verify(path, key=given)
        assert (report.ok, report.first_bad_id) == (False, forged), report


def test_a_signature_is_good_for_what_it_erases_alone(path: Path, key: SigningKey) -> None:
    with AuditLog(path, signer=key) as log:
        assert log.erase(EntrySelection(rollout_id="r1"), reason="asked for") == 1
    assert verify(path, key=key.public, require_signed=True).ok
    (body,) = erasures(path)
    signed = {name: body[name] for name in ("reason", "erased", "key", "signature")}
    assert set(signed["erased"]) == set(stated(path, 2))
    forged = forge(path, {**signed, "erased": {**signed["erased"], **stated(path, 1)}}, "1")
    report = verify(path, key=key.public)
    assert (report.ok, report.first_bad_id) == (False, forged), report


def test_a_signature_does_not_erase_an_entry_of_the_same_id(path: Path, key: SigningKey) -> None:
    """A text is gone by an erasure that names another hash for its entry."""
    erased = dict.fromkeys(stated(path, 2), "00" * 32)
    said = json.dumps({"erased": erased, "reason": None}, sort_keys=True, separators=(",", ":"))
    signature = key.sign(b"lgov-audit-erasure-v1\0" + said.encode()).hex()
    forge(path, {"erased": erased, "key": key.public.hex(), "signature": signature}, "2")
    report = verify(path, key=key.public)
    assert (report.ok, report.first_bad) == (False, 2), report


def test_an_erasure_names_entries_before_it(tmp_path: Path, key: SigningKey) -> None:
    """Ids can be guessed: an unsigned erasure from before the first head must not erase what is signed later."""
    path = tmp_path / "late.db"
    log = AuditLog(path)
    first = log.commit(action(1), DENY)
    forge(path, {"erased": [first.replace("_1", "_2")]}, "0")
    log.commit(action(2), DENY)
    log.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE entries SET salt = NULL, arguments = NULL, content = NULL WHERE position = 3")
    report = verify(path)
    assert (report.ok, report.first_bad) == (False, 3), report


@pytest.mark.parametrize("which", ["none", "another"])
def test_a_signed_record_is_erased_with_its_key_only(path: Path, tmp_path: Path, which: str) -> None:
    signer = None if which == "none" else make_key(tmp_path / "other.key")
    log = AuditLog(path, signer=signer)
    with pytest.raises(AuditError, match="only who has its key may erase"):
        log.erase(EntrySelection(rollout_id="r1"))
    assert [entry.arguments for entry in log.entries("r1")] == ['{"i":1}']
    log.close()
    assert erasures(path) == []


def test_a_record_that_was_erased_from_before_it_was_signed_stays_right(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "late.db"
    with AuditLog(path) as log:
        log.commit(action(1), DENY)
        assert log.erase(EntrySelection(rollout_id="r1")) == 1
    assert verify(path).ok
    with AuditLog(path, signer=key) as log:
        log.commit(action(2), DENY)
    assert verify(path, key=key.public).ok
    forged = forge(path, {"erased": stated(path, 3)}, "3")
    report = verify(path, key=key.public)
    assert (report.ok, report.first_bad_id) == (False, forged), report


def test_a_signer_that_fails_erases_nothing(path: Path, key: SigningKey) -> None:
    class Broken:
        public = key.public

        def sign(self, message: bytes) -> bytes:
            raise OSError("the token was pulled out")

    log = AuditLog(path, signer=Broken())
    with pytest.raises(AuditError, match="pulled out"):
        log.erase(EntrySelection(rollout_id="r1"))
    assert [entry.arguments for entry in log.entries("r1")] == ['{"i":1}']
    log.close()


def test_the_command_erases_with_a_key(path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path.parent / "nothing"))
    arguments = ["erase", str(path), "--where", "rollout=r1", "--yes"]
    refused = CliRunner().invoke(cli, arguments)
    assert refused.exit_code == 1, "the record is not broken"
    assert "lgov erase --set audit_key=FILE" in refused.output
    done = CliRunner().invoke(cli, [*arguments, "--set", f"audit_key={path.parent / 'audit.key'}"])
    assert done.exit_code == 0, done.output
    report = verify(path, key=key.public, require_signed=True)
    assert (report.ok, report.erased) == (True, 1), report
