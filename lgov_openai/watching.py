"""One model call of a program that nobody judges: what it sends and what it gets is noted, and passes as it is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation import NOT_EVALUATED, semconv
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.tool_call import ToolCall, ToolReading
from lgov_core.scope import current_scope
from lgov_core.types import Point
from lgov_openai.exchange import FRAMEWORK, result_reading, tool_action
from lgov_openai.http_messages import seen
from lgov_openai.stream_observer import Passing
from lgov_openai.transcript import Pending

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_core.types import ToolOutcome
    from lgov_openai.exchange import Received
    from lgov_openai.prefixes import Prefixes
    from lgov_openai.protocol import JSON, Proposal, Wire
    from lgov_openai.transcript import Transcripts


class Watched:
    """One request of a program, from its arrival to what the program gets.

    Whoever sends it records ``outcomes`` and sends it inside the span of what `begin` gives. The response goes to the
    program as it is; `answer` notes one that has been read, `follow` one whose body is still to come.
    """

    def __init__(self, governor: Governor, memory: Transcripts, wire: Wire, content: bytes) -> None:
        self._governor = governor
        self._memory = memory
        self._wire = wire
        self._request = request = memory.requests.read(wire, content, shown=governor.capture_content)
        results = list(new_results(wire, memory, request.entries, request.prefixes))
        #: What came of calls that the model made.
        self.outcomes: Iterator[ToolOutcome] = outcomes_of(results)

    def begin(self) -> ModelCall:
        """The call, whose span begins here."""
        body = self._request.body
        call = ModelCall(self._governor, framework=FRAMEWORK, model=str(body.get("model") or "model"), native=body)
        if (shown := self._request.shown) is not None:
            call.span.set({semconv.INPUT_MESSAGES: shown})
        return call

    def answer(self, call: ModelCall, response: Any) -> None:
        """Ends the call with what the response says."""
        received = seen(response, self._wire)
        if received.reply is None:
            call.failed(received.error or RuntimeError("no reply"))
            return
        self._answered(call, received)
        self._propose(received)

    def follow(self, call: ModelCall, response: Any, *, asynchronous: bool) -> None:
        """Has the call end when the response does: when its stream ends or breaks off, or the program reads no further."""
        memory, wire = self._memory, self._wire
        noted: Counter[Hashable] = Counter()

        def ended(came: Any, error: BaseException | None) -> None:
            received = seen(came, wire)
            if received.reply is not None:
                # First, and the reply still among those on their way: another thread may bring the results at once.
                self._propose(received, noted)
                self._answered(call, received)
            else:
                refused = None if came.is_success else received.error
                call.failed(refused or error or received.error or RuntimeError("no reply"))

        def done(came: Any, error: BaseException | None) -> None:
            try:
                ended(came, error)
            finally:
                memory.passing.discard(passing)

        def look(came: Any) -> None:
            self._propose(seen(came, wire), noted)

        place = current_scope(), self._request.prefixes[len(self._request.entries)]
        passing = Passing(response, done, look, place, asynchronous=asynchronous)
        memory.passing.add(passing)

    def _answered(self, call: ModelCall, received: Received) -> None:
        reading, turns = received.reading, received.turns
        assert reading is not None
        call.answered(reading)
        if len(turns) == 1 and turns[0].entries:
            self._request.reply = reply = turns[0].entries[0]
            shown = call.span.attributes.get(semconv.OUTPUT_MESSAGES)
            if isinstance(shown, str) and self._wire.is_of_model(reply):  # later calls show it as its own does
                self._request.reply_shown = shown

    def _propose(self, received: Received, noted: Counter[Hashable] | None = None) -> None:
        """Remembers the calls that the program may make, until it says what came of them. ``noted`` has been before."""
        proposals = [proposal for turn in received.turns for proposal in turn.proposals]
        if not proposals:
            return
        scope, here = current_scope(), self._request.prefixes[len(self._request.entries)]
        before = Counter(noted)
        for proposal in proposals:
            if before[proposal.identity] > 0:
                before[proposal.identity] -= 1
                continue
            if noted is not None:
                noted[proposal.identity] += 1
            action = tool_action(Point.PRE_TOOL_CALL, proposal.name, proposal.call_id, proposal)
            if proposal.arguments is None:
                action = action.changed(arguments=_lenient(proposal) or {}, text=proposal.raw)
            call = ToolCall(self._governor, action)
            self._memory.proposed(Pending(call, NOT_EVALUATED, proposal.identity, here, scope))


def new_results(
    wire: Wire, memory: Transcripts, entries: Sequence[JSON], prefixes: Prefixes
) -> Iterator[tuple[Pending, ToolReading]]:
    """The results of the calls that the model made last, each once; those before came with the requests before."""
    end = len(entries)
    while end > 0 and not wire.is_of_model(entries[end - 1]):
        end -= 1
    start = max(end - 1, 0)
    while start > 0 and wire.is_of_model(entries[start - 1]):
        start -= 1
    calls = {call.call_id: call for entry in entries[start:end] for call in wire.proposals(entry)}
    if memory.passing:
        memory.catch_up(prefixes[start] if calls else None, calls)
    for entry in entries[end:] if calls else ():
        answered = wire.answered_call(entry)
        if answered is None or (call := calls.get(answered[0])) is None:
            continue
        pending, unrecorded = memory.claim(call.call_id, call, prefixes[start])
        if pending is not None and unrecorded:
            yield pending, _reading(call, result_reading(entry, answered[1]))


def _reading(call: Proposal, reading: ToolReading) -> ToolReading:
    """What came of the call. What the model wrote for arguments may be none, and then no tool ran with them."""
    if call.arguments is None and _lenient(call) is None:
        return ToolReading(reading.text, "invalid_args", "InvalidToolCall")
    return reading


def _lenient(call: Proposal) -> JSON | None:
    """The arguments as most programs read them, of which nobody asks that all read the same: of two alike the last counts."""
    try:
        found = json.loads(call.raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def outcomes_of(results: Iterable[tuple[Pending, ToolReading]]) -> Iterator[ToolOutcome]:
    """What came of calls that nobody judged, one after the other, to be recorded."""
    for pending, reading in results:
        call, pending.call = pending.call, None
        if call is not None and call.finish(outcome := call.returned(pending.decision, reading)):
            yield outcome
