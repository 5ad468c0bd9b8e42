"""Chat completions: the messages of a request and the choices of a reply."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.types import new_id
from lgov_core.wire.chat_stream import completion_of, is_text, passed_texts, stream_of
from lgov_core.wire.content import (
    JSON,
    content_with_text,
    read_arguments,
    text_key,
    text_of,
    texts,
    token_usage,
    without,
)
from lgov_core.wire.turns import ModelReading, Proposal, Turn, unclear_call

_RESULT_ROLES = ("tool", "function")
#: Fields of a reply's message that a request may not have.
_REPLY_ONLY = frozenset({"annotations", "parsed"})
#: Fields of a reply, of a choice and of a call that hold no text of the model, or text that is read with its turn.
_ENVELOPE = frozenset({"choices", "created", "id", "model", "object", "service_tier", "system_fingerprint", "usage"})
_CHOICE = frozenset({"finish_reason", "index", "logprobs", "message", "token_ids"})
_TURN = frozenset({"content", "function_call", "refusal", "role", "tool_calls"})
_CALL = frozenset({"custom", "function", "id", "index", "type"})


class ChatProtocol:
    """`lgov_core.wire.turns.MessageProtocol` for chat completions."""

    def entries(self, body: JSON) -> list[JSON]:
        return list(body["messages"])

    def with_entries(self, body: JSON, entries: Sequence[JSON]) -> JSON:
        return {**body, "messages": list(entries)}

    def mapping(self, entry: JSON) -> JSON:
        role = entry.get("role")
        mapping: JSON = {"role": role, "content": _text(entry)}
        if role == "assistant" and (calls := self.proposals(entry)):
            mapping["tool_calls"] = [call.as_mapping() for call in calls]
        if role in _RESULT_ROLES:
            mapping["tool_call_id"] = entry.get("tool_call_id")
            mapping["name"] = entry.get("name")
        return mapping

    def with_text(self, entry: JSON, text: str) -> JSON:
        is_result = entry.get("role") in _RESULT_ROLES
        return {**entry, "content": text if is_result else content_with_text(entry.get("content"), text)}

    def user_text(self, entry: JSON) -> str | None:
        return text_of(entry.get("content")) if entry.get("role") == "user" else None

    def tool_result(self, entry: JSON) -> tuple[str | None, str] | None:
        if entry.get("role") not in _RESULT_ROLES:
            return None
        return entry.get("tool_call_id"), text_of(entry.get("content"))

    def from_model(self, entry: JSON) -> bool:
        return entry.get("role") == "assistant"

    def proposals(self, entry: JSON) -> list[Proposal]:
        if entry.get("role") != "assistant":
            return []
        calls = [_proposal(call, index) for index, call in enumerate(entry.get("tool_calls") or ())]
        if (legacy := entry.get("function_call")) is not None and isinstance(legacy, Mapping):
            raw = str(legacy.get("arguments") or "")
            calls.append(Proposal(None, str(legacy.get("name")), raw, read_arguments(raw), index=-1))
        return calls

    def ids(self, entry: JSON) -> list[str]:
        return [call.call_id for call in self.proposals(entry) if call.call_id]

    def parent(self, body: JSON) -> str | None:
        return None

    def continued(self, body: JSON, sent: Sequence[JSON], reply: JSON, turn: Turn, results: Sequence[JSON]) -> JSON:
        following = {**body, "messages": [*sent, *turn.entries, *results]}
        for key in ("tool_choice", "function_call"):
            if isinstance(following.get(key), Mapping):  # It named the call that was denied.
                following[key] = "auto"
        return following

    def turns(self, reply: JSON) -> list[Turn]:
        turns: list[Turn] = []
        for choice in reply["choices"]:
            message = _sendable(choice["message"])
            turns.append(Turn([message], _text(message), self.proposals(message)))
        return turns

    def reading(self, reply: JSON, turns: Sequence[Turn]) -> ModelReading:
        used = reply.get("usage") or {}
        return ModelReading(
            text="\n".join([turn.text for turn in turns]),
            tool_calls=[call.as_mapping() for turn in turns for call in turn.proposals],
            usage=token_usage(used, "prompt_tokens", "completion_tokens"),
            response_id=reply.get("id"),
            response_model=reply.get("model"),
            finish_reason=reply["choices"][0].get("finish_reason") if reply["choices"] else None,
            unreadable=unclear_call(turns),
            fields=self.fields(reply),
        )

    def fields(self, reply: JSON) -> JSON:
        choices = [{**without(choice, _CHOICE), "message": _beside(choice["message"])} for choice in reply["choices"]]
        return texts({**without(reply, _ENVELOPE), "choices": choices}) or {}

    def without_fields(self, reply: JSON) -> JSON:
        choices = [{key: choice[key] for key in _CHOICE & choice.keys()} for choice in reply["choices"]]
        return {key: reply[key] for key in _ENVELOPE & reply.keys()} | {"choices": choices}

    def with_turns(self, reply: JSON, turns: Sequence[Turn]) -> JSON:
        choices: list[JSON] = []
        for choice, turn in zip(reply["choices"], turns, strict=True):
            (message,) = turn.entries
            reason = choice.get("finish_reason")
            if reason in ("tool_calls", "function_call") and not turn.proposals:
                reason = "stop"
            before = choice["message"]
            same = message.get("content") == before.get("content")  # else nothing fits that refers to the text
            kept = {key: value for key, value in before.items() if value is None or (key in _REPLY_ONLY and same)}
            changed = {**choice, "message": {**kept, **message, "role": "assistant"}, "finish_reason": reason}
            choices.append(changed if same else {**without(changed, {"token_ids"}), "logprobs": None})
        return {**reply, "choices": choices}

    def without(self, turn: Turn, proposals: Sequence[Proposal]) -> Turn:
        (message,) = turn.entries
        gone = {call.index for call in proposals}
        kept = [call for index, call in enumerate(message.get("tool_calls") or ()) if index not in gone]
        changed = {key: value for key, value in message.items() if key != "tool_calls"}
        if kept:
            changed["tool_calls"] = kept
        if -1 in gone:
            changed.pop("function_call", None)
        return Turn([changed], turn.text, self.proposals(changed))

    def with_arguments(self, turn: Turn, proposal: Proposal, arguments: Mapping[str, Any]) -> Turn:
        (message,) = turn.entries
        raw = json.dumps(dict(arguments))
        if proposal.index < 0:
            changed = {**message, "function_call": {**message["function_call"], "arguments": raw}}
        else:
            calls = list(message["tool_calls"])
            call = calls[proposal.index]
            if call.get("type") == "custom":
                call = {**call, "custom": {**call["custom"], "input": str(arguments.get("input", ""))}}
            else:
                call = {**call, "function": {**call["function"], "arguments": raw}}
            calls[proposal.index] = call
            changed = {**message, "tool_calls": calls}
        return Turn([changed], turn.text, self.proposals(changed))

    def with_turn_text(self, turn: Turn, text: str) -> Turn:
        (message,) = turn.entries
        key = "refusal" if message.get("content") is None and message.get("refusal") else "content"
        others = {name: value for name, value in message.items() if name not in ("audio", "refusal")}
        changed = {**others, key: text}
        return Turn([changed], text, turn.proposals)

    def denied_result(self, turn: Turn, proposal: Proposal, text: str) -> JSON | None:
        if proposal.index < 0:
            return {"role": "function", "name": proposal.name, "content": text}
        if proposal.call_id is None:
            return None
        return {"role": "tool", "tool_call_id": proposal.call_id, "content": text}

    def denial_turn(self, body: JSON, text: str) -> Turn:
        form = (body.get("response_format") or {}).get("type")
        if form in ("json_schema", "json_object"):
            return Turn([{"role": "assistant", "content": None, "refusal": text}], text)
        return Turn([{"role": "assistant", "content": text}], text)

    def denial_reply(self, body: JSON, text: str) -> JSON:
        message = {"refusal": None, **self.denial_turn(body, text).entries[0]}
        return {
            "id": new_id("chatcmpl"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model") or "",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }

    def is_text_stream(self, body: JSON) -> bool:
        return bool(body.get("stream")) and body.get("n") in (None, 1)

    def is_text(self, event: JSON) -> bool:
        return is_text(event)

    def turn_after(self, passed: Sequence[JSON], turn: Turn) -> Turn:
        before = passed_texts(passed).get("content", "")
        return turn if turn.text.startswith(before) else self.with_turn_text(turn, f"{before}\n{turn.text}")

    from_stream = staticmethod(completion_of)
    to_stream = staticmethod(stream_of)


def _text(entry: JSON) -> str:
    return "\n".join(filter(None, (text_of(entry.get("content")), text_of(entry.get("refusal")))))


def _beside(message: JSON) -> JSON:
    """The message without what its turn reads: the texts of its content, its refusal, and its calls."""
    beside = without(message, _TURN)
    if isinstance(content := message.get("content"), list):
        beside["content"] = [without(content_part, (text_key(content_part), "type")) for content_part in content]
    beside["tool_calls"] = [without(call, _CALL) for call in message.get("tool_calls") or ()]
    return beside


def _proposal(call: Any, index: int) -> Proposal:
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) else None
    kinds = [kind for kind in ("function", "custom") if call.get(kind) is not None]
    kind = kinds[-1] if kinds else "function"
    body: Any = call.get(kind) or {}
    name = body.get("name")
    unclear = len(kinds) != 1 or call.get("type") not in (None, kind) or not isinstance(name, str) or not name
    if kind == "custom":
        raw = str(body.get("input") or "")
        return Proposal(call_id, str(name), raw, {"input": raw}, index=index, unclear=unclear)
    raw = body.get("arguments", {})
    raw = raw if isinstance(raw, str) else json.dumps(raw or {})
    return Proposal(call_id, str(name), raw, read_arguments(raw), index=index, unclear=unclear)


def _sendable(message: JSON) -> JSON:
    """The model's message as it is sent back: without fields that are null or only a reply has."""
    return {key: value for key, value in message.items() if value is not None and key not in _REPLY_ONLY}
