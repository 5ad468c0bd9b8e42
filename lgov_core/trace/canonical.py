"""Spans of other instrumentations in lgov's names: which attribute is which, by `attribute_table`, and how values are read."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from lgov_core.errors import UpstreamError
from lgov_core.trace import semconv
from lgov_core.trace.attribute_table import (
    MESSAGE_EVENTS,
    MESSAGE_FAMILIES,
    OLD_REWARDS,
    REWARD_DEFAULT_NAMES,
    REWARD_FAMILY,
    REWARD_LINK_FAMILY,
    REWARD_LINKS,
    ROWS,
    AttributeSource,
)
from lgov_core.types import CapturedCall, JSONValue, Span, SpanEvent
from lgov_core.wire.apis import BY_ROUTE
from lgov_core.wire.turns import read_arguments

Read = Callable[[Any], JSONValue]

#: Integers of more digits are neither counts nor token ids.
_DIGITS: Final = 18


def _number(value: Any) -> JSONValue:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Any) -> JSONValue:
    if isinstance(value, str) and len(value) <= _DIGITS and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: Any) -> JSONValue:
    if isinstance(value, str):
        return [value] if value else None
    return list(value) if isinstance(value, Sequence) and value else None


def text(value: Any) -> str | None:
    """``value`` as text; other values as JSON."""
    return value if isinstance(value, str) or value is None else json.dumps(value, ensure_ascii=False)


def _token_ids(value: Any) -> JSONValue:
    """Token ids as a list of integers; text is read as JSON, and of a list of lists the first counts."""
    items = from_json(value) if isinstance(value, str) else value
    if isinstance(items, Sequence) and not isinstance(items, str) and items and isinstance(items[0], Sequence):
        items = items[0]
    if not isinstance(items, Sequence) or isinstance(items, str):
        return None
    ids = [_integer(item) for item in items]
    return ids if ids and all(type(item) is int for item in ids) else None


def _logprobs(value: Any) -> JSONValue:
    """Log-probabilities as a list of numbers, out of a list of ``{"token", "logprob"}`` or of numbers."""
    items = from_json(value) if isinstance(value, str) else value
    if not isinstance(items, Sequence) or isinstance(items, str):
        return None
    read = [_number(item.get("logprob") if isinstance(item, Mapping) else item) for item in items]
    return read if read and None not in read else None


FORMS: Final[Mapping[str, Read]] = {
    "as it is": lambda value: value if value != "" else None,
    "lower case": lambda value: value.lower() if isinstance(value, str) and value else None,
    "number": _number,
    "integer": _integer,
    "list": _list,
    "text": text,
    "token ids": _token_ids,
    "logprobs": _logprobs,
}


def from_json(value: Any) -> Any:
    """The list or object in ``value``: parsed from JSON text, or ``value`` itself; else None."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, list | tuple | Mapping) else None


def at_path(value: Any, path: str) -> Any:
    """The value at ``path`` (keys and indexes with dots between them) in a JSON value, or None."""
    for key in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def family(attributes: Mapping[str, JSONValue], prefix: str) -> list[Any]:
    """The list that ``PREFIX.0.a``, ``PREFIX.0.b.0.c``, ``PREFIX.1.a`` and so on are written of."""
    root: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in attributes.items():
        if not (name.startswith(prefix) and name[start - 1 : start] == "."):
            continue
        here = root
        *above, last = name[start:].split(".")
        for key in above:
            inner = here.get(key)
            if not isinstance(inner, dict):
                inner = here[key] = {}
            here = inner
        if not isinstance(here.get(last), dict):
            here[last] = value
    listed = _lists(root, 0)
    return listed if isinstance(listed, list) else []


def _lists(value: Any, depth: int) -> Any:
    if not isinstance(value, dict) or depth > 32:
        return value
    if value and all(key.isascii() and key.isdigit() and len(key) < 10 for key in value):
        return [_lists(value[key], depth + 1) for key in sorted(value, key=int)]
    return {key: _lists(item, depth + 1) for key, item in value.items()}


