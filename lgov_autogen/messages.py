"""Translates AutoGen's messages and replies to mappings that policies read, and back. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autogen_core import FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    RequestUsage,
    SystemMessage,
    UserMessage,
)

from lgov_core.instrumentation.conversation_memory import MessageDecisionCache
from lgov_core.wire.exchange import clear_ids
from lgov_core.wire.turns import ModelReading, media_in, read_arguments

FRAMEWORK = "autogen"

#: The name of the argument for arguments that are not a JSON object.
RAW_ARGUMENTS = "arguments"


# ---------------------------------------------------------------------- out of AutoGen


def call_arguments(call: FunctionCall) -> dict[str, Any] | None:
    """The arguments of a call, or None where they are not an object that every program reads alike."""
    return read_arguments(call.arguments or "{}")


def judged_arguments(call: FunctionCall) -> dict[str, Any]:
    """As `call_arguments`; anything but a JSON object is the argument `RAW_ARGUMENTS`."""
    arguments = call_arguments(call)
    return {RAW_ARGUMENTS: call.arguments} if arguments is None else arguments


def with_call_ids(reply: CreateResult) -> CreateResult:
    """The reply with an id of its own for each call: see `lgov_core.wire.exchange.CallIds`."""
    calls = [] if isinstance(reply.content, str) else reply.content
    written = [call.id for call in calls]
    if (ids := clear_ids(written)) == written:
        return reply
    return reply.model_copy(update={"content": [replace(call, id=at) for call, at in zip(calls, ids, strict=True)]})


def text_of(content: Any) -> str:
    """The text of a message's content, without its images."""
    if isinstance(content, str):
        return content
    return "\n".join(element for element in content if isinstance(element, str))


def media_of(content: Any) -> list[dict[str, Any]]:
    """The pictures of a message's content: see `lgov_core.wire.turns.media_in`."""
    images = [element for element in content if isinstance(element, Image)] if isinstance(content, list) else []
    return media_in([{"type": "input_image", "image_url": image.data_uri} for image in images])


def as_mappings(messages: Sequence[LLMMessage]) -> list[dict[str, Any]]:
    """Messages as ``role`` and ``content`` mappings: one for each, but one for each result of a message of results."""
    plain: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, FunctionExecutionResultMessage):
            plain += [
                {"role": "tool", "content": result.content, "tool_call_id": result.call_id, "name": result.name}
                for result in message.content
            ]
        elif isinstance(message, UserMessage):
            mapping: dict[str, Any] = {"role": "user", "content": text_of(message.content), "name": message.source}
            plain.append(mapping | ({"media": media} if (media := media_of(message.content)) else {}))
        elif isinstance(message, SystemMessage):
            plain.append({"role": "system", "content": message.content})
        elif isinstance(message.content, str):
            plain.append({"role": "assistant", "content": message.content})
        else:
            calls = plain_calls(message.content)
            plain.append({"role": "assistant", "content": message.thought or "", "tool_calls": calls})
    return plain


def plain_calls(calls: Sequence[FunctionCall]) -> list[dict[str, Any]]:
    """Calls as mappings with ``id``, ``name`` and ``args``."""
    return [{"id": call.id, "name": call.name, "args": judged_arguments(call)} for call in calls]


def new_user_messages(messages: Sequence[LLMMessage]) -> list[UserMessage]:
    """The user messages at the end, since the model last answered; oldest first."""
    latest: list[UserMessage] = []
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            latest.append(message)
        elif not isinstance(message, SystemMessage):
            break
    return latest[::-1]


def with_decisions(decisions: MessageDecisionCache, messages: Sequence[LLMMessage]) -> Sequence[LLMMessage]:
    """``messages`` with the denial in place of each text of a user that an earlier call had denied."""
    instead = decisions.instead_of(lambda: [_role_and_text(message) for message in messages])
    return [
        message.model_copy(update={"content": instead[position].text}) if position in instead else message
        for position, message in enumerate(messages)
    ]


def _role_and_text(message: LLMMessage) -> tuple[str, str]:
    if isinstance(message, UserMessage):
        return "user", text_of(message.content)
    is_answer = isinstance(message, AssistantMessage)
    return ("assistant" if is_answer else "", message.content if isinstance(message.content, str) else "")


