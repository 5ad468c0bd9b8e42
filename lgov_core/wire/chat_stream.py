"""The chunks of a streamed chat completion, or legacy completion, put together into its body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lgov_core.wire.sse import Assembler


class StreamAssembler(Assembler):
    """The chunks of a reply of ``n`` choices: of chat completions and, with ``legacy``, of completions."""

    def __init__(self, n: int = 1, *, legacy: bool = False) -> None:
        self._n = n
        self._legacy = legacy
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._tool_calls: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def _take(self, event: Mapping[str, Any]) -> None:
        for key, value in event.items():
            if key not in ("choices", "object") and value is not None and (key == "usage" or key not in self._body):
                self._body[key] = value
        for choice in event.get("choices") or ():
            self._add_choice(choice)
        self.finished = sum(one["finish_reason"] is not None for one in self._choices.values()) >= self._n

    def _choice(self, index: int) -> dict[str, Any]:
        if not 0 <= index < 4096:
            raise ValueError("no index of a choice")
        while len(self._choices) <= index:
            number = len(self._choices)
            written = {"text": ""} if self._legacy else {"message": {"role": "assistant", "content": None}}
            self._choices[number] = {"index": number, **written, "finish_reason": None, "logprobs": None}
        return self._choices[index]

    def _add_choice(self, added: Mapping[str, Any]) -> None:
        index = added.get("index", 0)
        choice = self._choice(index)
        for key, value in added.items():
            if value is None or key in ("index", "delta"):
                continue
            if key == "token_ids":
                choice.setdefault(key, []).extend(value)
            elif key == "text":
                choice[key] += value
            elif key == "logprobs":
                kept = choice["logprobs"] = choice["logprobs"] or {}
                for name, items in value.items():
                    kept.setdefault(name, []).extend(items or ())
            else:
                choice[key] = value
        for key, value in (added.get("delta") or {}).items():
            if key == "tool_calls":
                for part in value or ():
                    self._add_call(index, part)
            elif key != "role":
                _grow(choice["message"], key, value)

    def _add_call(self, choice: int, part: Mapping[str, Any]) -> None:
        function = part.get("function") or {}
        if part.get("type") not in (None, "function") or part.get("custom"):
            if not function:
                raise ValueError("no call of a function")
            self.unreadable = "a tool call is of two kinds"
        same = self._tool_calls.setdefault((choice, part.get("index") or 0), [])
        if not same or begins_another(part, same[-1]["id"]):
            same.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = same[-1]
        if len(same) > 1 or (call["id"] and part.get("id") not in (None, "", call["id"])):
            self.unreadable = "two tool calls are streamed at one place"
        elif call["function"]["name"] and function.get("name") == call["function"]["name"]:
            self.unreadable = "the name of a tool call is repeated in pieces"
        call["id"] = call["id"] or part.get("id") or ""
        call["function"]["name"] = longer_name(call["function"]["name"], function.get("name") or "")
        call["function"]["arguments"] += function.get("arguments") or ""

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
        for index, choice in self._choices.items():
            calls = [call for (of, _), same in sorted(self._tool_calls.items()) if of == index for call in same]
            if calls:
                choice["message"]["tool_calls"] = calls
            if finish_reason is not None:
                choice["finish_reason"] = finish_reason
        kind = "text_completion" if self._legacy else "chat.completion"
        return {**self._body, "object": kind, "choices": list(self._choices.values())}


def begins_another(part: Mapping[str, Any], call_id: str) -> bool:
    """Whether a piece of a streamed tool call is of another call than the one at its index, whose id is ``call_id``.

    Some servers send each call whole, all at one index; others send a fresh id with each piece of one call, but its name
    only once.
    """
    named = (part.get("function") or {}).get("name")
    return bool(call_id and named and part.get("id")) and part["id"] != call_id


def longer_name(known: str, more: str) -> str:
    """The name of a streamed call and its next piece: names come whole or in pieces, and some servers repeat them."""
    return known if more == known else known + more


def _grow(message: dict[str, Any], key: str, value: Any) -> None:
    """Adds a piece of a message to what came before: texts and lists grow, objects field by field."""
    known = message.get(key)
    if isinstance(value, str) and isinstance(known, str):
        message[key] = known + value
    elif isinstance(value, list) and isinstance(known, list):
        known.extend(cast("list[Any]", value))
    elif isinstance(value, dict):
        if not isinstance(known, dict):
            known = message[key] = {}
        for name, part in cast("dict[str, Any]", value).items():
            _grow(cast("dict[str, Any]", known), name, part)
    elif value is not None:
        message[key] = value
