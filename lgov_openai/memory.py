"""Remembers the conversations of programs under one governor: calls that wait for results, and turns that were changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from lgov_core.instrumentation import BoundedDict
from lgov_core.instrumentation.conversation_memory import MAX_PER_MARK, MAX_REMEMBERED, MessageDecisionCache, TurnMemory
from lgov_core.instrumentation.tool_call import GovernedToolCall
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Decision
from lgov_core.wire.turns import JSON, MessageProtocol, Proposal
from lgov_openai.streamed_replies import HeldCalls, Recording


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Recognises the entries of a transcript in the form of ``protocol``."""

    protocol: MessageProtocol

    def from_model(self, entry: JSON) -> bool:
        """See `TranscriptReader.from_model`."""
        return self.protocol.from_model(entry)

    def marks(self, entry: JSON) -> Sequence[str]:
        """See `TranscriptReader.marks`."""
        return self.protocol.ids(entry)

    def has_calls(self, entry: JSON) -> bool:
        """See `TranscriptReader.has_calls`."""
        return bool(self.protocol.proposals(entry))

    def canonical(self, entry: JSON) -> str:
        """See `TranscriptReader.canonical`: an entry of the model is its calls, or its text."""
        if self.protocol.from_model(entry):
            calls = [call.identity for call in self.protocol.proposals(entry)]
            return json.dumps(["calls", calls] if calls else ["text", self.protocol.mapping(entry)["content"]])
        return json.dumps(entry, sort_keys=True)


class ReplyParents:
    """The replies that have another id for the program than for the server. Callable from any thread."""

    def __init__(self) -> None:
        self._parents: BoundedDict[str, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)

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


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that the program may make. ``prefix`` is the digest of the transcript before its turn."""

    call: GovernedToolCall
    decision: Decision
    identity: tuple[str | None, str, str]
    prefix: str
    scope: RolloutScope | None
    recorded: bool = False


class PendingCalls:
    """The tool calls that programs received, until they send the results."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_id: BoundedDict[str, list[PendingCall]] = BoundedDict(MAX_REMEMBERED)

    def __contains__(self, call_id: str | None) -> bool:
        return call_id in self._by_id

    def add(self, pending: PendingCall) -> None:
        """Remembers a call that the program received; shows the spans of calls that are dropped for it."""
        call_id = pending.identity[0]
        if call_id is None:  # no result can name it
            pending.call.span.abandon()
            return
        with self._lock:
            same_id = [*(self._by_id.get(call_id) or ()), pending]
            dropped = same_id[: -MAX_PER_MARK - 1]
            dropped += self._by_id.put(call_id, same_id[-MAX_PER_MARK - 1 :]) or []
        for call in dropped:
            call.call.span.abandon()

    def claim(
        self, call_id: str | None, proposal: Proposal | None, prefix: str | None
    ) -> tuple[PendingCall | None, bool]:
        """The call of a result, if it is certain, and whether its outcome must be recorded (once).

        ``proposal`` and ``prefix`` are the call in the program's transcript and the digest of what is before its turn;
        None where the request does not have it.
        """
        with self._lock:
            same_id = (self._by_id.get(call_id) if call_id is not None else None) or []
            candidates = [pending for pending in same_id if proposal is None or pending.identity == proposal.identity]
            if len(candidates) > 1:
                candidates = [pending for pending in candidates if pending.prefix == prefix] or candidates
            if len(candidates) > 1:
                candidates = [pending for pending in candidates if pending.scope == current_scope()]
            if len(candidates) != 1:
                return None, False
            first, candidates[0].recorded = not candidates[0].recorded, True
            return candidates[0], first

    def close(self) -> None:
        """Shows the spans of calls whose results were never sent."""
        for calls in self._by_id.values():
            for pending in calls:
                pending.call.span.abandon()


class Memory:
    """One a governed client, or one for all clients of an instrumented process. Callable from any thread or task."""

    def __init__(self) -> None:
        self.turns: TurnMemory[JSON] = TurnMemory()
        self.parents = ReplyParents()
        self.calls = PendingCalls()
        #: For each result that was evaluated, a tuple of the text in its place, or of None.
        self.results: BoundedDict[Hashable, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)
        self.messages = MessageDecisionCache()
        #: Replies that the program has not read to their end.
        self.recordings: set[Recording | HeldCalls] = set()

    def end_recordings(self) -> None:
        """Ends all recordings, as if the program had stopped reading."""
        for recording in list(self.recordings):
            recording.end(GeneratorExit())

    def close(self) -> None:
        """Ends the spans that are still open: of replies that are not read to their end, and of calls without a result."""
        self.end_recordings()
        self.calls.close()
