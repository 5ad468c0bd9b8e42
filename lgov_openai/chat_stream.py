"""The chunks of a streamed chat completion, read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_openai.content import JSON, texts

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
        said = {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        head |= {key: value for key, value in said.items() if texts(value) or not texts(head.get(key))}
        for part in chunk["choices"]:
            empty: JSON = {"index": part["index"], "message": {"role": "assistant", "content": None}}
            choice = choices.setdefault(part["index"], {**empty, "finish_reason": None, "logprobs": None})
            _add_delta(choice["message"], part.get("delta") or {})
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            _merge(choice, {key: one for key, one in part.items() if key not in _OF_A_CHUNK and one != []})
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
    head = {key: value for key, value in reply.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    chunks: list[JSON] = []
    for choice in reply["choices"]:
        part: JSON = {"index": choice["index"], "finish_reason": None, "logprobs": None}
        last = {key: one for key, one in choice.items() if key not in ("index", "message")}
        parts = [*({**part, "delta": delta} for delta in _deltas(choice["message"])), {**part, "delta": {}, **last}]
        chunks += [{**head, "choices": [one], **({"usage": None} if with_usage else {})} for one in parts]
    if with_usage or any(event.get("usage") for event in events):
        chunks.append({**head, "choices": [], "usage": reply.get("usage")})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def _after(passed: Sequence[JSON], reply: JSON) -> JSON:
    (choice,) = reply["choices"]
    message = dict(choice["message"])
    for key, before in passed_texts(passed).items():
        if isinstance(text := message.get(key), str):
            message[key] = text.removeprefix(before)
    return {**reply, "choices": [{**choice, "message": message, "logprobs": None}]}


def is_text(event: JSON) -> bool:
    """Whether a chunk holds only text of the one choice: no call, and not its end."""
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
            for part in value:
                calls = message.setdefault("tool_calls", [])
                call = next((one for one in calls if one["index"] == part["index"]), None)
                if call is None:
                    calls.append(call := {"index": part["index"]})
                _merge(call, part)
        else:
            _merge(message, {key: value})


def _merge(into: JSON, part: Mapping[str, Any]) -> None:
    for key, value in part.items():
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
    found: list[JSON] = [{"role": "assistant", "content": "" if message.get("content") is not None else None}]
    for key, value in message.items():
        if key not in ("role", "tool_calls", "function_call") and value not in (None, "", []):
            found.append({key: value})
    if (legacy := message.get("function_call")) is not None:
        found.append({"function_call": legacy})
    for index, call in enumerate(message.get("tool_calls") or ()):
        kind = "custom" if "custom" in call else "function"
        field = "input" if kind == "custom" else "arguments"
        body = call[kind]
        found.append({"tool_calls": [{**call, "index": index, kind: {**body, field: ""}}]})
        found.append({"tool_calls": [{"index": index, kind: {field: body.get(field) or ""}}]})
    return found
