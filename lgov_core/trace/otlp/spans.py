"""A span as OTLP has it, in plain Python values, its conversion to and from lgov's `Span`, and the ids of spans that are sent.

Both formats (protobuf and JSON) are read into an `OTLPSpan` and written from one, so that the meaning of a field is in
one place. What an OTLP span has and a `Span` has no field for becomes an attribute (``otel.*``, ``span.kind``), and goes
back to its place when the span is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from lgov_core.trace import identity, semconv
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

    Its rollout and attempt are those that it names, or else those that its resource names (`lgov_core.trace.identity`).
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
    for name in identity.OF_RESOURCE:
        if name in resource and (name, resource[name]) != (semconv.SERVICE_NAME, OUR_SCOPE):
            attributes.setdefault(name, resource[name])
    rollout_id, attempt = identity.take(attributes)
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


#: A span in its attempt.
_Key: TypeAlias = tuple[str | None, int | None, str]


def _derived(size: int, *parts: object) -> str:
    digest = hashlib.blake2b(
        "\0".join(str(part) for part in parts).encode(errors="replace"), digest_size=size, person=b"lgov span ids"
    )
    return digest.hexdigest()


def trace_id_of_attempt(rollout_id: str, attempt: int | None) -> str:
    """The trace of the spans of an attempt that came from no OpenTelemetry trace: 32 hexadecimal digits."""
    return _derived(16, "attempt", rollout_id, attempt or 1)


def with_ids(spans: Sequence[Span]) -> list[Span]:
    """``spans`` with the ids they are sent under, in the given order.

    A trace or span id that is one already is kept. A span without a trace of its own is in its parent's, where that is
    among ``spans`` and has one, else in its attempt's (`trace_id_of_attempt`), or with neither in one derived from the
    top of its tree. The same spans get the same ids each time; so give the spans of an attempt together.
    """
    by_key: dict[_Key, Span] = {}
    for span in spans:
        by_key.setdefault(_key(span), span)
    trace_ids: dict[_Key, str] = {}
    identified: list[Span] = []
    for span in spans:
        trace_id = _trace(span, by_key, trace_ids)
        parent_id = None if span.parent_id is None else _span_id(trace_id, span.parent_id)
        identified.append(
            replace(span, trace_id=trace_id, span_id=_span_id(trace_id, span.span_id), parent_id=parent_id)
        )
    return identified


def _span_id(trace_id: str, span_id: str) -> str:
    return span_id if is_id(span_id, 16) else _derived(8, "span", trace_id, span_id)


def _key(span: Span) -> _Key:
    return span.rollout_id, span.attempt, span.span_id


def _trace(span: Span, by_key: Mapping[_Key, Span], trace_ids: dict[_Key, str]) -> str:
    """Walks up until a span with a trace of its own, a known one or the top; a cycle ends where it began."""
    path: dict[_Key, None] = {}
    here = span
    while not (here.trace_id is not None and is_id(here.trace_id, 32)) and _key(here) not in trace_ids:
        path[_key(here)] = None
        above = None if here.parent_id is None else by_key.get((here.rollout_id, here.attempt, here.parent_id))
        if above is None or _key(above) in path:
            top = min(path) if above is not None else _key(here)
            trace_ids[_key(here)] = (
                trace_id_of_attempt(here.rollout_id, here.attempt) if here.rollout_id else _derived(16, "top", top[2])
            )
            break
        here = above
    own = here.trace_id if here.trace_id is not None and is_id(here.trace_id, 32) else None
    trace_id = trace_ids[_key(here)] if own is None else own
    trace_ids.update(dict.fromkeys(path, trace_id))
    return trace_id
