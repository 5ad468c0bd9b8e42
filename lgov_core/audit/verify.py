r"""Checks an audit record. Stands alone: one file, only the standard library, no code shared with what writes the record.

A copy of this file can be run by itself: ``python verify.py audit.db --key audit.key.pub --head heads.jsonl``.

The format, version 2. The table ``entries`` holds
``(position, writer, seq, rollout_id, body, prev_hash, hash, salt, arguments, content)``:

- ``body`` is the entry: canonical JSON (keys sorted, no white space, ASCII). The bytes that are stored are the bytes
  that are hashed.
- ``hash = SHA-256(b"lgov-audit-v2\0" || prev_hash || body)``, where ``prev_hash`` is the hash of the same writer's
  entry before it, or 32 zero bytes for its first. Every object that writes has a chain of its own, named by ``writer``;
  ``seq`` counts within the chain, from 1.
- ``position`` counts over all chains, from 1, without gaps.
- ``arguments`` and ``content`` are texts that belong to the entry; the body carries ``arguments_sha256 =
  SHA-256(salt || arguments)`` in hex, and the same for the content; the salt has 16 bytes, and only an entry with texts has
  one. Salt and texts may be erased together; the chain stays whole without them, and without the salt the hash does not tell
  what the text was.
- ``_seal``, the first field of a body behind the first head with ``seals``, is hex: a MAC (32 bytes) of what it follows
  and of the body without it, which only the holders of the key can make and check. A head is signed over entries with a
  right one only. That of a writer's first entry goes on with the public key (32 bytes) and its signature, Ed25519 over
  ``b"lgov-audit-writer-v1\0"``, the record's id and the SHA-256 of the body without ``_seal``.

The table ``heads`` holds ``(number, body, signature)``. The body of a head is canonical JSON: the ``record``'s id, its
``number`` (from 1), the positions ``first`` to ``last`` that it covers (from behind the head before it; none when the
first head was written before the first entry, then ``last`` is 0),
``entries_sha256`` (SHA-256 over the hashes of these entries, in order), ``previous_sha256`` (SHA-256 over body and
signature of the head before it), ``made_at`` (what the table ``record`` says beside the id; older heads do not cover it),
``key``, the public key, ``file``, where the record lies, seen from the folder of the heads,
and in a writer's last head ``ended``, the writer, who writes nothing more. Where heads are lost, ``follows`` is the number of
the head before it. ``signature`` is Ed25519 (RFC 8032) over
``b"lgov-audit-head-v2\0" || body``. The same heads are kept outside of the record, one JSON object a line.

An entry of kind ``erasure`` names what it erases: ``erased`` maps the id of an earlier entry to its hash (hex); older
ones are a list of ids. Behind the first head it must be signed by a key of the heads: ``key`` and ``signature`` (hex),
Ed25519 over ``b"lgov-audit-erasure-v1\0"`` and the canonical JSON of ``{"erased": …, "reason": …}``.

The first entry of a record that continues an archived one is of kind ``rotation``: ``previous`` has the ``record``'s id, how
many ``entries`` it had, their ``sha256`` (over their hashes, in order) and the ``key`` (hex) of its heads; entries after
those, such as erasures, may follow.
An entry of kind ``loss`` says, in ``lost``, that entries up to ``last`` and heads up to ``number`` of a ``record`` are lost: of
this one, which is a copy from before and goes on with the next number, or of one that lay in its place and is gone.
An entry of kind ``retirement`` names, in ``retired``, the ids of archived records that were deleted.

A report on a record has its signature in a file of its own, with ``.sig`` behind its name: a JSON object of ``body`` and
``signature`` (hex). The body is canonical JSON: ``format`` (1), the ``record``'s id, the ``report_sha256`` of the report's
bytes, ``time_ns`` and ``key``, the public key. The signature is Ed25519 over ``b"lgov-audit-report-v1\0"`` and the body.
``python verify.py report.html --key audit.key.pub`` checks it.

What this proves, see `VerifyReport`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, cast
from urllib.parse import quote

_DOMAIN: Final = b"lgov-audit-v2\0"
_HEAD_DOMAIN: Final = b"lgov-audit-head-v2\0"
_ERASURE_DOMAIN: Final = b"lgov-audit-erasure-v1\0"
_APPLICATION_ID: Final = int.from_bytes(b"lgvA", "big")
_WRITER_DOMAIN: Final = b"lgov-audit-writer-v1\0"
_REPORT_DOMAIN: Final = b"lgov-audit-report-v1\0"
#: The end of the name of the file with a report's signature.
SIGNATURE: Final = ".sig"
_SEAL: Final = '{"_seal":"'
_FORMAT: Final = 2
#: Effects of a decision by which a run does not begin.
_BLOCKING: Final = ("escalate", "deny")
#: Runs without an end that are shown in words.
_RUNS: Final = 10
_FIRST: Final = bytes(32)
_PUBLIC: Final = "lgov-ed25519-public:"
#: Every table, index and trigger of a record, with the beginning of the SHA-256 (hex) of the statement that makes it, or None.
_SCHEMA: Final = {
    "record": "d5a2cfcef3faf41f",
    "sqlite_autoindex_record_1": "dc937b59892604f5",
    "entries": "732524b85558c7e6",
    "entries_of_rollout": "9cd6d3d8b07856ad",
    "heads": "f7099389dbcdfdc9",
    "entries_are_not_changed": "b848b2657962fbef",
    "entries_are_not_removed": "411809737acb19b5",
    "entries_are_not_replaced": "7effa1116b1670a8",
    "heads_are_not_changed": "b7598cbc4788b7b9",
    "heads_are_not_removed": "4a6d1087050c34a4",
    "heads_are_not_replaced": "f1ad8ca56120e0a9",
}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`.

    ``entries`` is how many entries were right before the first wrong one; ``first_bad`` is the position of that one
    (None when all are right, or when the file as a whole is wrong), ``first_bad_id`` the id that it gives itself, and
    ``problem`` says what is wrong. ``writers`` is the number of chains, ``erased`` how many entries lost their texts.

    ``heads`` counts the signed heads, ``signed`` the entries that they cover and ``unsigned`` those behind the last one:
    whoever can write the file can write these anew. ``before_key`` counts those there before the first head: that they are
    unchanged since is signed, and not who wrote them. ``key`` is the public key (hex) of the heads; ``key_trusted`` says
    that it was compared with one that was given, without which anybody's key will do. ``anchored`` counts the heads that
    were found at the second place, where ``ok`` means that the record still holds every head that is there: nothing was
    cut off before the last of them, but for what ``losses`` say. ``others`` are the other records that have heads there, that
    with the newest head last, each with its ``file`` as it is seen from there, and how many ``entries`` its last head covers.
    ``placed`` says that heads there name the place of this file: ``ok`` then means that no other record is the newest there.
    ``usage`` says that nothing was checked, since the key or the file of heads that was given is none, and ``lacking`` that
    nothing was found wrong, but entries from ``first_bad`` on, or from before the key, lack the signature that is required.

    ``record`` is its id and ``entries_sha256`` the digest (hex) over the hashes of its entries from 1 to ``entries``, in order.
    ``unended`` are the runs that began in it and did not end there: they go on, or were killed. Each has its ``rollout`` and
    ``attempt``, the ``program``, its ``policy`` (a digest), and ``entry``, ``time`` and ``what`` of the ``first`` and ``last``.
    ``continues`` is what its first entry says of the archived record before it, ``retired`` the ids of those deleted.
    ``losses`` are what entries accept as lost: the ``record``, the ``number`` of its last head and that one's ``last`` entry.
    """

    ok: bool
    entries: int
    first_bad: int | None = None
    problem: str | None = None
    writers: int = 0
    erased: int = 0
    heads: int = 0
    signed: int = 0
    unsigned: int = 0
    before_key: int = 0
    key: str | None = None
    key_trusted: bool = False
    anchored: int | None = None
    first_bad_id: str | None = None
    others: tuple[dict[str, Any], ...] = ()
    placed: bool = False
    usage: bool = False
    lacking: bool = False
    record: str | None = None
    entries_sha256: str | None = None
    unended: tuple[dict[str, Any], ...] = ()
    continues: dict[str, Any] | None = None
    retired: tuple[str, ...] = ()
    losses: tuple[dict[str, Any], ...] = ()


