"""Remembers, from one model call to the next, what was decided on messages, whose they are, and what a program did not get.

A program sends its whole transcript with each model call, or a framework keeps it.

`MessageDecisionCache`: a message that was denied reached no model, and one that was rewritten reached it in its new form; the
same must hold for every later call, and no message is judged twice.

`OpeningTexts`: which texts in the user's role are the user's, where only model calls are seen.

`TurnMemory`: what was removed from a reply (a denied call, rounds in which the model read denials) is inserted again at its
place, so that the model reads what it wrote. The place is found by what marks the entries that the program did receive
(`TranscriptReader.marks`), or, for a text, by the digest of everything before it. Where several places fit, nothing is
inserted.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from lgov_core._util.containers import BoundedDict
from lgov_core.flow import TURN, Flow, in_thread, wait
from lgov_core.governor import Governor
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Action, Decision

#: How many messages are remembered; the oldest are forgotten first.
MAX_REMEMBERED = 20_000


class Instead(NamedTuple):
    """The replacement of a user's message: ``text``, and of the message nothing else if it was ``denied``."""

    text: str
    denied: bool


@dataclass(frozen=True, slots=True)
class UserText:
    """A text in the user's role. ``new``: it came after the model's last reply, so that a denial answers it.

    An earlier one is judged only if no policy here has judged it; ``answer`` is what the agent replied to it. ``prefix``
    identifies the transcript up to it: what was allowed there is not judged again, however new. ``nested``: another agent
    wrote it. ``once``: what was allowed in this attempt is not judged again there, however new. ``result_of`` is set for
    the result of a tool, which stands in the transcript as a user's text does: the call (``id``, ``name``, ``args``) that
    it answers. A denial takes its place, and the request is sent.
    """

    text: str
    new: bool = True
    answer: str | None = None
    prefix: Hashable = None
    nested: bool = False
    once: bool = False
    result_of: Mapping[str, Any] | None = None


class MessageDecisionCache:
    """The decisions on user messages and tool results, by attempt at a rollout. Callable from any thread or task."""

    def __init__(self) -> None:
        self._allowed: BoundedDict[bytes, str] = BoundedDict(MAX_REMEMBERED)
        self._rewritten: BoundedDict[bytes, str] = BoundedDict(MAX_REMEMBERED)
        self._denied: BoundedDict[bytes, str] = BoundedDict(MAX_REMEMBERED)
        self._prefixes: BoundedDict[Hashable, bool] = BoundedDict(MAX_REMEMBERED)

    def judge_flow(
        self, governor: Governor, texts: Iterable[UserText], action: Callable[[UserText], Action]
    ) -> Flow[Decision | None]:
        """Judges the texts that have to be; the denial that answers the request, or None. ``action`` makes the action.

        What was denied or rewritten is replaced by `instead_of` in this and every later request.
        """
        for text in texts:
            is_result = text.result_of is not None
            key = _key(text.text, "tool" if is_result else "user")
            allowed = key in self._allowed if text.once else text.prefix is not None and text.prefix in self._prefixes
            if allowed or (not text.new and self._knows(key, text.answer)):
                continue
            yield TURN
            decision = yield from governor.decision_flow(action(text))
            if not decision.blocks:
                if text.prefix is not None:
                    self._prefixes.put(text.prefix, True)
                self._allowed.put(key, "")
                if decision.text is None:
                    self._rewritten.pop(key)
                else:
                    self._rewritten.put(key, decision.text)
            elif decision.abort or decision.fault or (text.new and not is_result):
                self._denied.put(key, decision.denial_message())
                return decision
            else:  # a result, or from a transcript that lgov did not see grow: the denial replaces it
                self._rewritten.put(key, decision.denial_message(after=is_result))
        return None

    def _knows(self, key: bytes, answer: str | None) -> bool:
        """Returns whether the text was judged here."""
        judged = key in self._allowed or key in self._rewritten
        return judged or (answer is not None and self._denied.get(key) == answer)

    def instead_of(self, transcript: Callable[[], Sequence[tuple[str, str]]]) -> Mapping[int, Instead]:
        """The replacements by position: the new form of a rewritten message, the denial of a denied one.

        ``transcript`` gives role and text of each message; it is called only if there is anything to look for. A text
        was denied if its denial is the answer to it: the same text may have been allowed elsewhere.
        """
        if not len(self._rewritten) and not len(self._denied):
            return {}
        instead: dict[int, Instead] = {}
        unanswered: list[tuple[int, str]] = []
        for position, (role, text) in enumerate(transcript()):
            if role == "assistant":
                denied = (at for at, question in unanswered if self._denied.get(_key(question)) == text)
                instead.update((at, Instead(text, denied=True)) for at in denied)
                unanswered.clear()
            elif role in ("user", "tool"):
                new = self._rewritten.get(_key(text, role))
                if new is not None:
                    instead[position] = Instead(new, denied=False)
                if role == "user":
                    unanswered.append((position, text))
        return instead


