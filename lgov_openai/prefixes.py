"""Digests of the beginnings of a transcript: by them a place in it is known again when a program sends it once more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from lgov_openai.protocol import JSON, Entry, Wire, dump, dump_sorted


class Prefixes:
    """digests of the beginnings of a transcript as a program sent it: ``[i]`` is that of the entries before ``i``.

    Made when they are asked for, best in ascending order; ``found`` are those that are known already. Used by one exchange.
    """

    def __init__(
        self, wire: Wire, entries: Sequence[JSON], parent: str | None, found: dict[int, str] | None = None
    ) -> None:
        self._wire = wire
        self._entries = entries
        self._parent = parent
        self._found = {} if found is None else found
        self._state: hashlib.blake2b | None = None
        self._reached = 0

    def __getitem__(self, position: int) -> str:
        found = self._found.get(position)
        if found is None:
            if self._state is None or position < self._reached:
                self._state, self._reached = digest_before(self._parent), 0
            if position > self._reached:
                go_on(self._state, self._wire, self._entries[self._reached : position])
                self._reached = position
            found = self._found[position] = self._state.hexdigest()
        return found


def digest_before(parent: str | None) -> hashlib.blake2b:
    """The digest of no entries at all, in a transcript that continues ``parent``."""
    return hashlib.blake2b(dump(parent).encode(), digest_size=16)


def go_on(digest: hashlib.blake2b, wire: Wire, entries: Sequence[JSON]) -> None:
    """Takes the next entries, at least one, into ``digest``, the same in however many pieces they come."""
    passed = [_canonical(wire, entry) for entry in entries]
    digest.update(dump_sorted(passed)[1:-1].encode() + b",")  # without the brackets


def canonical(wire: Wire, entry: JSON) -> str:
    """The entry in a form that does not depend on how a program copied it. Calls stand for the message that makes them."""
    if type(entry) is not Entry:
        return dump_sorted(_canonical(wire, entry))
    if entry.canonical is None:
        entry.canonical = dump_sorted(_canonical(wire, entry))
    return entry.canonical


def _canonical(wire: Wire, entry: JSON) -> Any:
    if not wire.is_of_model(entry):
        return entry
    calls = [call.identity for call in wire.proposals(entry)]
    return ["calls", calls] if calls else ["text", wire.mapping(entry)["content"]]
