"""Values of span attributes, checked: what is not of its kind is None, and never something like it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from lgov_core.trace import semconv
from lgov_core.trace.mapping.canonical import from_json, message_of
from lgov_core.types import JSONValue

#: Prompt ids, response ids and logprobs.
Tokens: TypeAlias = tuple[tuple[int, ...] | None, tuple[int, ...] | None, tuple[float, ...] | None]

#: What a tool call is called as a part of a message, by the API that the message comes from.
_CALL_PARTS: Final = frozenset({"tool_call", "tool_use", "function_call"})

_TOKEN_ATTRIBUTES: Final = (semconv.PROMPT_TOKEN_IDS, semconv.RESPONSE_TOKEN_IDS, semconv.RESPONSE_LOGPROBS)


def text_of(value: object) -> str | None:
    """``value`` if it is text and not empty."""
    return value if isinstance(value, str) and value else None


def number_of(value: object) -> float:
    """``value`` as a float; NaN for other values (also booleans and numbers written as text)."""
    if type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.nan
    return math.nan


def number_or(value: object, otherwise: float) -> float:
    """``value`` as a float, ``otherwise`` for what is not a finite number."""
    number = number_of(value)
    return number if math.isfinite(number) else otherwise


def version_of(value: object) -> int | None:
    """A weights version: an integer from 0 on, or one written as text."""
    if type(value) is not int and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def tokens_of(attributes: Mapping[str, JSONValue]) -> Tokens:
    """The exact tokens that a call's span claims; None for each part that is missing or not a list of numbers."""
    get = attributes.get
    return (
        _integers(get(semconv.PROMPT_TOKEN_IDS)),
        _integers(get(semconv.RESPONSE_TOKEN_IDS)),
        _numbers(get(semconv.RESPONSE_LOGPROBS)),
    )


def unreadable_tokens(attributes: Mapping[str, JSONValue], tokens: Tokens) -> list[str]:
    """The names in ``attributes`` that should hold tokens or logprobs and do not."""
    return [
        name
        for name, read in zip(_TOKEN_ATTRIBUTES, tokens, strict=True)
        if read is None and attributes.get(name) is not None
    ]


def tokens_agree(one: Tokens, other: Tokens) -> bool:
    """Whether two claims can be of one call: they differ in nothing that both name."""
    return all(mine is None or yours is None or mine == yours for mine, yours in zip(one, other, strict=True))


def finish_reason_of(value: object) -> str:
    """The first of a call's finish reasons, empty when none is known."""
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, str) else ""


def request_of(attributes: Mapping[str, JSONValue]) -> dict[str, Any]:
    """What a model read, according to its span: messages (instructions first) and tools, in the form of chat completions.

    Empty where the messages are not recorded or the instructions cannot be read.
    """
    request = messages_of(attributes.get(semconv.INPUT_MESSAGES))
    if not request:
        return {}
    instructions = attributes.get(semconv.SYSTEM_INSTRUCTIONS)
    if instructions not in (None, "", "[]"):
        parts = from_json(instructions)
        system = message_of(
            {"role": "system", "parts": parts} if parts else {"role": "system", "content": instructions}
        )
        if system is None or not isinstance(system.get("content"), str):
            return {}
        if system not in request["messages"]:
            request["messages"] = [system, *request["messages"]]
    tools = [_tool(one) for one in _listed(attributes.get(semconv.TOOL_DEFINITIONS)) or () if isinstance(one, Mapping)]
    return {**request, "tools": tools} if tools else request


def _tool(given: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's definition; in the conventions the fields of a function are beside its type."""
    if given.get("type", "function") != "function" or "function" in given:
        return dict(given)
    return {"type": "function", "function": {name: value for name, value in given.items() if name != "type"}}


def messages_of(value: object) -> dict[str, Any]:
    """``{"messages": [...]}`` from the JSON text of messages; else empty."""
    found = _listed(value)
    return {} if found is None else {"messages": [*found]}


def proposed_tool_calls(attributes: Mapping[str, JSONValue]) -> tuple[str, ...]:
    """The ids of the tool calls that a reply proposed, as its span names them: by an attribute, or in the reply's messages."""
    listed, single = attributes.get(semconv.TOOL_CALL_IDS), attributes.get(semconv.TOOL_CALL_ID)
    said = attributes.get(semconv.OUTPUT_MESSAGES)
    if listed is None and single is None and said is None:
        return ()
    named: dict[str, None] = {}
    for value in (listed, single):
        for one in [value] if isinstance(value, str) else value if isinstance(value, Sequence) else ():
            if isinstance(one, str) and one:
                named[one] = None
    if said is not None and not (isinstance(said, str) and "call" not in said and "tool_use" not in said):
        named.update(dict.fromkeys(_ids_in(messages_of(said).get("messages"))))
    return tuple(named)


def _ids_in(said: object) -> Iterator[str]:
    """Walks messages of any API. Iterative: the reply is untrusted and may be nested deeply."""
    waiting: list[tuple[Any, bool]] = [(said, False)]
    while waiting:
        here, is_call = waiting.pop()
        if isinstance(here, list):
            waiting.extend((item, is_call) for item in reversed(here))
        elif isinstance(here, Mapping):
            if is_call or here.get("type") in _CALL_PARTS:
                call_id = here.get("call_id") or here.get("id")
                if isinstance(call_id, str) and call_id:
                    yield call_id
                continue
            for name in ("tool_calls", "message", "parts", "content", "output"):
                if isinstance(inner := here.get(name), list | Mapping):
                    waiting.append((inner, name == "tool_calls"))


def _listed(value: object) -> Sequence[Any] | None:
    found = from_json(value)
    return found if isinstance(found, list | tuple) else None


def _integers(value: object) -> tuple[int, ...] | None:
    listed = _listed(value)
    if listed is None:
        return None
    whole = set(map(type, listed)) <= {int} and min(listed, default=0) >= 0 and max(listed, default=0) < 2**31
    return tuple(listed) if whole else None


def _numbers(value: object) -> tuple[float, ...] | None:
    listed = _listed(value)
    if listed is None:
        return None
    return tuple(listed) if set(map(type, listed)) <= {int, float} else None
