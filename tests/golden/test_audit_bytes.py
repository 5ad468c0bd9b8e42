"""Entries, hashes and signatures are what they were, and a record of an earlier lgov can still be verified."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog, load_key, verify
from lgov_core.errors import AuditKeyError
from tests.golden.audit_bytes import SECRET, rows, write_signed

GOLDEN = Path(__file__).parent


def test_the_bytes_of_a_record_are_what_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_signed(tmp_path, monkeypatch)
    with gzip.open(GOLDEN / "audit_bytes.json.gz", "rt", encoding="utf-8") as file:
        assert rows(path) == json.load(file)


def test_a_record_of_an_earlier_version_verifies_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    path.write_bytes(gzip.decompress((GOLDEN / "audit_record.db.gz").read_bytes()))
    shutil.copy(GOLDEN / "audit_record.heads.jsonl", head := tmp_path / "heads.jsonl")
    report = verify(path, head=head, require_signed=True)
    assert (report.ok, report.entries, report.erased, report.unsigned) == (True, 10, 1, 0)
    key = tmp_path / "audit.key"
    key.write_text(SECRET)
    key.chmod(0o600)
    with AuditLog(path, signer=load_key(key)) as log:
        assert [entry.kind for entry in log.entries()][::9] == ["trace", "erasure"]
        log.append("signal", {"name": "stop"}, arguments=None, content={"why": time.strftime("%Y")})
    assert (verify(path).ok, verify(path).unsigned) == (True, 0)
    with AuditLog(path, signer=None) as log, pytest.raises(AuditKeyError):  # a program without the key reads only
        log.append("signal", {"name": "stop"}, arguments=None, content={})
