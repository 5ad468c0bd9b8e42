"""OTLP's JSON encoding: the fields in lower camel case, ids in hexadecimal, 64-bit integers as text.

Written as the specification says; read with what senders get wrong in practice: snake case, integers as numbers, ids in
base64 (as a generic protobuf-to-JSON encoder writes them), ``NaN`` as text or as Python's bare word.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from lgov_core.trace.otlp.span import (
    INT64,
    MAX_DEPTH,
    BadSpan,
    Found,
    OTLPEvent,
    OTLPLink,
    OTLPSpan,
    Scope,
    encodable,
)
from lgov_core.types import JSONValue

_NUMBERS_IN_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def spans_in(body: bytes) -> Iterator[Found]:
    """The spans of an ``ExportTraceServiceRequest``, each to be read with `read_span`. Raises ValueError for no such."""
    try:
        request = json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(request, dict):
        raise ValueError("it is no JSON object")
    return _walk(request)


def _walk(request: Mapping[str, Any]) -> Iterator[Found]:
    for group in _objects(request, "resourceSpans", "resource_spans"):
        resource = _attributes_or_none(_get(group, "resource")) or {}
        for part in _objects(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            named = _get(part, "scope", "instrumentationLibrary")
            scope = Scope(_text(_get(named, "name")), _text(_get(named, "version")))
            for span in _list(part, "spans"):
                yield span, resource, scope


def read_span(given: Any) -> OTLPSpan:
    """One span of a request. Raises `BadSpan`."""
    if not isinstance(given, Mapping):
        raise BadSpan("a span is no JSON object")
    status = _get(given, "status")
    return OTLPSpan(
        trace_id=_id(_get(given, "traceId", "trace_id"), 16),
        span_id=_id(_get(given, "spanId", "span_id"), 8),
        parent_id=_id(_get(given, "parentSpanId", "parent_span_id"), 8),
        name=_text(_get(given, "name")),
        kind=_enum(
            _get(given, "kind"), "SPAN_KIND_", ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
        ),
        start_ns=_integer(_get(given, "startTimeUnixNano", "start_time_unix_nano")),
        end_ns=_integer(_get(given, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_attributes(given),
        events=[
            OTLPEvent(
                _text(_get(event, "name")), _integer(_get(event, "timeUnixNano", "time_unix_nano")), _attributes(event)
            )
            for event in _list(given, "events")
        ],
        links=[
            OTLPLink(
                _id(_get(link, "traceId", "trace_id"), 16), _id(_get(link, "spanId", "span_id"), 8), _attributes(link)
            )
            for link in _list(given, "links")
        ],
        status=_enum(_get(status, "code"), "STATUS_CODE_", ("UNSET", "OK", "ERROR")),
        message=_text(_get(status, "message")),
        dropped_attributes=_integer(_get(given, "droppedAttributesCount", "dropped_attributes_count")),
        dropped_events=_integer(_get(given, "droppedEventsCount", "dropped_events_count")),
    )


def _get(given: Any, *names: str) -> Any:
    if isinstance(given, Mapping):
        for name in names:
            if (value := given.get(name)) is not None:
                return value
    return None


def _list(given: Any, *names: str) -> Sequence[Any]:
    found = _get(given, *names)
    if found is None:
        return ()
    if not isinstance(found, list):
        raise BadSpan(f"{names[0]} is no list")
    return found


def _objects(given: Any, *names: str) -> Sequence[Any]:
    found = _list(given, *names)
    if not all(isinstance(one, Mapping) for one in found):
        raise BadSpan(f"in {names[0]} there is something that is no object")
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadSpan(f"a {type(value).__name__} stands where there should be text")
    return encodable(value)


def _id(value: Any, size: int) -> str:
    text = _text(value).strip()
    if len(text) == 2 * size:
        return text.lower()
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_" if "-" in text or "_" in text else None)
    except (binascii.Error, ValueError):
        raw = b""
    return raw.hex() if len(raw) == size else text


def _integer(value: Any) -> int:
    if value is None:
        return 0
    try:
        number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        if number is None and isinstance(value, float) and value.is_integer():
            number = int(value)
    except ValueError:
        number = None
    if number is None or not -INT64 <= number < 2 * INT64:
        raise BadSpan(f"{str(value)[:40]!r} stands where there should be a 64-bit integer")
    return number


def _enum(value: Any, prefix: str, names: Sequence[str]) -> int:
    if isinstance(value, str) and value.removeprefix(prefix) in names:
        return names.index(value.removeprefix(prefix))
    return _integer(value)


def _attributes(given: Any) -> dict[str, JSONValue]:
    found: dict[str, JSONValue] = {}
    for pair in _list(given, "attributes"):
        found[_text(_get(pair, "key"))] = _value(_get(pair, "value"), MAX_DEPTH)
    return found


def _attributes_or_none(given: Any) -> dict[str, JSONValue] | None:
    try:
        return _attributes(given)
    except BadSpan:
        return None


def _value(given: Any, depth: int) -> JSONValue:
    """An ``AnyValue``. Bytes are given as base64 text."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not depth:
        raise BadSpan("an attribute is nested too deep" if not depth else "an attribute's value is no JSON object")
    for name, value in given.items():
        if value is not None and (read := _VALUES.get(name)) is not None:
            return read(value, depth - 1)
    return None