class _Broken(Exception):
    """The record is wrong: what, and the position of the entry where it shows."""

    def __init__(self, problem: str, position: int | None = None, entry_id: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.position, self.entry_id = problem, position, entry_id


class _Unsigned(_Broken):
    """Nothing is wrong, but what has to be signed is not."""


class _Usage(_Broken, ValueError):
    """Nothing was checked: what was given to check with is wrong."""


def verify(
    path: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | bytes | None = None,
    head: str | os.PathLike[str] | None = None,
    require_signed: bool = False,
    continued: tuple[int, str] | None = None,
) -> VerifyReport:
    """Recomputes every chain, every text's hash and every head of the record at ``path``, which is only read.

    ``key`` is the public key that must have signed (32 bytes, hex, or a file that holds it); ``head`` is the file where
    heads were kept. With a key, a record that it signed nothing of is broken: what was signed may have lost its heads.
    With ``require_signed`` an entry that no head covers is a fault. ``continued`` is how many of its first entries the
    record after it continues, and the digest over their hashes that it states. Raises nothing: a file that is missing,
    unreadable or something else is a report that is not ok. May run while others write; it sees the record as it was when
    it began.
    """
    name = os.path.abspath(os.fspath(path))
    try:
        there, address = os.path.isfile(name), f"file:{quote(name)}?mode=ro"
    except ValueError:  # a lone surrogate
        there, address, name = False, "", ascii(name)
    if not there:
        return VerifyReport(False, 0, problem=f"there is no file {name}")
    try:
        trusted = None if key is None else public_key(key)
        anchor = None if head is None else _Anchor(os.fspath(head), name)
        with closing(_opened(name, address)) as connection:
            try:
                return _Check(connection, trusted, anchor, require_signed, continued).report()
            except sqlite3.OperationalError:  # text that is none, perhaps: again, so that its entry can be named
                connection.text_factory = _text_or_bytes
                return _Check(connection, trusted, anchor, require_signed, continued).report()
    except _Usage as error:
        return VerifyReport(False, 0, problem=error.problem, usage=True)
    except _Broken as broken:
        return VerifyReport(False, 0, problem=broken.problem)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        is_none = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        why = f"is no record, and {name}{SIGNATURE}, by which a report is verified, is not there" if is_none else ""
        return VerifyReport(False, 0, problem=f"{name} {why or f'cannot be read: {error}'}")


def _opened(name: str, address: str) -> sqlite3.Connection:
    """The record as it is now, or, where SQLite may write nothing beside it (a closed folder, a read-only disk), as it lies.

    Broken when a log lies beside it there: what is in it could not be read.
    """
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
    if any(os.path.exists(name + end) and os.path.getsize(name + end) for end in ("-wal", "-journal")):
        raise _Broken(
            f"{name} cannot be read here together with its log: copy it and the file beside it that ends in -wal"
            " to a folder that can be written to"
        )
    connection = sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
    connection.execute("BEGIN")
    return connection


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


@dataclass(slots=True)
class _Check:
    """One pass over a record."""

    connection: sqlite3.Connection
    trusted: bytes | None
    anchor: _Anchor | None
    require_signed: bool
    continued: tuple[int, str] | None
    #: By rollout and attempt, and by the writer that began them.
    runs: dict[tuple[str, str], dict[str, dict[str, Any]]] = field(
        default_factory=dict[tuple[str, str], dict[str, dict[str, Any]]]
    )
    chains: dict[str, tuple[int, bytes]] = field(default_factory=dict[str, tuple[int, bytes]])
    ids: set[str] = field(default_factory=set[str])
    erased: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    announced: set[str] = field(default_factory=set[str])
    #: Position, id and key of what was signed with a key that has to be the record's, and what it is.
    signed: list[tuple[int, str, bytes, str]] = field(default_factory=list[tuple[int, str, bytes, str]])
    sealed_after: int | None = None
    ending: dict[int, str] = field(default_factory=dict[int, str])
    ended: set[str] = field(default_factory=set[str])
    #: The first entry that no writer with the key wrote.
    foreign: _Broken | None = None
    keys: set[bytes] = field(default_factory=set[bytes])
    signed_from: int | None = None
    lines: list[str] = field(default_factory=list[str])
    #: Where heads are lost: the numbers of the head before them and of the one after them.
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    kept: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    found: VerifyReport = field(default_factory=lambda: VerifyReport(True, 0))

    def report(self) -> VerifyReport:
        wrong: dict[str, Any] = {}
        try:
            self.file()
            self.all_entries()
            self.after_entries()
            self.schema()
            self.after_heads()
        except _Broken as broken:
            wrong = {"problem": broken.problem, "first_bad": broken.position, "first_bad_id": broken.entry_id}
            wrong["lacking"] = isinstance(broken, _Unsigned)
        return replace(self.found, ok=not wrong, writers=len(self.chains), **wrong)

    def file(self) -> None:
        application_id, version = self.connection.execute(
            "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version)"
        ).fetchone()
        if application_id != _APPLICATION_ID:
            if not self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise _Broken("there is nothing in the file: was it copied without the one that ends in -wal?")
            raise _Broken("the file is not an audit record of lgov")
        if version != _FORMAT:
            raise _Broken(f"the record has format {version}, this verifier knows format {_FORMAT}")
        # Before anything is read: a view may go on for ever, and a computed column take as long as it likes.
        tables = self.connection.execute(
            "SELECT name, type, sql LIKE 'CREATE TABLE%',"
            " (SELECT max(hidden) FROM pragma_table_xinfo(sqlite_master.name)) FROM sqlite_master"
            " WHERE name COLLATE NOCASE IN ('entries', 'heads', 'record')"
        )
        if set(tables) != {(name, "table", 1, 0) for name in ("entries", "heads", "record")}:
            raise _Broken("entries, heads and record are not the tables that they should be")
        record = self.connection.execute("SELECT id, made_at FROM record LIMIT 2").fetchall()
        if [[type(value) for value in row] for row in record] != [[str, int]]:
            raise _Broken("it does not say which record it is, or says so wrongly")
        self.found = replace(self.found, record=record[0][0])
        if self.anchor is not None:
            self.kept = self.anchor.heads.get(record[0][0], {})
            if (conflict := self.anchor.conflicts.get(record[0][0])) is not None:
                raise _Broken(conflict)
        problems = [row[0] for row in self.connection.execute("PRAGMA integrity_check(1)")]
        if problems != ["ok"]:  # an index that disagrees with its table would hide rows from some readers
            raise _Broken(f"the database is damaged: {problems[0]}")

    def schema(self) -> None:
        """Looks for tables and triggers that are not lgov's: they prove nothing now, and lose entries from now on."""
        hashes = {
            str(name): hashlib.sha256(str(sql).encode()).hexdigest()[:16]
            for name, sql in self.connection.execute("SELECT name, sql FROM sqlite_master")
        }
        wrong = sorted(name for name in hashes.keys() | _SCHEMA.keys() if hashes.get(name) != _SCHEMA.get(name))
        if wrong:
            raise _Broken(f"its tables or triggers are not those that lgov makes: {', '.join(wrong)[:200]}")

    def all_entries(self) -> None:
        heads = self.signed_heads()
        number, last, digest = next(heads, (0, -1, ""))
        self.signed_from = last + 1 if number else None
        running, digest_of_all = hashlib.sha256(), hashlib.sha256()
        good, digests = 0, {0: digest_of_all.hexdigest()}
        if last == 0:  # a head from before the first entry
            if running.hexdigest() != digest:
                raise _Broken("head 1 covers nothing, and says something else")
            self.found = replace(self.found, heads=number)
            number, last, digest = next(heads, (number, -1, ""))
        for row in self.connection.execute(
            "SELECT position, writer, seq, rollout_id, body, prev_hash, hash, salt, arguments, content"
            " FROM entries NOT INDEXED ORDER BY position"
        ):
            good += 1
            if row[0] != good:
                raise _Broken(f"position {good} is missing", good)
            self.entry(row)
            running.update(row[6])
            digest_of_all.update(row[6])
            if self.continued is not None and good == self.continued[0]:
                digests[good] = digest_of_all.hexdigest()
            self.found = replace(self.found, entries=good, erased=len(self.erased))
            while good == last:
                if running.hexdigest() != digest:
                    first = self.found.signed + 1
                    raise _Broken(f"head {number} covers other entries than those from {first} to {last}", first)
                self.found = replace(self.found, heads=number, signed=last)
                self.ended.add(self.ending[number])
                running = hashlib.sha256()
                number, last, digest = next(heads, (number, -1, ""))
        if last > 0:
            raise _Broken(f"head {number} covers entries up to {last}, but the record ends at {good}", good + 1)
        runs = sorted(
            (run for of_it in self.runs.values() for run in of_it.values()), key=lambda run: run["first"]["entry"]
        )
        unsigned, digest = good - self.found.signed, digest_of_all.hexdigest()
        self.found = replace(self.found, unsigned=unsigned, entries_sha256=digest, unended=tuple(runs))
        if self.continued is not None and digests.get(self.continued[0]) != self.continued[1]:
            raise _Broken(f"its first {self.continued[0]} entries are not those that the record after it continues")

    def after_entries(self) -> None:
        """Looks at what only the whole record can say of an entry."""
        for position, entry_id, key, what in self.signed:
            if key not in self.keys:
                raise _Broken(f"{what}, and is signed with the key {key.hex()}, not the record's", position, entry_id)
        accepted = [loss["number"] for loss in self.found.losses if loss["record"] == self.found.record]
        for _, number in self.gaps:
            if number - 1 not in accepted:
                raise _Broken(f"heads before head {number} are missing, and no entry says that they are lost")
        for entry_id, (position, _) in self.erased.items():
            if entry_id not in self.announced:
                raise _Broken("its texts are gone, and no erasure says so", position, entry_id)
        if self.foreign is not None:
            raise self.foreign

    def entry(self, row: tuple[Any, ...]) -> None:
        position, writer, seq, rollout_id, body, prev_hash, stored_hash, salt, arguments, content = row
        fields = _fields(body)
        entry_id = None if fields is None or not isinstance(fields.get("entry_id"), str) else str(fields["entry_id"])

        def broken(problem: str) -> _Broken:
            return _Broken(problem, position, entry_id)

        last_seq, last_hash = self.chains.get(writer, (0, _FIRST))
        if seq != last_seq + 1:
            raise broken(f"entry {seq} of writer {writer} follows its entry {last_seq}")
        if prev_hash != last_hash:
            raise broken("it does not follow from the entry before it in its chain")
        if not isinstance(body, str) or hashlib.sha256(_DOMAIN + last_hash + body.encode()).digest() != stored_hash:
            raise broken("its contents do not match its hash")
        if fields is None:
            raise broken("its body is not JSON")
        for column, value in (("writer", writer), ("seq", seq), ("rollout_id", rollout_id)):
            if fields.get(column) != value:
                raise broken(f"its column {column} does not match its body")
        if entry_id is None or entry_id in self.ids:
            raise broken("its id is missing, or another entry has it")
        self.ids.add(entry_id)
        if (wrong := _wrong_text(fields, salt, {"arguments": arguments, "content": content})) is not None:
            raise broken(f"the text of its {wrong} does not match the hash")
        if salt is None and ("arguments_sha256" in fields or "content_sha256" in fields):
            self.erased[entry_id] = (position, stored_hash.hex())
        self.about_entries(fields, position, entry_id)
        self.of_run(fields, position, writer)
        if self.foreign is None and self.sealed_after is not None and position > self.sealed_after:
            self.sealed(body, position, seq, writer, entry_id)
        self.chains[writer] = (seq, stored_hash)

    def sealed(self, body: str, position: int, seq: int, writer: str, entry_id: str) -> None:
        """Looks whether the entry's writer is one that the record's key began, and has not ended."""
        seal, _, rest = body.removeprefix(_SEAL).partition('",')
        seal = seal if body.startswith(_SEAL) and len(seal) in (64, 256) else ""
        if seq == 1 and seal:
            key, signature = _hex(seal[64:128], 32), _hex(seal[128:], 64)
            message = f"{self.found.record}".encode() + hashlib.sha256(f"{{{rest}".encode()).digest()
            if (
                key is None
                or signature is None
                or not Ed25519PublicKey(key).verify(_WRITER_DOMAIN + message, signature)
            ):
                seal = ""
            else:
                self.signed.append((position, entry_id, key, "it begins a writer"))
        if not seal or writer in self.ended:
            why = "its seal is missing or wrong" if not seal else "its writer had ended before"
            self.foreign = _Broken(f"no writer with the record's key wrote it: {why}", position, entry_id)

    def about_entries(self, fields: dict[str, Any], position: int, entry_id: str) -> None:
        """Notes what an entry says of other entries, or of other records."""
        kind, retired = fields.get("kind"), fields.get("retired")
        if kind == "erasure":
            self.erasure(fields, position, entry_id)
        elif kind == "rotation" and position == 1:
            raw = fields.get("previous")
            previous = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
            # A value that it leaves out fits no record.
            continues = {name: previous.get(name) for name in ("record", "entries", "sha256", "file", "folder", "key")}
            self.found = replace(self.found, continues=continues)
        elif kind == "loss" and isinstance(raw := fields.get("lost"), dict):
            loss = {name: cast("dict[str, Any]", raw).get(name) for name in ("record", "number", "last")}
            loss |= {"position": position, "by": fields.get("by"), "time_ns": fields.get("time_ns")}
            self.found = replace(self.found, losses=(*self.found.losses, loss))
        elif kind == "retirement" and isinstance(retired, dict):
            self.found = replace(self.found, retired=(*self.found.retired, *map(str, cast("dict[str, Any]", retired))))

    def of_run(self, fields: dict[str, Any], position: int, writer: str) -> None:
        """Notes that a run begins, goes on or ends: the rollout that a decision at its start, or at its end, is about.

        It ends with its writer's end only. Other entries are of their writer's run, else (a child's) of the newest.
        """
        point, key = fields.get("point"), (str(fields.get("rollout_id")), str(fields.get("attempt")))
        begins = point == "agent_startup" and fields.get("kind") == "decision"
        if begins and fields.get("effect") in _BLOCKING:
            return
        runs = self.runs.setdefault(key, {}) if begins else self.runs.get(key, {})
        if point == "agent_shutdown":
            runs.pop(writer, None)
            return
        if not begins and not runs:
            return
        run = writer if begins or writer in runs else next(reversed(runs))
        what = " ".join(str(fields[name]) for name in ("kind", "point", "name") if fields.get(name))
        entry = {"entry": position, "time": _time(fields.get("time_ns")), "what": what}
        about = {"rollout": key[0], "attempt": fields.get("attempt"), "program": fields.get("name")}
        about |= {"policy": fields.get("policy_digest"), "first": entry}
        runs.setdefault(run, about)["last"] = entry

    def erasure(self, fields: dict[str, Any], position: int, entry_id: str) -> None:
        """Notes the entries before it that an erasure names; behind the first head only one that is signed may name any."""
        erased, reason = fields.get("erased"), fields.get("reason")
        pairs = cast("dict[str, object]", erased).items() if isinstance(erased, dict) else ()
        named = {erased_id: entry_hash for erased_id, entry_hash in pairs if isinstance(entry_hash, str)}
        if self.signed_from is not None and position >= self.signed_from:
            statement = {"erased": named, "reason": reason if isinstance(reason, str) else None}
            message = _ERASURE_DOMAIN + json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
            key, signature = _hex(fields.get("key"), 32), _hex(fields.get("signature"), 64)
            if key is None or signature is None or not Ed25519PublicKey(key).verify(message, signature):
                raise _Broken("it erases texts, and what it erases is not signed", position, entry_id)
            self.signed.append((position, entry_id, key, "it erases texts"))
        elif isinstance(erased, list):
            ids = [erased_id for erased_id in cast("list[object]", erased) if isinstance(erased_id, str)]
            named = {erased_id: self.erased[erased_id][1] for erased_id in ids if erased_id in self.erased}
        self.announced.update(
            erased_id for erased_id, of in named.items() if erased_id in self.erased and self.erased[erased_id][1] == of
        )

    # ------------------------------------------------------------------ heads

    def signed_heads(self) -> Iterator[tuple[int, int, str]]:
        """Each head's number, last position and digest of entries, once it is found right by itself."""
        record, made_at = self.connection.execute("SELECT id, made_at FROM record").fetchone()
        previous, covered, expected = "0" * 64, 0, 0
        verified: dict[bytes, Callable[[bytes, bytes], bool]] = {}
        for number, body, signature in self.connection.execute(
            "SELECT number, body, signature FROM heads ORDER BY number"
        ):
            fields = _fields(body)
            expected = self.next_number(expected, number, fields)
            if fields is None or not isinstance(body, str) or number != expected or fields.get("number") != number:
                raise _Broken(f"head {expected} is missing, or is not what it says")
            if fields.get("record") != record or fields.get("made_at", made_at) != made_at:
                raise _Broken(f"head {number} belongs to another record, or to one made at another time")
            if fields.get("previous_sha256") != previous or fields.get("first") != covered + 1:
                raise _Broken(f"head {number} does not follow from the head before it")
            public = _hex(fields.get("key"), 32)
            if public is None or not isinstance(signature, bytes):
                raise _Broken(f"head {number} has no key or no signature")
            if self.trusted is not None and public != self.trusted:
                raise _Broken(f"head {number} is signed with the key {public.hex()}, not with the one given")
            self.keys.add(public)
            check = verified.setdefault(public, Ed25519PublicKey(public).verify)
            if not check(_HEAD_DOMAIN + body.encode(), signature):
                raise _Broken(f"the signature of head {number} is wrong")
            last, self.ending[number] = fields.get("last"), str(fields.get("ended"))
            # The first one of a record, that with which seals begin, and that which ends a writer may cover nothing.
            begins_seals = self.sealed_after is None and "seals" in fields
            if not isinstance(last, int) or last < covered + (
                number > 1 and "ended" not in fields and not begins_seals
            ):
                raise _Broken(f"head {number} covers nothing")
            self.sealed_after = last if begins_seals else self.sealed_after
            if begins_seals and number == 1:
                self.found = replace(self.found, before_key=last)
            if self.kept.get(number, (body, signature.hex())) != (body, signature.hex()):
                raise _Broken(f"head {number} is not the one that was kept outside of the record")
            self.lines.append(json.dumps({"number": number, "body": body, "signature": signature.hex()}))
            previous, covered = hashlib.sha256(body.encode() + signature).hexdigest(), last
            self.found = replace(self.found, key=public.hex(), key_trusted=self.trusted is not None)
            yield number, last, str(fields.get("entries_sha256"))

    def next_number(self, before: int, number: object, fields: dict[str, Any] | None) -> int:
        """The number that the head after that of the number ``before`` must have: a higher one where heads are lost."""
        if fields is None or fields.get("follows") != before or not isinstance(number, int) or number <= before + 1:
            return before + 1
        self.gaps.append((before, number))
        return number

    def after_place(self, anchor: _Anchor) -> None:
        """Looks whether the record whose head is the newest of those that name this place lies in it, or was before it."""
        newest = next(
            (fields["record"] for fields, head in reversed(anchor.of_place) if _is_signed(fields, *head)), None
        )
        before = [loss["record"] for loss in self.found.losses] + [(self.found.continues or {}).get("record")]
        if newest is not None and newest not in [self.found.record, *before]:
            raise _Broken(
                f"it is not the record of this place: the newest head that was kept for it is of the record {newest}, over"
                f" {anchor.records[str(newest)]['entries']} entries; verify an archive where it was archived"
            )

    def after_heads(self) -> None:
        if self.anchor is not None:
            last = max(self.kept, default=0)
            if (self.anchor.heads or self.found.heads) and not self.kept:
                raise _Broken(
                    "none of the heads that were kept outside of the record is of this record: it was replaced, or"
                    " begun with another file of heads"
                )
            if last > self.found.heads:
                raise _Broken(
                    f"head {last} was kept outside of the record, but the record has only {self.found.heads} heads:"
                    " it was cut, or is an older copy",
                    self.found.entries + 1,
                )
            present = [each for each in self.kept if not any(low < each < high for low, high in self.gaps)]
            for where, cut in self.anchor.cut:  # by a kill or a full disk: the beginning of a head, and nothing else
                if not any(line.startswith(cut) for line in self.lines):
                    raise _Broken(f"{where}: not a head")
            others = tuple(each for each in self.anchor.records.values() if each["record"] != self.found.record)
            self.found = replace(self.found, anchored=len(present), others=others, placed=bool(self.anchor.of_place))
            self.after_place(self.anchor)
        if self.trusted is not None and not self.found.heads:
            raise _Broken("nothing in it is signed with the key that was given", 1 if self.found.entries else None)
        if self.require_signed and self.found.before_key:
            before = _counted(self.found.before_key, "entry is", "entries are")
            raise _Unsigned(f"{before} from before there was a key: anybody may have written them", 1)
        if self.require_signed and (self.found.unsigned or not self.found.heads):
            entries = _counted(self.found.unsigned, "entry has", "entries have")
            after = f" after entry {self.found.signed}" if self.found.signed else ""
            raise _Unsigned(
                f"{entries} no signed head{after}: written by a program that was killed or still runs, or changed or added by"
                " others, which cannot be told apart",
                self.found.signed + 1 if self.found.unsigned else None,
            )


def verify_archived(
    path: str | os.PathLike[str],
    archive: str | os.PathLike[str] | None,
    *,
    key: str | os.PathLike[str] | bytes | None = None,
    head: str | os.PathLike[str] | None = None,
    require_signed: bool = False,
) -> list[tuple[str, VerifyReport]]:
    """`verify` of the record at ``path`` and of every archived one before it, the newest first, each with its path.

    They are found by their ids in the folder ``archive``, or by name where none has the id, and are not among each other's
    ``others``. One that is not there is a fault of the record that continues it, unless an entry says that it was deleted.
    Without ``archive`` they are looked for where the record says, beside and below it. A record of ``key`` names the key of
    the one before it. Ends with the first record that is broken.
    """
    reports = [(os.fspath(path), verify(path, key=key, head=head, require_signed=require_signed))]
    retired: set[str] = set()
    beside = os.path.dirname(os.path.abspath(path))
    while reports[-1][1].ok and (before := reports[-1][1].continues) is not None:
        name, report = reports[-1]
        retired.update(report.retired)
        folders = [os.path.join(beside, str(before["folder"] or "")), beside, *_folders(beside)]
        older_path = _archived(
            before, folders if archive is None else [os.fspath(archive)], [each for each, _ in reports]
        )
        if older_path is None and str(before["record"]) not in retired:
            where = (
                "was not found: name its folder (--archive)" if archive is None else f"is not in {os.fspath(archive)}"
            )
            problem = f"the record {before['record']} that it continues {where}"
            reports[-1] = name, replace(report, ok=False, problem=problem, first_bad=1)
        if older_path is None:
            break
        count = before["entries"] if isinstance(before["entries"], int) else 0
        if report.key_trusted and not report.before_key:
            key = before["key"] or key
        older = verify(
            older_path, key=key, head=head, require_signed=require_signed, continued=(count, str(before["sha256"]))
        )
        reports.append((older_path, older))
    chain = {report.record for _, report in reports}
    return [
        (name, replace(report, others=tuple(each for each in report.others if each["record"] not in chain)))
        for name, report in reports
    ]


def _folders(folder: str) -> list[str]:
    return [each for name in sorted(os.listdir(folder)) if os.path.isdir(each := os.path.join(folder, name))]


def _archived(before: dict[str, Any], folders: Sequence[str], read: Sequence[str]) -> str | None:
    """The archive with the id that ``before`` states, or else of that name, which may be damaged; none that was ``read``."""
    past = {os.path.realpath(path) for path in read}
    names = (os.path.join(folder, name) for folder in folders if os.path.isdir(folder) for name in os.listdir(folder))
    files = sorted({name for name in names if os.path.isfile(name) and os.path.realpath(name) not in past})
    named = [file for file in files if os.path.basename(file) == before["file"]]
    fitting = (file for file in [*named, *files] if _record_id(file) == before["record"])
    return next(fitting, None) or next(iter(named), None)


def _record_id(path: str) -> str | None:
    """The id that the record at ``path`` gives itself; None when there is none."""
    if not os.path.isfile(path) or path.endswith(("-wal", "-shm", "-journal")):
        return None
    try:
        with closing(_opened(path, f"file:{quote(os.path.abspath(path))}?mode=ro")) as connection:
            row = connection.execute("SELECT id FROM record LIMIT 1").fetchone()
            return str(row[0]) if row else None
    except (_Broken, sqlite3.Error, UnicodeError):
        return None


def _wrong_text(fields: dict[str, Any], salt: object, texts: dict[str, object]) -> str | None:
    """Which of the texts is not the one that was hashed; None when all are, or all were erased with their salt."""
    if salt is not None and not (
        isinstance(salt, bytes) and len(salt) == 16 and any(f"{text}_sha256" in fields for text in texts)
    ):
        return "salt"
    for name, text in texts.items():
        if not isinstance(text, str | None):
            return name
        stated = None if salt is None else fields.get(f"{name}_sha256")
        actual = None if salt is None or text is None else hashlib.sha256(salt + text.encode()).hexdigest()
        if actual != stated or (salt is None and text is not None):
            return name
    return None


def _fields(body: object) -> dict[str, Any] | None:
    try:
        fields = json.loads(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None


class _Anchor:
    """A file of heads, by record and number; where two of one number differ, by record; and the lines that are none.

    ``records`` say what the last head of each says, the newest one last; ``of_place`` are the heads that name the place of the
    file ``record``.
    """

    def __init__(self, path: str, record: str) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.of_place: list[tuple[dict[str, Any], tuple[str, str]]] = []
        location, beside = os.path.realpath(record), os.path.realpath(os.path.dirname(os.path.abspath(path)))
        self.heads: dict[str, dict[int, tuple[str, str]]] = {}
        self.conflicts: dict[str, str] = {}
        self.cut: list[tuple[str, str]] = []
        try:
            with open(path, encoding="ascii") as file:
                lines = file.read().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise _Usage(f"the heads in {path} cannot be read: {error}") from error
        for line_number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                fields = json.loads(line)
                number, head = int(fields["number"]), (str(fields["body"]), str(fields["signature"]))
                body = json.loads(head[0])
                record, file = str(body["record"]), body.get("file")
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                self.cut.append((f"{path}:{line_number}", line))
                continue
            about = {**self.records.pop(record, {"file": None}), "record": record, "entries": body.get("last")}
            self.records[record] = about | ({"file": file} if file else {})
            if isinstance(file, str) and os.path.normpath(os.path.join(beside, file)) == location:
                self.of_place.append((body, head))
            if self.heads.setdefault(record, {}).setdefault(number, head) != head:
                self.conflicts.setdefault(record, f"{path}:{line_number}: there are two different heads {number}")


def _is_signed(fields: dict[str, Any], body: str, signature: str) -> bool:
    """Returns whether the key that a head names signed it."""
    key = _hex(fields.get("key"), 32)
    return key is not None and Ed25519PublicKey(key).verify(_HEAD_DOMAIN + body.encode(), _hex(signature, 64) or b"")


def public_key(key: str | os.PathLike[str] | bytes) -> bytes:
    """The 32 bytes of a public key that is given as such, in hex, or as a file that holds it. Raises `ValueError`."""
    if isinstance(key, bytes) and len(key) == 32:
        return key
    text = os.fsdecode(key)
    if os.path.isfile(text):
        try:
            with open(text, encoding="ascii") as file:
                text = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _Usage(f"the key {os.fsdecode(key)} cannot be read: {error}") from error
    public = _hex(text.removeprefix(_PUBLIC), 32)
    if public is None:
        what = f"{os.fsdecode(key)} is not" if os.path.isfile(key) else f"there is no key file {text}, and that is not"
        raise _Usage(f"{what} an Ed25519 public key: give 64 hex digits, or the file audit.key.pub")
    return public


@dataclass(frozen=True, slots=True)
class ReportSignature:
    """The result of `verify_report`: whether ``key`` signed these bytes, for the record of this id, and when (Unix time, ns).

    ``key_trusted`` says that the key was compared with one that was given; ``usage`` that nothing was checked.
    """

    ok: bool
    problem: str | None = None
    key: str | None = None
    key_trusted: bool = False
    record: str | None = None
    report_sha256: str | None = None
    time_ns: int | None = None
    usage: bool = False

    def words(self) -> str:
        """The result for people."""
        if not self.ok:
            return f"BROKEN: {self.problem}"
        at = _time(self.time_ns)
        compared = "which is the one given" if self.key_trusted else "not compared with one that you trust: give --key"
        return (
            f"ok: the report is as it was signed at {at} (time of the machine that signed)\n"
            f"signed for the record {self.record} with the key {self.key}, {compared}\n"
            "the signature covers the report only: verify the record too"
        )


def verify_report(
    path: str | os.PathLike[str], *, key: str | os.PathLike[str] | bytes | None = None
) -> ReportSignature:
    """Checks the signature beside the report at ``path`` (its name and `SIGNATURE`); ``key`` as in `verify`. Raises nothing."""
    try:
        trusted = None if key is None else public_key(key)
        with open(os.fspath(path), "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        with open(os.fspath(path) + SIGNATURE, encoding="ascii") as file:
            signed = json.load(file)
        body, signature = str(signed["body"]), _hex(signed["signature"], 64)
        fields = json.loads(body)
        public, record, time_ns = _hex(fields["key"], 32), str(fields["record"]), int(fields["time_ns"])
        time.gmtime(time_ns / 1e9)  # which raises for what is no time
    except _Usage as error:
        return ReportSignature(False, error.problem, usage=True)
    except OSError as error:
        return ReportSignature(False, f"{error.filename or path} cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ReportSignature(False, f"{os.fspath(path)}{SIGNATURE} is not the signature of a report")
    result = ReportSignature(False, None, str(fields["key"]), trusted == public, record, digest, time_ns)
    if public is None or not Ed25519PublicKey(public).verify(_REPORT_DOMAIN + body.encode(), signature or b""):
        return replace(result, problem="the signature is not of its key")
    if trusted not in (None, public):
        return replace(result, problem=f"it is signed with the key {public.hex()}, not with the one given")
    if fields.get("format") != 1 or fields.get("report_sha256") != digest:
        return replace(result, problem="the report was changed after it was signed, or is another one")
    return replace(result, ok=True)


def _hex(text: object, size: int) -> bytes | None:
    try:
        raw = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return None
    return raw if len(raw) == size else None


# ---------------------------------------------------------------------- Ed25519, RFC 8032 section 5.1

_P: Final = 2**255 - 19
_Q: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT: Final = pow(2, (_P - 1) // 4, _P)

#: A point of the curve as (X, Y, Z, T) with x = X/Z, y = Y/Z and xy = T/Z.
_Point = tuple[int, int, int, int]


class Ed25519PublicKey:
    """Verifies signatures. Nothing secret passes through here, so that time may depend on the data."""

    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded
        self._point = _decode(encoded)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Returns whether ``signature`` (64 bytes) is this key's signature of ``message``."""
        if self._point is None or len(signature) != 64:
            return False
        r, s = _decode(signature[:32]), int.from_bytes(signature[32:], "little")
        if r is None or s >= _Q:
            return False
        h = int.from_bytes(hashlib.sha512(signature[:32] + self._encoded + message).digest(), "little") % _Q
        return _same(_two_times(s, _BASE, h, _negative(self._point)), r)


def _add(a: _Point, b: _Point) -> _Point:
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % _P, (a[1] + a[0]) * (b[1] + b[0]) % _P
    g, h = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    i, j, k, m = f - e, h - g, h + g, f + e
    return i * j % _P, k * m % _P, j * k % _P, i * m % _P


def _negative(point: _Point) -> _Point:
    return _P - point[0], point[1], point[2], _P - point[3]


def _two_times(s: int, a: _Point, h: int, b: _Point) -> _Point:
    """``s * a + h * b`` in one pass over the bits of both."""
    both, total = _add(a, b), (0, 1, 1, 0)
    for bit in range(max(s.bit_length(), h.bit_length()) - 1, -1, -1):
        total = _add(total, total)
        of_s, of_h = s >> bit & 1, h >> bit & 1
        if of_s or of_h:
            total = _add(total, both if of_s and of_h else a if of_s else b)
    return total


def _same(a: _Point, b: _Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % _P == 0 and (a[1] * b[2] - b[1] * a[2]) % _P == 0


def _decode(encoded: bytes) -> _Point | None:
    y = int.from_bytes(encoded, "little")
    sign, y = y >> 255, y & ((1 << 255) - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


_BASE: Final = cast(_Point, _decode((4 * pow(5, _P - 2, _P) % _P).to_bytes(32, "little")))


# ---------------------------------------------------------------------- as a program


def verify_given(
    path: str, *, archive: str | None, key: str | None, **checks: Any
) -> list[tuple[str, VerifyReport | ReportSignature]]:
    """Verifies a report, if its signature lies beside it, or else the record at ``path``, with ``archive`` those before it."""
    if os.path.isfile(path + SIGNATURE):
        return [(path, verify_report(path, key=key))]
    if archive is None:
        return [(path, verify(path, key=key, **checks))]
    if not os.path.isdir(archive):
        return [(path, VerifyReport(False, 0, problem=f"--archive: there is no folder {archive}", usage=True))]
    return [*verify_archived(path, archive, key=key, **checks)]


def in_words(report: VerifyReport | ReportSignature) -> str:
    """The report for people: what is right, and what was not proved."""
    if isinstance(report, ReportSignature):
        return report.words()
    if report.lacking:
        unsigned = [f"NOT SIGNED: {report.problem}", "nothing else was found wrong", *_runs_in_words(report)]
        return "\n".join(map(_printable, unsigned))
    if not report.ok:
        where = f" at entry {report.first_bad}" if report.first_bad is not None else ""
        named = f" ({report.first_bad_id})" if report.first_bad_id else ""
        before = report.first_bad is not None and report.entries < report.first_bad
        right = f"\n{report.entries} entries{' before it' if before else ''} are right" if report.entries else ""
        return _printable(f"BROKEN{where}{named}: {report.problem}") + right
    entries, chains = _counted(report.entries, "entry", "entries"), _counted(report.writers, "chain", "chains")
    lines = [f"ok: {entries} in {chains}, {report.erased} with erased texts"]
    if not report.heads:
        lines.append("not signed: whoever can write the file can write it anew")
    else:
        signed, heads = _counted(report.signed, "entry", "entries"), _counted(report.heads, "head", "heads")
        lines.append(f"signed: {signed} by {heads}, {report.unsigned} after the last head")
        if report.before_key:
            before = _counted(report.before_key, "entry", "entries")
            lines.append(
                f"of them {before} from before there was a key: unchanged since, but anybody may have written them"
            )
        if not report.key_trusted:
            hint = "lgov audit verify --key does (for a report: the setting audit_key)"
            lines.append(f"the key {report.key} was not compared with one that you trust: {hint}")
    if report.entries:
        lines.append(f"digest of entries 1 to {report.entries}: {report.entries_sha256}")
    lines += _runs_in_words(report)
    if report.continues is not None:
        before = f"{report.continues['record']}, of {report.continues['entries']} entries"
        lines.append(f"continues the record {before} (verify --archive looks at them too)")
    for loss in report.losses:
        first, whose = (loss["position"], "it") if loss["record"] == report.record else (1, f"record {loss['record']}")
        accepted = f"accepted by {loss['by']} at {_time(loss['time_ns'])} (entry {loss['position']})"
        lines.append(f"lost: entries {first} to {loss['last']} of {whose}, and any after them; {accepted}")
    return "\n".join(map(_printable, [*lines, *_kept_in_words(report)]))


def _kept_in_words(report: VerifyReport) -> list[str]:
    if report.anchored is None:
        return ["not compared with heads kept elsewhere (verify --head): an older copy, or a cut end, would not show"]
    lines = [f"heads kept elsewhere: {report.anchored} of {report.heads}, and none of them is missing in the record"]
    if report.others:
        others = _counted(len(report.others), "other record", "other records")
        lines.append(f"heads of {others} are kept there too, the newest last: check that none of these is missing")
        lines += [
            f"  {each['file'] or 'a place that they do not name'}: record {each['record']}, {each['entries']} entries"
            for each in report.others
        ]
        if not report.placed:
            lines.append("none of the heads names this place: they do not say whether a later record belongs here")
    return lines


def _runs_in_words(report: VerifyReport) -> list[str]:
    """The runs without an end: when each began, and its last entry."""
    lines: list[str] = []
    for run in report.unended[:_RUNS]:
        first, last = run["first"], run["last"]
        began = f"{run['program']} (rollout {run['rollout']}) began at {first['time']} (entry {first['entry']})"
        lines.append(f"  {began}; its last entry is {last['entry']}, at {last['time']}: {last['what']}")
    more = [f"  and {len(report.unended) - _RUNS} more (--json)"] if len(report.unended) > _RUNS else []
    runs = _counted(len(report.unended), "run", "runs")
    return [f"{runs} without an end in the record (running still, or killed):", *lines, *more] if lines else []


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _time(time_ns: object) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(cast("int", time_ns) / 1e9))
    except (TypeError, ValueError, OverflowError, OSError):
        return "an unknown time"


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Verifies as a program: 0 when the record is right, 4 when it is broken, 1 when there is none, 2 for wrong usage."""
    parser = argparse.ArgumentParser(description="Checks an audit record of lgov. Exits 0 when it is right, 4 if not.")
    parser.add_argument("path", help="the record, or a report on one, beside which its signature lies (NAME.sig)")
    parser.add_argument("--key", help="the public key that must have signed, or the file that holds it")
    parser.add_argument("--head", help="the file where heads were kept outside of the record")
    parser.add_argument("--archive", help="the folder with the archived records before this one")
    parser.add_argument("--require-signed", action="store_true", help="every entry must be covered by a signed head")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not os.path.exists(options.path):
        parser.exit(1, f"error: there is no audit record {options.path}\n")
    checks: dict[str, Any] = {"key": options.key, "head": options.head, "require_signed": options.require_signed}
    reports = verify_given(options.path, archive=options.archive, **checks)
    for name, report in reports:
        if report.usage:
            parser.error(str(report.problem))
        head = f"{name}\n" if options.archive is not None else ""
        text = json.dumps({"path": name, **asdict(report)}, indent=2) if options.json else head + in_words(report)
        sys.stdout.write(text + "\n")
    return 0 if all(report.ok for _, report in reports) else 4


if __name__ == "__main__":
    sys.exit(main())
