"""The audit record: opened, signed, read, erased from and closed. `lgov_core.audit.record_file` writes its entries."""

from __future__ import annotations

import atexit
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from lgov_core._util.files import os_user
from lgov_core._util.sqlite_file import (
    BESIDE,
    describe,
    is_database,
    keep_quiet_across_fork,
    require_same_file,
    require_writable,
)
from lgov_core.audit.entry import canonical
from lgov_core.audit.reading import (
    AUDIT_RECORD,
    ENTRY_COLUMNS,
    AuditEntry,
    EntrySelection,
    entry_of,
    open_record,
    readable,
)
from lgov_core.audit.record_file import RecordWriter
from lgov_core.audit.redaction import Redaction, redaction
from lgov_core.audit.signing import (
    ForeignEntry,
    Heads,
    KeptHead,
    KeptHeads,
    LostEntries,
    Seals,
    Signer,
    default_signer,
    heads_path,
)
from lgov_core.errors import AuditError, AuditKeyError

#: The digest of the policies that the last entry is under; entries of commands have none.
_DIGEST = "json_extract(body, '$.policy_digest')"
_LAST_DIGEST = f"SELECT {_DIGEST} FROM entries WHERE {_DIGEST} != '' ORDER BY position DESC LIMIT 1"
_SELECT = f"SELECT {ENTRY_COLUMNS} FROM entries"


#: The end of the name of a record that rotation makes, and moves to its place once it is whole.
NEXT: Final = ".next"
#: The kind of the entry by which a person accepts that entries are lost.
LOSS: Final = "loss"


@cache
def own_version() -> str:
    """The version of lgov that runs."""
    try:
        return version("lgov")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def _heads_of(path: Path, signer: Signer | None, every: int, second: str | os.PathLike[str] | None) -> Heads | None:
    """The writer of the heads of the record at ``path``, which go to ``second`` too. Raises `AuditError` where they cannot."""
    anchor = Path(second or heads_path(path)).absolute()
    own = {f"{path.resolve()}{end}" for end in ("", *BESIDE)}
    if str(anchor.resolve()) in own or is_database(anchor):
        raise AuditError(f"heads cannot be kept in {anchor}, a database", hint="name a file of their own")
    if signer is None and second is not None:
        raise AuditKeyError(
            f"no heads can be written to {second}: there is no key to sign them",
            hint="make one with lgov audit keygen, and name it with --audit-key unless it is at its default place",
        )
    if second is not None and not anchor.parent.is_dir():  # such as a disk that is not mounted
        raise AuditError(
            f"heads cannot be kept in {anchor}: there is no folder {anchor.parent}", hint="make it, or mount it"
        )
    if signer is None:
        return None
    location = str(path.resolve())
    with suppress(ValueError):  # on another drive
        location = os.path.relpath(location, anchor.parent.resolve())
    return Heads(signer, anchor, every=every, location=None if path.suffix == NEXT else location)


