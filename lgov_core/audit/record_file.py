"""Appends to the file of an audit record: a chain of entries, each durable when it is answered, in the file that was opened."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from lgov_core._util.sqlite_file import describe, is_busy, require_same_file
from lgov_core.audit.entry import EntryWriter, Payload, body_text, recordable
from lgov_core.audit.reading import AUDIT_RECORD, DOMAIN, open_record
from lgov_core.audit.redaction import Redaction
from lgov_core.audit.signing import LOOKED_AT, ForeignEntry, Heads, LookedAt, Seals
from lgov_core.errors import AuditError, AuditKeyError

#: Bytes of a salt.
_SALT: Final = 16


class EntryRow(NamedTuple):
    """An entry's columns in the table ``entries``, without its position; `lgov_core.audit.verify` states their format."""

    writer: str
    seq: int
    rollout_id: str | None
    body: str
    prev_hash: bytes
    hash: bytes
    salt: bytes | None
    arguments: str | None
    content: str | None


class EntryChain:
    """The chain of one writer, which it names with a random id. For one thread at a time. ``seals`` seal its entries."""

    def __init__(self, seals: Seals | None) -> None:
        self.writer = uuid.uuid4().hex
        self.length, self._hash = 0, bytes(32)
        self._seals = seals

    def next_id(self, prefix: str) -> str:
        """The id of the next entry."""
        return f"{prefix}_{self.writer[:16]}_{self.length + 1}"

    def next_row(
        self, entry_id: str, fields: Mapping[str, Any], arguments: Payload | None, content: Payload | None
    ) -> EntryRow:
        """The next entry; the chain itself does not move until `append`.

        Raises `ValueError` as `body_text` does, and what the signer of the seals raises.
        """
        salt = None if arguments is None and content is None else os.urandom(_SALT)
        seq, body = self.length + 1, dict(fields)
        for name, text in (("arguments", arguments), ("content", content)):
            if salt is not None and text is not None:
                body[f"{name}_sha256"] = hashlib.sha256(salt + text.stored.encode()).hexdigest()
                body[f"{name}_size"] = text.size
        text = body_text({**body, "entry_id": entry_id, "writer": self.writer, "seq": seq})
        if self._seals is not None:
            text = self._seals.sealed(self._hash, text, first=seq == 1)
        stored = (arguments and arguments.stored, content and content.stored)
        row_hash = hashlib.sha256(DOMAIN + self._hash + text.encode()).digest()
        return EntryRow(self.writer, seq, fields.get("rollout_id"), text, self._hash, row_hash, salt, *stored)

    def append(self, row: EntryRow) -> None:
        """Moves the end of the chain to a row that has been committed."""
        self.length, self._hash = row.seq, row.hash


_INSERT: Final = (
    f"INSERT INTO entries ({', '.join(EntryRow._fields)}) VALUES ({', '.join('?' * len(EntryRow._fields))})"
)


#: The record's id, and how often its schema was changed: once more in a copy that SQLite makes.
_MADE: Final = "SELECT id, (SELECT schema_version FROM pragma_schema_version) FROM record"
#: Entries of others between two of a writer that it looks at.
_MOST_BETWEEN: Final = 4
_LAST: Final = "SELECT coalesce(max(position), 0) FROM entries"


