"""Converts streamed replies to whole ones and back."""

from __future__ import annotations

import itertools
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
#: How the types of the events that hold only text go on after ``response.``.
_TEXTS = ("content_part.", "output_text.", "refusal.", "reasoning")


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


#: The fields that the two classes for usage share.
_USAGE = ("input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details")


def _usage(used: ResponseUsage | None) -> Usage:
    return Usage() if used is None else Usage(requests=1, **{name: getattr(used, name) for name in _USAGE})


def is_text(event: Any) -> bool:
    """Whether an event of a stream holds only text, or says that the reply has begun."""
    kind = str(getattr(event, "type", "")).removeprefix("response.")
    if kind in ("output_item.added", "output_item.done"):
        return getattr(event.item, "type", None) in ("message", "reasoning")
    return kind in ("created", "in_progress", "queued") or kind.startswith(_TEXTS)


def event_key(event: Any) -> tuple[str, str | None]:
    """An event's type and the id of its item: a stream that goes on does not repeat those that the program has."""
    item = getattr(event, "item", None)
    return str(getattr(event, "type", "")), getattr(event, "item_id", None) or getattr(item, "id", None)


def events_of(answer: ModelResponse, held: Sequence[Any], model: str) -> Iterator[Any]:
    """The events of a stream that brings ``answer``. ``held`` are those of the reply that it replaces, if any."""
    original = next((one.response for one in reversed(held) if isinstance(one, ResponseCompletedEvent)), None)
    response = _response(answer, original, model)
    opening = response.model_copy(update={"output": [], "status": "in_progress", "usage": None})
    numbers = itertools.count()

    def event(cls: type[Any], kind: str, **fields: Any) -> Any:
        return cls.model_construct(type=f"response.{kind}", sequence_number=next(numbers), **fields)

    yield event(ResponseCreatedEvent, "created", response=opening)
    for position, item in enumerate(response.output):
        yield event(ResponseOutputItemAddedEvent, "output_item.added", item=item, output_index=position)
        for index, part in enumerate(item.content if isinstance(item, ResponseOutputMessage) else ()):
            if isinstance(part, ResponseOutputText):
                at: dict[str, Any] = {"item_id": item.id, "output_index": position, "content_index": index}
                yield event(ResponseContentPartAddedEvent, "content_part.added", part=part, **at)
                yield event(ResponseTextDeltaEvent, "output_text.delta", delta=part.text, logprobs=[], **at)
                yield event(ResponseTextDoneEvent, "output_text.done", text=part.text, logprobs=[], **at)
                yield event(ResponseContentPartDoneEvent, "content_part.done", part=part, **at)
        yield event(ResponseOutputItemDoneEvent, "output_item.done", item=item, output_index=position)
    yield event(ResponseCompletedEvent, "completed", response=response)


def _response(answer: ModelResponse, original: Response | None, model: str) -> Response:
    usage = ResponseUsage.model_construct(**{name: getattr(answer.usage, name) for name in _USAGE})
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
