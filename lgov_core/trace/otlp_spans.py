"""A span as OTLP has it: read from and written in OTLP's JSON form, and converted to and from lgov's `Span`.

In this form fields are in lower camel case, ids in hexadecimal and 64-bit integers text. The reader also takes what senders
get wrong in practice: snake case, integers as numbers, ids in base64 (as a generic protobuf-to-JSON encoder writes them),
``NaN`` as text or as Python's bare word; a bad span loses no other. Protobuf is converted to this form and from it by
``opentelemetry-proto`` (see `lgov_core.trace.otlp_http`), so that the meaning of a field is in one place. Protobuf's own reader
of JSON is neither as tolerant nor as fast, and JSON is read without the package.

What an OTLP span has and a `Span` has no field for becomes an attribute (``otel.*``, ``span.kind``), and goes back to its place
when the span is written.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lgov_core.trace import semconv
from lgov_core.types import JSONValue, Span, SpanEvent

#: Nested values that are deeper are refused: no instrumentation writes such, and readers recurse.
MAX_DEPTH: Final = 32

KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_INTERNAL: Final = 1
_CLIENT: Final = 3
#: The status codes by their numbers.
STATUSES: Final = ("", "OK", "ERROR")

#: The scope and the service under which lgov's own spans are written.
OUR_SCOPE: Final = "lgov"

#: Attributes that have a field of their own in an OTLP span.
ELSEWHERE: Final = frozenset(
    {
        semconv.SCOPE_NAME,
        semconv.SCOPE_VERSION,
        semconv.STATUS_CODE,
        semconv.STATUS_DESCRIPTION,
        semconv.SPAN_KIND,
        semconv.LINKS,
        semconv.DROPPED_ATTRIBUTES,
        semconv.DROPPED_EVENTS,
    }
)


#: Integers outside of [-2^63, 2^63) are written as text.
INT64: Final = 2**63


class BadSpan(ValueError):
    """A span that cannot be read. The others of its request can."""


@dataclass(slots=True)
class OTLPSpan:
    """A span as OTLP has it, to be read by `span_of`.

    Ids are in lower-case hexadecimal (32 digits the trace's, 16 the span's; ``parent_id`` is empty at a root), times in
    nanoseconds since 1970 (``end_ns`` 0: not ended), ``kind`` and ``status`` the numbers of the protocol; ``links`` are
    those of `link_value`.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str = ""
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    attributes: dict[str, JSONValue] = field(default_factory=dict[str, JSONValue])
    events: tuple[SpanEvent, ...] = ()
    links: list[JSONValue] = field(default_factory=list[JSONValue])
    status: int = 0
    message: str = ""
    dropped_attributes: int = 0
    dropped_events: int = 0


@dataclass(frozen=True, slots=True)
class Scope:
    """The instrumentation that made a span."""

    name: str = ""
    version: str = ""


#: A span as it is in a request, the attributes of its resource, and its scope.
Found: TypeAlias = tuple[Any, Mapping[str, JSONValue], Scope]


