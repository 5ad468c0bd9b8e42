"""OTLP's binary encoding, converted to and from its JSON form by ``opentelemetry-proto`` (extra ``otel``)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from lgov_core.errors import TraceError

#: A message of the collector's trace service.
Message: TypeAlias = Literal["ExportTraceServiceRequest", "ExportTraceServiceResponse"]


def to_json(message: Message, body: bytes) -> dict[str, Any]:
    """The message in ``body`` as JSON values; ids are in base64, as protobuf's own JSON has bytes.

    Raises ValueError for a body that is not such a message, `TraceError` without the package.
    """
    empty = _empty(message)
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError

    try:
        empty.ParseFromString(body)
        return MessageToDict(empty)
    except (DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def from_json(message: Message, value: dict[str, Any]) -> bytes:
    """The message made of JSON values, with ids in base64. Raises `TraceError` without the package."""
    empty = _empty(message)
    from google.protobuf.json_format import ParseDict

    return ParseDict(value, empty).SerializeToString()


def _empty(message: Message) -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError as error:
        raise TraceError(
            "OTLP in protobuf needs opentelemetry-proto", status=415, hint='pip install "lgov[otel]", or send JSON'
        ) from error
    return getattr(trace_service_pb2, message)()


def status(code: int, message: str) -> bytes:
    """A ``google.rpc.Status``: ``code`` (at most 127) is its field 1, ``message`` its field 2.

    Encoded by hand, so that a request can be refused also where the package is not installed.
    """
    text = message.encode("utf-8", "replace")
    length, parts = len(text), bytearray((0x08, code, 0x12))
    while length > 0x7F:
        parts.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*parts, length)) + text
