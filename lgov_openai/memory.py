"""What an interceptor remembers of the conversations under one governor."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass

from lgov_core.instrumentation import BoundedDict
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_core.instrumentation.tool_call import ToolCall
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Decision
from lgov_core.wire.turns import Proposal
from lgov_openai.held_calls import HeldCalls
from lgov_openai.recording import Recording
from lgov_openai.transcript import MAX_PER_ID, MAX_REMEMBERED, ChangedTurns


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that the program may make. ``prefix`` is the digest of the transcript before its turn."""

    call: ToolCall
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
            known = [*(self._by_id.get(call_id) or ()), pending]
            dropped = known[: -MAX_PER_ID - 1]
            dropped += self._by_id.put(call_id, known[-MAX_PER_ID - 1 :]) or []
        for one in dropped:
            one.call.span.abandon()

    def claim(
        self, call_id: str | None, proposal: Proposal | None, prefix: str | None
    ) -> tuple[PendingCall | None, bool]:
        """The call of a result, if it is certain, and whether its outcome must be recorded (once).

        ``proposal`` and ``prefix`` are the call in the program's transcript and the digest of what is before its turn;
        None where the request does not have it.
        """
        with self._lock:
            known = (self._by_id.get(call_id) if call_id is not None else None) or []
            found = [one for one in known if proposal is None or one.identity == proposal.identity]
            if len(found) > 1:
                found = [one for one in found if one.prefix == prefix] or found
            if len(found) > 1:
                found = [one for one in found if one.scope == current_scope()]
            if len(found) != 1:
                return None, False
            first, found[0].recorded = not found[0].recorded, True
            return found[0], first

    def close(self) -> None:
        """Shows the spans of calls whose results were never sent."""
        for known in self._by_id.values():
            for one in known:
                one.call.span.abandon()


class Memory:
    """One a governed client, or one for all clients of an instrumented process. Callable from any thread or task."""

    def __init__(self) -> None:
        self.turns = ChangedTurns()
        self.calls = PendingCalls()
        #: For each result that was evaluated, a tuple of the text in its place, or of None.
        self.results: BoundedDict[Hashable, tuple[str | None]] = BoundedDict(MAX_REMEMBERED)
        self.messages = MessageDecisionCache()
        #: Digests of the transcripts up to each user message that was allowed.
        self.allowed_messages: BoundedDict[str, bool] = BoundedDict(MAX_REMEMBERED)
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