class Watch:
    """Notices that a record is no longer what its open writer wrote, and read of others. For one thread at a time.

    Every method raises `ForeignEntry` then. ``seals`` recognise the entries of others; without them none are looked at.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, seals: Seals | None) -> None:
        self._path, self._seals = path, seals
        self._made: tuple[str, int] | None = connection.execute(_MADE).fetchone()
        if self._made is None:
            raise ValueError("it does not say which record it is")
        self._last: int = connection.execute(_LAST).fetchone()[0]
        row = connection.execute("SELECT hash FROM entries WHERE position = ?", (self._last,)).fetchone()
        self._hash: bytes | None = None if row is None else row[0]
        #: The last position that is in the file itself, and not only in SQLite's log beside it.
        self._settled = 0
        #: The hashes of entries behind the last head, by position.
        self._seen: dict[int, bytes] = {}
        status = os.stat(path)
        self._identity, self._state = (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the record's file."""
        return self._identity

    def require_same_file(self) -> None:
        """Looks whether the file is the one that was opened, and was changed by SQLite only. Raises `AuditError`."""
        try:
            status = os.stat(self._path)
        except OSError:
            status = None
        if status is None or (status.st_dev, status.st_ino) != self._identity:
            require_same_file(AUDIT_RECORD, self._path, self._identity)
            return
        state = status.st_size, status.st_mtime_ns
        if state != self._state:  # by a checkpoint, or by another program
            if state[0] < self._state[0]:
                raise self._foreign("is shorter than it was")
            self._look_again()
            self._state = state

    def wrote(self, connection: sqlite3.Connection, position: int, entry_hash: bytes) -> None:
        """Notes an entry that the writer has just written, and looks at those that others wrote before it.

        Where many others write, their entries wait for the next head: each would be looked at by all of them.
        """
        expected = self._last + 1
        if position < expected:
            raise self._foreign(f"has lost entries: the entry after {self._last} became entry {position}")
        if expected < position <= expected + _MOST_BETWEEN and self._seals is not None:
            between = f"SELECT {LOOKED_AT} FROM entries WHERE position BETWEEN ? AND ? ORDER BY position"
            self._look_at(connection.execute(between, (expected, position - 1)))
        if self._seals is not None:
            self._seen[position] = entry_hash
        self._last, self._hash = position, entry_hash

    def covered(self, last: int, rows: Sequence[LookedAt]) -> None:
        """Looks at the entries behind position ``last`` before a head is signed over them."""
        self._look_at(rows)
        behind = {position for position in self._seen if position > last}
        if missing := behind - {row[0] for row in rows}:
            raise self._foreign(f"has lost entry {min(missing)}")
        self._seen = {position: self._seen[position] for position in behind}

    def _look_at(self, rows: Iterable[LookedAt]) -> None:
        assert self._seals is not None
        for position, entry_hash, prev_hash, body in rows:
            if (before := self._seen.get(position)) is None:
                if not self._seals.is_right(prev_hash, body):
                    raise self._foreign(f"holds entry {position}, which no writer with the record's key wrote")
                self._seen[position] = entry_hash
            elif before != entry_hash:
                raise self._foreign(f"holds another entry {position} than was written")

    def _look_again(self) -> None:
        """Reads the file anew, without SQLite's log and with it: the open connection would go on with what it has in memory.

        A checkpoint leaves in the file the record as it was until some entry, and never until an earlier one than before. While
        one is going on, or was killed, the file cannot be read without the log.
        """
        with suppress(sqlite3.Error):
            settled, _ = self._read("&immutable=1")
            if settled < self._settled:
                raise self._foreign("was replaced by an older copy")
            self._settled = settled
        try:
            last, entry_hash = self._read("")
        except sqlite3.Error as error:
            if is_busy(error):
                raise describe(AUDIT_RECORD, self._path, error) from error
            raise self._foreign(f"is damaged: {error}") from error
        if last < self._last or entry_hash != self._hash:
            raise self._foreign("does not hold the last entry as it was written: it was replaced by a copy, or changed")

    def _read(self, options: str) -> tuple[int, bytes | None]:
        """The last position in the file, and the hash of the entry that this writer saw last."""
        address = f"file:{quote(str(self._path))}?mode=ro{options}"
        with closing(sqlite3.connect(address, uri=True, timeout=5)) as fresh:
            if fresh.execute(_MADE).fetchone() != self._made:
                raise self._foreign("was replaced by another file or a copy")
            row = fresh.execute("SELECT hash FROM entries WHERE position = ?", (self._last,)).fetchone()
            return fresh.execute(_LAST).fetchone()[0], None if row is None else row[0]

    def _foreign(self, problem: str) -> ForeignEntry:
        hint = "keep a copy, check it with lgov audit verify, and begin a new record"
        return ForeignEntry(f"audit record {self._path} {problem}", hint=hint)


