"""Signed heads: statements over everything that an audit record holds so far, in the record and at a second place."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from lgov_core.audit.entry import canonical
from lgov_core.errors import AuditError

_DOMAIN: Final = b"lgov-audit-head-v2\0"


class Signer(Protocol):
    """Whatever can sign. ``public`` is the Ed25519 public key, 32 bytes; `sign` may raise anything."""

    @property
    def public(self) -> bytes:
        """The public key."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``, 64 bytes."""
        ...


class Heads:
    """Writes heads with ``signer``, and each to the end of the file ``anchor`` too. For one thread at a time.

    A head covers the entries of all writers since the head before it, in the order of the record.
    """

    def __init__(self, signer: Signer, anchor: str | os.PathLike[str], *, every: int) -> None:
        if type(every) is not int or every < 1:
            raise AuditError(f"sign_every is {every}", hint="give a whole number, 1 or more")
        self.every = every
        self.signer = signer
        self._anchor = Path(anchor)
        self._owed: list[str] = []

    def write(self, connection: sqlite3.Connection, versions: Mapping[str, str], *, opening: bool = False) -> None:
        """Writes a head over what no head covers yet; does nothing when there is nothing. ``versions`` go into its body.

        With ``opening`` it writes one only when there is none: the first head of a record may cover nothing, and says
        with which key the record was begun, so that a signed record cannot pass for one that never was.

        Raises `AuditError`, `sqlite3.Error`, or what the signer raises; then no head was written, or it is in the
        record and not in the anchor yet: the next call writes it there.
        """
        # The second place is synced: the record must not come back from a power cut with less than was said there.
        connection.execute("PRAGMA synchronous=FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            if (head := self._next(connection, versions, opening)) is not None:
                connection.execute("INSERT INTO heads (number, body, signature) VALUES (?, ?, ?)", head)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("PRAGMA synchronous=NORMAL")
        if head is not None:
            self._owed.append(json.dumps({"number": head[0], "body": head[1], "signature": head[2].hex()}) + "\n")
        while self._owed:
            self._append(self._owed[0])
            del self._owed[0]

    def _next(
        self, connection: sqlite3.Connection, versions: Mapping[str, str], opening: bool
    ) -> tuple[int, str, bytes] | None:
        before = connection.execute("SELECT number, body, signature FROM heads ORDER BY number DESC LIMIT 1").fetchone()
        number, covered, previous = 1, 0, "0" * 64
        if before is not None:
            if opening:
                return None
            number, covered = before[0] + 1, json.loads(before[1])["last"]
            previous = hashlib.sha256(before[1].encode() + before[2]).hexdigest()
        rows = connection.execute(
            "SELECT position, hash FROM entries WHERE position > ? ORDER BY position", (covered,)
        ).fetchall()
        if not rows and not opening:
            return None
        fields = {
            **versions,
            "format": 2,
            "record": connection.execute("SELECT id FROM record").fetchone()[0],
            "number": number,
            "first": covered + 1,
            "last": rows[-1][0] if rows else covered,
            "entries_sha256": hashlib.sha256(b"".join(row[1] for row in rows)).hexdigest(),
            "previous_sha256": previous,
            "time_ns": time.time_ns(),
            "key": self.signer.public.hex(),
        }
        body = canonical(fields)
        return number, body, self.signer.sign(_DOMAIN + body.encode())

    def _append(self, line: str) -> None:
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(self._anchor, flags, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.lseek(descriptor, size - 1, os.SEEK_SET) >= 0 and os.read(descriptor, 1) != b"\n":
                    line = "\n" + line  # what a full disk or a kill cut off stays a line of its own
                data = line.encode()
                if os.write(descriptor, data) != len(data):  # one write of one line: other writers do not mix with it
                    raise OSError(errno.ENOSPC, "only a part of the line was written")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise AuditError(
                f"the head could not be written to {self._anchor}: {error.strerror or error}",
                hint="heads must be kept at a second place; make it writable",
            ) from error


def heads_path(path: Path) -> Path:
    """Where heads go unless a place is named: beside the record, which is better than nowhere."""
    return path.with_name(path.name + ".heads.jsonl")
