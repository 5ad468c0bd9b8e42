"""A span as OTLP has it, in plain Python values, and its conversion to and from lgov's `Span`.

Both formats (protobuf and JSON) are read into an `OTLPSpan` and written from one, so that the meaning of a field is in
one place. What an OTLP span has and a `Span` has no field for becomes an attribute (``otel.*``, ``span.kind``), and goes
back to its place when the span is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lgov_core.trace import identity, semconv
from lgov_core.types import JSONValue, Span, SpanEvent

#: Nested values that are deeper are refused: no instrumentation writes such, and readers recurse.
MAX_DEPTH: Final = 32

KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_INTERNAL: Final = 1
_CLIENT: Final = 3
_STATUS: Final = ("", "OK", "ERROR")

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
class OTLPEvent:
    """An event of a span: ``at_ns`` is in nanoseconds since 1970."""

    name: str
    at_ns: int
    attributes: dict[str, JSONValue] = field(default_factory=dict[str, JSONValue])


@dataclass(slots=True)
class OTLPLink:
    """A link to another span; ids are hexadecimal."""

    trace_id: str
    span_id: str
    attributes: dict[str, JSONValue] = field(default_factory=dict[str, JSONValue])


@dataclass(slots=True)
class OTLPSpan:
    """A span as OTLP has it.

    Ids are in lower-case hexadecimal (32 digits the trace's, 16 the span's; ``parent_id`` is empty at a root), times in
    nanoseconds since 1970 (``end_ns`` 0: not ended), ``kind`` and ``status`` the numbers of the protocol.
    """

    trace_id: str
    span_id: str
    parent_id: str = ""
    name: str = ""
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    attributes: dict[str, JSONValue] = field(default_factory=dict[str, JSONValue])
    events: list[OTLPEvent] = field(default_factory=list[OTLPEvent])
    links: list[OTLPLink] = field(default_factory=list[OTLPLink])
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


def span_of(found: OTLPSpan, resource: Mapping[str, JSONValue], scope: Scope) -> Span:
    """The span as lgov keeps it, marked as a claim.

    Its rollout and attempt are those that it names, or else those that its resource names (`lgov_core.trace.identity`).
    Raises `BadSpan` for invalid ids.
    """
    for what, text, digits in (("trace", found.trace_id, 32), ("span", found.span_id, 16)):
        if not is_id(text, digits):
            raise BadSpan(
                f"the {what} id of span {found.name[:60]!r} is not {digits} hexadecimal digits other than zeros"
            )
    if found.parent_id and not is_id(found.parent_id, 16):
        if found.parent_id.strip("0"):
            raise BadSpan(f"the parent's id of span {found.name[:60]!r} is not 16 hexadecimal digits")
        found.parent_id = ""
    if found.start_ns < 0 or found.end_ns < 0:
        raise BadSpan(f"span {found.name[:60]!r} has a time before 1970")
    attributes = found.attributes
    attributes.pop(semconv.CLAIMED, None)  # whatever comes in is a claim
    _add_elsewhere(attributes, found, scope)
    for name in identity.OF_RESOURCE:
        if name in resource and (name, resource[name]) != (semconv.SERVICE_NAME, OUR_SCOPE):
            attributes.setdefault(name, resource[name])
    rollout_id, attempt = identity.take(attributes)
    return Span(
        name=semconv.storable(found.name),
        span_id=found.span_id,
        started_at=seconds_of(found.start_ns),
        ended_at=seconds_of(found.end_ns) if found.end_ns else None,
        attributes=attributes,
        rollout_id=rollout_id,
        attempt=attempt,
        parent_id=found.parent_id or None,
        trace_id=found.trace_id,
        events=tuple(SpanEvent(event.name, seconds_of(event.at_ns), event.attributes) for event in found.events),
        claimed=True,
    )


def encodable(text: str) -> str:
    """``text`` with lone surrogates replaced: UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_id(text: str, digits: int) -> bool:
    """Whether ``text`` is an OpenTelemetry id: ``digits`` lower-case hexadecimal digits, not all zero."""
    return len(text) == digits and text.strip("0") != "" and not text.strip("0123456789abcdef")