def reading_of(result: CreateResult, response_id: str | None, model: str | None) -> ModelReading:
    """Reads the model's reply. A usage of 0 and 0, as a streamed reply without usage has it, is left out."""
    calls = result.content if isinstance(result.content, list) else []
    usage = result.usage
    is_counted = usage.prompt_tokens or usage.completion_tokens
    return ModelReading(
        text=(result.thought or "") if isinstance(result.content, list) else result.content,
        tool_calls=plain_calls(calls),
        usage={"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens} if is_counted else None,
        response_id=response_id,
        response_model=model,
        finish_reason=result.finish_reason,
    )


# ---------------------------------------------------------------------- into AutoGen


def denial_result(text: str, usage: RequestUsage) -> CreateResult:
    """The denial ``text`` in place of a model's reply; it proposes no calls."""
    return CreateResult(finish_reason="stop", content=text, usage=usage, cached=False)


def with_text(result: CreateResult, text: str) -> CreateResult:
    """``result`` with its text replaced: the content, or beside tool calls the thought."""
    if isinstance(result.content, list):
        return result.model_copy(update={"thought": text})
    return result.model_copy(update={"content": text})


def with_messages(originals: Sequence[LLMMessage], mappings: Sequence[Mapping[str, Any]]) -> list[LLMMessage]:
    """The messages of a transform. One that the transform left alone stays the object it was.

    Where only texts were changed, everything else of a message stays: images, sources, how arguments were written. Where
    messages were put in or taken out, those that are not among the originals are made anew, of text and calls.
    Raises `ValueError` (or KeyError, TypeError) where a mapping is not a message.
    """
    before = [as_mappings([original]) for original in originals]
    after = [dict(mapping) for mapping in mappings]
    if sum(map(len, before)) == len(after) and (reworded := _all_reworded(originals, before, after)) is not None:
        return reworded
    messages: list[LLMMessage] = []
    results: list[FunctionExecutionResult] = []
    position = number = 0
    while position < len(after):
        found = next(
            (n for n in range(number, len(before)) if after[position : position + len(before[n])] == before[n]), None
        )
        is_result = found is None and after[position].get("role") == "tool"
        if results and not is_result:
            messages.append(FunctionExecutionResultMessage(content=results))
            results = []
        if found is not None:
            messages.append(originals[found])
            position, number = position + len(before[found]), found + 1
            continue
        if is_result:
            results.append(_result(after[position]))
        else:
            messages.append(_message(after[position]))
        position += 1
    if results:
        messages.append(FunctionExecutionResultMessage(content=results))
    return messages


def _all_reworded(
    originals: Sequence[LLMMessage], before: Sequence[Sequence[dict[str, Any]]], after: Sequence[dict[str, Any]]
) -> list[LLMMessage] | None:
    """The originals as they are in ``after``, one in the place of each; None if they have changed places."""
    messages: list[LLMMessage] = []
    position = 0
    for original, old in zip(originals, before, strict=True):
        new = after[position : position + len(old)]
        position += len(old)
        if new == old:
            messages.append(original)
            continue
        texts = [mapping.get("content") for mapping in new]
        if [{**mapping, "content": text} for mapping, text in zip(old, texts, strict=True)] == new:
            messages.append(_reworded(original, [str(text or "") for text in texts]))
        elif not isinstance(original, FunctionExecutionResultMessage):
            messages.append(_message(new[0]))
        elif all(mapping.get("role") == "tool" for mapping in new):
            messages.append(FunctionExecutionResultMessage(content=list(map(_result, new))))
        else:
            return None
    return messages


def _reworded(message: LLMMessage, texts: Sequence[str]) -> LLMMessage:
    if isinstance(message, FunctionExecutionResultMessage):
        results = [
            result.model_copy(update={"content": text}) for result, text in zip(message.content, texts, strict=True)
        ]
        return message.model_copy(update={"content": results})
    (text,) = texts
    if isinstance(message.content, str):
        return message.model_copy(update={"content": text})
    if isinstance(message, AssistantMessage):
        return message.model_copy(update={"thought": text or None})
    images = [element for element in message.content if not isinstance(element, str)]
    return message.model_copy(update={"content": [text, *images]})


def _message(mapping: Mapping[str, Any]) -> LLMMessage:
    role, content = mapping.get("role"), str(mapping.get("content") or "")
    if role == "system":
        return SystemMessage(content=content)
    if role == "user":
        return UserMessage(content=content, source=str(mapping.get("name") or "user"))
    if role != "assistant":
        raise ValueError(f"a message with the role {role!r}")
    calls = [
        FunctionCall(id=str(call["id"]), name=str(call["name"]), arguments=json.dumps(call["args"]))
        for call in mapping.get("tool_calls") or ()
    ]
    if calls:
        return AssistantMessage(content=calls, thought=content or None, source="assistant")
    return AssistantMessage(content=content, source="assistant")


def _result(mapping: Mapping[str, Any]) -> FunctionExecutionResult:
    return FunctionExecutionResult(
        content=str(mapping.get("content") or ""),
        name=str(mapping.get("name") or ""),
        call_id=str(mapping.get("tool_call_id") or ""),
    )