def _key(text: str, role: str = "user") -> bytes:
    """A digest of the text, the role that it has and the attempt that the running code is in: texts may be long."""
    scope = current_scope()
    identity = f"{scope.rollout_id}\0{scope.attempt}\0{role}\0" if scope is not None else f"{role}\0"
    return hashlib.blake2b((identity + text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


#: The number of attempts whose opening texts are remembered, and of texts of one.
_MAX_ATTEMPTS: Final = 16_384
_MAX_OPENING_TEXTS: Final = 512


@dataclass(slots=True)
class _Opening:
    """The marks of an attempt's opening texts; ``open`` until the first reply."""

    open: bool
    texts: set[int] = field(default_factory=set[int])


class OpeningTexts:
    """Knows the texts with which attempts began: those in the user's role in the calls before the first reply.

    What comes after a reply, in whatever role, may be what a model wrote to another agent, or what a tool returned. An
    attempt of which ``has_begun`` (it may block) knows earlier calls, and this object nothing, has none. Callable from any
    thread, for one call of an attempt at a time.
    """

    def __init__(self, has_begun: Callable[[str, int], bool]) -> None:
        self._has_begun = has_begun
        self._attempts: BoundedDict[tuple[str, int], _Opening] = BoundedDict(_MAX_ATTEMPTS)

    def among_flow(
        self, messages: Sequence[Mapping[str, Any]], rollout_id: str | None, attempt: int | None
    ) -> Flow[list[str]]:
        """The user's texts among ``messages`` (``role``, ``content``).

        Of a call that is no part of a rollout those before the first reply in it.
        """
        spoken = [message for message in messages if message["role"] != "system"]
        if rollout_id is None or attempt is None:
            return [message["content"] for message in takewhile(lambda message: message["role"] == "user", spoken)]
        texts = [message["content"] for message in spoken if message["role"] == "user" and message["content"]]
        key = (rollout_id, attempt)
        if (opening := self._attempts.get(key)) is None:
            begun = yield from wait(in_thread(self._has_begun, rollout_id, attempt))
            if (opening := self._attempts.get(key)) is None:
                self._attempts.put(key, opening := _Opening(open=not begun))
        if opening.open and len(opening.texts) < _MAX_OPENING_TEXTS:
            opening.texts.update(map(hash, texts[:_MAX_OPENING_TEXTS]))
        return [text for text in texts if hash(text) in opening.texts]

    def replied(self, rollout_id: str | None, attempt: int | None) -> None:
        """Notes that a model has replied in the attempt."""
        if rollout_id is not None and attempt is not None:
            opening = self._attempts.get((rollout_id, attempt))
            if opening is not None:
                opening.open = False


E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)

#: How many turns may share one mark: some servers give each reply the same ids.
MAX_PER_MARK = 256


class TranscriptReader(Protocol[E_contra]):
    """How the entries of a framework's transcripts are recognised. Pure functions."""

    def from_model(self, entry: E_contra) -> bool:
        """Returns whether the model wrote the entry."""
        ...

    def marks(self, entry: E_contra) -> Sequence[Hashable]:
        """The marks of an entry of the model in every copy of the transcript: the ids of its calls, and its own."""
        ...

    def has_calls(self, entry: E_contra) -> bool:
        """Returns whether the entry has tool calls, so that only its marks identify it."""
        ...

    def canonical(self, entry: E_contra) -> str:
        """The entry without what programs change when they copy it."""
        ...


class SameObject:
    """A mark that only this very object has; keeps the object, so that no other can take its place in memory."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def prefix_digests(reader: TranscriptReader[E], entries: Sequence[E], parent: str | None = None) -> list[str]:
    """``digests[i]`` identifies the transcript before entry ``i``, also in a copy that the program sends later.

    ``parent`` is the stored response or conversation that the transcript continues.
    """
    state = hashlib.blake2b(json.dumps(parent).encode(), digest_size=16)
    digests = [state.hexdigest()]
    for entry in entries:
        state.update(reader.canonical(entry).encode() + b",")
        digests.append(state.hexdigest())
    return digests


@dataclass(frozen=True, slots=True, eq=False)
class ChangedTurn(Generic[E]):
    """A turn that the program received changed.

    ``received`` are the entries that it got. ``actual`` is what the model wrote and read there: each entry with the
    position of its form in ``received``, or None if the program got nothing of it. ``prefix`` is the digest of the
    transcript before it.
    """

    prefix: str
    scope: RolloutScope | None
    received: Sequence[E]
    actual: Sequence[tuple[E, int | None]]

    def position_of(self, reader: TranscriptReader[E], entry: E) -> int | None:
        """The position in ``received`` that ``entry`` is a copy of."""
        if not reader.from_model(entry):
            return None
        marks = set(reader.marks(entry))
        for position, received in enumerate(self.received):
            if marks & set(reader.marks(received)):
                return position
        text = reader.canonical(entry)
        return next((at for at, received in enumerate(self.received) if reader.canonical(received) == text), None)


class TurnMemory(Generic[E]):
    """The turns that programs received changed, and what is owed to transcripts that a server keeps.

    Callable from any thread and task.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: By the marks of their entries, and by the digest of the transcript before and the text.
        self._turns: BoundedDict[Hashable, list[ChangedTurn[E]]] = BoundedDict(MAX_REMEMBERED)
        self._uses: BoundedDict[Hashable, int] = BoundedDict(MAX_REMEMBERED)
        self._owed: BoundedDict[str, list[E]] = BoundedDict(MAX_REMEMBERED)

    def add(
        self,
        reader: TranscriptReader[E],
        prefix: str,
        received: Sequence[E],
        actual: Sequence[tuple[E, int | None]],
    ) -> None:
        """Remembers a changed turn after the transcript ``prefix``."""
        turn = ChangedTurn(prefix, current_scope(), received, actual)
        with self._lock:
            for entry in received:
                by_text = [] if reader.has_calls(entry) else [(prefix, reader.canonical(entry))]
                for key in (*reader.marks(entry), *by_text):
                    self._turns.put(key, [*(self._turns.get(key) or ())[-MAX_PER_MARK:], turn])

    def count(self, marks: Iterable[Hashable]) -> None:
        """Counts the marks of a reply: one that came twice does not identify a turn by itself."""
        with self._lock:
            for mark in marks:
                self._uses.put(mark, (self._uses.get(mark) or 0) + 1)

    def owe(self, parent: str | None, entries: Sequence[E]) -> None:
        """Remembers entries that the transcript ``parent``, kept by the server, needs before it is continued."""
        if parent is not None and entries:
            with self._lock:
                self._owed.put(parent, [*self.owed(parent), *entries])

    def owed(self, parent: str | None) -> Sequence[E]:
        """The entries that are owed to ``parent``."""
        return (self._owed.get(parent) if parent is not None else None) or ()

    def paid(self, parent: str | None) -> None:
        """Notes that the server has got what was owed to ``parent``."""
        if parent is not None:
            self._owed.pop(parent)

    def restored(
        self, reader: TranscriptReader[E], program: Sequence[E], prefixes: Sequence[str], current: Sequence[E]
    ) -> list[E]:
        """``current`` (the entries of ``program`` as they may be sent) with every missing entry at its place."""
        restored: list[E] = []
        position = 0
        while position < len(program):
            turn = self._match(reader, program[position], prefixes[position])
            if turn is None:
                restored.append(current[position])
                position += 1
                continue
            present: dict[int, list[E]] = {}  # empty where the program has the entry as it received it
            while position < len(program):
                at = turn.position_of(reader, program[position])
                if at is None or at in present:
                    break
                same = reader.canonical(program[position]) == reader.canonical(turn.received[at])
                present[at] = [] if same else [current[position]]
                position += 1
            for entry, at in turn.actual:
                if at is None:
                    restored.append(entry)
                elif at in present:
                    restored += present[at] or [entry]  # a change of the program stays
        return restored

    def _match(self, reader: TranscriptReader[E], entry: E, prefix: str) -> ChangedTurn[E] | None:
        if not reader.from_model(entry):
            return None
        text = reader.canonical(entry)
        for mark in reader.marks(entry):
            turns = [
                turn
                for turn in self._turns.get(mark) or ()
                if any(mark in reader.marks(each) and reader.canonical(each) == text for each in turn.received)
            ]
            if (self._uses.get(mark) or 0) > 1:
                turns = [turn for turn in turns if turn.prefix == prefix]
            if (turn := _only(turns)) is not None:
                return turn
        return None if reader.has_calls(entry) else _only(self._turns.get((prefix, text)) or ())


def _only(turns: Sequence[ChangedTurn[Any]]) -> ChangedTurn[Any] | None:
    """The turn that is meant, None if several could be."""
    if len(turns) > 1:
        turns = [turn for turn in turns if turn.scope == current_scope()]
    if turns and all(turn.actual == turns[0].actual for turn in turns):
        return turns[0]
    return None
