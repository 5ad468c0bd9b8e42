"""The Responses API: the items of a request's input, the output of a reply, the typed events of a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.instrumentation.model_call import ModelReading
from lgov_core.types import Kind, new_id
from lgov_openai.chat import plain
from lgov_openai.protocol import JSON, Entry, Proposal, Turn, content_with_text, dump, summed, text_of
from lgov_openai.responses_stream import response_of, stream_of

_INSTRUCTIONS = "lgov.instructions"
_KINDS: Mapping[str, Kind] = {
    "local_shell_call": "shell",
    "shell_call": "shell",
    "computer_call": "hosted",
    "mcp_approval_request": "mcp",
}
#: What is not an argument of a call that has no arguments text.
_NOT_ARGUMENTS = frozenset({"id", "type", "status", "call_id", "created_by", "server_label", "name", "arguments"})
_OF_MODEL = frozenset({"reasoning", "mcp_approval_request", "mcp_list_tools"})


class ResponsesProtocol:
    """How the Responses API writes what `lgov_openai.protocol.Wire` asks for.

    The instructions of a request stand before its input, as a system message that says of itself what it is.
    """

    transcript = "input"
    opening = b""

    # ------------------------------------------------------------------ requests

    def entries(self, body: JSON) -> list[JSON]:
        given = body.get("input")
        items: list[JSON] = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        items = [Entry(item) for item in items]
        if isinstance(instructions := body.get("instructions"), str):
            return [Entry({"type": _INSTRUCTIONS, "role": "system", "content": instructions}), *items]
        return items

    def with_entries(self, body: JSON, entries: Sequence[JSON]) -> JSON:
        changed = dict(body)
        items = list(entries)
        if items and items[0].get("type") == _INSTRUCTIONS:
            changed["instructions"] = items.pop(0)["content"]
        changed["input"] = items
        return changed

    def mapping(self, entry: JSON) -> JSON:
        if calls := self.proposals(entry):
            return {"role": "assistant", "content": "", "tool_calls": [plain(call) for call in calls]}
        if (answered := self.answered_call(entry)) is not None:
            return {"role": "tool", "content": answered[1], "tool_call_id": answered[0], "name": None}
        return {"role": entry.get("role") or "assistant", "content": _text(entry)}

    def with_text(self, entry: JSON, text: str) -> JSON:
        if self.answered_call(entry) is not None:
            return self.with_answer(entry, text)
        if entry.get("type") == "reasoning":
            return {**entry, "summary": [{"type": "summary_text", "text": text}]}
        return {**entry, "content": _content(entry, text)}

    def user_text(self, entry: JSON) -> str | None:
        return text_of(entry.get("content")) if entry.get("role") == "user" else None

    def answered_call(self, entry: JSON) -> tuple[str | None, str] | None:
        kind = str(entry.get("type"))
        if kind == "mcp_approval_response" or not kind.endswith("_output"):
            return None
        output = entry.get("output")
        if kind == "shell_call_output" and isinstance(output, list):
            text = "\n".join(str(part.get(key)) for part in output for key in ("stdout", "stderr") if part.get(key))
        else:
            text = text_of(output)
        return entry.get("call_id") or entry.get("id"), text

    def with_answer(self, entry: JSON, text: str) -> JSON:
        if entry.get("type") == "shell_call_output":
            return {**entry, "output": _shell_output(text)}
        return {**entry, "output": text}

    def is_of_model(self, entry: JSON) -> bool:
        kind = str(entry.get("type"))
        return entry.get("role") == "assistant" or kind.endswith("_call") or kind in _OF_MODEL

    def proposals(self, entry: JSON, position: int = 0) -> list[Proposal]:
        known = entry.proposals if type(entry) is Entry else None
        if known is not None and (not known or known[0].entry == position):
            return known
        found = self._proposals(entry, position)
        if type(entry) is Entry:
            entry.proposals = found
        return found

    def _proposals(self, entry: JSON, position: int) -> list[Proposal]:
        kind = str(entry.get("type"))
        call_id = entry.get("call_id")
        if kind == "mcp_approval_request":
            call_id = entry.get("id")
        elif not kind.endswith("_call") or not isinstance(call_id, str):
            return []  # what has no call id is done where the model runs
        name = str(entry.get("name") or kind.removesuffix("_call"))
        if kind == "custom_tool_call":
            raw = str(entry.get("input") or "")
            arguments: JSON | None = {"input": raw}
        elif "arguments" in entry:
            raw = entry["arguments"] if isinstance(entry["arguments"], str) else dump(entry["arguments"])
            arguments = None
        else:
            arguments = {key: value for key, value in entry.items() if key not in _NOT_ARGUMENTS}
            raw = dump(arguments)
        return [Proposal(call_id, name, raw, arguments, _KINDS.get(kind, "function"), position)]

    def entry_id(self, entry: JSON) -> str | None:
        found = entry.get("id")
        return found if isinstance(found, str) and found else None

    def parent(self, body: JSON) -> str | None:
        if isinstance(previous := body.get("previous_response_id"), str):
            return previous
        conversation = body.get("conversation")
        found = conversation.get("id") if isinstance(conversation, Mapping) else conversation
        return found if isinstance(found, str) else None

    def continued(self, body: JSON, sent: Sequence[JSON], reply: JSON, turn: Turn, answers: Sequence[JSON]) -> JSON:
        if body.get("previous_response_id"):
            asked = {**body, "previous_response_id": reply.get("id"), "input": list(answers)}
        elif body.get("conversation"):
            asked = {**body, "input": list(answers)}
        else:
            asked = self.with_entries(body, [*sent, *turn.entries, *answers])
        if isinstance(asked.get("tool_choice"), Mapping):  # It named the call that was denied.
            asked["tool_choice"] = "auto"
        return asked

    # ------------------------------------------------------------------ replies

    def turns(self, reply: JSON) -> list[Turn]:
        return [self._turn([Entry(item) for item in reply.get("output") or ()])]

    def _turn(self, items: Sequence[JSON]) -> Turn:
        text = "\n".join(found for item in items if item.get("type") == "message" and (found := _text(item)))
        calls = [call for position, item in enumerate(items) for call in self.proposals(item, position)]
        return Turn(items, text, calls)

    def reading(self, reply: JSON, turns: Sequence[Turn]) -> ModelReading:
        used = reply.get("usage") or {}
        tokens = [used.get("input_tokens"), used.get("output_tokens")]
        counted = all(isinstance(count, int) for count in tokens)
        return ModelReading(
            text=turns[0].text,
            tool_calls=[plain(call) for call in turns[0].proposals],
            usage={"input_tokens": tokens[0], "output_tokens": tokens[1]} if counted else None,  # type: ignore[dict-item]
            response_id=reply.get("id"),
            response_model=reply.get("model"),
            finish_reason=reply.get("status"),
        )

    def with_turns(self, reply: JSON, turns: Sequence[Turn]) -> JSON:
        return {**reply, "output": list(turns[0].entries)}

    def without(self, turn: Turn, denied: Sequence[Proposal]) -> Turn:
        gone = {call.entry for call in denied}
        return self._turn([item for position, item in enumerate(turn.entries) if position not in gone])

    def with_arguments(self, turn: Turn, proposal: Proposal, arguments: Mapping[str, Any]) -> Turn:
        items = list(turn.entries)
        item = items[proposal.entry]
        if item.get("type") == "custom_tool_call":
            items[proposal.entry] = {**item, "input": str(arguments.get("input", ""))}
        elif "arguments" in item:
            items[proposal.entry] = {**item, "arguments": dump(dict(arguments))}
        else:
            items[proposal.entry] = {**item, **arguments}
        return self._turn(items)

    def reworded(self, turn: Turn, text: str) -> Turn:
        items: list[JSON] = []
        placed = False
        for item in turn.entries:
            if item.get("type") != "message":
                items.append(item)
            elif not placed:
                placed = True
                items.append({**item, "content": _content(item, text)})
        if not placed:
            items.append(_message(text))
        return self._turn(items)

    def denial(self, turn: Turn, proposal: Proposal, text: str) -> JSON | None:
        return _denial(turn.entries[proposal.entry], text)

    def told(self, body: JSON, text: str) -> Turn:
        wanted = ((body.get("text") or {}).get("format") or {}).get("type")
        return self._turn([_message(text, refusal=wanted in ("json_schema", "json_object"))])

    def invented(self, body: JSON, text: str) -> JSON:
        nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
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
            "output": list(self.told(body, text).entries),
            "usage": {
                **nothing,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def with_usage(self, reply: JSON, further: Sequence[JSON]) -> JSON:
        used = reply.get("usage")
        for other in further:
            used = summed(used, other.get("usage"))
        return {**reply, "usage": used} if further else reply

    # ------------------------------------------------------------------ streams

    def from_stream(self, events: Sequence[JSON]) -> JSON | None:
        return response_of(events)

    def to_stream(self, body: JSON, reply: JSON, events: Sequence[JSON]) -> str:
        return stream_of(reply, events)


def _denial(item: JSON, text: str) -> JSON | None:
    """The item by which the model reads that the call ``item`` was denied; None where the API has none."""
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
        return {
            "type": "mcp_approval_response", "approval_request_id": item.get("id"), "approve": False, "reason": text
        }  # fmt: skip
    return None


def _shell_output(text: str) -> list[JSON]:
    return [{"stdout": "", "stderr": text, "outcome": {"type": "exit", "exit_code": 1}}]


def _message(text: str, *, refusal: bool = False) -> JSON:
    part: JSON = (
        {"type": "refusal", "refusal": text}
        if refusal
        else {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    )
    return {"id": new_id("msg"), "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _text(entry: JSON) -> str:
    if entry.get("type") == "reasoning":
        return text_of(entry.get("summary"))
    return text_of(entry.get("content"))


def _content(entry: JSON, text: str) -> Any:
    content = entry.get("content")
    if isinstance(content, list) and content and all(part.get("type") == "refusal" for part in content):
        return [{"type": "refusal", "refusal": text}]
    if isinstance(content, list):
        content = [part for part in content if part.get("type") != "refusal"]
        # What points into the old text does not point into the new one.
        content = [{**part, "annotations": [], "logprobs": []} if part.get("type") == "output_text" else part
                   for part in content]  # fmt: skip
    return content_with_text(content, text)
