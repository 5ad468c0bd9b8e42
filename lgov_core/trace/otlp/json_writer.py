"""Writes spans in OTLP's JSON form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lgov_core.trace import identity, semconv
from lgov_core.trace.otlp.spans import (
    ELSEWHERE,
    INT64,
    KINDS,
    STATUSES,
    Scope,
    encodable,
    implied_kind,
    is_id,
    nanoseconds,
    scope_of,
)
from lgov_core.types import JSONValue, Span


def request_value(
    spans: Iterable[Span], resource: Mapping[str, JSONValue], id_text: Callable[[str], str] = str
) -> dict[str, Any]:
    """An ``ExportTraceServiceRequest`` of one resource as JSON values: the spans of each scope together.

    ``spans`` have OpenTelemetry ids (`span_ids.with_ids`). ``id_text`` gets each id in hexadecimal.
    """
    groups: dict[Scope, list[dict[str, Any]]] = {}
    for span in spans:
        groups.setdefault(scope_of(span), []).append(_span(span, id_text))
    scopes = [{"scope": _scope(scope), "spans": written} for scope, written in groups.items()]
    return {"resourceSpans": [{"resource": {"attributes": _pairs(resource)}, "scopeSpans": scopes}]}


def _scope(scope: Scope) -> dict[str, str]:
    return {"name": scope.name, "version": scope.version} if scope.version else {"name": scope.name}


def _span(span: Span, id_text: Callable[[str], str]) -> dict[str, Any]:
    given = span.attributes
    kind, code = given.get(semconv.SPAN_KIND), given.get(semconv.STATUS_CODE)
    failed = given.get(semconv.ERROR_TYPE) is not None
    status = STATUSES.index(code) if isinstance(code, str) and code in STATUSES else (2 if failed else 0)
    message = given.get(semconv.STATUS_DESCRIPTION)
    text = encodable(message) if isinstance(message, str) else ""
    attributes = {name: value for name, value in given.items() if name not in ELSEWHERE}
    identity.put(attributes, span.rollout_id, span.attempt)
    if span.claimed:
        attributes[semconv.CLAIMED] = True
    ended_at = "0" if span.ended_at is None else str(max(nanoseconds(span.ended_at), 1))
    written: dict[str, Any] = {
        "traceId": id_text(span.trace_id or ""),
        "spanId": id_text(span.span_id),
        "parentSpanId": id_text(span.parent_id or ""),
        "name": encodable(span.name),
        "kind": KINDS.index(kind) if isinstance(kind, str) and kind in KINDS else implied_kind(given),
        "startTimeUnixNano": str(max(nanoseconds(span.started_at), 0)),
        "endTimeUnixNano": ended_at,
        "attributes": _pairs(attributes),
        "events": [
            {
                "name": encodable(event.name),
                "timeUnixNano": str(max(nanoseconds(event.at), 0)),
                "attributes": _pairs(event.attributes),
            }
            for event in span.events
        ],
        "links": _links(given.get(semconv.LINKS), id_text),
        "droppedAttributesCount": _count(given.get(semconv.DROPPED_ATTRIBUTES)),
        "droppedEventsCount": _count(given.get(semconv.DROPPED_EVENTS)),
        "status": {"code": status, "message": text} if status or text else None,
    }
    return {name: value for name, value in written.items() if value}


def _links(value: JSONValue, id_text: Callable[[str], str]) -> list[dict[str, Any]]:
    return [
        {
            "traceId": id_text(str(one["trace_id"])),
            "spanId": id_text(str(one["span_id"])),
            "attributes": _pairs(found) if isinstance(found := one.get("attributes"), Mapping) else [],
        }
        for one in (value if isinstance(value, list | tuple) else ())
        if isinstance(one, Mapping) and is_id(str(one.get("trace_id")), 32) and is_id(str(one.get("span_id")), 16)
    ]


def _count(value: JSONValue) -> int:
    return value if type(value) is int and 0 < value < 2**32 else 0


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
