"""The Responses API as transcripts: the items of a request's input, and of the output of a reply."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.types import Kind, new_id
from lgov_core.wire.responses_stream import HOSTED, ResponsesAssembler, is_text, passed_items, stream_of, with_call_ids
from lgov_core.wire.turns import (
    JSON,
    ModelReading,
    Proposal,
    Turn,
    content_with_text,
    media_in,
    read_arguments,
    text_key,
    text_of,
    texts,
    token_usage,
    unclear_call,
    without,
)

_INSTRUCTIONS = "lgov.instructions"
_KINDS: Mapping[str, Kind] = {
    "local_shell_call": "shell",
    "shell_call": "shell",
    "computer_call": "hosted",
    "mcp_approval_request": "mcp",
}
#: Fields that are not arguments, of a call without an arguments text.
_NOT_ARGUMENTS = frozenset({"id", "type", "status", "call_id", "created_by", "server_label", "name", "arguments"})
_NAMED = frozenset({"function_call", "custom_tool_call", "mcp_approval_request"})
#: Fields of an item that hold no text of the model.
_ENVELOPE = frozenset({"id", "role", "status", "type"})
_MODEL_ITEMS = frozenset({"reasoning", "mcp_approval_request", "mcp_list_tools"})


class ResponsesProtocol:
    """`lgov_core.wire.turns.MessageProtocol` for the Responses API.

    The instructions of a request are the first entry of its transcript: a system message with a type of its own.
    """

    def entries(self, body: JSON) -> list[JSON]:
        raw = body.get("input")
        items: list[JSON] = [{"role": "user", "content": raw}] if isinstance(raw, str) else list(raw or ())
        if isinstance(instructions := body.get("instructions"), str):
            return [{"type": _INSTRUCTIONS, "role": "system", "content": instructions}, *items]
        return items

    def with_entries(self, body: JSON, entries: Sequence[JSON]) -> JSON:
        if entries and entries[0].get("type") == _INSTRUCTIONS:
            return {**body, "instructions": entries[0]["content"], "input": list(entries[1:])}
        return {**body, "input": list(entries)}

    def mapping(self, entry: JSON) -> JSON:
        if calls := self.proposals(entry):
            return {"role": "assistant", "content": "", "tool_calls": [call.as_mapping() for call in calls]}
        media = media_in(entry.get("content") or entry.get("output"))
        beside: JSON = {"media": media} if media else {}
        if (result := self.tool_result(entry)) is not None:
            return {"role": "tool", "content": result[1], "tool_call_id": result[0], "name": None, **beside}
        return {"role": entry.get("role") or "assistant", "content": _text(entry), **beside}

    def with_text(self, entry: JSON, text: str) -> JSON:
        if self.tool_result(entry) is not None:
            return {**entry, "output": _shell_output(text) if entry.get("type") == "shell_call_output" else text}
        if entry.get("type") == "reasoning":
            return {**entry, "summary": [{"type": "summary_text", "text": text}]}
        return {**entry, "content": _content(entry, text)}

    def user_text(self, entry: JSON) -> str | None:
        return text_of(entry.get("content")) if entry.get("role") == "user" else None

    def tool_result(self, entry: JSON) -> tuple[str | None, str] | None:
        kind = str(entry.get("type"))
        if kind == "mcp_approval_response" or not kind.endswith("_output"):
            return None
        output = entry.get("output")
        if kind == "shell_call_output" and isinstance(output, list):
            text = "\n".join(str(chunk.get(key)) for chunk in output for key in ("stdout", "stderr") if chunk.get(key))
        else:
            text = text_of(output)
        return entry.get("call_id") or entry.get("id"), text

    def from_model(self, entry: JSON) -> bool:
        kind = str(entry.get("type"))
        return entry.get("role") == "assistant" or kind.endswith("_call") or kind in _MODEL_ITEMS

    def proposals(self, entry: JSON, position: int = 0) -> list[Proposal]:
        kind = str(entry.get("type"))
        call_id = entry.get("call_id")
        if kind == "mcp_approval_request":
            call_id = entry.get("id")
        elif not kind.endswith("_call") or (call_id is None and kind in HOSTED):
            return []
        call_id = call_id if isinstance(call_id, str) else None
        unclear = kind in _NAMED and not (isinstance(entry.get("name"), str) and entry["name"])
        name = str(entry.get("name") or kind.removesuffix("_call"))
        if kind == "custom_tool_call":
            raw = str(entry.get("input") or "")
            arguments: Mapping[str, Any] | None = {"input": raw}
        elif "arguments" in entry:
            raw = entry["arguments"] if isinstance(entry["arguments"], str) else json.dumps(entry["arguments"])
            arguments = read_arguments(raw)
        else:
            arguments = {key: value for key, value in entry.items() if key not in _NOT_ARGUMENTS}
            raw = json.dumps(arguments)
        return [Proposal(call_id, name, raw, arguments, _KINDS.get(kind, "function"), position, 0, unclear)]

    def ids(self, entry: JSON) -> list[str]:
        ids = [call.call_id for call in self.proposals(entry) if call.call_id]
        own = entry.get("id")
        return [*ids, own] if isinstance(own, str) and own and own not in ids else ids

    def parent(self, body: JSON) -> str | None:
        if isinstance(previous := body.get("previous_response_id"), str):
            return previous
        conversation = body.get("conversation")
        name = conversation.get("id") if isinstance(conversation, Mapping) else conversation
        return name if isinstance(name, str) else None

    def continued(self, body: JSON, sent: Sequence[JSON], reply: JSON, turn: Turn, results: Sequence[JSON]) -> JSON:
        if body.get("previous_response_id"):
            following = {**body, "previous_response_id": reply.get("id"), "input": list(results)}
        elif body.get("conversation"):
            following = {**body, "input": list(results)}
        else:
            following = self.with_entries(body, [*sent, *turn.entries, *results])
        if isinstance(following.get("tool_choice"), Mapping):  # It named the call that was denied.
            following["tool_choice"] = "auto"
        return following

    def turns(self, reply: JSON) -> list[Turn]:
        return [self._turn(list(reply.get("output") or ()))]

    def _turn(self, items: Sequence[JSON]) -> Turn:
        text = "\n".join(item_text for item in items if item.get("type") == "message" and (item_text := _text(item)))
        calls = [call for position, item in enumerate(items) for call in self.proposals(item, position)]
        return Turn(items, text, calls)

    def reading(self, reply: JSON, turns: Sequence[Turn]) -> ModelReading:
        used = reply.get("usage") or {}
        return ModelReading(
            text=turns[0].text,
            tool_calls=[call.as_mapping() for call in turns[0].proposals],
            usage=token_usage(used, "input_tokens", "output_tokens"),
            response_id=reply.get("id"),
            response_model=reply.get("model"),
            finish_reason=reply.get("status"),
            unreadable=unclear_call(turns),
            fields=self.fields(reply),
        )

    def fields(self, reply: JSON) -> JSON:
        return texts({"output": [self._beside(item) for item in reply.get("output") or ()]}) or {}

    def _beside(self, item: JSON) -> JSON:
        """The item without what its turn reads: the texts of a message, and a call."""
        if self.proposals(item):
            return {}
        beside = without(item, _ENVELOPE)
        if item.get("type") == "message" and isinstance(content := item.get("content"), list):
            beside["content"] = [
                without(content_part, (text_key(content_part), "logprobs", "type")) for content_part in content
            ]
        return beside

    def without_fields(self, reply: JSON) -> JSON:
        return reply  # they are in the items, which are not in a denial

    def with_turns(self, reply: JSON, turns: Sequence[Turn]) -> JSON:
        return {**reply, "output": list(turns[0].entries)}

    def without(self, turn: Turn, proposals: Sequence[Proposal]) -> Turn:
        gone = {call.entry for call in proposals}
        return self._turn([item for position, item in enumerate(turn.entries) if position not in gone])

    def with_arguments(self, turn: Turn, proposal: Proposal, arguments: Mapping[str, Any]) -> Turn:
        items = list(turn.entries)
        item = items[proposal.entry]
        if item.get("type") == "custom_tool_call":
            items[proposal.entry] = {**item, "input": str(arguments.get("input", ""))}
        elif "arguments" in item:
            items[proposal.entry] = {**item, "arguments": json.dumps(dict(arguments))}
        else:
            items[proposal.entry] = {**item, **arguments}
        return self._turn(items)

    def with_turn_text(self, turn: Turn, text: str) -> Turn:
        items: list[JSON] = []
        placed = False
        for item in turn.entries:  # each keeps its position
            if item.get("type") == "message":
                item = {**item, "content": _content(item, "" if placed else text)}
                placed = True
            items.append(item)
        if not placed:
            items.append(_message(text))
        return self._turn(items)

    def denied_result(self, turn: Turn, proposal: Proposal, text: str) -> JSON | None:
        item = turn.entries[proposal.entry]
        kind, call_id = item.get("type"), item.get("call_id")
        if kind in ("function_call", "custom_tool_call"):
            return {"type": f"{kind}_output", "call_id": call_id, "output": text}
        if kind == "shell_call":
            return {"type": "shell_call_output", "call_id": call_id, "output": _shell_output(text)}
        if kind == "local_shell_call":
            return {"type": "local_shell_call_output", "id": call_id, "call_id": call_id, "output": text}
        if kind == "apply_patch_call":
            return {"type": "apply_patch_call_output", "call_id": call_id, "status": "failed", "output": text}
        if kind == "mcp_approval_request":
            answer = {"approval_request_id": item.get("id"), "approve": False, "reason": text}
            return {"type": "mcp_approval_response", **answer}
        return None

    def denial_turn(self, body: JSON, text: str) -> Turn:
        form = ((body.get("text") or {}).get("format") or {}).get("type")
        return self._turn([_message(text, refusal=form in ("json_schema", "json_object"))])

    def denial_reply(self, body: JSON, text: str) -> JSON:
        return {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": body.get("model") or "",
            "status": "completed",
            "error": None,
            "incomplete_details": None,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "output": list(self.denial_turn(body, text).entries),
            "usage": {
                "input_tokens": 0,
                "output_tokens": 0,
                "total_tokens": 0,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def is_text_stream(self, body: JSON) -> bool:
        return bool(body.get("stream"))

    def is_text(self, event: JSON) -> bool:
        return is_text(event)

    def turn_after(self, passed: Sequence[JSON], turn: Turn) -> Turn:
        before = passed_items(passed)
        same = len(turn.entries) >= len(before) and all(map(_begins_with, turn.entries, before))
        return turn if same else self._turn([*before, *turn.entries])

    def from_stream(self, events: Sequence[JSON], *, ended: bool = True) -> JSON | None:
        failed = any(event.get("type") == "response.failed" for event in events)
        return None if failed else ResponsesAssembler().whole(events, ended=ended)

    def with_call_ids(self, reply: JSON) -> JSON:
        return with_call_ids(reply)

    to_stream = staticmethod(stream_of)


def _begins_with(item: JSON, beginning: JSON) -> bool:
    """Returns whether ``beginning`` is ``item``, or the beginning of its message."""
    return item == beginning or (
        item.get("type") == beginning.get("type") == "message"
        and item.get("id") == beginning.get("id")
        and _text(item).startswith(_text(beginning))
    )


def _shell_output(text: str) -> list[JSON]:
    return [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]


def _message(text: str, *, refusal: bool = False) -> JSON:
    content_part: JSON = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    if refusal:
        content_part = {"type": "refusal", "refusal": text}
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [content_part],
    }


def _text(entry: JSON) -> str:
    return text_of(entry.get("summary" if entry.get("type") == "reasoning" else "content"))


def _content(entry: JSON, text: str) -> Any:
    content = entry.get("content")
    if isinstance(content, list) and content and all(content_part.get("type") == "refusal" for content_part in content):
        return [{"type": "refusal", "refusal": text}]
    if isinstance(content, list):
        content = [content_part for content_part in content if content_part.get("type") != "refusal"]
        of_old_text: JSON = {"annotations": [], "logprobs": []}
        content = [
            {**content_part, **of_old_text} if content_part.get("type") == "output_text" else content_part
            for content_part in content
        ]
    return content_with_text(content, text)
