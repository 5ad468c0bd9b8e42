"""What the model said and read where a program was given something else, kept until the program sends it back.

A program keeps its own transcript and sends all of it with each request. What was taken out of a reply (a denied call,
rounds in which the model was told so) has to be put back at its place, so that the model reads what it really said and
every transcript is a continuation of the one before. A place is found by the ids of the calls that the program did get
(or the ids of its items), and, for a reply that has none, by all that stands before it. Where that leaves more than one
answer nothing is put back: a transcript is never guessed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lgov_core.instrumentation.tool_call import ToolCall
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Decision
from lgov_openai.prefixes import Prefixes, canonical
from lgov_openai.protocol import JSON, Proposal, Wire
from lgov_openai.request_parser import Requests
from lgov_openai.stream_observer import Passing

#: How many calls, replies and verdicts are remembered; the oldest are forgotten first.
MAX_REMEMBERED = 20_000

#: How many of them may have one id: some servers give each reply the same ids.
MAX_NAMESAKES = 256

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A turn as a program got it (``entries``), and ``truth``, what stands at its place for the model.

    Each entry of ``truth`` says which of ``entries`` it is, or None if the program never got it.
    """

    prefix: str
    scope: RolloutScope | None
    entries: Sequence[JSON]
    truth: Sequence[tuple[JSON, int | None]]


@dataclass(slots=True, eq=False)
class Pending:
    """A call that the program may make: until its result is read, nobody knows what came of it.

    ``call`` is None once that is recorded and nobody judges the result: by what is left its result is known again.
    """

    call: ToolCall | None
    decision: Decision
    identity: tuple[str | None, str, str]
    prefix: str
    scope: RolloutScope | None
    recorded: bool = False


class _Recent(OrderedDict[K, V]):
    """A dictionary that forgets its oldest entries."""

    def find(self, key: K) -> V | None:
        """What is kept for ``key``, which is now the youngest entry."""
        if (found := self.get(key)) is not None:
            self.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> V | None:
        """Keeps ``value``; returns what had to be forgotten for it."""
        self[key] = value
        self.move_to_end(key)
        return self.popitem(last=False)[1] if len(self) > MAX_REMEMBERED else None