def message_of(raw: Any) -> dict[str, Any] | None:
    """One message in the form in which chat completions have it, whatever it was written in.

    None for other values, and for messages with a part that has no place there (an image, reasoning).
    Read: OpenInference's (``message.role`` and so on), OpenLLMetry's and agentops's, the parts of OpenTelemetry's own
    conventions, and a choice that holds a message.
    """
    if not isinstance(raw, Mapping):
        return None
    inner = raw.get("message")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else raw
    names = ("role", "content", "name", "tool_call_id")
    message = {name: fields[name] for name in names if fields.get(name) is not None}
    for result in _sequence(raw.get("function")):  # AutoGen's results of tools, as OpenInference writes them
        held = from_json(result)
        if isinstance(held, Mapping) and "content" in held:
            message |= {"role": "tool", "tool_call_id": held.get("call_id"), "content": held["content"]}
    calls = [call for raw_call in _sequence(fields.get("tool_calls")) if (call := _tool_call(raw_call)) is not None]
    for part in _sequence(fields.get("parts")):
        if not _take_part(message, calls, part):
            return None
    if calls:
        message["tool_calls"] = calls
    return message if "content" in message or calls else None


def apart(message: Any) -> list[Any]:
    """A message that holds the results of several tools as one for each, which is how chat completions have them."""
    parts = _sequence(message.get("parts")) if isinstance(message, Mapping) else ()
    if len(parts) < 2 or not all(
        isinstance(result, Mapping) and result.get("type") == "tool_call_response" for result in parts
    ):
        return [message]
    return [{**message, "parts": [result]} for result in parts]


