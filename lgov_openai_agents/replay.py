"""Converts streamed replies to whole ones and back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from agents import ModelResponse, Usage
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseUsage,
)

from lgov_core.types import new_id

#: The types of the events with which the SDK has a stream fail.
_FAILURES = frozenset({"response.incomplete", "response.failed", "error", "response.error"})


def response_of(events: Sequence[Any]) -> ModelResponse | None:
    """The reply of a stream's events, or None if it is incomplete."""
    completed = next((one for one in reversed(events) if isinstance(one, ResponseCompletedEvent)), None)
    if completed is None:
        return None
    response = completed.response
    output: list[Any] = response.output or [one.item for one in events if isinstance(one, ResponseOutputItemDoneEvent)]
    return ModelResponse(output=output, usage=_usage(response.usage), response_id=response.id)


def failure_in(events: Sequence[Any]) -> list[Any]:
    """Of an incomplete reply that was withheld the event that says why, without what the model wrote."""
    failures = [one for one in events if getattr(one, "type", None) in _FAILURES][-1:]
    return [
        one.model_copy(update={"response": one.response.model_copy(update={"output": []})})
        if isinstance(getattr(one, "response", None), Response)
        else one
        for one in failures
    ]


def _usage(used: ResponseUsage | None) -> Usage:
    if used is None:
        return Usage()
    return Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )


def events_of(answer: ModelResponse, held: Sequence[Any], model: str) -> Iterator[Any]:
    """The events of a stream that brings ``answer``. ``held`` are those of the reply that it replaces, if any."""
    original = next((one.response for one in reversed(held) if isinstance(one, ResponseCompletedEvent)), None)
    response = _response(answer, original, model)
    numbers = iter(range(1_000_000))
    opening = response.model_copy(update={"output": [], "status": "in_progress", "usage": None})
    yield ResponseCreatedEvent(type="response.created", response=opening, sequence_number=next(numbers))
    for position, item in enumerate(response.output):
        yield ResponseOutputItemAddedEvent.model_construct(
            type="response.output_item.added", item=item, output_index=position, sequence_number=next(numbers)
        )
        if isinstance(item, ResponseOutputMessage):
            yield from _text_events(item, position, numbers)
        yield ResponseOutputItemDoneEvent.model_construct(
            type="response.output_item.done", item=item, output_index=position, sequence_number=next(numbers)
        )
    yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=next(numbers))


def _text_events(item: ResponseOutputMessage, position: int, numbers: Iterator[int]) -> Iterator[Any]:
    for index, part in enumerate(item.content):
        if not isinstance(part, ResponseOutputText):
            continue
        where: dict[str, Any] = {"item_id": item.id, "output_index": position, "content_index": index}
        yield ResponseContentPartAddedEvent(
            type="response.content_part.added", part=part, sequence_number=next(numbers), **where
        )
        yield ResponseTextDeltaEvent(
            type="response.output_text.delta", delta=part.text, logprobs=[], sequence_number=next(numbers), **where
        )
        yield ResponseTextDoneEvent(
            type="response.output_text.done", text=part.text, logprobs=[], sequence_number=next(numbers), **where
        )
        yield ResponseContentPartDoneEvent(
            type="response.content_part.done", part=part, sequence_number=next(numbers), **where
        )


def _response(answer: ModelResponse, original: Response | None, model: str) -> Response:
    usage = ResponseUsage.model_construct(
        input_tokens=answer.usage.input_tokens,
        output_tokens=answer.usage.output_tokens,
        total_tokens=answer.usage.total_tokens,
        input_tokens_details=answer.usage.input_tokens_details,
        output_tokens_details=answer.usage.output_tokens_details,
    )
    if original is not None:
        return original.model_copy(update={"output": answer.output, "usage": usage})
    return Response.model_construct(
        id=new_id("resp"),
        created_at=time.time(),
        model=model,
        object="response",
        output=answer.output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=False,
        status="completed",
        usage=usage,
    )
