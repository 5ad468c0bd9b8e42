"""The audit record: every decision, durable before the act goes on."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from lgov_core._util.sqlite_file import BESIDE, describe, is_database, keep_quiet_across_fork
from lgov_core.audit.entry import EntryWriter, Payload, body_text, recordable
from lgov_core.audit.reading import AuditEntry, EntrySelection, entry_of
from lgov_core.audit.record_file import AUDIT_RECORD, Watch, erase_texts, erasure_fields, open_record
from lgov_core.audit.redaction import Redaction
from lgov_core.audit.signing import ForeignEntry, Heads, Seals, Signer, default_signer, heads_path
from lgov_core.errors import AuditError, AuditKeyError

_DOMAIN: Final = b"lgov-audit-v2\0"
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
        row_hash = hashlib.sha256(_DOMAIN + self._hash + text.encode()).digest()
        return EntryRow(self.writer, seq, fields.get("rollout_id"), text, self._hash, row_hash, salt, *stored)

    def append(self, row: EntryRow) -> None:
        """Moves the end of the chain to a row that has been committed."""
        self.length, self._hash = row.seq, row.hash


_INSERT: Final = (
    f"INSERT INTO entries ({', '.join(EntryRow._fields)}) VALUES ({', '.join('?' * len(EntryRow._fields))})"
)
_SELECT = "SELECT position, body, prev_hash, hash, arguments, content FROM entries"


@cache
def own_version() -> str:
    """The version of lgov that runs."""
    try:
        return version("lgov")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


class AuditLog(EntryWriter):
    """Appends to the audit record at ``path``; makes the file (mode 0600) when it does not exist.

    When `commit` returns, the entry survives the death of the process. Each object writes a hash chain of its own, so several
    objects, threads and processes may append to one file; a forked child begins a chain of its own. Every entry has
    ``code_version``, that of lgov. An entry whose decision has no digest of its policies has ``policy_digest``; a function is
    called for it at every entry, for policies that are reloaded.

    ``signer`` signs *heads*: statements over all entries so far. Default is the user's key (`default_signer`); None signs
    nothing. A head is written before the first entry of a record, after every ``sign_every`` entries of this object, with the
    first entry that comes ``sign_after_s`` seconds (an attribute: 60) or more after its last head, and at `close` or the end
    of the interpreter. It goes into the record and to the end of the file ``heads`` (default: the record's name with
    ``.heads.jsonl``), which should be out of the reach of the program's user. Its folder must exist. ``redact`` removes
    values before anything is hashed or stored (see `Redaction`).

    Fails closed: every failure is an `AuditError`, and the caller must then not perform the call. Nothing is written by half,
    or to a record whose tables or triggers are not lgov's. Raises `AuditError` when the file cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout_s: float = 5.0,
        policy_digest: str | Callable[[], str | None] | None = None,
        signer: Signer | Literal["default"] | None = "default",
        sign_every: int = 256,
        heads: str | os.PathLike[str] | None = None,
        redact: Redaction | Callable[[str, Any], Any] | Iterable[str] | None = None,
    ) -> None:
        # Absolute: the file is opened again later, wherever the program's working directory is by then.
        self.path = Path(path).absolute()
        #: May be set later, once the policies are known.
        self.policy_digest: str | Callable[[], str | None] = policy_digest or ""
        self.code_version = own_version()
        self.sign_after_s = 60.0
        self._busy_timeout_s = busy_timeout_s
        self._closed = False
        # A bool is a number to Python, and a NaN is never over: what should be done after it would never be done.
        seconds = isinstance(busy_timeout_s, int | float) and not isinstance(busy_timeout_s, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not (seconds and busy_timeout_s >= 0):
            raise AuditError(f"busy_timeout_s is {busy_timeout_s!r}", hint="give seconds, 0 or more")
        if not isinstance(self.policy_digest, str) and not callable(self.policy_digest):
            raise AuditError(f"policy_digest is {policy_digest!r}", hint="give a text, or a function that returns one")
        super().__init__(redact)
        anchor = Path(heads or heads_path(self.path)).absolute()
        own = {f"{self.path.resolve()}{end}" for end in ("", *BESIDE)}
        if str(anchor.resolve()) in own or is_database(anchor):
            raise AuditError(f"heads cannot be kept in {anchor}, a database", hint="name a file of their own")
        if signer == "default":
            signer = default_signer()
        if signer is None and heads is not None:
            raise AuditKeyError(
                f"no heads can be written to {heads}: there is no key to sign them",
                hint="make one with lgov audit keygen, and name it with --audit-key unless it is at its default place",
            )
        if heads is not None and not anchor.parent.is_dir():  # such as a disk that is not mounted
            raise AuditError(
                f"heads cannot be kept in {anchor}: there is no folder {anchor.parent}", hint="make it, or mount it"
            )
        self._heads = None if signer is None else Heads(signer, anchor, every=sign_every)
        #: Why the last signature could not be made, or None.
        self.signing_error: AuditError | None = None
        #: Why nothing may be written any more.
        self._refusal: AuditError | None = None
        self._at_exit: Callable[[], None] | None = None
        self._connection: sqlite3.Connection | None = open_record(self.path, busy_timeout_s=busy_timeout_s)
        self._seals = None if signer is None else self._seals_of(signer, self._connection)
        self._watch = Watch(self.path, self._connection, self._seals)
        self._begin_chain()
        if self._heads is not None:
            self._begin_signing()
        keep_quiet_across_fork(self)

    def _begin_signing(self) -> None:
        try:
            if self._seals is not None:
                self._sign(opening=True)
        except AuditError as error:  # what others wrote may still be read
            self._refusal = error
        # What is unsigned when the interpreter ends without `close` is signed then; that keeps no log alive.
        close = weakref.WeakMethod(self.close)
        self._at_exit = atexit.register(lambda: None if (alive := close()) is None else alive())

    def _begin_chain(self) -> None:
        self._lock = threading.Lock()
        self._chain = EntryChain(self._seals)
        self._unsigned = 0
        self._signed_at = time.monotonic()

    # ------------------------------------------------------------------ appending

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

    def _seals_of(self, signer: Signer, connection: sqlite3.Connection) -> Seals | None:
        try:
            return Seals(signer, connection.execute("SELECT id FROM record").fetchone()[0])
        except Exception as error:  # noqa: BLE001 - raised by the first entry
            self._refusal = AuditKeyError(
                f"audit record {self.path}: the key cannot sign: {error}", hint="nothing is written without it"
            )
            return None

    def _sign(self, *, opening: bool = False, closing: bool = False) -> None:
        """Signs everything since the last head. The entries are committed already: a failure is kept for `close`.

        Raises `ForeignEntry` where the record holds what must not be signed, `AuditKeyError` for that of another key.
        """
        assert self._heads is not None
        self._unsigned, self._signed_at = 0, time.monotonic()
        try:
            facts = self._versions() | ({"ended": self._chain.writer} if closing and self._chain.length else {})
            self._heads.write(self._open(), facts, self._watch.covered, opening=opening)
            self.signing_error = None
        except (ForeignEntry, AuditKeyError):
            raise
        except Exception as error:  # noqa: BLE001 - shown in signing_error, by close and by every verification
            self.signing_error = AuditError(
                f"the last entries of audit record {self.path} are not signed, or not at the second place: {error}",
                hint="what was decided is on record; look at the key and at the second place for heads",
            )

    def erase(
        self,
        *,
        entry_id: str | None = None,
        rollout_id: str | None = None,
        selection: EntrySelection | None = None,
        reason: str = "",
    ) -> int:
        """Erases the arguments and texts of one entry, of a rollout or of a selection, and says so in an entry of its own.

        The chain stays whole: the entries keep what they say about the act, and hashes that say nothing about the texts
        once their salts are gone. From a signed record only the signer whose key wrote its last head may erase. The
        file's free pages are overwritten, and SQLite's log is emptied. Returns how many entries lost texts. Raises
        `AuditError`, also unless exactly one of the three is given, and when someone who reads the record keeps the log from
        being emptied: then the texts are still on the disk, and calling it again finishes.
        """
        if [entry_id, rollout_id, selection].count(None) != 2 or selection == EntrySelection():
            raise AuditError(
                "erase an entry, a rollout or a selection", hint="name one of them; a selection has a field set"
            )
        selection = selection or EntrySelection(rollout_id=rollout_id)
        where, parameter = ("1 OR ?", None) if entry_id is None else ("body LIKE ?", f'%"{entry_id}"%')
        if selection.rollout_id is not None:
            where, parameter = "rollout_id = ?", selection.rollout_id
        try:
            with self._lock:
                rows = self._open().execute(f"{_SELECT} WHERE ({where}) AND salt IS NOT NULL", (parameter,)).fetchall()
            entries = [
                entry for entry in map(entry_of, rows) if entry_id in (None, entry.entry_id) and selection.holds(entry)
            ]
            if not entries:
                with self._lock:  # what an erasure before this one had to leave
                    self._empty_log()
                return 0
            # First the announcement: texts that are gone without one would be tampering.
            signer = None if self._heads is None else self._heads.signer
            with self._lock:
                announcement = erasure_fields(self._open(), entries, reason, signer)
            self.append("erasure", announcement, arguments=None, content={})
            with self._lock:
                erase_texts(self._open(), [entry.position for entry in entries])
                self._empty_log()
        except sqlite3.Error as error:
            raise describe(AUDIT_RECORD, self.path, error) from error
        return len(entries)

    def _empty_log(self) -> None:
        """Writes the log, which holds erased pages as they were, back into the file and cuts it to nothing."""
        busy, _, _ = self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise AuditError(
                f"audit record {self.path}: the texts are erased, but another process is reading, so they are still in "
                f"{self.path.name}-wal",
                hint="erase again once no process reads the record",
            )

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise AuditError(f"audit record {self.path} is closed", hint="open it again to go on")
        self._watch.require_same_file()
        if self._connection is None:
            expected = self._watch.identity
            self._connection = open_record(self.path, busy_timeout_s=self._busy_timeout_s, expected=expected)
        return self._connection

    # ------------------------------------------------------------------ reading

    def entries(self, rollout_id: str | None = None, *, after: int = 0) -> list[AuditEntry]:
        """The entries of all writers, or those of one rollout, in the order of writing, from behind position ``after``.

        Raises `AuditError`.
        """
        condition, parameters = ("", ()) if rollout_id is None else (" AND rollout_id = ?", (rollout_id,))
        with self._lock:
            try:
                rows = self._open().execute(
                    f"{_SELECT} WHERE position > ?{condition} ORDER BY position", (after, *parameters)
                )
                return [entry_of(row) for row in rows]
            except sqlite3.Error as error:
                raise describe(AUDIT_RECORD, self.path, error) from error

    def heads(self, limit: int) -> list[dict[str, Any]]:
        """The statements of the newest signed heads, at most ``limit``, the newest first; unverified. Raises `AuditError`."""
        with self._lock:
            try:
                rows = self._open().execute("SELECT body FROM heads ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
                return [json.loads(body) for (body,) in rows]
            except (sqlite3.Error, ValueError) as error:
                raise describe(AUDIT_RECORD, self.path, error) from error

    # ------------------------------------------------------------------ the end, and forks

    def close(self) -> None:
        """Signs what is not signed yet and closes the record.

        Calling it again does nothing; any other call after it raises `AuditError`, and so does this one, once
        everything is closed, when the last entries could not be signed.
        """
        with self._lock:
            if self._closed:
                return
            if self._heads is not None and (self._chain.length or self.signing_error is not None):
                try:
                    self._require_own()
                    self._sign(closing=True)
                except AuditError as error:
                    self.signing_error = error
            self._closed = True
            self._disconnect()
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        if self.signing_error is not None:
            raise self.signing_error

    def __enter__(self) -> AuditLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def before_fork(self) -> None:
        """Closes the connection, so that a child does not inherit it. Called by the interpreter."""
        self._lock.acquire()
        self._disconnect()

    def after_fork_in_parent(self) -> None:
        """Lets work go on, on a fresh connection. Called by the interpreter."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begins a chain of the child's own. Called by the interpreter."""
        self._begin_chain()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
