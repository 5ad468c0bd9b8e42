"""Chat completions as transcripts and streams: the messages of a request, the choices of a reply, and their chunks.

Chunks (of legacy completions too) are put together into a body, and written from one. `lgov_core.wire.chat` has the rest.
"""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from lgov_core._util.json_text import wire_text
from lgov_core.types import new_id
from lgov_core.wire.exchange import Assembler, CallIds
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


class ChatAssembler(Assembler):
    """The chunks of a reply of ``n`` choices: of chat completions and, with ``legacy``, of completions."""

    def __init__(self, n: int = 1, *, legacy: bool = False) -> None:
        self._n = n
        self._legacy = legacy
        self._body: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}
        #: The number of the call that pieces with an index belong to, by choice and index; and the calls' ids.
        self._numbers: dict[tuple[int, int | None], int] = {}
        self._ids = CallIds()

    def _take(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        for key, value in event.items():
            if key not in ("choices", "object") and value is not None:
                _keep(self._body, key, value)
        written = event.get("choices") or ()
        choices = [self._add_choice(choice) for choice in written]
        ended = [choice["finish_reason"] is not None for choice in self._choices.values()]
        self.finished = len(ended) >= self._n and all(ended)
        return event if all(map(operator.is_, choices, written)) else {**event, "choices": choices}

    def ends_whole(self) -> bool:
        """Returns whether the reply is whole if its stream ends here: its text is, and a call with all of its arguments."""
        legacy = [choice["message"].get("function_call") for choice in self._choices.values() if "message" in choice]
        written = [*(call.get("function") or {} for call in self._calls.values()), *filter(None, legacy)]
        calls_end = all(read_arguments(call.get("arguments") or "?") is not None for call in written)
        says_ends = any(choice["finish_reason"] is not None for choice in self._choices.values())
        return self.finished or (len(self._choices) >= self._n and calls_end and not says_ends)

    def _add_choice(self, added: Mapping[str, Any]) -> Mapping[str, Any]:
        index = added.get("index") or 0
        if not 0 <= index < 4096:
            raise ValueError("no index of a choice")
        while len(self._choices) <= index:
            number = len(self._choices)
            written = {"text": ""} if self._legacy else {"message": {"role": "assistant", "content": None}}
            self._choices[number] = {"index": number, **written, "finish_reason": None, "logprobs": None}
        choice = self._choices[index]
        for key, value in added.items():
            if key == "logprobs" and value is not None:
                _grow(choice, key, {name: items or [] for name, items in value.items()})
            elif key in _PIECES:
                _grow(choice, key, value)
            elif key not in _OF_A_CHUNK and value not in (None, "", []):
                _keep(choice, key, value)
        choice["finish_reason"] = added.get("finish_reason") or choice["finish_reason"]
        delta: Mapping[str, Any] = added.get("delta") or {}
        for key, value in delta.items():
            if key not in ("role", "tool_calls"):
                _grow(choice["message"], key, value)
        written = delta.get("tool_calls") or ()
        pieces = [self._add_call(index, piece) for piece in written]
        same = all(map(operator.is_, pieces, written))
        return added if same else {**added, "delta": {**delta, "tool_calls": pieces}}

    def _number_of(self, choice: int, piece: Mapping[str, Any]) -> int:
        """The number of the call that a piece belongs to: its index, which some servers leave out or use again."""
        index, numbers = piece.get("index"), [number for of, number in self._calls if of == choice]
        if not isinstance(index, int | None):
            raise TypeError("no index of a call")
        named = bool((piece.get("function") or piece.get("custom") or {}).get("name"))
        number = self._numbers.get((choice, index))
        if index is None and not named and numbers:
            return numbers[-1]
        if number is None or index is None or begins_another(piece, self._ids.first((choice, number))):
            number = index if index is not None and index not in numbers else max(numbers, default=-1) + 1
            self._numbers[choice, index] = number
        return number

    def _add_call(self, choice: int, piece: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds a piece of a call; returns it as clients should read it, with a clear number and id."""
        at = choice, self._number_of(choice, piece)
        if at not in self._calls:
            kind = "custom" if piece.get("function") is None and "custom" in (piece.get("type"), *piece) else "function"
            self._calls[at] = {"id": "", "type": piece.get("type") or kind, kind: {"name": "", _TEXTS[kind]: ""}}
        call = self._calls[at]
        if piece.get("id") or at not in self._ids:
            piece = self._ids.put(at, piece)
        if piece.get("index") != at[1]:
            piece = {**piece, "index": at[1]}
        if call["id"] and piece.get("id") not in (None, "", call["id"]):
            self.unreadable = "two tool calls are streamed at one place"
        if (piece.get("type") or call["type"]) != call["type"]:
            self.unreadable = "a tool call is of two kinds"
        call["id"] = call["id"] or piece["id"]
        for key, value in piece.items():
            if key in _TEXTS and value is not None:
                written = call.setdefault(key, {"name": "", _TEXTS[key]: ""})
                if written["name"] and value.get("name") == written["name"]:
                    self.unreadable = "the name of a tool call is repeated in pieces"
                written["name"] = longer_name(written["name"], value.get("name") or "")
                for name, more in value.items():
                    if name != "name":
                        _grow(written, name, more)
            elif key not in ("id", "index", "type"):
                _grow(call, key, value)
        return piece

    def body(self, *, finish_reason: str | None = None) -> dict[str, Any]:
        """The whole body so far; ``finish_reason`` replaces the stream's own."""
        for index, choice in self._choices.items():
            calls = [call for (of, _), call in sorted(self._calls.items(), key=operator.itemgetter(0)) if of == index]
            if calls:
                choice["message"]["tool_calls"] = calls
            if finish_reason is not None:
                choice["finish_reason"] = finish_reason
        kind = "text_completion" if self._legacy else "chat.completion"
        return {**self._body, "object": kind, "choices": list(self._choices.values())}


#: The kinds of tool calls, and the field of each that comes in pieces.
_TEXTS = {"function": "arguments", "custom": "input"}
#: The fields of a choice that come in pieces.
_PIECES = ("logprobs", "text", "token_ids")
_OF_A_CHUNK = frozenset({"delta", "finish_reason", "index", "message"})


def begins_another(piece: Mapping[str, Any], call_id: str) -> bool:
    """Returns whether a piece of a streamed tool call is of another call than that at its index, whose id is ``call_id``.

    Some servers send each call whole, all at one index; others send a fresh id with each piece of one call, but its name
    only once.
    """
    named = (piece.get("function") or piece.get("custom") or {}).get("name")
    return bool(call_id and named and piece.get("id")) and piece["id"] != call_id


def longer_name(name: str, more: str) -> str:
    """The name of a streamed call and its next piece: names come whole or in pieces, and some servers repeat them."""
    return name if more == name else name + more


def _keep(head: dict[str, Any], key: str, value: Any) -> None:
    """Sets a field that chunks say whole: the first that names the reply, else the last that says something in text."""
    if key not in head or (key not in _OF_EACH_CHUNK and head[key] != value and (texts(value) or not texts(head[key]))):
        head[key] = value


def _grow(holder: dict[str, Any], key: str, value: Any) -> None:
    """Adds a piece to what came before: texts and lists grow, objects field by field, and an id stays the first."""
    before = holder.get(key)
    if value is None or (before is not None and key in ("id", "index", "type")):
        return
    if isinstance(value, dict) and isinstance(before, dict | None):
        grown = holder[key] = cast("dict[str, Any]", before or {})
        for name, nested in cast("dict[str, Any]", value).items():
            _grow(grown, name, nested)
    elif isinstance(value, list) and isinstance(before, list | None):
        if before is None:
            before = holder[key] = cast("list[Any]", [])
        before.extend(cast("list[Any]", value))
    elif isinstance(value, str) and isinstance(before, str):
        holder[key] = before + value
    elif before is not None and isinstance(value, str | dict | list) | isinstance(before, str | dict | list):
        raise ValueError(f"a stream says {key} twice, in two forms")
    else:
        holder[key] = value


_OF_EACH_CHUNK = ("id", "object", "created", "model", "service_tier", "system_fingerprint")


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
        not choice.get("index")
        and choice.get("finish_reason") is None
        and all(not value or isinstance(value, str) for value in (choice.get("delta") or {}).values())
        for choice in choices
    )


def passed_texts(events: Sequence[JSON]) -> dict[str, str]:
    """The texts in chunks that hold only text, by their key in the message."""
    texts: dict[str, str] = {}
    for event in events:
        for choice in event.get("choices") or ():
            for key, value in (choice.get("delta") or {}).items():
                if value and key != "role":
                    texts[key] = texts.get(key, "") + value
    return texts


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


_RESULT_ROLES = ("tool", "function")
#: Fields of a reply's message that a request may not have.
_REPLY_ONLY = frozenset({"annotations", "parsed"})
#: Fields of a reply, of a choice and of a call that hold no text of the model, or text that is read with its turn.
_ENVELOPE = frozenset({"choices", "created", "id", "model", "object", "service_tier", "system_fingerprint", "usage"})
_CHOICE = frozenset({"finish_reason", "index", "logprobs", "message", "token_ids"})
_TURN = frozenset({"content", "function_call", "refusal", "role", "tool_calls"})
_CALL = frozenset({"custom", "function", "id", "index", "type"})


def with_call_ids(reply: JSON) -> JSON:
    """``reply`` with clear ids of its calls: see `CallIds`. The same object where they are."""
    ids, choices = CallIds(), list[JSON]()
    for number, choice in enumerate(reply["choices"]):
        message = choice.get("message") or {}
        written = message.get("tool_calls") or ()
        calls = [ids.put((number, at), call) for at, call in enumerate(written)]
        same = all(map(operator.is_, calls, written))
        choices.append(choice if same else {**choice, "message": {**message, "tool_calls": calls}})
    return reply if all(map(operator.is_, choices, reply["choices"])) else {**reply, "choices": choices}


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
        if media := media_in(entry.get("content")):
            mapping["media"] = media
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
            message = {  # as it is sent back
                key: value for key, value in choice["message"].items() if value is not None and key not in _REPLY_ONLY
            }
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

    def from_stream(self, events: Sequence[JSON], *, ended: bool = True) -> JSON | None:
        return ChatAssembler().whole(events, ended=ended)

    with_call_ids = staticmethod(with_call_ids)
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