def _take_part(message: dict[str, Any], calls: list[dict[str, Any]], part: Any) -> bool:
    """Adds a part; False for one that a chat completion has no place for."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("content"), str) and "tool_call_id" not in message:
        message["content"] = f"{message.get('content', '')}{part['content']}"
    elif kind == "tool_call" and (call := _tool_call(part)) is not None:
        calls.append(call)
    elif kind == "tool_call_response" and "content" not in message:
        message |= {"role": "tool", "tool_call_id": part.get("id")}
        message["content"] = text(part.get("response", part.get("result", part.get("content")))) or ""
    else:
        return False
    return True


def _tool_call(raw: Any) -> dict[str, Any] | None:
    if not isinstance(raw, Mapping):
        return None
    inner = raw.get("tool_call")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else raw
    function = fields.get("function")
    named: Mapping[str, Any] = function if isinstance(function, Mapping) else fields
    if named.get("name") is None:
        return None
    arguments = text(named.get("arguments")) or ""
    return {
        "id": fields.get("id"),
        "type": "function",
        "function": {"name": named["name"], "arguments": arguments},
    }


def _sequence(value: Any) -> Sequence[Any]:
    items = from_json(value) if isinstance(value, str) else value
    return items if isinstance(items, list) else ()


_BY_NAME: Final[dict[str, list[AttributeSource]]] = defaultdict(list)
for _row in ROWS:
    _BY_NAME[_row.ours].append(_row)

_THEIRS: Final = frozenset(row.theirs for row in ROWS) | {name for name, _, _ in OLD_REWARDS}
_FAMILIES: Final = tuple(
    f"{prefix}." for prefixes in (*MESSAGE_FAMILIES.values(), (REWARD_FAMILY,)) for prefix in prefixes
)
_EVENTS: Final = frozenset(name for events in MESSAGE_EVENTS.values() for name in events) | {"exception"}

#: Operations whose spans are what an evaluation on them judges.
_JUDGED_ITSELF: Final = frozenset({semconv.CHAT, semconv.TEXT_COMPLETION, "generate_content", semconv.EXECUTE_TOOL})

_MESSAGES: Final = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES)


def canonical(span: Span) -> Span:
    """``span`` with the attributes of other instrumentations (`attribute_table`) repeated under lgov's names.

    Its own attributes stay, and where one of ours is there already, it counts. Messages are JSON text in the form of
    chat completions, whatever they were written in, unless they hold what has no place there; the tool calls in a reply
    give ``lgov.tool_call_ids``. A reward that agent-lightning emitted becomes a span named ``lgov.reward``: its first
    dimension is the span's, each further one a ``gen_ai.evaluation.result`` event with the same target; the name it had
    stays in ``lgov.reward.source``. A target that the span does not name is recorded as one that no call has,
    so that it is found to be unknown and is not taken for the attempt's. Doing it twice changes nothing. Pure; raises
    nothing.
    """
    attributes = span.attributes
    if not span.claimed or _is_ours(span):
        return span
    added: dict[str, JSONValue] = {}
    texts: dict[str, Any] = {}
    for ours, rows in _BY_NAME.items():
        if attributes.get(ours) is None and (value := _first(rows, attributes, texts)) is not None:
            added[ours] = value
    if added.get(semconv.FINISH_REASONS, attributes.get(semconv.FINISH_REASONS)) is None:
        replies = MESSAGE_EVENTS[semconv.OUTPUT_MESSAGES]  # where the choices are in events
        reasons = [event.attributes.get("finish_reason") for event in span.events if event.name in replies]
        if reasons_given := [reason for reason in reasons if isinstance(reason, str)]:
            added[semconv.FINISH_REASONS] = reasons_given
    for ours in _MESSAGES:
        if (messages := _messages(ours, span)) is not None:
            added[ours] = messages
    if (error := _error_type(span, {**attributes, **added})) is not None:
        added[semconv.ERROR_TYPE] = error
    reply = added.get(semconv.OUTPUT_MESSAGES, attributes.get(semconv.OUTPUT_MESSAGES))
    if attributes.get(semconv.TOOL_CALL_IDS) is None and (proposed := _proposed(reply)):
        added[semconv.TOOL_CALL_IDS] = proposed
    return _with_rewards(span, added)


def states_result(span: Span) -> bool:
    """True where ``span`` states the result of a whole attempt: its outcome, or a reward or evaluation that names no call.

    Checked for the span as received and for its `canonical` form: one of the two is enough.
    """
    return _states_result(span) or _states_result(canonical(span))


def _states_result(span: Span) -> bool:
    attributes = span.attributes
    if attributes.get(semconv.OUTCOME) is not None:
        return True
    if span.name == semconv.REWARD_SPAN_NAME or semconv.REWARD_VALUE in attributes:
        if not _names_call(attributes):
            return True
    elif str(attributes.get(semconv.OPERATION)) in _JUDGED_ITSELF:
        return False  # an evaluation of a call judges that call
    return any(event.name == semconv.EVALUATION_EVENT and not _names_call(event.attributes) for event in span.events)


def _names_call(attributes: Mapping[str, JSONValue]) -> bool:
    named = (attributes.get(name) for name in (semconv.RESPONSE_ID, semconv.TOOL_CALL_ID))
    return any(isinstance(value, str) and value != "" for value in named)


def _is_ours(span: Span) -> bool:
    attributes = span.attributes
    if not _THEIRS.isdisjoint(attributes) or any(name.startswith(_FAMILIES) for name in attributes):
        return False
    if semconv.STATUS_CODE in attributes or any(event.name in _EVENTS for event in span.events):
        return False
    return all(not isinstance(attributes.get(name), str) for name in _MESSAGES)


def _first(rows: Sequence[AttributeSource], attributes: Mapping[str, JSONValue], texts: dict[str, Any]) -> JSONValue:
    for row in rows:
        value: Any = attributes.get(row.theirs)
        if value is None or (row.when is not None and str(attributes.get(row.when[0])).lower() != row.when[1]):
            continue
        if row.path:
            if row.theirs not in texts:
                texts[row.theirs] = from_json(value)
            value = at_path(texts[row.theirs], row.path)
        if row.choice:
            value = row.choice.get(str(value).lower())
        if value is not None and (read := FORMS[row.form](value)) is not None:
            return read
    return None


# ---------------------------------------------------------------------- messages


def _messages(ours: str, span: Span) -> str | None:
    """The messages in the form of chat completions, or None where there are none or they have that form already."""
    value = span.attributes.get(ours)
    if value is not None:
        items = from_json(value)
        if not (isinstance(items, list) and any(isinstance(item, Mapping) and "parts" in item for item in items)):
            return None
        messages = [message_of(message) for item in items for message in apart(item)]
        return None if None in messages else json.dumps(messages, ensure_ascii=False)
    for prefix in MESSAGE_FAMILIES[ours]:
        if (written := _written(family(span.attributes, prefix))) is not None:
            return written
    items = [item for event in span.events for item in _of_event(event, MESSAGE_EVENTS[ours])]
    return _written(items)


def _of_event(event: SpanEvent, kinds: Mapping[str, str]) -> list[Any]:
    if event.name not in kinds:
        return []
    holder = kinds[event.name]
    if not holder:
        role = event.name.split(".")[1]
        return [{"role": role, **event.attributes}]
    items = from_json(event.attributes.get(holder))
    return items if isinstance(items, list) else [items]


def _written(items: Sequence[Any]) -> str | None:
    messages = [message for item in items if (message := message_of(item)) is not None]
    return json.dumps(messages, ensure_ascii=False) if messages else None


def _proposed(messages: JSONValue) -> list[JSONValue]:
    """The ids of the tool calls in a reply."""
    items = from_json(messages)
    if not isinstance(items, list):
        return []
    calls = [call for message in items if isinstance(message, Mapping) for call in message.get("tool_calls") or ()]
    return [str(call["id"]) for call in calls if isinstance(call, Mapping) and call.get("id")]


# ---------------------------------------------------------------------- errors, and rewards


def _error_type(span: Span, attributes: Mapping[str, JSONValue]) -> JSONValue:
    """The class of what was raised, for a span that failed and does not say it. The conventions' word for others."""
    if attributes.get(semconv.ERROR_TYPE) is not None or attributes.get(semconv.STATUS_CODE) != "ERROR":
        return None
    raised = [event.attributes.get("exception.type") for event in span.events if event.name == "exception"]
    return next((name for name in reversed(raised) if name is not None), "_OTHER")