class Transcripts:
    """The memory of one governed client, or of all clients of an instrumented process. Callable from any thread or task."""

    def __init__(self) -> None:
        self.requests = Requests()
        #: Replies that are still on their way to the program.
        self.passing: set[Passing] = set()
        self._lock = threading.Lock()
        self._withheld = False
        self._by_id: _Recent[str, list[Given]] = _Recent()
        self._by_text: _Recent[tuple[str, str], list[Given]] = _Recent()
        self._by_parent: _Recent[str, list[JSON]] = _Recent()
        self._uses: _Recent[str, int] = _Recent()
        self._pending: _Recent[str, list[Pending]] = _Recent()
        self._verdicts: _Recent[Hashable, tuple[str | None]] = _Recent()
        self._heard: _Recent[str, bool] = _Recent()
        self._allowed: _Recent[tuple[str | None, str], bool] = _Recent()
        self._rewritten: _Recent[tuple[str | None, str], str] = _Recent()
        self._refused: _Recent[str, str] = _Recent()
        self._invented: _Recent[str, tuple[str | None]] = _Recent()

    # ------------------------------------------------------------------ replies

    def given(self, wire: Wire, entries: Sequence[JSON], truth: Sequence[tuple[JSON, int | None]], prefix: str) -> None:
        """Notes what a program got as a turn and what is true."""
        one = Given(prefix, current_scope(), entries, truth)
        with self._lock:
            self._withheld = True
            for entry in entries:
                for name in _ids(wire, entry):
                    self._by_id.put(name, [*(self._by_id.find(name) or ())[-MAX_NAMESAKES:], one])
                if not wire.proposals(entry):
                    key = (prefix, canonical(wire, entry))
                    self._by_text.put(key, [*(self._by_text.find(key) or ())[-MAX_NAMESAKES:], one])

    def used(self, names: Iterable[str]) -> None:
        """Counts the ids of a reply: an id that came twice tells nothing by itself."""
        with self._lock:
            for name in names:
                self._uses.put(name, self._uses.get(name, 0) + 1)

    def owed(self, parent: str, answers: Sequence[JSON]) -> None:
        """Notes answers that a transcript kept by the server still needs when it is continued."""
        with self._lock:
            self._by_parent.put(parent, [*(self._by_parent.find(parent) or ()), *answers])

    def invented(self, name: str, parent: str | None) -> None:
        """Notes the id of a reply that no server gave, and the reply before it that one did give, if any."""
        with self._lock:
            self._invented.put(name, (parent,))

    def continuing(self, body: JSON) -> JSON:
        """``body`` as it may be sent: a server knows no reply that was invented, so the one before is continued."""
        with self._lock:
            parent = self._invented.find(str(body.get("previous_response_id")))
        if parent is None:
            return body
        rest = {name: value for name, value in body.items() if name != "previous_response_id"}
        return rest if parent[0] is None else {**rest, "previous_response_id": parent[0]}

    def settled(self, parent: str) -> None:
        """The server has got the answers that were owed."""
        with self._lock:
            self._by_parent.pop(parent, None)

    def restored(
        self, wire: Wire, program: Sequence[JSON], prefixes: Prefixes, current: Sequence[JSON], parent: str | None
    ) -> list[JSON]:
        """``current`` (``program`` as it may be sent) with everything back at its place that the program never got."""
        found: list[JSON] = []
        position = 0
        with self._lock:
            owed = list(self._by_parent.find(parent) or ()) if parent is not None else []
            if not owed and not self._withheld:
                return list(current)
            while position < len(program):
                one = self._match(wire, program[position], prefixes, position)
                if one is None:
                    found.append(current[position])
                    position += 1
                    continue
                present: dict[int, JSON] = {}
                while position < len(program):
                    at = _place_in(wire, one, program[position])
                    if at is None or at in present:
                        break
                    same = canonical(wire, program[position]) == canonical(wire, one.entries[at])
                    present[at] = {} if same else current[position]
                    position += 1
                for entry, at in one.truth:
                    if at is None:
                        found.append(entry)
                    elif at in present:  # what the program changed itself stays as it changed it
                        found.append(present[at] or entry)
        if not owed:
            return found
        first = 1 if found and found[0].get("type") == "lgov.instructions" else 0
        return [*found[:first], *owed, *found[first:]]

    def _match(self, wire: Wire, entry: JSON, prefixes: Prefixes, position: int) -> Given | None:
        if not wire.is_of_model(entry):
            return None
        itself = canonical(wire, entry)
        for name in _ids(wire, entry):
            candidates = [
                one
                for one in self._by_id.find(name) or ()
                if any(name in _ids(wire, mine) and canonical(wire, mine) == itself for mine in one.entries)
            ]
            if (self._uses.find(name) or 0) > 1:
                candidates = [one for one in candidates if one.prefix == prefixes[position]]
            if (found := _only(candidates)) is not None:
                return found
        if wire.proposals(entry):
            return None
        return _only(self._by_text.find((prefixes[position], itself)) or ())

    # ------------------------------------------------------------------ calls and their results

    def proposed(self, pending: Pending) -> None:
        """Notes a call that the program got."""
        call_id = pending.identity[0]
        if call_id is None:
            _abandon(pending)  # no result can ever be told to be this call's
            return
        forgotten: list[Pending] = []
        with self._lock:
            known = self._pending.find(call_id)
            if known is None:
                forgotten = self._pending.put(call_id, [pending]) or forgotten
            else:
                known.append(pending)
                if len(known) > MAX_NAMESAKES + 1:
                    forgotten.append(known.pop(0))
        for one in forgotten:
            _abandon(one)

    def catch_up(self, prefix: str | None, call_ids: Iterable[str | None]) -> None:
        """Has noted the calls of replies that are still on their way, where a program goes on before it read to the end.

        Those are looked at that answer what begins with ``prefix``, and those that hold one of these calls, if it is not
        known. The replies that nobody reads any more are ended.
        """
        unknown = [one.encode() for one in call_ids if one is not None and one not in self._pending]
        for one in list(self.passing):
            if one.left:
                one.end(GeneratorExit())
            elif one.place == (current_scope(), prefix) or any(map(one.holds, unknown)):
                one.look()

    def claim(self, call_id: str | None, proposal: Proposal | None, prefix: str | None) -> tuple[Pending | None, bool]:
        """The call whose result this is, if that is certain, and whether its outcome is still to be recorded (only once)."""
        with self._lock:
            known: Sequence[Pending] = self._pending.find(call_id) or () if call_id is not None else ()
            one = _meant(known, proposal.identity if proposal is not None else None, prefix)
            if one is None:
                return None, False
            first, one.recorded = not one.recorded, True
            return one, first

    def verdict(self, key: Hashable) -> tuple[str | None] | None:
        """What was decided about a result: a 1-tuple of the text in its place, or of None; None if nothing was."""
        with self._lock:
            return self._verdicts.find(key)

    def judged(self, key: Hashable, text: str | None) -> None:
        """Notes what was decided about a result."""
        with self._lock:
            self._verdicts.put(key, (text,))

    # ------------------------------------------------------------------ the user

    def is_new(self, place: str, *, refused: bool = False) -> bool:
        """Whether the user's text at this place of a transcript has not been let through yet, or ``refused`` either."""
        with self._lock:
            return self._heard.find(place) is None and not (refused and self._refused.find(place) is not None)

    def knows(self, text: str) -> bool:
        """Whether this text of the user was let through in this rollout, wherever it stood."""
        with self._lock:
            return self._allowed.find((_rollout(), text)) is not None

    def heard(self, place: str, text: str, instead: str | None) -> None:
        """Notes that a text of the user was let through, as it was or with another text in its place."""
        with self._lock:
            self._heard.put(place, True)
            self._allowed.put((_rollout(), text), True)
            self._refused.pop(place, None)
            if instead is not None:
                self._rewritten.put((_rollout(), text), instead)

    def refused(self, place: str, denial: str) -> None:
        """Notes that the user's text at this place was answered with ``denial`` and reached no model."""
        with self._lock:
            self._refused.put(place, denial)

    @property
    def refuses(self) -> bool:
        """Whether any text was refused."""
        return bool(self._refused)

    def refusal(self, place: str) -> str | None:
        """What the model reads where the user's text at this place was refused."""
        with self._lock:
            return self._refused.find(place)

    def instead_of(self, text: str) -> str | None:
        """The text that stands in place of what the user said, in this rollout, if it was replaced."""
        with self._lock:
            return self._rewritten.find((_rollout(), text))

    def end_passing(self) -> None:
        """Ends the replies that are still on their way."""
        for one in list(self.passing):
            one.end(GeneratorExit())

    def close(self) -> None:
        """Shows the spans of replies that nobody read to their end, and of calls whose result nobody brought."""
        self.end_passing()
        with self._lock:
            left = [one for several in self._pending.values() for one in several]
        for one in left:
            _abandon(one)


