"""Ed25519 keys in files of their own, and the heads that they sign: statements over everything that a record holds so far."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from lgov_core._util.files import open_to_others
from lgov_core.audit.entry import canonical
from lgov_core.errors import AuditError, AuditKeyError, counted

SECRET: Final = "lgov-ed25519-secret:"
PUBLIC: Final = "lgov-ed25519-public:"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret key. ``public`` is the public key that goes with it, 32 bytes. May be used from several threads."""

    public: bytes
    _key: Any = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``: 64 bytes, RFC 8032."""
        return self._key.sign(message)


def default_key_path() -> Path:
    """Where the key is looked for unless a path is given: in the user's folder for settings."""
    if sys.platform == "win32":
        base = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "lgov" / "audit.key"


def make_key(path: Path) -> SigningKey:
    """Makes a key: the secret one at ``path`` (mode 0600), the public one beside it with ``.pub``.

    Raises `AuditKeyError` when there is a file already: a lost key cannot be made again.
    """
    key = _ed25519().Ed25519PrivateKey.generate()
    signing_key = SigningKey(key.public_key().public_bytes_raw(), key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{SECRET}{key.private_bytes_raw().hex()}\n")
        public_path(path).write_text(f"{PUBLIC}{signing_key.public.hex()}\n", encoding="ascii")
    except FileExistsError as error:
        raise AuditKeyError(
            f"there is a key at {path} already", hint="choose another place; keep the old one"
        ) from error
    except OSError as error:
        raise AuditKeyError(f"the key {path} cannot be written: {error.strerror or error}") from error
    return signing_key


def load_key(path: Path) -> SigningKey:
    """The secret key at ``path``.

    Raises `AuditKeyError` when it cannot be read, is something else, others may read it, or ``cryptography`` is missing.
    """
    try:
        if open_to_others(path):
            raise AuditKeyError(f"others may read the key {path}", hint=f"chmod 600 {path}, and think about a new one")
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuditKeyError(
            f"the key {path} cannot be read: {error}", hint="make one with lgov audit keygen"
        ) from error
    if (secret := re.fullmatch(SECRET + "([0-9a-f]{64})", text)) is None:
        raise AuditKeyError(f"{path} holds no key of lgov", hint="make one with lgov audit keygen")
    key = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret[1]))
    return SigningKey(key.public_key().public_bytes_raw(), key)


def sign_report(report: bytes, record_id: str, signer: Signer) -> str:
    """The signature of a report on a record, as the text of the file beside it: `lgov_core.audit.verify` states the format.

    Raises what the signer raises.
    """
    body = canonical(
        {
            "format": 1,
            "record": record_id,
            "report_sha256": hashlib.sha256(report).hexdigest(),
            "time_ns": time.time_ns(),
            "key": signer.public.hex(),
        }
    )
    signature = signer.sign(_REPORT_DOMAIN + body.encode())
    return json.dumps({"body": body, "signature": signature.hex()}) + "\n"


def default_signer(path: Path | None = None) -> SigningKey | None:
    """The key at ``path``; without one, the key at the default place, or None when there is none.

    Raises `AuditKeyError` as `load_key` does: a key that is there and cannot be used is not passed over.
    """
    if path is not None:
        return load_key(path)
    key_path = default_key_path()
    return load_key(key_path) if key_path.is_file() else None


def public_path(path: Path) -> Path:
    """Where the public key lies that goes with the secret one at ``path``."""
    return path.with_name(path.name + ".pub")


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise AuditKeyError("signing needs the package cryptography", hint='pip install "lgov[sign]"') from error
    return ed25519


_DOMAIN: Final = b"lgov-audit-head-v2\0"
_REPORT_DOMAIN: Final = b"lgov-audit-report-v1\0"
_WRITER_DOMAIN: Final = b"lgov-audit-writer-v1\0"
_SEAL_DOMAIN: Final = b"lgov-audit-seal-v1\0"
#: How the body of a sealed entry begins: no other field sorts before it.
_SEAL: Final = '{"_seal":"'


LOOKED_AT: Final = "position, hash, prev_hash, body"
LookedAt: TypeAlias = tuple[int, bytes, bytes, object]
#: Checks the rows behind the last position that a head covers.
Covered: TypeAlias = Callable[[int, Sequence[LookedAt]], None]
#: How many heads of others may come into the file of heads before one that was made earlier.
_MOST_OVERTAKEN: Final = 64


