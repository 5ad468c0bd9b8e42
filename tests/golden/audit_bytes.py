"""A signed audit record that is the same byte for byte in every run: what is signed must never change."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, load_key
from lgov_core.audit.reading import EntrySelection
from tests.golden.printed_commands import freeze, write_record

SECRET = "lgov-ed25519-secret:" + "7f" * 32 + "\n"


def write_signed(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Writes ``record.db``: entries of several writers, long and redacted texts, an erasure, and heads over all of them."""
    path, key = folder / "record.db", folder / "audit.key"
    key.write_text(SECRET)
    key.chmod(0o600)
    with patch.context() as frozen:
        freeze(frozen)
        AuditLog(path, signer=None).close()
        with closing(sqlite3.connect(path)) as connection:
            # SQLite makes both, of bytes and a clock that cannot be fixed.
            connection.execute("UPDATE record SET id = 'golden', made_at = 1795886283")
            connection.commit()
        with AuditLog(path, signer=load_key(key), sign_every=2) as log:
            log.append("trace", {"name": "begin"}, arguments={"n": 1}, content={"text": "é"})
            write_record(path, load_key(key))
            log.append("trace_end", {"name": "end"}, arguments=None, content={})
            log.erase(EntrySelection(entry_id=log.entries()[1].entry_id), reason="asked for")
    return path


def rows(path: Path) -> list[list[Any]]:
    """Everything in the record but the numbers of its rows, and the heads at the second place."""
    with closing(sqlite3.connect(path)) as connection:
        found = [list(row) for row in connection.execute("SELECT * FROM entries ORDER BY position")]
        found += [list(row) for row in connection.execute("SELECT * FROM heads ORDER BY number")]
    found += [json.loads(line) for line in path.with_name(path.name + ".heads.jsonl").read_text().splitlines()]
    return json.loads(json.dumps(found, default=bytes.hex))