def _with_rewards(span: Span, added: dict[str, JSONValue]) -> Span:
    rewards = _rewards(span)
    if not rewards or span.name == semconv.REWARD_SPAN_NAME:
        return replace(span, attributes={**span.attributes, **added}) if added else span
    target = _target(span.attributes)
    (dimension, value), *further = rewards
    added |= {semconv.REWARD_VALUE: value, semconv.REWARD_SOURCE: span.name, **target}
    if dimension:
        added[semconv.REWARD_DIMENSION] = dimension
    events = tuple(
        SpanEvent(
            semconv.EVALUATION_EVENT,
            span.started_at,
            {semconv.EVALUATION_NAME: name, semconv.EVALUATION_SCORE: number, **target},
        )
        for name, number in further
    )
    return replace(
        span,
        name=semconv.REWARD_SPAN_NAME,
        attributes={**span.attributes, **added},
        events=(*span.events, *events),
    )


def _rewards(span: Span) -> list[tuple[str, JSONValue]]:
    """The dimensions and values of a reward of agent-lightning's, its main one first."""
    attributes = span.attributes
    rewards = [
        ("" if (name := str(reward.get("name", ""))) in REWARD_DEFAULT_NAMES else name, reward.get("value"))
        for reward in family(attributes, REWARD_FAMILY)
        if isinstance(reward, Mapping)
    ]
    if rewards:
        return rewards
    for name, path, of_span in OLD_REWARDS:
        value: Any = attributes.get(name)
        if value is None or (of_span and span.name != of_span):
            continue
        if path:
            held = from_json(value)
            value = held.get(path) if isinstance(held, Mapping) and held.get("type") == "reward" else None
        if value is not None:
            return [("", value)]
    return []


def _target(attributes: Mapping[str, JSONValue]) -> dict[str, JSONValue]:
    for link in family(attributes, REWARD_LINK_FAMILY):
        if not isinstance(link, Mapping) or link.get("value_match") is None:
            continue
        key, value = str(link.get("key_match")), str(link["value_match"])
        ours = REWARD_LINKS.get(key)
        return {ours: value} if ours else {semconv.RESPONSE_ID: f"{key}={value}"}
    return {}


#: What is left in a reply's text of a call that the parser could not read.
_CALL_TAG = "<tool_call>"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call in a reply: its id, and its arguments (None where they are not a JSON object)."""

    call_id: str | None
    arguments: dict[str, Any] | None


def written_calls(call: CapturedCall) -> Iterator[WrittenCall]:
    """The tool calls in a reply of any API; one without id and arguments for a call that stayed text."""
    try:
        choices = BY_ROUTE[call.route].read_reply({"id": call.response_id, **call.response}).choices
    except (KeyError, UpstreamError):  # what no API replies
        return
    choice = choices[call.choice] if call.choice < len(choices) else choices[0]
    for tool_call in choice.tool_calls:
        yield WrittenCall(tool_call.call_id or None, read_arguments(tool_call.arguments, unique_keys=False))
    if call.request.get("tools") and _CALL_TAG in (choice.content or ""):
        yield WrittenCall(None, None)


def as_object(value: Any) -> dict[str, Any] | None:
    """The JSON object that ``value`` is, or its text; None for anything else."""
    try:
        parsed = value if isinstance(value, Mapping) else json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None
    return dict(cast("Mapping[str, Any]", parsed)) if isinstance(parsed, Mapping) else None