class RecordWriter(EntryWriter):
    """Appends to the record at ``path`` by ``connection``; see `AuditLog`. Any thread may call its methods.

    ``seals`` seal each entry, and ``heads`` say when a head is due; both None where nothing is signed.
    """

    #: May be set later, once the policies are known.
    policy_digest: str | Callable[[], str | None]
    code_version: str
    _busy_timeout_s: float
    #: Why nothing may be written any more.
    _refusal: AuditError | None

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        seals: Seals | None,
        heads: Heads | None,
        redact: Redaction | Callable[[str, Any], Any] | Iterable[str] | None,
    ) -> None:
        super().__init__(redact)
        self.path = path
        self.sign_after_s = 60.0
        self._heads, self._seals = heads, seals
        self._connection: sqlite3.Connection | None = connection
        self._watch = Watch(path, connection, seals)
        self._closed = False
        self._begin_chain()

    def _begin_chain(self) -> None:
        self._lock = threading.Lock()
        self._chain = EntryChain(self._seals)
        self._unsigned = 0
        self._signed_at = time.monotonic()

    def append_entry(
        self, fields: Mapping[str, Any], arguments: Payload | None, content: Payload | None, prefix: str
    ) -> str:
        """Appends an entry that `EntryWriter` made, and returns its id once it is durable. Raises `AuditError`."""
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise AuditError(
                f"audit record {self.path}: other threads held it for {self._busy_timeout_s:g} s",
                hint="look for a slow disk, or raise the busy timeout",
            )
        try:
            self._require_own()
            if self._heads is None and not self._chain.length:
                self._require_unsigned()
            entry_id = self._chain.next_id(prefix)
            stamp = {"format": 2, "time_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}
            with recordable(str(fields.get("name") or fields["kind"])):
                present = {name: value for name, value in fields.items() if value is not None}
                row = self._chain.next_row(entry_id, self._versions() | present | stamp, arguments, content)
            connection, position = self._write(row)
            self._chain.append(row)
            self._unsigned += 1
            self._watch.wrote(connection, position, row.hash)
            if self._heads is not None and (
                self._unsigned >= self._heads.every or not time.monotonic() - self._signed_at < self.sign_after_s
            ):
                self._sign()
            return entry_id
        except ForeignEntry as error:
            self._refusal = error
            raise
        except AuditError:
            raise
        except Exception as error:
            raise describe(AUDIT_RECORD, self.path, error) from error
        finally:
            self._lock.release()

    def _versions(self) -> dict[str, str]:
        digest = self.policy_digest if isinstance(self.policy_digest, str) else self.policy_digest() or ""
        return {"policy_digest": digest, "code_version": self.code_version}

    def _write(self, row: EntryRow) -> tuple[sqlite3.Connection, int]:
        """Writes one entry in a transaction of its own, which is rolled back when anything fails; its position."""
        connection = self._open()
        try:
            cursor = connection.execute(_INSERT, row)
            if cursor.rowcount != 1:  # a foreign trigger can drop a row silently
                raise AuditError(
                    f"audit record {self.path}: the database did not keep the entry",
                    hint="its triggers were changed; keep a copy, and start a new record",
                )
        except BaseException:  # unknown whether the entry was written: a new chain
            self._connection, self._chain = None, EntryChain(self._seals)
            connection.close()
            raise
        return connection, cursor.lastrowid or 0

    def _require_own(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message, hint=self._refusal.hint)

    def _require_unsigned(self) -> None:
        """Raises `AuditKeyError` for a record that is signed: this writer's entries would be foreign in it."""
        head = self._open().execute("SELECT body FROM heads ORDER BY number DESC LIMIT 1").fetchone()
        if head is not None:
            raise AuditKeyError(
                f"audit record {self.path} is signed with the key {json.loads(head[0])['key']}, and this writer has no key",
                hint="name the secret key (--key, the setting audit_key), or begin a new record",
            )

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise AuditError(f"audit record {self.path} is closed", hint="open it again to go on")
        self._watch.require_same_file()
        if self._connection is None:
            expected = self._watch.identity
            self._connection = open_record(self.path, busy_timeout_s=self._busy_timeout_s, expected=expected)
        return self._connection

    @abstractmethod
    def _sign(self) -> None:
        """Signs a head over everything since the last one. Raises `AuditError` where the record must not be signed."""
