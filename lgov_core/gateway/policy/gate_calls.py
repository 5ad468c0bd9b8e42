"""Calls and replies as policies see them, whose their texts are, and the changes of policies carried back into them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.containers import BoundedDict
from lgov_core._util.json_text import json_object
from lgov_core.errors import EndpointError
from lgov_core.gateway.protocol import GateReply, GateRequest
from lgov_core.gateway.serving.access import Attribution
from lgov_core.wire.apis import Exchange
from lgov_core.wire.exchange import Changes, ChatRequest, ChoiceChange, Completion, ToolCall
from lgov_core.wire.fields import shown
from lgov_core.wire.known_fields import texts_beside_messages, with_texts

if TYPE_CHECKING:
    from lgov_core.store import TraceStore


#: Roles that policies can read.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool"))
#: Parts of a message without text. Other kinds are refused: a model might read text in them that policies do not see.
_NO_TEXT = frozenset(("image_url", "input_audio", "audio_url", "video_url"))


def gate_request(request: ChatRequest, route: str, body: Mapping[str, Any], who: Attribution) -> GateRequest:
    """The call as policies see it: the messages of ``request``, and what ``body``, the client's own, says besides.

    Raises `EndpointError` (400) for what they cannot read.
    """
    return GateRequest(
        model=request.model,
        messages=[_plain_message(message) for message in request.messages],
        route=route,
        max_tokens=request.max_tokens,
        rollout_id=who.rollout_id,
        attempt=who.attempt,
        agent=who.agent,
        tools=request.tools,
        fields=texts_beside_messages(route, body),
    )


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] not in _ROLES or message.get("function_call"):
        what = "a function_call" if message.get("function_call") else f"the role {shown(message['role'])}"
        raise EndpointError(
            f"policies cannot read a message with {what}", hint=f"roles are {', '.join(sorted(_ROLES))}; use tool_calls"
        )
    role = "system" if message["role"] == "developer" else message["role"]
    seen: dict[str, Any] = {"role": role, "content": _content_text(message.get("content"))}
    if calls := message.get("tool_calls"):
        written = [call["function"].get("arguments") or "{}" for call in calls]
        seen["tool_calls"] = [
            {
                "id": call.get("id") or "",
                "name": call["function"]["name"],
                "args": text if (arguments := json_object(text)) is None else arguments,
            }
            for call, text in zip(calls, written, strict=True)
        ]
    if message.get("tool_call_id") is not None:
        seen["tool_call_id"] = message["tool_call_id"]
    return seen


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is not None and not isinstance(content, list):
        raise EndpointError(f"policies cannot read the content {shown(content)}", hint="send text, or a list of parts")
    return "".join(map(_text_of_part, content or ()))


def _text_of_part(content_part: Any) -> str:
    if isinstance(content_part, str):  # which some servers take
        return content_part
    kind = content_part.get("type") if isinstance(content_part, dict) else None
    texts = (
        [content_part[name] for name in ("text", "refusal") if content_part.get(name) is not None]
        if kind is not None
        else []
    )
    if kind in _NO_TEXT and not texts:
        return ""
    if kind not in ("text", "refusal") or not texts or not all(isinstance(text, str) for text in texts):
        raise EndpointError(f"policies cannot read a part of a message: {shown(content_part)}", hint="send it as text")
    return "".join(texts)


def changed_exchange(exchange: Exchange, before: GateRequest, after: GateRequest) -> Exchange:
    """The call with the texts that a gate changed. Raises `EndpointError` (403) for other changes."""
    if len(before.messages) != len(after.messages):
        raise EndpointError("a policy added or took away messages, which cannot be carried over", status=403)
    pairs = enumerate(zip(before.messages, after.messages, strict=True))
    texts = {index: str(new["content"]) for index, (old, new) in pairs if new["content"] != old["content"]}
    return exchange.changed(with_texts(exchange.body, before.fields, after.fields), texts)


def gate_replies(completion: Completion) -> list[GateReply]:
    """The choices as policies see them."""
    thoughts = _reasoning(completion)
    return [
        GateReply(
            choice.response_id,
            choice.content or "",
            choice.tool_calls,
            choice.finish_reason,
            completion.prompt_tokens if number == 0 else None,
            sum(each.completion_tokens for each in completion.choices) if number == 0 else None,
            thoughts.get(number, ""),
            choice.unreadable,
        )
        for number, choice in enumerate(completion.choices)
    ]


def _reasoning(completion: Completion) -> dict[int, str]:
    """The model's thoughts and refusals, which the upstream's own reply shows beside the text, by choice."""
    raw: Mapping[str, Any] = completion.raw or {}
    choices = sorted(raw.get("choices") or (), key=lambda part_of_reply: part_of_reply.get("index") or 0)
    thoughts = {number: _thoughts(part_of_reply.get("message") or {}) for number, part_of_reply in enumerate(choices)}
    blocks = [
        part_of_reply
        for part_of_reply in (*(raw.get("output") or ()), *(raw.get("content") or ()))
        if isinstance(part_of_reply, dict)
    ]
    for block in blocks:
        if block.get("type") in ("reasoning", "thinking"):
            thoughts[0] = thoughts.get(0, "") + _thoughts(block)
    return thoughts


def _thoughts(holder: Mapping[str, Any]) -> str:
    audio = holder.get("audio")
    texts = [holder.get(name) for name in ("reasoning_content", "reasoning", "thinking", "refusal")]
    texts.append(audio.get("transcript") if isinstance(audio, dict) else None)
    if holder.get("type") == "reasoning":
        parts = [*(holder.get("summary") or ()), *(holder.get("content") or ())]
        texts += [content_part.get("text") for content_part in parts if isinstance(content_part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def changes_of(before: Sequence[GateReply], after: Sequence[GateReply], passed: str = "") -> Changes:
    """The changes of a gate, by the number of the choice. A text that the client has got in part goes on from there."""
    changes: dict[int, ChoiceChange] = {}
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is new:
            continue
        released = list(new.tool_calls)
        calls: dict[int, ToolCall] = {}
        for position, call in enumerate(old.tool_calls):
            if released and (released[0].call_id, released[0].name) == (call.call_id, call.name):
                calls[position] = released.pop(0)
        if released:
            raise EndpointError("a gate released a call that the model did not make", status=503)
        text = new.text if new.text.startswith(passed) else f"{passed}\n{new.text}"
        changes[number] = ChoiceChange(text, text == old.text, calls, new.reasoning == old.reasoning)
    return changes


def refusal_completion(text: str, response_id: str, model: str) -> Completion:
    """A refusal as a finished reply of one choice. It has no tokens: no model wrote it."""
    return Completion(response_id, model, text, text, (), "stop", None, None, None, None, 0, 0)


#: The number of attempts that are remembered, and of texts of one.
_ATTEMPTS: Final = 16_384
_TEXTS: Final = 512


@dataclass(slots=True)
class _Attempt:
    """The marks of the user's texts; ``open`` until the first reply."""

    open: bool
    texts: set[int] = field(default_factory=set[int])


