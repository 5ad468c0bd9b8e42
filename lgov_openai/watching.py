"""One model call of a program that nobody judges: what it sends and what it gets is noted, and passes as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lgov_core.governor import UNJUDGED
from lgov_core.model_call import ModelCall
from lgov_core.scope import current_scope
from lgov_core.tool_call import ToolCall
from lgov_core.trace import semconv
from lgov_core.types import Point
from lgov_openai.exchange import (
    FRAMEWORK,
    Answer,
    Exchange,
    Received,
    Steps,
    new_results,
    outcomes_of,
    tool_action,
)
from lgov_openai.transcript import Pending

if TYPE_CHECKING:
    from lgov_core.governor import Governor
    from lgov_core.types import ToolOutcome
    from lgov_openai.transcript import Transcripts
    from lgov_openai.wire import JSON, Wire


class Watched:
    """One request of a program, from its arrival to what the program gets.

    Whoever sends it records ``outcomes``, sends it inside the span of what `begin` gives, and hands what came to `answer`.
    """

    def __init__(self, governor: Governor, memory: Transcripts, wire: Wire, content: bytes) -> None:
        self._governor = governor
        self._memory = memory
        self._wire = wire
        self._request = request = memory.requests.read(wire, content, shown=governor.capture_content)
        self.body: JSON = request.body
        results = list(new_results(wire, memory, request.entries, request.prefixes))
        #: What came of calls that the model made.
        self.outcomes: Iterator[ToolOutcome] = outcomes_of(results)

    def begin(self) -> ModelCall:
        """The call, whose span begins here."""
        model = str(self.body.get("model") or "model")
        call = ModelCall(self._governor, framework=FRAMEWORK, model=model, native=self.body)
        if (shown := self._request.shown) is not None:
            call.span.set({semconv.INPUT_MESSAGES: shown})
        return call

    def answer(self, call: ModelCall, received: Received) -> Answer | Steps:
        """What the program gets: what came, as it came.

        Where the model wrote arguments that cannot be read, it has to be told so: then the steps by which it is.
        """
        reading = received.reading
        if received.reply is None or reading is None:
            call.failed(received.error or RuntimeError("no reply"))
            return Answer(received)
        governor, memory, wire, turns = self._governor, self._memory, self._wire, received.turns
        proposals = [proposal for turn in turns for proposal in turn.proposals]
        for proposal in proposals:
            if proposal.arguments is None:
                return Exchange(governor, memory, wire, self.body).steps_after(call, received)
        call.answered(reading)
        if proposals:
            memory.used([proposal.call_id for proposal in proposals if proposal.call_id])
            scope, here = current_scope(), self._request.prefixes[len(self._request.entries)]
            for proposal in proposals:
                action = tool_action(Point.PRE_TOOL_CALL, proposal.name, proposal.call_id, proposal)
                memory.proposed(Pending(ToolCall(governor, action), UNJUDGED, proposal.identity, here, scope))
        if len(turns) == 1 and turns[0].entries:
            self._request.reply = reply = turns[0].entries[0]
            shown = call.span.attributes.get(semconv.OUTPUT_MESSAGES)
            if isinstance(shown, str) and wire.is_of_model(reply):  # later calls show it as its own does
                self._request.reply_shown = shown
        for turn in turns:
            for entry in turn.entries:
                if (own := wire.entry_id(entry)) is not None:
                    memory.used((own,))
        return Answer(received, received.reply if received.events and proposals else None)