def _abandon(pending: Pending) -> None:
    if pending.call is not None:
        pending.call.span.abandon()


def _rollout() -> str | None:
    scope = current_scope()
    return scope.rollout_id if scope is not None else None


def _ids(wire: Wire, entry: JSON) -> list[str]:
    names = [call.call_id for call in wire.proposals(entry) if call.call_id is not None]
    own = wire.entry_id(entry)
    return [*names, *([own] if own is not None and own not in names else [])]


def _place_in(wire: Wire, one: Given, entry: JSON) -> int | None:
    if not wire.is_of_model(entry):
        return None
    names = set(_ids(wire, entry))
    for position, mine in enumerate(one.entries):
        if names & set(_ids(wire, mine)):
            return position
    itself = canonical(wire, entry)
    return next((at for at, mine in enumerate(one.entries) if canonical(wire, mine) == itself), None)


def _meant(
    known: Sequence[Pending], identity: tuple[str | None, str, str] | None, prefix: str | None
) -> Pending | None:
    """The call that is meant, or None if that cannot be told. ``identity`` is None where nothing but the id is known."""
    if len(known) == 1:
        return known[0] if identity is None or known[0].identity == identity else None
    if len(known) > 1:
        scope, same = current_scope(), 0
        for one in reversed(known):  # where all is the same, it is soon seen
            if one.prefix == prefix and one.identity == identity and one.scope == scope:
                same += 1
                if same > 1:
                    return None
    found = [one for one in known if identity is None or one.identity == identity]
    if len(found) > 1:
        found = [one for one in found if one.prefix == prefix] or found
    if len(found) > 1:
        scope = current_scope()
        found = [one for one in found if one.scope == scope]
    return found[0] if len(found) == 1 else None


def _only(candidates: Sequence[Given]) -> Given | None:
    """The one that is meant, or None if that cannot be told."""
    if len(candidates) > 1:
        scope = current_scope()
        candidates = [one for one in candidates if one.scope == scope]
    if len(candidates) > 1 and all(one.truth == candidates[0].truth for one in candidates):
        return candidates[0]
    return candidates[0] if len(candidates) == 1 else None