class Signer(Protocol):
    """Anything that can sign. ``public`` is the Ed25519 public key, 32 bytes; `sign` may raise anything."""

    @property
    def public(self) -> bytes:
        """The public key."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``, 64 bytes."""
        ...


class ForeignEntry(AuditError):
    """The record holds something else than the writers with its key wrote: nothing may be written to it any more."""


class LostEntries(AuditError):
    """The record is an older copy than the heads that were kept, or is gone: ``newest`` is the newest of them."""

    def __init__(self, path: Path, problem: str, newest: KeptHead) -> None:
        hint = (
            "put its newest copy in its place, or accept the loss, which puts that on record: lgov audit rotate"
            f" {path} --to FOLDER --accept-loss"
        )
        super().__init__(f"audit record {path} {problem}", hint=hint)
        self.newest = newest


@dataclass(frozen=True, slots=True)
class KeptHead:
    """A head as it is kept outside of its record: the statement, its text, and the signature."""

    fields: Mapping[str, Any]
    body: str
    signature: bytes

    @classmethod
    def of_line(cls, line: bytes) -> KeptHead | None:
        """The head in a line of a file of heads; None where the line is none, as what a kill cut off."""
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            values = json.loads(line)
            fields = json.loads(values["body"])
            signature = bytes.fromhex(values["signature"])
            if 0 < int(fields["number"]) < 2**63 and [type(fields[name]) for name in ("record", "last")] == [str, int]:
                return cls(fields, values["body"], signature)
        return None

    def is_signed(self) -> bool:
        """Returns whether the key that it names signed it."""
        from lgov_core.audit.verify import Ed25519PublicKey

        with suppress(ValueError, KeyError, TypeError):
            key = Ed25519PublicKey(bytes.fromhex(self.fields["key"]))
            return key.verify(_DOMAIN + self.body.encode(), self.signature)
        return False


class KeptHeads:
    """The heads in the file of ``heads`` as it is now: to be read before the record at ``path``, which has each by then.

    Raises `AuditError` when the file is there and cannot be read.
    """

    def __init__(self, path: Path, heads: Heads | None) -> None:
        self._path, self._anchor, self._location, self._text = path, Path(), "", b""
        if heads is None or heads.location is None:  # nothing is compared
            return
        self._anchor, self._location = heads.anchor, heads.location
        try:
            self._text = self._anchor.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            problem = f"the heads in {self._anchor} cannot be read: {error.strerror or error}"
            raise AuditError(problem, hint="make them readable to this user") from error

    def require_right(self, connection: sqlite3.Connection | None, seals: Seals | None) -> None:
        """Raises `LostEntries` where heads are kept that the record lacks, or of another that lay in its place.

        ``connection`` is None where there is no record. One that is continued is not missed.
        """
        of_place = next((head for head in self._newest("file", self._location) if head.is_signed()), None)
        record = None
        if connection is not None:
            (record,) = connection.execute("SELECT id FROM record").fetchone()
            for kept in sorted(self._newest("record", record), key=lambda head: -head.fields["number"]):
                at = (kept.fields["number"],)
                row = connection.execute("SELECT body, signature FROM heads WHERE number = ?", at).fetchone()
                if row == (kept.body, kept.signature):
                    break
                if row is not None and kept.is_signed():
                    problem = f"went on in two copies: its head {at[0]} is not the one that {self._anchor} keeps"
                    hint = "keep it at another place, and begin the next with lgov audit rotate --accept-loss"
                    raise AuditError(f"audit record {self._path} {problem}", hint=hint)
                if kept.is_signed():
                    (entries,) = connection.execute("SELECT count(*) FROM entries").fetchone()
                    raise self._lost(
                        f"is an older copy, or was cut: it has {counted(entries, 'entry', 'entries')}, and", kept
                    )
        if of_place is not None and of_place.fields["record"] not in (record, _continued(connection, seals)):
            raise self._lost("is gone:", of_place)

    def require_kept(self, connection: sqlite3.Connection) -> None:
        """Raises `AuditError` where none of the heads is kept that a record in its place has: its disk may not be there.

        The first head may be missing, by a kill before it was written. A record that was moved has heads of another place.
        """
        newest: Mapping[str, Any] = {"number": 0}
        for (body,) in connection.execute("SELECT body FROM heads ORDER BY number DESC LIMIT 1"):
            newest = json.loads(body)
        number, is_here = newest["number"], newest.get("file") == self._location
        if number > 1 and is_here and not self._newest("record", newest["record"]):
            hint = (
                "put the file back, or mount its disk (a new place begins with a copy of the old file); if it is lost for"
                f" good: lgov audit rotate {self._path} --to FOLDER --accept-loss"
            )
            raise AuditError(
                f"audit record {self._path} has {number} heads, and {self._anchor} none of them", hint=hint
            )

    def _lost(self, problem: str, head: KeptHead) -> LostEntries:
        number, entries = head.fields["number"], counted(head.fields["last"], "entry", "entries")
        return LostEntries(self._path, f"{problem} {self._anchor} keeps its head {number} over {entries}", head)

    def _newest(self, name: str, value: str) -> list[KeptHead]:
        """The last heads in the file with a field of this value, the newest first: several, as writers may overtake others."""
        needle = json.dumps(canonical({name: value})[1:-1])[1:-1].encode()
        heads: list[KeptHead] = []
        end = len(self._text)
        while len(heads) < _MOST_OVERTAKEN and (at := self._text.rfind(needle, 0, end)) >= 0:
            begin, stop = self._text.rfind(b"\n", 0, at) + 1, self._text.find(b"\n", at)
            head = KeptHead.of_line(self._text[begin : stop if stop >= 0 else None])
            if head is not None and head.fields.get(name) == value:
                heads.append(head)
            end = begin
        return heads


