"""Spans in OTLP's JSON form, read and written: fields in lower camel case, ids in hexadecimal, 64-bit integers as text.

The reader also takes what senders get wrong in practice: snake case, integers as numbers, ids in base64 (as a generic
protobuf-to-JSON encoder writes them), ``NaN`` as text or as Python's bare word. The binary form is converted to this one by
``opentelemetry-proto`` (see `lgov_core.trace.otlp.codec`), so that the meaning of a field is in one place.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lgov_core.trace import identity, semconv
from lgov_core.trace.otlp.spans import (
    ELSEWHERE,
    INT64,
    KINDS,
    MAX_DEPTH,
    STATUSES,
    BadSpan,
    Found,
    OTLPSpan,
    Scope,
    encodable,
    implied_kind,
    is_id,
    link_value,
    nanoseconds,
    scope_of,
    seconds_of,
)
from lgov_core.types import JSONValue, Span, SpanEvent

_NUMBERS_IN_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def spans_in(request: Any) -> Iterator[Found]:
    """The spans of an ``ExportTraceServiceRequest``, each to be read with `read_span`. Raises ValueError for no such."""
    if not isinstance(request, Mapping):
        raise ValueError("it is not a JSON object")
    for group in _objects(request, "resourceSpans", "resource_spans"):
        try:
            resource = _attributes(_get(group, "resource"))
        except BadSpan:
            resource = {}
        for scope_spans in _objects(group, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            named = _get(scope_spans, "scope", "instrumentationLibrary")
            scope = Scope(_text(_get(named, "name")), _text(_get(named, "version")))
            for span in _list(scope_spans, "spans"):
                yield span, resource, scope


def read_span(raw: Any) -> OTLPSpan:
    """One span of a request. Raises `BadSpan`."""
    if not isinstance(raw, Mapping):
        raise BadSpan("a span is not a JSON object")
    status = _get(raw, "status")
    return OTLPSpan(
        trace_id=_id(_get(raw, "traceId", "trace_id"), 16),
        span_id=_id(_get(raw, "spanId", "span_id"), 8),
        parent_id=_id(_get(raw, "parentSpanId", "parent_span_id"), 8),
        name=_text(_get(raw, "name")),
        kind=_enum(
            _get(raw, "kind"), "SPAN_KIND_", ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
        ),
        start_ns=_integer(_get(raw, "startTimeUnixNano", "start_time_unix_nano")),
        end_ns=_integer(_get(raw, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_attributes(raw),
        events=tuple(
            SpanEvent(
                _text(_get(event, "name")),
                seconds_of(_integer(_get(event, "timeUnixNano", "time_unix_nano"))),
                _attributes(event),
            )
            for event in _list(raw, "events")
        ),
        links=[
            link_value(
                _id(_get(link, "traceId", "trace_id"), 16), _id(_get(link, "spanId", "span_id"), 8), _attributes(link)
            )
            for link in _list(raw, "links")
        ],
        status=_enum(_get(status, "code"), "STATUS_CODE_", ("UNSET", "OK", "ERROR")),
        message=_text(_get(status, "message")),
        dropped_attributes=_integer(_get(raw, "droppedAttributesCount", "dropped_attributes_count")),
        dropped_events=_integer(_get(raw, "droppedEventsCount", "dropped_events_count")),
    )


def _get(raw: Any, *names: str) -> Any:
    if isinstance(raw, Mapping):
        for name in names:
            if (value := raw.get(name)) is not None:
                return value
    return None


def _list(raw: Any, *names: str) -> Sequence[Any]:
    items = _get(raw, *names)
    if items is None:
        return ()
    if not isinstance(items, list):
        raise BadSpan(f"{names[0]} is not a list")
    return items


def _objects(raw: Any, *names: str) -> Sequence[Any]:
    items = _list(raw, *names)
    if not all(isinstance(item, Mapping) for item in items):
        raise BadSpan(f"{names[0]} holds something that is not an object")
    return items


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadSpan(f"a {type(value).__name__} where text is expected")
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
        raise BadSpan(f"{str(value)[:40]!r} where a 64-bit integer is expected")
    return number


def _enum(value: Any, prefix: str, names: Sequence[str]) -> int:
    if isinstance(value, str) and value.removeprefix(prefix) in names:
        return names.index(value.removeprefix(prefix))
    return _integer(value)


def _attributes(raw: Any) -> dict[str, JSONValue]:
    return _pairs(_list(raw, "attributes"), MAX_DEPTH)


def _pairs(pairs: Sequence[Any], depth: int) -> dict[str, JSONValue]:
    return {_text(_get(pair, "key")): _value(_get(pair, "value"), depth) for pair in pairs}


def _value(raw: Any, depth: int) -> JSONValue:
    """An ``AnyValue``. Bytes are given as base64 text."""
    if raw is None:
        return None
    if not isinstance(raw, Mapping) or not depth:
        raise BadSpan("an attribute is nested too deep" if not depth else "an attribute's value is not a JSON object")
    for name, value in raw.items():
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
    raise BadSpan(f"{str(value)[:40]!r} where a number is expected")


def _bool(value: Any, depth: int) -> bool:
    if not isinstance(value, bool):
        raise BadSpan("a boolean attribute is neither true nor false")
    return value


def _array(value: Any, depth: int) -> list[JSONValue]:
    return [_value(item, depth) for item in _list(value, "values")]


_READ: Final[Mapping[str, Callable[[Any, int], JSONValue]]] = {
    "string": lambda value, depth: _text(value),
    "int": lambda value, depth: _integer(value),
    "double": _double,
    "bool": _bool,
    "array": _array,
    "kvlist": lambda value, depth: _pairs(_list(value, "values"), depth),
    "bytes": lambda value, depth: _text(value),
}
_VALUES: Final = {f"{kind}{end}": read for kind, read in _READ.items() for end in ("Value", "_value")}


def request_value(
    spans: Iterable[Span], resource: Mapping[str, JSONValue], id_text: Callable[[str], str] = str
) -> dict[str, Any]:
    """An ``ExportTraceServiceRequest`` of one resource as JSON values: the spans of each scope together.

    ``spans`` have OpenTelemetry ids (`span_ids.with_ids`). ``id_text`` gets each id in hexadecimal.
    """
    groups: dict[Scope, list[dict[str, Any]]] = {}
    for span in spans:
        groups.setdefault(scope_of(span), []).append(_written_span(span, id_text))
    scopes = [{"scope": _scope(scope), "spans": written} for scope, written in groups.items()]
    return {"resourceSpans": [{"resource": {"attributes": _written_pairs(resource)}, "scopeSpans": scopes}]}


def _scope(scope: Scope) -> dict[str, str]:
    return {"name": scope.name, "version": scope.version} if scope.version else {"name": scope.name}


def _written_span(span: Span, id_text: Callable[[str], str]) -> dict[str, Any]:
    recorded = span.attributes
    kind, code = recorded.get(semconv.SPAN_KIND), recorded.get(semconv.STATUS_CODE)
    failed = recorded.get(semconv.ERROR_TYPE) is not None
    status = STATUSES.index(code) if isinstance(code, str) and code in STATUSES else (2 if failed else 0)
    message = recorded.get(semconv.STATUS_DESCRIPTION)
    text = encodable(message) if isinstance(message, str) else ""
    attributes = {name: value for name, value in recorded.items() if name not in ELSEWHERE}
    identity.put(attributes, span.rollout_id, span.attempt)
    if span.claimed:
        attributes[semconv.CLAIMED] = True
    ended_at = "0" if span.ended_at is None else str(max(nanoseconds(span.ended_at), 1))
    written: dict[str, Any] = {
        "traceId": id_text(span.trace_id or ""),
        "spanId": id_text(span.span_id),
        "parentSpanId": id_text(span.parent_id or ""),
        "name": encodable(span.name),
        "kind": KINDS.index(kind) if isinstance(kind, str) and kind in KINDS else implied_kind(recorded),
        "startTimeUnixNano": str(max(nanoseconds(span.started_at), 0)),
        "endTimeUnixNano": ended_at,
        "attributes": _written_pairs(attributes),
        "events": [
            {
                "name": encodable(event.name),
                "timeUnixNano": str(max(nanoseconds(event.at), 0)),
                "attributes": _written_pairs(event.attributes),
            }
            for event in span.events
        ],
        "links": _links(recorded.get(semconv.LINKS), id_text),
        "droppedAttributesCount": _count(recorded.get(semconv.DROPPED_ATTRIBUTES)),
        "droppedEventsCount": _count(recorded.get(semconv.DROPPED_EVENTS)),
        "status": {"code": status, "message": text} if status or text else None,
    }
    return {name: value for name, value in written.items() if value}


def _links(value: JSONValue, id_text: Callable[[str], str]) -> list[dict[str, Any]]:
    return [
        {
            "traceId": id_text(str(link["trace_id"])),
            "spanId": id_text(str(link["span_id"])),
            "attributes": _written_pairs(attributes)
            if isinstance(attributes := link.get("attributes"), Mapping)
            else [],
        }
        for link in (value if isinstance(value, list | tuple) else ())
        if isinstance(link, Mapping) and is_id(str(link.get("trace_id")), 32) and is_id(str(link.get("span_id")), 16)
    ]


def _count(value: JSONValue) -> int:
    return value if type(value) is int and 0 < value < 2**32 else 0


def _written_pairs(attributes: Mapping[str, JSONValue]) -> list[dict[str, Any]]:
    return [{"key": encodable(name), "value": _written_value(value)} for name, value in attributes.items()]


def _written_value(value: JSONValue) -> dict[str, Any]:
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
        return {"kvlistValue": {"values": _written_pairs(value)}}
    return {"arrayValue": {"values": [_written_value(item) for item in value]}}


def _in_words(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
