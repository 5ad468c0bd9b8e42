"""OTLP's binary encoding, by the classes of the package ``opentelemetry-proto`` (extra ``otel``), loaded on first use."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lgov_core.errors import TraceError
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


def _service() -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError as error:
        raise TraceError(
            "OTLP in protobuf needs opentelemetry-proto", status=415, hint='pip install "lgov[otel]", or send JSON'
        ) from error
    return trace_service_pb2


def spans_in(body: bytes) -> Iterator[Found]:
    """The spans of an ``ExportTraceServiceRequest``, each to be read with `read_span`.

    Raises ValueError for what is none, `TraceError` without the package.
    """
    service = _service()
    from google.protobuf.message import DecodeError

    request = service.ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return _walk(request)


def _walk(request: Any) -> Iterator[Found]:
    for group in request.resource_spans:
        resource: Mapping[str, JSONValue] = {}
        if group.HasField("resource"):
            try:
                resource = _attributes(group.resource.attributes)
            except BadSpan:
                resource = {}
        for part in group.scope_spans:
            scope = Scope(part.scope.name, part.scope.version)
            for span in part.spans:
                yield span, resource, scope


def read_span(span: Any) -> OTLPSpan:
    """One span of a request. Raises `BadSpan`."""
    return OTLPSpan(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[OTLPEvent(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events],
        links=[OTLPLink(link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)) for link in span.links],
        status=span.status.code,
        message=span.status.message,
        dropped_attributes=span.dropped_attributes_count,
        dropped_events=span.dropped_events_count,
    )


def _attributes(pairs: Iterable[Any], depth: int = MAX_DEPTH) -> dict[str, JSONValue]:
    return {pair.key: _value(pair.value, depth) for pair in pairs}


def _value(value: Any, depth: int) -> JSONValue:
    """An ``AnyValue``. Bytes are given as base64 text."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind == "array_value":
        if not depth:
            raise BadSpan("an attribute is nested too deep")
        return [_value(item, depth - 1) for item in found.values]
    if kind == "kvlist_value":
        if not depth:
            raise BadSpan("an attribute is nested too deep")
        return _attributes(found.values, depth - 1)
    return base64.b64encode(found).decode() if kind == "bytes_value" else found


# ---------------------------------------------------------------------- writing


def write_request(groups: Mapping[Scope, Sequence[OTLPSpan]], resource: Mapping[str, JSONValue]) -> bytes:
    """An ``ExportTraceServiceRequest`` of one resource. Raises `TraceError` without the package."""
    request = _service().ExportTraceServiceRequest()
    group = request.resource_spans.add()
    _put_all(group.resource.attributes, resource)
    for scope, spans in groups.items():
        part = group.scope_spans.add()
        part.scope.name, part.scope.version = encodable(scope.name), encodable(scope.version)
        for span in spans:
            _put_span(part.spans.add(), span)
    return request.SerializeToString()


def _put_span(message: Any, span: OTLPSpan) -> None:
    message.trace_id, message.span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    message.parent_span_id = bytes.fromhex(span.parent_id)
    message.name, message.kind = encodable(span.name), span.kind
    message.start_time_unix_nano, message.end_time_unix_nano = span.start_ns, span.end_ns
    _put_all(message.attributes, span.attributes)
    for event in span.events:
        _put_all(
            message.events.add(name=encodable(event.name), time_unix_nano=event.at_ns).attributes, event.attributes
        )
    for link in span.links:
        ids = {"trace_id": bytes.fromhex(link.trace_id), "span_id": bytes.fromhex(link.span_id)}
        _put_all(message.links.add(**ids).attributes, link.attributes)
    if span.status or span.message:
        message.status.code, message.status.message = span.status, encodable(span.message)
    message.dropped_attributes_count, message.dropped_events_count = span.dropped_attributes, span.dropped_events


def _put_all(pairs: Any, attributes: Mapping[str, JSONValue]) -> None:
    for name, value in attributes.items():
        _put(pairs.add(key=encodable(name)).value, value)


def _put(message: Any, value: JSONValue) -> None:
    if value is None:
        return
    if isinstance(value, str):
        message.string_value = encodable(value)
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, int):
        if -INT64 <= value < INT64:
            message.int_value = value
        else:
            message.string_value = str(value)
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, Mapping):
        message.kvlist_value.SetInParent()
        _put_all(message.kvlist_value.values, value)
    else:
        message.array_value.SetInParent()
        for item in value:
            _put(message.array_value.values.add(), item)


# ---------------------------------------------------------------------- answers


def response(rejected: int, message: str) -> bytes:
    """An ``ExportTraceServiceResponse``."""
    answer = _service().ExportTraceServiceResponse()
    if rejected or message:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = encodable(message)
    return answer.SerializeToString()


def status(code: int, message: str) -> bytes:
    """A ``google.rpc.Status``: ``code`` (at most 127) is its field 1, ``message`` its field 2.

    Written by hand, so that a request can be refused also where nothing is installed that could read it.
    """
    text = encodable(message).encode()
    return bytes((0x08, code, 0x12)) + _varint(len(text)) + text


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def partial_success(body: bytes) -> tuple[int, str]:
    """How many spans an ``ExportTraceServiceResponse`` says were rejected, and why. Raises ValueError for no such."""
    from google.protobuf.message import DecodeError

    answer = _service().ExportTraceServiceResponse()
    try:
        answer.ParseFromString(body)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return answer.partial_success.rejected_spans, answer.partial_success.error_message