def _continued(connection: sqlite3.Connection | None, seals: Seals | None) -> str | None:
    """The id of the record that this one continues, as its first entry says, which a holder of the key wrote."""
    if connection is None:
        return None
    row = connection.execute("SELECT prev_hash, body FROM entries WHERE position = 1").fetchone()
    if row is None or seals is None or not seals.is_right(*row):
        return None
    return (json.loads(row[1]).get("previous") or {}).get("record")


class Seals:
    """Seals the entries of one signed record, and recognises those that others with the same key sealed.

    A seal is a MAC of an entry and what it follows, under a secret that only the holders of the key can make: their signature
    of the record's id, which is always the same (RFC 8032). That of a writer's first entry is followed by the public key and
    a signature, so that `lgov_core.audit.verify` knows the writer too. Raises what the signer raises.
    """

    def __init__(self, signer: Signer, record_id: str) -> None:
        self._signer, self._record = signer, record_id.encode()
        self._secret = hashlib.sha256(signer.sign(_SEAL_DOMAIN + self._record)).digest()

    def sealed(self, prev_hash: bytes, body: str, *, first: bool) -> str:
        """``body``, a JSON object, with its seal as the first field; ``first`` for a writer's first entry."""
        seal = self._mac(prev_hash, body)
        if first:
            message = _WRITER_DOMAIN + self._record + hashlib.sha256(body.encode()).digest()
            seal += self._signer.public.hex() + self._signer.sign(message).hex()
        return f'{_SEAL}{seal}",{body[1:]}'

    def is_right(self, prev_hash: bytes, body: object) -> bool:
        """Returns whether a holder of the key sealed an entry."""
        if not isinstance(body, str) or not body.startswith(_SEAL):
            return False
        seal, _, rest = body.removeprefix(_SEAL).partition('",')
        return hmac.compare_digest(seal[:64], self._mac(prev_hash, f"{{{rest}"))

    def _mac(self, prev_hash: bytes, body: str) -> str:
        return hashlib.blake2b(prev_hash + body.encode(), key=self._secret, digest_size=32).hexdigest()


