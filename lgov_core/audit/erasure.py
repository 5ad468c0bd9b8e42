"""Erasures: an entry that says which texts are erased, signed by who may erase them, and then their removal."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from lgov_core.audit.entry import AuditEntry, canonical
from lgov_core.audit.heads import Signer
from lgov_core.errors import AuditError, AuditKeyError

_DOMAIN: Final = b"lgov-audit-erasure-v1\0"


def erasure_fields(
    connection: sqlite3.Connection, entries: Iterable[AuditEntry], reason: str, signer: Signer | None
) -> dict[str, Any]:
    """The fields of an erasure's entry, signed when the record is.

    Raises `AuditKeyError` unless ``signer`` has the key of the record's last head, `AuditError` when it fails.
    """
    statement = {"erased": {entry.entry_id: entry.hash.hex() for entry in entries}, "reason": reason or None}
    head = connection.execute("SELECT body FROM heads ORDER BY number DESC LIMIT 1").fetchone()
    if head is None:
        return statement
    key = json.loads(head[0])["key"]
    if signer is None or signer.public.hex() != key:
        raise AuditKeyError(
            f"the record is signed with the key {key}: only who has its key may erase from it",
            hint="name the secret key: lgov audit erase --key, the setting audit_key, or AuditLog(signer=...)",
        )
    try:
        signature = signer.sign(_DOMAIN + canonical(statement).encode())
    except Exception as error:
        raise AuditError(f"the erasure could not be signed: {error}", hint="nothing was erased") from error
    return {**statement, "key": key, "signature": signature.hex()}


def erase_texts(connection: sqlite3.Connection, positions: Iterable[int]) -> None:
    """Erases the texts of entries with their salts, and has the file's free pages overwritten. Raises ``sqlite3.Error``."""
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back
        connection.executemany(
            "UPDATE entries SET salt = NULL, arguments = NULL, content = NULL WHERE position = ?",
            [(position,) for position in positions],
        )
