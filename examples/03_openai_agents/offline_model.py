"""A scripted model: the example runs without a key and without a network.

It does not read the question. It does what a careless model does: it cancels a booking, hands off to an
agent that can pay money, pays, reads the results, and answers with the bookings.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

STEPS = (
    ("cancel_booking", {"room": 2}),
    ("transfer_to_cashier", {}),
    ("pay_back", {"guest": "Blaise", "euros": 500}),
    ("list_bookings", {}),
)


class OfflineModel(Model):
    """Plays `STEPS`, one a turn and only those for which the agent has the tool, then answers."""

    def __init__(self) -> None:
        self._done = 0

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        _, tools, _, handoffs = args[:4]
        offered = {tool.name for tool in tools} | {one.tool_name for one in handoffs}
        while self._done < len(STEPS):
            name, arguments = STEPS[self._done]
            self._done += 1
            if name in offered:
                call_id = f"call_{self._done}"
                call = ResponseFunctionToolCall(
                    type="function_call", call_id=call_id, name=name, arguments=json.dumps(arguments)
                )
                return ModelResponse(output=[call], usage=Usage(), response_id=None)
        results = [item["output"] for item in input if item.get("type") == "function_call_output"]
        refused = sum("DENIED" in str(result) for result in results)
        told = f"{refused} of my calls were refused, so I left things as they are. " if refused else "Done. "
        said = ResponseOutputText(type="output_text", text=f"{told}Booked: {results[-1]}.", annotations=[])
        message = ResponseOutputMessage(
            id="message", type="message", role="assistant", status="completed", content=[said]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        reply = await self.get_response(*args, **kwargs)
        response = Response(
            id="offline",
            created_at=0,
            model="offline",
            object="response",
            output=reply.output,
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=0)