class UserTexts:
    """Knows the texts with which attempts began: those in the user's role in the calls before the first reply.

    What comes after a reply, in whatever role, may be what a model wrote to another agent, or what a tool returned. Of a
    call without a rollout the messages before the first reply in it count; texts to be embedded never do. An attempt of
    which the store has calls and this object knows nothing has no user's texts. For one event loop.
    """

    def __init__(self, store: TraceStore | None) -> None:
        self._store = store
        self._attempts: BoundedDict[tuple[str, int], _Attempt] = BoundedDict(_ATTEMPTS)

    async def among(self, request: GateRequest) -> list[str]:
        """The user's texts among the messages of ``request``."""
        messages = [message for message in request.messages if message["role"] != "system"]
        if request.route == "embeddings":
            return []
        if request.rollout_id is None or request.attempt is None:
            return [message["content"] for message in takewhile(lambda message: message["role"] == "user", messages)]
        texts = [message["content"] for message in messages if message["role"] == "user" and message["content"]]
        attempt = await self._attempt(request.rollout_id, request.attempt)
        if attempt.open and len(attempt.texts) < _TEXTS:
            attempt.texts.update(map(hash, texts[:_TEXTS]))
        return [text for text in texts if hash(text) in attempt.texts]

    def replied(self, request: GateRequest) -> None:
        """A model has replied to ``request``."""
        if request.rollout_id is not None and request.attempt is not None:
            attempt = self._attempts.get((request.rollout_id, request.attempt))
            if attempt is not None:
                attempt.open = False

    async def _attempt(self, rollout_id: str, number: int) -> _Attempt:
        key = (rollout_id, number)
        if self._attempts.get(key) is None:
            begun = await asyncio.to_thread(self._has_begun, rollout_id, number)
            if self._attempts.get(key) is None:
                self._attempts.put(key, _Attempt(open=not begun))
        return self._attempts.get(key) or _Attempt(open=False)

    def _has_begun(self, rollout_id: str, number: int) -> bool:
        return self._store is not None and any(call.attempt == number for call in self._store.calls([rollout_id]))
