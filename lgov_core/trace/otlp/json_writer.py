"""Writes spans in OTLP's JSON form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lgov_core.trace.otlp.span import INT64, OTLPSpan, Scope, encodable
from lgov_core.types import JSONValue


def request_value(
    groups: Mapping[Scope, Sequence[OTLPSpan]], resource: Mapping[str, JSONValue], id_text: Callable[[str], str] = str
) -> dict[str, Any]:
    """An ``ExportTraceServiceRequest`` of one resource as JSON values. ``id_text`` gets each id in hexadecimal."""
    scopes = [
        {"scope": _scope(scope), "spans": [_written(span, id_text) for span in spans]}
        for scope, spans in groups.items()
    ]
    return {"resourceSpans": [{"resource": {"attributes": _pairs(resource)}, "scopeSpans": scopes}]}


def _scope(scope: Scope) -> dict[str, str]:
    return {"name": scope.name, "version": scope.version} if scope.version else {"name": scope.name}


def _written(span: OTLPSpan, id_text: Callable[[str], str]) -> dict[str, Any]:
    written: dict[str, Any] = {
        "traceId": id_text(span.trace_id),
        "spanId": id_text(span.span_id),
        "parentSpanId": id_text(span.parent_id),
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
            {"traceId": id_text(link.trace_id), "spanId": id_text(link.span_id), "attributes": _pairs(link.attributes)}
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