class AuditLog(RecordWriter):
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
    or to a record whose tables or triggers are not lgov's. Raises `AuditError` when the file cannot be opened, and
    `LostEntries` where ``heads`` has heads of a record here that has lost entries since, or is gone.
    """

    #: Whether the record may go on when entries are lost: an entry says so first.
    _accepts_loss: ClassVar[bool] = False

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
        # A bool is a number to Python, and a NaN is never over: what should be done after it would never be done.
        seconds = isinstance(busy_timeout_s, int | float) and not isinstance(busy_timeout_s, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not (seconds and busy_timeout_s >= 0):
            raise AuditError(f"busy_timeout_s is {busy_timeout_s!r}", hint="give seconds, 0 or more")
        if not isinstance(policy_digest or "", str) and not callable(policy_digest):
            raise AuditError(f"policy_digest is {policy_digest!r}", hint="give a text, or a function that returns one")
        redaction_rules = redaction(redact)
        # Absolute: the file is opened again later, wherever the program's working directory is by then.
        file = Path(path).absolute()
        if signer == "default":
            signer = default_signer()
        written = _heads_of(file, signer, sign_every, heads)
        kept = KeptHeads(file, written)
        if not (file.exists() or self._accepts_loss):
            kept.require_right(None, None)
        connection = open_record(file, busy_timeout_s=busy_timeout_s)
        seals: Seals | None = None
        refusal: AuditError | None = None
        if signer is not None:
            try:
                seals = Seals(signer, connection.execute("SELECT id FROM record").fetchone()[0])
            except Exception as error:  # noqa: BLE001 - raised by the first entry
                refusal = AuditKeyError(
                    f"audit record {file}: the key cannot sign: {error}", hint="nothing is written without it"
                )
        self.policy_digest = policy_digest or ""
        self.code_version = own_version()
        self._busy_timeout_s = busy_timeout_s
        self._refusal = refusal
        lost: KeptHead | None = None
        try:
            with readable(file, "the end"):
                super().__init__(file, connection, seals, written, redaction_rules)
                kept.require_right(connection, seals)
                if not self._accepts_loss:
                    kept.require_kept(connection)
        except AuditError as error:
            if not (self._accepts_loss and isinstance(error, LostEntries)):
                connection.close()
                raise
            lost = error.newest
        #: Why the last signature could not be made, or None.
        self.signing_error: AuditError | None = None
        self._at_exit: Callable[[], None] | None = None
        if self._heads is not None:
            with nullcontext() if lost is None else self._accepted(lost, self._heads):
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

    @contextmanager
    def _accepted(self, newest: KeptHead, heads: Heads) -> Generator[None]:
        """Puts on record that the entries up to the head ``newest`` are lost; until then no head names the record's place."""
        lost = {name: newest.fields[name] for name in ("record", "number", "last")}
        location, heads.location = heads.location, None
        if (lost["record"],) == self._open().execute("SELECT id FROM record").fetchone():
            heads.lost = lost["number"]
        yield
        self.note(LOSS, "accepted", {"lost": lost})
        heads.location = location
        with self._lock:
            self._sign()

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
            require_same_file(AUDIT_RECORD, self.path, self._watch.identity)
            self.signing_error = AuditError(
                f"the last entries of audit record {self.path} are not signed, or not at the second place: {error}",
                hint="what was decided is on record; look at the key and at the second place for heads",
            )

    def begin_policy(self, digest: str, name: str, mode: str) -> None:
        """Puts on record that the policies of the file ``name`` hold from now on, in ``mode``, with its text.

        One entry for each change: none where the last entry of the record is under the same digest. Raises `AuditError`.
        """
        with self._lock:
            row = self._open().execute(_LAST_DIGEST).fetchone()
        if row is None or row[0] != digest:
            file = Path(name)
            text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None
            why = f"holds from now on ({mode}); begun"
            self.note("policy", why, {"name": name, "policy_digest": digest, "mode": mode}, policy=text)

    def note(self, kind: str, what: str, fields: Mapping[str, Any], *, policy: str | None = None) -> None:
        """Puts on record that this user did ``what``, as in "trusted"; the text of a ``policy`` can be erased again.

        Raises `AuditError`.
        """
        user = os_user()
        self.append(
            kind, {**fields, "by": user, "reason": f"{what} by {user}"}, arguments=None, content={"policy": policy}
        )

    def erase(self, selection: EntrySelection, *, reason: str = "") -> int:
        """Erases the arguments and texts of the entries of a selection, and says so in an entry of its own.

        The chain stays whole: the entries keep what they say about the act, and hashes that say nothing about the texts
        once their salts are gone. From a signed record only the signer whose key wrote its last head may erase. The
        file's free pages are overwritten, and SQLite's log is emptied. Returns how many entries lost texts. Raises
        `AuditError`, also for a selection of everything, and when someone who reads the record keeps the log from
        being emptied: then the texts are still on the disk, and calling it again finishes.
        """
        if selection in (EntrySelection(), EntrySelection(text="")):  # every text holds the empty one
            raise AuditError("a selection says which entries are erased", hint="set one of its fields")
        with readable(self.path, "a part"):
            with self._lock:
                rows = self._open().execute(f"{_SELECT} WHERE salt IS NOT NULL").fetchall()
            entries = [entry for row in rows if selection.holds(entry := entry_of(self.path, row))]
            if not entries:
                with self._lock:  # what an erasure before this one had to leave
                    self._empty_log()
                return 0
            # First the announcement: texts that are gone without one would be tampering.
            signer = None if self._heads is None else self._heads.signer
            with self._lock:
                announcement = _erasure_fields(self._open(), entries, reason, signer)
            self.append("erasure", {**announcement, "by": os_user()}, arguments=None, content={})
            with self._lock:
                _erase_texts(self._open(), [entry.position for entry in entries])
                self._empty_log()
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

    # ------------------------------------------------------------------ reading

    def ping(self) -> None:
        """Raises `AuditError` while no entry can be written, as far as that shows without one. Never waits."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._require_own()
            require_writable(AUDIT_RECORD, self.path, self._open(), "record", "entries")
        except (sqlite3.Error, OSError) as error:
            raise describe(AUDIT_RECORD, self.path, error) from error
        finally:
            self._lock.release()

    def ping_heads(self) -> None:
        """Raises `AuditError` while no head could be written at its second place. Writes what one that is back is owed."""
        if self._heads is not None:
            self._heads.ping()  # without the lock: it is gone also while entries are written
        if self.signing_error is not None and self._lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._sign()
            finally:
                self._lock.release()
        if self.signing_error is not None:
            raise self.signing_error

    def entries(
        self, rollout_id: str | None = None, *, after: int = 0, damage: list[AuditError] | None = None
    ) -> list[AuditEntry]:
        """The entries of all writers, or those of one rollout, in the order of writing, from behind position ``after``.

        Raises `AuditError` for an entry that cannot be read; with ``damage`` it is left out, and the error added there.
        """
        condition, parameters = ("", ()) if rollout_id is None else (" AND rollout_id = ?", (rollout_id,))
        entries: list[AuditEntry] = []
        try:
            with self._lock, readable(self.path, "a part"):
                for row in self._open().execute(
                    f"{_SELECT} WHERE position > ?{condition} ORDER BY position", (after, *parameters)
                ):
                    try:
                        entries.append(entry_of(self.path, row))
                    except AuditError as error:
                        if damage is None:
                            raise
                        damage.append(error)
        except AuditError as error:
            if damage is None:
                raise
            damage.append(error)
        return entries

    def last_position(self) -> int:
        """The position of the last entry; 0 without any. Raises `AuditError`."""
        with self._lock, readable(self.path, "the end"):
            return self._open().execute("SELECT coalesce(max(position), 0) FROM entries").fetchone()[0]

    def heads(self, limit: int) -> list[dict[str, Any]]:
        """The statements of the newest signed heads, at most ``limit``, the newest first; unverified. Raises `AuditError`."""
        with self._lock, readable(self.path, "a head"):
            rows = self._open().execute("SELECT body FROM heads ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
            return [json.loads(body) for (body,) in rows]

    # ------------------------------------------------------------------ the end, and forks

    def close(self) -> None:
        """Signs what is not signed yet and closes the record.

        Calling it again does nothing; any other call after it raises `AuditError`, and so does this one, once
        everything is closed, when the last entries could not be signed, or the record is not what was written.
        """
        with self._lock:
            if self._closed:
                return
            if self._chain.length or self.signing_error is not None:
                try:
                    self._require_own()
                    require_same_file(AUDIT_RECORD, self.path, self._watch.identity)
                    if self._heads is not None:
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


# ---------------------------------------------------------------------- erasure

_ERASURE_DOMAIN: Final = b"lgov-audit-erasure-v1\0"


def _erasure_fields(
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
            hint="name the secret key: lgov erase --set audit_key=FILE, the setting audit_key, or AuditLog(signer=...)",
        )
    try:
        signature = signer.sign(_ERASURE_DOMAIN + canonical(statement).encode())
    except Exception as error:
        raise AuditError(f"the erasure could not be signed: {error}", hint="nothing was erased") from error
    return {**statement, "key": key, "signature": signature.hex()}


def _erase_texts(connection: sqlite3.Connection, positions: Iterable[int]) -> None:
    """Erases the texts of entries with their salts, and has the file's free pages overwritten. Raises ``sqlite3.Error``."""
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back
        connection.executemany(
            "UPDATE entries SET salt = NULL, arguments = NULL, content = NULL WHERE position = ?",
            [(position,) for position in positions],
        )