def _add_elsewhere(attributes: dict[str, JSONValue], found: OTLPSpan, scope: Scope) -> None:
    if scope.name not in ("", OUR_SCOPE):
        attributes.setdefault(semconv.SCOPE_NAME, scope.name)
        if scope.version:
            attributes.setdefault(semconv.SCOPE_VERSION, scope.version)
    error = attributes.get(semconv.ERROR_TYPE)
    status = _STATUS[found.status] if 0 <= found.status < len(_STATUS) else ""
    if status and not (status == "ERROR" and error is not None):
        attributes.setdefault(semconv.STATUS_CODE, status)
    if found.message and found.message != error:
        attributes.setdefault(semconv.STATUS_DESCRIPTION, found.message)
    if found.kind > _INTERNAL and found.kind < len(KINDS) and found.kind != _implied_kind(attributes):
        attributes.setdefault(semconv.SPAN_KIND, KINDS[found.kind])
    if found.links:
        attributes.setdefault(semconv.LINKS, [_link_value(link) for link in found.links])
    if found.dropped_attributes:
        attributes.setdefault(semconv.DROPPED_ATTRIBUTES, found.dropped_attributes)
    if found.dropped_events:
        attributes.setdefault(semconv.DROPPED_EVENTS, found.dropped_events)


def _implied_kind(attributes: Mapping[str, JSONValue]) -> int:
    """A model call is a client's, as the conventions have it; everything else is internal unless it says otherwise."""
    return _CLIENT if attributes.get(semconv.OPERATION) == semconv.CHAT else _INTERNAL


def _link_value(link: OTLPLink) -> dict[str, JSONValue]:
    value: dict[str, JSONValue] = {"trace_id": link.trace_id, "span_id": link.span_id}
    if link.attributes:
        value["attributes"] = link.attributes
    return value


def scope_of(span: Span) -> Scope:
    """The scope to write ``span`` under."""
    name, version = span.attributes.get(semconv.SCOPE_NAME), span.attributes.get(semconv.SCOPE_VERSION)
    if not isinstance(name, str) or not name:
        return Scope(OUR_SCOPE)
    return Scope(name, version if isinstance(version, str) else "")


def otlp_of(span: Span, trace_id: str, span_id: str, parent_id: str = "") -> OTLPSpan:
    """``span`` under the given ids (hexadecimal), with its rollout and attempt as attributes."""
    given = span.attributes
    kind = given.get(semconv.SPAN_KIND)
    error, code = given.get(semconv.ERROR_TYPE), given.get(semconv.STATUS_CODE)
    status = _STATUS.index(code) if isinstance(code, str) and code in _STATUS else (2 if error is not None else 0)
    message = given.get(semconv.STATUS_DESCRIPTION)
    attributes = {name: value for name, value in given.items() if name not in ELSEWHERE}
    identity.put(attributes, span.rollout_id, span.attempt)
    if span.claimed:
        attributes[semconv.CLAIMED] = True
    return OTLPSpan(
        trace_id,
        span_id,
        parent_id,
        span.name,
        KINDS.index(kind) if isinstance(kind, str) and kind in KINDS else _implied_kind(given),
        max(nanoseconds(span.started_at), 0),
        0 if span.ended_at is None else max(nanoseconds(span.ended_at), 1),
        attributes,
        [OTLPEvent(event.name, max(nanoseconds(event.at), 0), dict(event.attributes)) for event in span.events],
        _links(given.get(semconv.LINKS)),
        status,
        message if isinstance(message, str) else "",
        _count(given.get(semconv.DROPPED_ATTRIBUTES)),
        _count(given.get(semconv.DROPPED_EVENTS)),
    )


def _links(value: JSONValue) -> list[OTLPLink]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    links: list[OTLPLink] = []
    for one in value:
        if isinstance(one, Mapping) and is_id(str(one.get("trace_id")), 32) and is_id(str(one.get("span_id")), 16):
            found: Any = one.get("attributes")
            attributes = dict(found) if isinstance(found, Mapping) else {}
            links.append(OTLPLink(str(one["trace_id"]), str(one["span_id"]), attributes))
    return links


def _count(value: JSONValue) -> int:
    return value if type(value) is int and 0 < value < 2**32 else 0
