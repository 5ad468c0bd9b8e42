"""Chat completions: the messages of a request, the choices of a reply, the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.instrumentation.model_call import ModelReading
from lgov_core.types import new_id
from lgov_openai.protocol import JSON, Entry, Proposal, Turn, content_with_text, dump, summed, text_of

_RESULTS = ("tool", "function")
_BEFORE_MODEL = ("user",)


class ChatProtocol:
    """How chat completions write what `lgov_openai.protocol.Wire` asks for."""

    transcript = "messages"
    opening = b'"messages":['

    # ------------------------------------------------------------------ requests

    def entries(self, body: JSON) -> list[JSON]:
        return [Entry(message) for message in body["messages"]]

    def with_entries(self, body: JSON, entries: Sequence[JSON]) -> JSON:
        return {**body, "messages": list(entries)}

    def mapping(self, entry: JSON) -> JSON:
        role = entry.get("role")
        mapping: JSON = {"role": role, "content": _text(entry)}
        if role == "assistant" and (calls := self.proposals(entry)):
            mapping["tool_calls"] = [plain(call) for call in calls]
        if role in _RESULTS:
            mapping["tool_call_id"] = entry.get("tool_call_id")
            mapping["name"] = entry.get("name")
        return mapping

    def with_text(self, entry: JSON, text: str) -> JSON:
        return {**entry, "content": content_with_text(entry.get("content"), text)}

    def user_text(self, entry: JSON) -> str | None:
        return text_of(entry.get("content")) if entry.get("role") in _BEFORE_MODEL else None

    def answered_call(self, entry: JSON) -> tuple[str | None, str] | None:
        if entry.get("role") not in _RESULTS:
            return None
        return entry.get("tool_call_id"), text_of(entry.get("content"))

    def with_answer(self, entry: JSON, text: str) -> JSON:
        return {**entry, "content": text}

    def is_of_model(self, entry: JSON) -> bool:
        return entry.get("role") == "assistant"

    def proposals(self, entry: JSON) -> list[Proposal]:
        if type(entry) is Entry and (known := entry.proposals) is not None:
            return known
        if entry.get("role") != "assistant":
            return []
        found = [_proposal(call, place) for place, call in enumerate(entry.get("tool_calls") or ())]
        if (legacy := entry.get("function_call")) is not None and isinstance(legacy, Mapping):
            raw = str(legacy.get("arguments") or "")
            found.append(Proposal(None, str(legacy.get("name")), raw, place=-1))
        if type(entry) is Entry:
            entry.proposals = found
        return found

    def entry_id(self, entry: JSON) -> str | None:
        return None

    def parent(self, body: JSON) -> str | None:
        return None

    def continued(self, body: JSON, sent: Sequence[JSON], reply: JSON, turn: Turn, answers: Sequence[JSON]) -> JSON:
        asked = {**body, "messages": [*sent, *turn.entries, *answers]}
        for key in ("tool_choice", "function_call"):
            if isinstance(asked.get(key), Mapping):  # It named the call that was denied.
                asked[key] = "auto"
        return asked

    # ------------------------------------------------------------------ replies

    def turns(self, reply: JSON) -> list[Turn]:
        found: list[Turn] = []
        for choice in reply["choices"]:
            message = _sendable(choice["message"])
            found.append(Turn([message], _text(message), self.proposals(message)))
        return found

    def reading(self, reply: JSON, turns: Sequence[Turn]) -> ModelReading:
        used = reply.get("usage") or {}
        return ModelReading(
            text="\n".join([turn.text for turn in turns]),
            tool_calls=[plain(call) for turn in turns for call in turn.proposals],
            usage=_tokens(used, "prompt_tokens", "completion_tokens"),
            response_id=reply.get("id"),
            response_model=reply.get("model"),
            finish_reason=reply["choices"][0].get("finish_reason") if reply["choices"] else None,
        )

    def with_turns(self, reply: JSON, turns: Sequence[Turn]) -> JSON:
        choices: list[JSON] = []
        for choice, turn in zip(reply["choices"], turns, strict=True):
            (message,) = turn.entries
            reason = choice.get("finish_reason")
            if reason in ("tool_calls", "function_call") and not turn.proposals:
                reason = "stop"
            whole = {**choice["message"], **message, "role": "assistant"}
            for key in ("tool_calls", "function_call"):
                if key not in message:
                    whole.pop(key, None)
            choices.append({**choice, "message": whole, "finish_reason": reason})
        return {**reply, "choices": choices}

    def without(self, turn: Turn, denied: Sequence[Proposal]) -> Turn:
        (message,) = turn.entries
        gone = {call.place for call in denied}
        kept = [call for place, call in enumerate(message.get("tool_calls") or ()) if place not in gone]
        changed = {key: value for key, value in message.items() if key != "tool_calls"}
        if kept:
            changed["tool_calls"] = kept
        if -1 in gone:
            changed.pop("function_call", None)
        return Turn([changed], turn.text, self.proposals(changed))

    def with_arguments(self, turn: Turn, proposal: Proposal, arguments: Mapping[str, Any]) -> Turn:
        (message,) = turn.entries
        raw = dump(dict(arguments))
        if proposal.place < 0:
            changed = {**message, "function_call": {**message["function_call"], "arguments": raw}}
        else:
            calls = list(message["tool_calls"])
            call = calls[proposal.place]
            if call.get("type") == "custom":
                call = {**call, "custom": {**call["custom"], "input": str(arguments.get("input", ""))}}
            else:
                call = {**call, "function": {**call["function"], "arguments": raw}}
            calls[proposal.place] = call
            changed = {**message, "tool_calls": calls}
        return Turn([changed], turn.text, self.proposals(changed))

    def reworded(self, turn: Turn, text: str) -> Turn:
        (message,) = turn.entries
        key = "refusal" if message.get("content") is None and message.get("refusal") else "content"
        changed = {**message, key: text}
        changed.pop("audio", None)
        return Turn([changed], text, turn.proposals)

    def denial(self, turn: Turn, proposal: Proposal, text: str) -> JSON | None:
        if proposal.place < 0:
            return {"role": "function", "name": proposal.name, "content": text}
        if proposal.call_id is None:
            return None
        return {"role": "tool", "tool_call_id": proposal.call_id, "content": text}

    def told(self, body: JSON, text: str) -> Turn:
        wanted = (body.get("response_format") or {}).get("type")
        if wanted in ("json_schema", "json_object"):
            return Turn([{"role": "assistant", "content": None, "refusal": text}], text)
        return Turn([{"role": "assistant", "content": text}], text)

    def invented(self, body: JSON, text: str) -> JSON:
        message = {"refusal": None, **self.told(body, text).entries[0]}
        return {
            "id": new_id("chatcmpl"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model") or "",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }

    def with_usage(self, reply: JSON, further: Sequence[JSON]) -> JSON:
        used = reply.get("usage")
        for other in further:
            used = summed(used, other.get("usage"))
        return {**reply, "usage": used} if further else reply

    # ------------------------------------------------------------------ streams

    def from_stream(self, events: Sequence[JSON]) -> JSON | None:
        choices: dict[int, JSON] = {}
        head: JSON = {}
        for chunk in events:
            if "choices" not in chunk:
                if "error" in chunk:
                    return None
                continue
            head = {**head, **{key: value for key, value in chunk.items() if key != "choices" and value is not None}}
            for part in chunk["choices"]:
                empty: JSON = {"index": part["index"], "message": {"role": "assistant", "content": None}}
                choice = choices.setdefault(part["index"], {**empty, "finish_reason": None, "logprobs": None})
                _add_delta(choice["message"], part.get("delta") or {})
                choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
                choice["logprobs"] = _joined(choice["logprobs"], part.get("logprobs"))
                if part.get("token_ids"):
                    choice["token_ids"] = [*choice.get("token_ids", []), *part["token_ids"]]
        if not choices or any(choice["finish_reason"] is None for choice in choices.values()):
            return None
        for choice in choices.values():
            for call in choice["message"].get("tool_calls") or ():
                call.pop("index", None)
        return {**head, "object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}

    def to_stream(self, body: JSON, reply: JSON, events: Sequence[JSON]) -> str:
        head = {key: value for key, value in reply.items() if key not in ("choices", "usage")}
        head["object"] = "chat.completion.chunk"
        with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        chunks: list[JSON] = []
        for choice in reply["choices"]:
            for number, delta in enumerate(deltas := list(_deltas(choice["message"]))):
                last = number == len(deltas) - 1
                part = {"index": choice["index"], "delta": delta, "finish_reason": None, "logprobs": None}
                if last:
                    part = {**part, "finish_reason": choice["finish_reason"], "logprobs": choice.get("logprobs")}
                    part |= {key: choice[key] for key in ("token_ids",) if key in choice}
                chunks.append({**head, "choices": [part], **({"usage": None} if with_usage else {})})
        if with_usage or any(event.get("usage") for event in events):
            chunks.append({**head, "choices": [], "usage": reply.get("usage")})
        return "".join(f"data: {dump(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def plain(call: Proposal) -> JSON:
    """The call as policies see it beside a reply."""
    arguments = call.arguments
    return {"id": call.call_id, "name": call.name, "args": call.raw if arguments is None else arguments}


def _text(entry: JSON) -> str:
    content = entry.get("content")
    if content and type(content) is str:
        return content
    text = "" if content is None else text_of(content)
    return text if text or (refusal := entry.get("refusal")) is None else text_of(refusal)


def _proposal(call: Any, place: int) -> Proposal:
    call_id = call.get("id")
    call_id = call_id if isinstance(call_id, str) else None
    if (custom := call.get("custom")) is not None and isinstance(custom, Mapping):
        text = str(custom.get("input") or "")
        return Proposal(call_id, str(custom.get("name")), text, {"input": text}, place=place)
    function = call.get("function") or {}
    raw = function.get("arguments")
    raw = raw if isinstance(raw, str) else dump(raw if raw is not None else {})
    return Proposal(call_id, str(function.get("name")), raw, place=place)


_ONLY_OF_REPLIES = frozenset({"annotations", "parsed"})


def _sendable(message: JSON) -> JSON:
    """The model's message as it is sent back: without fields that are null or only a reply has."""
    return Entry({key: value for key, value in message.items() if value is not None and key not in _ONLY_OF_REPLIES})


def _tokens(used: Mapping[str, Any], read: str, written: str) -> dict[str, int] | None:
    were_read, were_written = used.get(read), used.get(written)
    if not isinstance(were_read, int) or not isinstance(were_written, int):
        return None
    return {"input_tokens": were_read, "output_tokens": were_written}


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
            into[key] = value


def _joined(first: Any, second: Any) -> Any:
    if not isinstance(second, Mapping):
        return first
    joined: JSON = dict(first or {})
    _merge(joined, second)
    return joined


def _deltas(message: JSON) -> Sequence[JSON]:
    """The message in pieces: its beginning, its text, and each call's name before its arguments."""
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
    return [*found, {}]
