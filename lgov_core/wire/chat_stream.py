"""The chunks of a streamed chat completion, or legacy completion: put together into its body, and written from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lgov_core._util.json_text import wire_text
from lgov_core.wire.content import JSON, texts
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
        self.finished = (
            sum(known_choice["finish_reason"] is not None for known_choice in self._choices.values()) >= self._n
        )

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
                for piece in value or ():
                    self._add_call(index, piece)
            elif key != "role":
                _grow(choice["message"], key, value)

    def _add_call(self, choice: int, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        if piece.get("type") not in (None, "function") or piece.get("custom"):
            if not function:
                raise ValueError("no call of a function")
            self.unreadable = "a tool call is of two kinds"
        same = self._tool_calls.setdefault((choice, piece.get("index") or 0), [])
        if not same or begins_another(piece, same[-1]["id"]):
            same.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call = same[-1]
        if len(same) > 1 or (call["id"] and piece.get("id") not in (None, "", call["id"])):
            self.unreadable = "two tool calls are streamed at one place"
        elif call["function"]["name"] and function.get("name") == call["function"]["name"]:
            self.unreadable = "the name of a tool call is repeated in pieces"
        call["id"] = call["id"] or piece.get("id") or ""
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


def begins_another(piece: Mapping[str, Any], call_id: str) -> bool:
    """Returns whether a piece of a streamed tool call is of another call than that at its index, whose id is ``call_id``.

    Some servers send each call whole, all at one index; others send a fresh id with each piece of one call, but its name
    only once.
    """
    named = (piece.get("function") or {}).get("name")
    return bool(call_id and named and piece.get("id")) and piece["id"] != call_id


def longer_name(name: str, more: str) -> str:
    """The name of a streamed call and its next piece: names come whole or in pieces, and some servers repeat them."""
    return name if more == name else name + more


def _grow(message: dict[str, Any], key: str, value: Any) -> None:
    """Adds a piece of a message to what came before: texts and lists grow, objects field by field."""
    before = message.get(key)
    if isinstance(value, str) and isinstance(before, str):
        message[key] = before + value
    elif isinstance(value, list) and isinstance(before, list):
        before.extend(cast("list[Any]", value))
    elif isinstance(value, dict):
        if not isinstance(before, dict):
            before = message[key] = {}
        for name, nested in cast("dict[str, Any]", value).items():
            _grow(cast("dict[str, Any]", before), name, nested)
    elif value is not None:
        message[key] = value


_OF_EACH_CHUNK = ("id", "object", "created", "model", "service_tier", "system_fingerprint")
_OF_A_CHUNK = frozenset({"delta", "finish_reason", "index", "message"})


def completion_of(events: Sequence[JSON]) -> JSON | None:
    """The completion in the chunks of a stream; None if it failed or a choice did not finish."""
    choices: dict[int, JSON] = {}
    head: JSON = {}
    for chunk in events:
        if "choices" not in chunk:
            if "error" in chunk:
                return None
            continue
        fields = {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        head |= {key: value for key, value in fields.items() if texts(value) or not texts(head.get(key))}
        for piece in chunk["choices"]:
            empty: JSON = {"index": piece["index"], "message": {"role": "assistant", "content": None}}
            choice = choices.setdefault(piece["index"], {**empty, "finish_reason": None, "logprobs": None})
            _add_delta(choice["message"], piece.get("delta") or {})
            choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
            _merge(choice, {key: field for key, field in piece.items() if key not in _OF_A_CHUNK and field != []})
    if not choices or any(choice["finish_reason"] is None for choice in choices.values()):
        return None
    for choice in choices.values():
        for call in choice["message"].get("tool_calls") or ():
            call.pop("index", None)
    return {**head, "object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}


def stream_of(body: JSON, reply: JSON, events: Sequence[JSON], passed: Sequence[JSON] = ()) -> str:
    """``reply`` as the chunks that the request ``body`` asked for, without the texts of the chunks ``passed``.

    ``events`` are those it was made from, if any.
    """
    if passed:
        reply = _after(passed, reply)
    head = {key: reply[key] for key in _OF_EACH_CHUNK if key in reply}
    head["object"] = "chat.completion.chunk"
    rest = {key: value for key, value in reply.items() if key not in (*_OF_EACH_CHUNK, "choices", "usage")}
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    chunks: list[JSON] = []
    for choice in reply["choices"]:
        piece: JSON = {"index": choice["index"], "finish_reason": None, "logprobs": None}
        last = {key: written for key, written in choice.items() if key not in ("index", "message")}
        deltas = _deltas(choice["message"])[bool(passed) :]  # the first one says the role, which the client then knows
        parts = [*({**piece, "delta": delta} for delta in deltas), {**piece, "delta": {}, **last}]
        chunks += [{**head, "choices": [written], **({"usage": None} if with_usage else {})} for written in parts]
        chunks[-1] |= rest
    if with_usage or any(event.get("usage") for event in events):
        chunks.append({**head, "choices": [], "usage": reply.get("usage")})
    return "".join(f"data: {wire_text(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def _after(passed: Sequence[JSON], reply: JSON) -> JSON:
    (choice,) = reply["choices"]
    message = dict(choice["message"])
    for key, before in passed_texts(passed).items():
        if isinstance(text := message.get(key), str):
            message[key] = text.removeprefix(before)
    return {**reply, "choices": [{**choice, "message": message, "logprobs": None}]}


def is_text(event: JSON) -> bool:
    """Returns whether a chunk holds only text of the one choice: no call, and not its end."""
    choices = event.get("choices")
    return isinstance(choices, list) and all(
        choice.get("index") == 0
        and choice.get("finish_reason") is None
        and all(not value or isinstance(value, str) for value in (choice.get("delta") or {}).values())
        for choice in choices
    )


def passed_texts(events: Sequence[JSON]) -> dict[str, str]:
    """The texts in chunks that hold only text, by their key in the message."""
    texts: dict[str, str] = {}
    for event in events:
        for choice in event["choices"]:
            for key, value in (choice.get("delta") or {}).items():
                if value and key != "role":
                    texts[key] = texts.get(key, "") + value
    return texts


def _add_delta(message: JSON, delta: JSON) -> None:
    for key, value in delta.items():
        if value is None or key == "role":
            continue
        if key == "tool_calls":
            for piece in value:
                calls = message.setdefault("tool_calls", [])
                call = next((earlier for earlier in calls if earlier["index"] == piece["index"]), None)
                if call is None:
                    calls.append(call := {"index": piece["index"]})
                _merge(call, piece)
        else:
            _merge(message, {key: value})


def _merge(into: JSON, piece: Mapping[str, Any]) -> None:
    for key, value in piece.items():
        old = into.get(key)
        if value is None:
            continue
        if old is None or key in ("index", "id", "type"):
            into[key] = old if old is not None else (dict(value) if isinstance(value, Mapping) else value)
        elif isinstance(old, str) and isinstance(value, str):
            into[key] = old + value
        elif isinstance(old, dict) and isinstance(value, Mapping):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            into[key] = [*old, *value]
        else:
            if isinstance(old, str | dict | list) or isinstance(value, str | Mapping | list):
                raise ValueError(f"a stream says {key} twice, in two forms")
            into[key] = value


def _deltas(message: JSON) -> Sequence[JSON]:
    """The message in pieces: its role, its text, and each call's name before its arguments."""
    deltas: list[JSON] = [{"role": "assistant", "content": "" if message.get("content") is not None else None}]
    for key, value in message.items():
        if key not in ("role", "tool_calls", "function_call") and value not in (None, "", []):
            deltas.append({key: value})
    if (legacy := message.get("function_call")) is not None:
        deltas.append({"function_call": legacy})
    for index, call in enumerate(message.get("tool_calls") or ()):
        kind = "custom" if "custom" in call else "function"
        field = "input" if kind == "custom" else "arguments"
        body = call[kind]
        deltas.append({"tool_calls": [{**call, "index": index, kind: {**body, field: ""}}]})
        deltas.append({"tool_calls": [{"index": index, kind: {field: body.get(field) or ""}}]})
    return deltas
