r"""Checks an audit record. Stands alone: it shares no code with what writes the record, and imports nothing of lgov.

The format, version 1. The table ``entries`` holds ``(position, writer, seq, rollout_id, body, prev_hash, hash)``:

- ``body`` is the entry: canonical JSON (keys sorted, no white space, ASCII). The bytes that are stored are the bytes
  that are hashed.
- ``hash = SHA-256(b"lgov-audit-v1\0" || prev_hash || body)``, where ``prev_hash`` is the hash of the same writer's
  entry before it, or 32 zero bytes for its first. Every object that writes has a chain of its own, named by ``writer``;
  ``seq`` counts within the chain, from 1.
- ``position`` counts over all chains, from 1, without gaps.

The table ``payloads`` holds ``(position, arguments, content)``: texts whose size and SHA-256 (hex) the body carries,
the arguments' as ``arguments_size`` and ``arguments_sha256``. A text that was too long is stored as a marker; then
``arguments_stored_sha256`` is the marker's hash. A payload may be erased; the chain stays whole without it.

What this proves: that no entry that is there was changed, moved, inserted or taken from the middle. A whole record that
was cut at its end, or written anew from the start, can only be told by something kept elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

_DOMAIN: Final = b"lgov-audit-v1\0"
_APPLICATION_ID: Final = int.from_bytes(b"lgvA")
_FORMAT: Final = 1
_FIRST: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found.

    ``entries`` is how many entries were right before the first wrong one; ``first_bad`` is the position of that one
    (None when all are right, or when the file as a whole is wrong) and ``problem`` says what is wrong with it.
    ``writers`` is the number of chains, ``erased`` how many payloads are no longer there.
    """

    ok: bool
    entries: int
    first_bad: int | None = None
    problem: str | None = None
    writers: int = 0
    erased: int = 0


def verify(path: str | os.PathLike[str]) -> VerifyReport:
    """Recomputes every chain and every payload hash of the record at ``path``, which is only read.

    Raises nothing: a file that is missing, unreadable or something else is a report that is not ok. May run while
    others write; it sees the record as it was when it began.
    """
    name = os.path.abspath(os.fspath(path))
    if not os.path.isfile(name):
        return VerifyReport(False, 0, problem=f"there is no file {name}")
    try:
        with closing(sqlite3.connect(f"file:{quote(name)}?mode=ro", uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            return _verify(connection)
    except sqlite3.Error as error:
        return VerifyReport(False, 0, problem=f"{name} cannot be read: {error}")


def _verify(connection: sqlite3.Connection) -> VerifyReport:
    if (problem := _file_problem(connection)) is not None:
        return VerifyReport(False, 0, problem=problem)
    chains: dict[str, tuple[int, bytes]] = {}
    good = erased = 0
    for row in _rows(connection):
        if row[0] != good + 1:
            return VerifyReport(False, good, good + 1, f"position {good + 1} is missing", len(chains), erased)
        problem = _entry_problem(row, chains)
        if problem is not None:
            return VerifyReport(False, good, row[0], problem, len(chains), erased)
        good += 1
        erased += row[7] is None and '_size":' in row[4]
    strays = connection.execute("SELECT count(*) FROM payloads WHERE position NOT IN (SELECT position FROM entries)")
    if stray := strays.fetchone()[0]:
        return VerifyReport(False, good, None, f"{stray} payloads belong to no entry", len(chains), erased)
    return VerifyReport(True, good, writers=len(chains), erased=erased)


def _file_problem(connection: sqlite3.Connection) -> str | None:
    application_id, version = connection.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version)"
    ).fetchone()
    if application_id != _APPLICATION_ID:
        return "the file is not an audit record of lgov"
    if version != _FORMAT:
        return f"the record has format {version}, this verifier knows format {_FORMAT}"
    return None


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    yield from connection.execute(
        "SELECT e.position, e.writer, e.seq, e.rollout_id, e.body, e.prev_hash, e.hash,"
        " p.position, p.arguments, p.content"
        " FROM entries AS e LEFT JOIN payloads AS p ON p.position = e.position ORDER BY e.position"
    )


def _entry_problem(row: tuple[Any, ...], chains: dict[str, tuple[int, bytes]]) -> str | None:
    """What is wrong with one entry, or None; then its chain has moved on to it."""
    _, writer, seq, rollout_id, body, prev_hash, stored_hash, payload, arguments, content = row
    last_seq, last_hash = chains.get(writer, (0, _FIRST))
    if seq != last_seq + 1:
        return f"entry {seq} of writer {writer} follows its entry {last_seq}"
    if prev_hash != last_hash:
        return "it does not follow from the entry before it in its chain"
    if not isinstance(body, str) or hashlib.sha256(_DOMAIN + last_hash + body.encode()).digest() != stored_hash:
        return "its contents do not match its hash"
    try:
        fields = json.loads(body)
    except ValueError:
        return "its body is not JSON"
    for field, value in (("writer", writer), ("seq", seq), ("rollout_id", rollout_id)):
        if fields.get(field) != value:
            return f"its column {field} does not match its body"
    if payload is not None:
        for field, text in (("arguments", arguments), ("content", content)):
            found = None if text is None else hashlib.sha256(text.encode()).hexdigest()
            if _stored_hash(fields, field) != found:
                return f"its payload ({field}) does not match its hash"
    chains[writer] = (seq, stored_hash)
    return None


def _stored_hash(fields: dict[str, Any], field: str) -> str | None:
    """The hash of the text that was stored with an entry; None when none was, whatever hash it refers to."""
    if f"{field}_size" not in fields:
        return None
    return fields.get(f"{field}_stored_sha256") or fields[f"{field}_sha256"]