def _double(value: Any, depth: int) -> float:
    if isinstance(value, str):
        try:
            return _NUMBERS_IN_WORDS[value] if value in _NUMBERS_IN_WORDS else float(value)
        except ValueError:
            pass
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise BadSpan(f"{str(value)[:40]!r} stands where there should be a number")


def _bool(value: Any, depth: int) -> bool:
    if not isinstance(value, bool):
        raise BadSpan("a boolean attribute is neither true nor false")
    return value


def _array(value: Any, depth: int) -> list[JSONValue]:
    items = _list(value, "values")
    numbers = _numbers(items) if depth else None
    return [_value(item, depth) for item in items] if numbers is None else numbers


def _numbers(items: Sequence[Any]) -> list[Any] | None:
    """Integers alone, or doubles alone, as the tokens of a call are, read all at once; None for all else.

    What it gives is what `_value` gives of each: whatever is not plainly a number is left to that, and to its errors.
    """
    if set(map(type, items)) != {dict} or set(map(len, items)) != {1}:
        return None
    name = next(iter(items[0]))
    try:
        values = [item[name] for item in items]
        kinds = set(map(type, values))
        if name == "intValue" and kinds <= {str, int}:
            integers = list(map(int, values))
            return integers if min(integers) >= -INT64 and max(integers) < 2 * INT64 else None
        if name == "doubleValue" and kinds <= {float, int}:
            return list(map(float, values))
    except (KeyError, ValueError, OverflowError):
        pass
    return None


def _mapping(value: Any, depth: int) -> dict[str, JSONValue]:
    return {_text(_get(pair, "key")): _value(_get(pair, "value"), depth) for pair in _list(value, "values")}


_READ: Final[Sequence[tuple[tuple[str, str], Callable[[Any, int], JSONValue]]]] = (
    (("stringValue", "string_value"), lambda value, depth: _text(value)),
    (("intValue", "int_value"), lambda value, depth: _integer(value)),
    (("doubleValue", "double_value"), _double),
    (("boolValue", "bool_value"), _bool),
    (("arrayValue", "array_value"), _array),
    (("kvlistValue", "kvlist_value"), _mapping),
    (("bytesValue", "bytes_value"), lambda value, depth: _text(value)),
)
_VALUES: Final = {name: read for names, read in _READ for name in names}


# ---------------------------------------------------------------------- writing


def write_request(groups: Mapping[Scope, Sequence[OTLPSpan]], resource: Mapping[str, JSONValue]) -> bytes:
    """An ``ExportTraceServiceRequest`` of one resource."""
    scopes = [{"scope": _scope(scope), "spans": [_written(span) for span in spans]} for scope, spans in groups.items()]
    request = {"resourceSpans": [{"resource": {"attributes": _pairs(resource)}, "scopeSpans": scopes}]}
    return json.dumps(request, separators=(",", ":"), allow_nan=False).encode()


def _scope(scope: Scope) -> dict[str, str]:
    return {"name": scope.name, "version": scope.version} if scope.version else {"name": scope.name}


def _written(span: OTLPSpan) -> dict[str, Any]:
    written: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": encodable(span.name),
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _pairs(span.attributes),
        "events": [
            {"name": encodable(event.name), "timeUnixNano": str(event.at_ns), "attributes": _pairs(event.attributes)}
            for event in span.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": _pairs(link.attributes)}
            for link in span.links
        ],
        "droppedAttributesCount": span.dropped_attributes,
        "droppedEventsCount": span.dropped_events,
        "status": {"code": span.status, "message": encodable(span.message)} if span.status or span.message else None,
    }
    return {name: value for name, value in written.items() if value}


def _pairs(attributes: Mapping[str, JSONValue]) -> list[dict[str, Any]]:
    return [{"key": encodable(name), "value": _any_value(value)} for name, value in attributes.items()]


def _any_value(value: JSONValue) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"stringValue": encodable(value)}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if -INT64 <= value < INT64 else {"stringValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _in_words(value)}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _pairs(value)}}
    return {"arrayValue": {"values": [_any_value(item) for item in value]}}


def _in_words(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
