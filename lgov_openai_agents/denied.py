"""What the model is sent when something that it proposed was denied: its own reply, the answers, and the request anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agents import ModelResponse
from openai.types.responses import ResponseFunctionToolCall

from lgov_core.types import Decision
from lgov_openai_agents import items

if TYPE_CHECKING:
    from lgov_openai_agents.model_calls import ModelRequest


def kept_elsewhere(request: ModelRequest) -> bool:
    """Whether the server keeps the conversation, so that the request holds only what is new."""
    return request.rest.get("previous_response_id") is not None or request.rest.get("conversation_id") is not None


def exchange(response: ModelResponse, denials: list[tuple[Any, Decision]]) -> list[Any]:
    """The reply and what the model is told of it, as items."""
    told = {id(item): decision.denial_message() for item, decision in denials}
    found: list[Any] = []
    notes: list[str] = []
    for item, sent in zip(response.output, response.to_input_items(), strict=True):
        if isinstance(item, ResponseFunctionToolCall):
            said = told.get(id(item), "NOT RUN: what you asked for beside it was denied. Make this call again.")
            found += [sent, answer_to(item, said)]
        elif id(item) in told:
            notes.append(told[id(item)])
        elif not items.proposes_calls(replace(response, output=[item])):
            found.append(sent)
    return [*found, *({"role": "developer", "content": note} for note in notes)]


def answer_to(call: ResponseFunctionToolCall, said: str) -> dict[str, Any]:
    """``said`` as what came of the call."""
    return {"type": "function_call_output", "call_id": call.call_id, "output": said}


def can_be_answered(response: ModelResponse) -> bool:
    """Whether words are an answer to everything that the reply asks for."""
    return all(
        isinstance(item, ResponseFunctionToolCall) or not items.proposes_calls(replace(response, output=[item]))
        for item in response.output
    )


def continued(
    request: ModelRequest, response: ModelResponse, exchange: list[Any], denials: list[tuple[Any, Decision]]
) -> ModelRequest:
    """The request that tells the model what was denied, and asks it again."""
    choice = getattr(request.model_settings, "tool_choice", None)
    if isinstance(choice, str) and choice in {getattr(item, "name", None) for item, _ in denials}:
        request = replace(request, model_settings=replace(request.model_settings, tool_choice=None))
    if kept_elsewhere(request) and can_be_answered(response):
        rest, answers = request.rest, [one for one in exchange if one.get("type") == "function_call_output"]
        if rest.get("conversation_id") is None and response.response_id is not None:
            return replace(request, input=answers, rest={**rest, "previous_response_id": response.response_id})
        if rest.get("conversation_id") is not None:
            return replace(request, input=answers)
    return replace(request, input=[*items.as_list(request.input), *exchange])