class Heads:
    """Writes heads with ``signer``, and each to the end of the file ``anchor`` too. For one thread at a time.

    A head covers the entries of all writers since the head before it, in the order of the record. ``location`` is where the
    record lies; one that is made to be moved has none yet. ``lost`` is the number of the last head of the record that is lost.
    """

    def __init__(self, signer: Signer, anchor: Path, *, every: int, location: str | None) -> None:
        if type(every) is not int or every < 1:
            raise AuditError(f"sign_every is {every}", hint="give a whole number, 1 or more")
        self.every = every
        self.signer = signer
        self.anchor, self.location = anchor, location
        self.lost = 0
        #: A file that was there is not made anew: its disk may be gone.
        self._creates = 0 if anchor.exists() else os.O_CREAT
        #: Heads of the record may be missing in the anchor, until one has been written there.
        self._may_lack = True
        self._owes = False

    def write(
        self, connection: sqlite3.Connection, facts: Mapping[str, str], covered: Covered, *, opening: bool = False
    ) -> None:
        """Writes a head over what no head covers yet; does nothing when there is nothing. ``facts`` go into its body.

        ``covered`` gets the rows first, and raises `ForeignEntry` for one that must not be signed.
        With ``opening`` it writes one only when there is none: the first head of a record may cover nothing, and says
        with which key the record was begun, so that a signed record cannot pass for one that never was. Entries before it,
        and those that heads without ``seals`` cover, have none.

        Raises `AuditError`, `sqlite3.Error`, or what the signer raises; then no head was written, or it is in the
        record and not in the anchor yet: the next call writes it there, also that of another writer.
        """
        # The second place is synced: the record must not come back from a power cut with less than was said there.
        connection.execute("PRAGMA synchronous=FULL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            if (head := self._next(connection, facts, covered, opening=opening)) is not None:
                connection.execute("INSERT INTO heads (number, body, signature) VALUES (?, ?, ?)", head)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.execute("PRAGMA synchronous=NORMAL")
        if head is not None or self._owes:
            may_lack, self._may_lack, self._owes = self._may_lack, True, True
            for number, body, signature in [head] if head and not may_lack else self._lacking(connection):
                self._append(json.dumps({"number": number, "body": body, "signature": signature.hex()}) + "\n")
            self._may_lack = self._owes = False

    def _lacking(self, connection: sqlite3.Connection) -> list[tuple[int, str, bytes]]:
        """The heads of the record here, in order, that are not in the anchor: its place failed when they were written.

        None from before the record was moved here: they would be the newest of a place that has another record now.
        """
        rows = connection.execute("SELECT number, body, signature FROM heads ORDER BY number").fetchall()
        here = [row for row in rows if json.loads(row[1]).get("file") in (None, self.location)]
        with suppress(FileNotFoundError):
            lines = map(KeptHead.of_line, self.anchor.read_bytes().splitlines())
            kept = {(head.body, head.signature) for head in lines if head is not None}
            return [row for row in here if row[1:] not in kept]
        return here

    def _next(
        self, connection: sqlite3.Connection, facts: Mapping[str, str], covered: Covered, *, opening: bool
    ) -> tuple[int, str, bytes] | None:
        before = connection.execute("SELECT number, body, signature FROM heads ORDER BY number DESC LIMIT 1").fetchone()
        number, last, previous, is_sealed = 1, 0, "0" * 64, False
        if before is not None:
            head = json.loads(before[1])
            if head["key"] != self.signer.public.hex():
                raise AuditKeyError(
                    f"the record is signed with the key {head['key']}, and each record with one key only",
                    hint="name that secret key (--key, the setting audit_key), or begin a new record",
                )
            number, last, is_sealed = max(before[0], self.lost) + 1, head["last"], "seals" in head
            previous = hashlib.sha256(before[1].encode() + before[2]).hexdigest()
        rows = connection.execute(
            f"SELECT {LOOKED_AT} FROM entries WHERE position > ? ORDER BY position", (last,)
        ).fetchall()
        if is_sealed:
            covered(last, rows)
        if (is_sealed and opening) or not (rows or opening):
            return None
        follows = before[0] if before is not None and number != before[0] + 1 else None
        record, made_at = connection.execute("SELECT id, made_at FROM record").fetchone()
        optional = {"file": self.location, "follows": follows}
        fields = {
            **facts,
            **{name: value for name, value in optional.items() if value is not None},
            "format": 2,
            "seals": 1,
            "record": record,
            "made_at": made_at,
            "number": number,
            "first": last + 1,
            "last": rows[-1][0] if rows else last,
            "entries_sha256": hashlib.sha256(b"".join(row[1] for row in rows)).hexdigest(),
            "previous_sha256": previous,
            "time_ns": time.time_ns(),
            "key": self.signer.public.hex(),
        }
        body = canonical(fields)
        return number, body, self.signer.sign(_DOMAIN + body.encode())

    def ping(self) -> None:
        """Raises `AuditError` while nothing can be written to the anchor."""
        self._append("")

    def _append(self, line: str) -> None:
        try:
            flags = os.O_RDWR | os.O_APPEND | self._creates | getattr(os, "O_NOFOLLOW", 0)
            descriptor = os.open(self.anchor, flags, 0o600)
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
            self._creates = 0
        except OSError as error:
            raise AuditError(
                f"the head could not be written to {self.anchor}: {error.strerror or error}",
                hint="heads must be kept at a second place; make it writable",
            ) from error


def heads_path(path: Path) -> Path:
    """Where heads go unless a place is named: beside the record, which is better than nowhere."""
    return path.with_name(path.name + ".heads.jsonl")
