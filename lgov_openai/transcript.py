"""Puts back into each request what the program never received, so that the model reads what it wrote.

A program sends its whole transcript with each request. What was removed from a reply (a denied call, rounds in which the
model read denials) has to be inserted again at its place. The place is found by the ids of the calls or items that the
program did receive, or, for a reply without ids, by the digest of everything before it. Where several places fit, nothing
is inserted.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lgov_core.instrumentation import BoundedDict
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.wire.content import JSON
from lgov_core.wire.turns import MessageProtocol

#: How many turns, calls and results are remembered, of each; the oldest are dropped.
MAX_REMEMBERED = 20_000
#: How many of them may share one id: some servers give each reply the same ids.
MAX_PER_ID = 256


def prefix_digests(protocol: MessageProtocol, entries: Sequence[JSON], parent: str | None) -> list[str]:
    """``digests[i]`` identifies the transcript before entry ``i``, also in a copy that the program sends later.

    ``parent`` is the stored response or conversation that the transcript continues.
    """
    state = hashlib.blake2b(json.dumps(parent).encode(), digest_size=16)
    digests = [state.hexdigest()]
    for entry in entries:
        state.update(canonical(protocol, entry).encode() + b",")
        digests.append(state.hexdigest())
    return digests


def canonical(protocol: MessageProtocol, entry: JSON) -> str:
    """The entry without what programs change when they copy it: an entry of the model is its calls, or its text."""
    if protocol.from_model(entry):
        calls = [call.identity for call in protocol.proposals(entry)]
        return json.dumps(["calls", calls] if calls else ["text", protocol.mapping(entry)["content"]])
    return json.dumps(entry, sort_keys=True)


@dataclass(frozen=True, slots=True, eq=False)
class ChangedTurn:
    """A turn that the program received changed.

    ``received`` are the entries that it got. ``actual`` is what the model wrote and read there: each entry with the
    position of its form in ``received``, or None if the program got nothing of it.
    """

    prefix: str
    scope: RolloutScope | None
    received: Sequence[JSON]
    actual: Sequence[tuple[JSON, int | None]]

    def position_of(self, protocol: MessageProtocol, entry: JSON) -> int | None:
        """Which of the received entries ``entry`` is a copy of."""
        if not protocol.from_model(entry):
            return None
        ids = set(protocol.ids(entry))
        for position, mine in enumerate(self.received):
            if ids & set(protocol.ids(mine)):
                return position
        text = canonical(protocol, entry)
        return next((at for at, mine in enumerate(self.received) if canonical(protocol, mine) == text), None)


class ChangedTurns:
    """The turns that programs received changed, and the replies that are others for the server. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: By the ids of their entries, and by the digest of the transcript before and the text.
        self._turns: BoundedDict[str | tuple[str, str], list[ChangedTurn]] = BoundedDict(MAX_REMEMBERED)
        self._owed: BoundedDict[str, list[JSON]] = BoundedDict(MAX_REMEMBERED)
        self._uses: BoundedDict[str, int] = BoundedDict(MAX_REMEMBERED)
        self._parents: BoundedDict[str, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)

    def add(
        self,
        protocol: MessageProtocol,
        prefix: str,
        received: Sequence[JSON],
        actual: Sequence[tuple[JSON, int | None]],
    ) -> None:
        """Remembers a changed turn after the transcript ``prefix``."""
        turn = ChangedTurn(prefix, current_scope(), received, actual)
        with self._lock:
            for entry in received:
                by_text = [] if protocol.proposals(entry) else [(prefix, canonical(protocol, entry))]
                for key in (*protocol.ids(entry), *by_text):
                    self._turns.put(key, [*(self._turns.get(key) or ())[-MAX_PER_ID:], turn])

    def count_ids(self, ids: Iterable[str]) -> None:
        """Counts the ids of a reply: one that came twice does not identify a turn by itself."""
        with self._lock:
            for name in ids:
                self._uses.put(name, (self._uses.get(name) or 0) + 1)

    def owe(self, parent: str, results: Sequence[JSON]) -> None:
        """Remembers results that a transcript kept by the server needs when it is continued."""
        with self._lock:
            self._owed.put(parent, [*(self._owed.get(parent) or ()), *results])

    def paid(self, parent: str) -> None:
        """The server has got the results that were owed to ``parent``."""
        self._owed.pop(parent)

    def continue_from(self, response_id: str, parent: str | None) -> None:
        """Remembers that what follows ``response_id`` for the program follows ``parent`` for the server."""
        self._parents.put(response_id, (parent,))

    def continuing(self, body: JSON) -> JSON:
        """``body`` continuing the reply that the server knows: see `continue_from`."""
        parent = self._parents.get(str(body.get("previous_response_id")))
        if parent is None:
            return body
        rest = {name: value for name, value in body.items() if name != "previous_response_id"}
        return rest if parent[0] is None else {**rest, "previous_response_id": parent[0]}

    def restored(
        self,
        protocol: MessageProtocol,
        program: Sequence[JSON],
        prefixes: Sequence[str],
        current: Sequence[JSON],
        parent: str | None,
    ) -> list[JSON]:
        """``current`` (the entries of ``program`` after evaluation) with every missing entry at its place."""
        found: list[JSON] = []
        position = 0
        while position < len(program):
            turn = self._match(protocol, program[position], prefixes[position])
            if turn is None:
                found.append(current[position])
                position += 1
                continue
            present: dict[int, JSON] = {}
            while position < len(program):
                at = turn.position_of(protocol, program[position])
                if at is None or at in present:
                    break
                same = canonical(protocol, program[position]) == canonical(protocol, turn.received[at])
                present[at] = {} if same else current[position]
                position += 1
            for entry, at in turn.actual:
                if at is None:
                    found.append(entry)
                elif at in present:
                    found.append(present[at] or entry)  # a change of the program stays
        owed = (self._owed.get(parent) if parent is not None else None) or []
        first = 1 if found and found[0].get("type") == "lgov.instructions" else 0
        return [*found[:first], *owed, *found[first:]]

    def _match(self, protocol: MessageProtocol, entry: JSON, prefix: str) -> ChangedTurn | None:
        if not protocol.from_model(entry):
            return None
        text = canonical(protocol, entry)
        for name in protocol.ids(entry):
            turns = [
                turn
                for turn in self._turns.get(name) or ()
                if any(name in protocol.ids(mine) and canonical(protocol, mine) == text for mine in turn.received)
            ]
            if (self._uses.get(name) or 0) > 1:
                turns = [turn for turn in turns if turn.prefix == prefix]
            if (found := _only(turns)) is not None:
                return found
        return None if protocol.proposals(entry) else _only(self._turns.get((prefix, text)) or ())


def _only(turns: Sequence[ChangedTurn]) -> ChangedTurn | None:
    """The one that is meant, None if several could be."""
    if len(turns) > 1:
        turns = [turn for turn in turns if turn.scope == current_scope()]
    if turns and all(turn.actual == turns[0].actual for turn in turns):
        return turns[0]
    return None