def nanoseconds(seconds: float) -> int:
    """Unix seconds as nanoseconds. For a time after April 1970 `seconds_of` gives the same float back."""
    whole = int(seconds // 1)
    return whole * 1_000_000_000 + round((seconds - whole) * 1e9)


def seconds_of(nanoseconds: int) -> float:
    """Nanoseconds since 1970 as Unix seconds."""
    return nanoseconds / 1_000_000_000


def span_of(otlp_span: OTLPSpan, resource: Mapping[str, JSONValue], scope: Scope) -> Span:
    """The span as lgov keeps it, marked as a claim.

    Its rollout and attempt are those that it names, or else those that its resource names (`lgov_core.trace.semconv`).
    Raises `BadSpan` for invalid ids.
    """
    for what, text, digits in (("trace", otlp_span.trace_id, 32), ("span", otlp_span.span_id, 16)):
        if not is_id(text, digits):
            raise BadSpan(
                f"the {what} id of span {otlp_span.name[:60]!r} is not {digits} hexadecimal digits other than zeros"
            )
    if otlp_span.parent_id and not is_id(otlp_span.parent_id, 16):
        if otlp_span.parent_id.strip("0"):
            raise BadSpan(f"the parent's id of span {otlp_span.name[:60]!r} is not 16 hexadecimal digits")
        otlp_span.parent_id = ""
    if otlp_span.start_ns < 0 or otlp_span.end_ns < 0:
        raise BadSpan(f"span {otlp_span.name[:60]!r} has a time before 1970")
    attributes = otlp_span.attributes
    attributes.pop(semconv.CLAIMED, None)  # whatever comes in is a claim
    _add_elsewhere(attributes, otlp_span, scope)
    for name in semconv.OF_RESOURCE:
        if name in resource and (name, resource[name]) != (semconv.SERVICE_NAME, OUR_SCOPE):
            attributes.setdefault(name, resource[name])
    rollout_id, attempt = semconv.take_identity(attributes)
    return Span(
        name=semconv.storable(otlp_span.name),
        span_id=otlp_span.span_id,
        started_at=seconds_of(otlp_span.start_ns),
        ended_at=seconds_of(otlp_span.end_ns) if otlp_span.end_ns else None,
        attributes=attributes,
        rollout_id=rollout_id,
        attempt=attempt,
        parent_id=otlp_span.parent_id or None,
        trace_id=otlp_span.trace_id,
        events=otlp_span.events,
        claimed=True,
    )


def encodable(text: str) -> str:
    """``text`` with lone surrogates replaced: UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_id(text: str, digits: int) -> bool:
    """True for an OpenTelemetry id: ``digits`` lower-case hexadecimal digits, not all zero."""
    return len(text) == digits and text.strip("0") != "" and not text.strip("0123456789abcdef")


def _add_elsewhere(attributes: dict[str, JSONValue], otlp_span: OTLPSpan, scope: Scope) -> None:
    if scope.name not in ("", OUR_SCOPE):
        attributes.setdefault(semconv.SCOPE_NAME, scope.name)
        if scope.version:
            attributes.setdefault(semconv.SCOPE_VERSION, scope.version)
    error = attributes.get(semconv.ERROR_TYPE)
    status = STATUSES[otlp_span.status] if 0 <= otlp_span.status < len(STATUSES) else ""
    if status and not (status == "ERROR" and error is not None):
        attributes.setdefault(semconv.STATUS_CODE, status)
    if otlp_span.message and otlp_span.message != error:
        attributes.setdefault(semconv.STATUS_DESCRIPTION, otlp_span.message)
    if otlp_span.kind > _INTERNAL and otlp_span.kind < len(KINDS) and otlp_span.kind != implied_kind(attributes):
        attributes.setdefault(semconv.SPAN_KIND, KINDS[otlp_span.kind])
    if otlp_span.links:
        attributes.setdefault(semconv.LINKS, otlp_span.links)
    if otlp_span.dropped_attributes:
        attributes.setdefault(semconv.DROPPED_ATTRIBUTES, otlp_span.dropped_attributes)
    if otlp_span.dropped_events:
        attributes.setdefault(semconv.DROPPED_EVENTS, otlp_span.dropped_events)


def implied_kind(attributes: Mapping[str, JSONValue]) -> int:
    """The kind of a span that states none: a model call is a client's, everything else internal."""
    return _CLIENT if attributes.get(semconv.OPERATION) == semconv.CHAT else _INTERNAL


def link_value(trace_id: str, span_id: str, attributes: dict[str, JSONValue]) -> JSONValue:
    """A link to another span (ids in hexadecimal), as the attribute ``otel.links`` has it."""
    value: dict[str, JSONValue] = {"trace_id": trace_id, "span_id": span_id}
    return {**value, "attributes": attributes} if attributes else value


def scope_of(span: Span) -> Scope:
    """The scope to write ``span`` under."""
    name, version = span.attributes.get(semconv.SCOPE_NAME), span.attributes.get(semconv.SCOPE_VERSION)
    if not isinstance(name, str) or not name:
        return Scope(OUR_SCOPE)
    return Scope(name, version if isinstance(version, str) else "")


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


_READ: Final[Mapping[str, Callable[[Any, int], JSONValue]]] = {
    "string": lambda value, depth: _text(value),
    "int": lambda value, depth: _integer(value),
    "double": _double,
    "bool": _bool,
    "array": lambda value, depth: [_value(item, depth) for item in _list(value, "values")],
    "kvlist": lambda value, depth: _pairs(_list(value, "values"), depth),
    "bytes": lambda value, depth: _text(value),
}
_VALUES: Final = {f"{kind}{end}": read for kind, read in _READ.items() for end in ("Value", "_value")}


def request_value(
    spans: Iterable[Span], resource: Mapping[str, JSONValue], id_text: Callable[[str], str] = str
) -> dict[str, Any]:
    """An ``ExportTraceServiceRequest`` of one resource as JSON values: the spans of each scope together.

    ``spans`` have OpenTelemetry ids (`otlp_export.with_ids`). ``id_text`` gets each id in hexadecimal.
    """
    groups: dict[Scope, list[dict[str, Any]]] = {}
    for span in spans:
        groups.setdefault(scope_of(span), []).append(_written_span(span, id_text))
    scopes = [
        {"scope": {"name": scope.name} | ({"version": scope.version} if scope.version else {}), "spans": written}
        for scope, written in groups.items()
    ]
    return {"resourceSpans": [{"resource": {"attributes": _written_pairs(resource)}, "scopeSpans": scopes}]}


def _written_span(span: Span, id_text: Callable[[str], str]) -> dict[str, Any]:
    recorded = span.attributes
    kind, code = recorded.get(semconv.SPAN_KIND), recorded.get(semconv.STATUS_CODE)
    failed = recorded.get(semconv.ERROR_TYPE) is not None
    status = STATUSES.index(code) if isinstance(code, str) and code in STATUSES else (2 if failed else 0)
    message = recorded.get(semconv.STATUS_DESCRIPTION)
    text = encodable(message) if isinstance(message, str) else ""
    attributes = {name: value for name, value in recorded.items() if name not in ELSEWHERE}
    semconv.put_identity(attributes, span.rollout_id, span.attempt)
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
        words = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return {"doubleValue": value if math.isfinite(value) else words.get(value, "NaN")}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _written_pairs(value)}}
    return {"arrayValue": {"values": [_written_value(item) for item in value]}}
