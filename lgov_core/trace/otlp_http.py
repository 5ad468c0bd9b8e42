"""Decodes and encodes requests of the OpenTelemetry protocol over HTTP (OTLP), in protobuf and JSON.

A decoded span is a claim of its sender: it is marked ``claimed``, feeds training, and proves nothing about what a policy
decided.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from lgov_core.errors import TraceError
from lgov_core.trace.otlp_spans import BadSpan, encodable, read_span, request_value, span_of, spans_in
from lgov_core.types import JSONValue, Span

#: A message of the collector's trace service.
_Message: TypeAlias = Literal["ExportTraceServiceRequest", "ExportTraceServiceResponse"]


def _from_protobuf(message: _Message, body: bytes) -> dict[str, Any]:
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


def _to_protobuf(message: _Message, value: dict[str, Any]) -> bytes:
    """The message made of JSON values, with ids in base64. Raises `TraceError` without the package."""
    empty = _empty(message)
    from google.protobuf.json_format import ParseDict

    return ParseDict(value, empty).SerializeToString()


def _empty(message: _Message) -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError as error:
        raise TraceError(
            "OTLP in protobuf needs opentelemetry-proto", status=415, hint='pip install "lgov[otel]", or send JSON'
        ) from error
    return getattr(trace_service_pb2, message)()


def _status_bytes(code: int, message: str) -> bytes:
    """A ``google.rpc.Status``: ``code`` (at most 127) is its field 1, ``message`` its field 2.

    Encoded by hand, so that a request can be refused also where the package is not installed.
    """
    text = message.encode("utf-8", "replace")
    length, parts = len(text), bytearray((0x08, code, 0x12))
    while length > 0x7F:
        parts.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*parts, length)) + text


Protocol: TypeAlias = Literal["protobuf", "json"]

CONTENT_TYPES: Final[Mapping[str, Protocol]] = {
    "application/x-protobuf": "protobuf",
    "application/protobuf": "protobuf",
    "application/json": "json",
}
CONTENT_TYPE_OF: Final[Mapping[Protocol, str]] = {"protobuf": "application/x-protobuf", "json": "application/json"}

#: Bytes of a request's body when it is unpacked, by default.
MAX_INFLATED: Final = 64 * 1024 * 1024

#: The most different problems that are reported; all are counted.
_PROBLEMS_REPORTED: Final = 5

#: The codes of google.rpc.Code that belong to the statuses we answer with.
_RPC_CODES: Final = {400: 3, 401: 16, 403: 7, 404: 5, 413: 3, 415: 3, 429: 8, 503: 14}
_RPC_INTERNAL: Final = 13


@dataclass(frozen=True, slots=True)
class DecodedTraces:
    """The spans of one request, in its order; iterating over it gives the spans.

    ``rejected`` counts the spans that could not be read, ``problems`` says why of the first few.
    """

    spans: tuple[Span, ...]
    rejected: int = 0
    problems: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)

    def __len__(self) -> int:
        return len(self.spans)


def answered_in(content_type: str | None) -> Protocol:
    """The format to answer a request in, whatever its ``Content-Type``: JSON where it is neither of OTLP's two."""
    return CONTENT_TYPES.get(_kind(content_type), "json")


def _kind(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def protocol_of(content_type: str | None) -> Protocol:
    """The format of a ``Content-Type``. Raises `TraceError` (415) for another than OTLP's two."""
    kind = _kind(content_type)
    if kind not in CONTENT_TYPES:
        raise TraceError(
            f"OTLP does not come as {kind or 'a body without a content type'}",
            status=415,
            hint="send application/x-protobuf or application/json",
        )
    return CONTENT_TYPES[kind]


def decode_traces(
    body: bytes,
    content_type: str | None = "application/json",
    encoding: str | None = None,
    *,
    max_inflated: int = MAX_INFLATED,
) -> DecodedTraces:
    """The spans of an ``ExportTraceServiceRequest``, all of them ``claimed``, in their own names (see `mapping`).

    ``encoding`` is the ``Content-Encoding``: gzip, deflate, identity or None; unpacked the body has at most
    ``max_inflated`` bytes. A span that cannot be read is counted and loses no other. Attributes that are not
    finite stay so (a float ``nan`` or ``inf``). Pure; callable from any thread. Fails closed: raises `TraceError` (its
    ``status`` is 400, 413 or 415) for an invalid request.
    """
    protocol = protocol_of(content_type)
    plain = inflate(body, encoding, max_inflated)
    spans: list[Span] = []
    problems: dict[str, None] = {}
    rejected = 0
    try:
        binary = protocol == "protobuf"
        request = _from_protobuf("ExportTraceServiceRequest", plain) if binary else json.loads(plain)
        for raw, resource, scope in spans_in(request):
            try:
                spans.append(span_of(read_span(raw), resource, scope))
            except BadSpan as error:
                rejected += 1
                problems[str(error)] = None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the body is not an ExportTraceServiceRequest: {str(error)[:200]}") from error
    return DecodedTraces(tuple(spans), rejected, tuple(problems)[:_PROBLEMS_REPORTED])


def inflate(body: bytes, encoding: str | None, limit: int) -> bytes:
    """``body`` unpacked, of at most ``limit`` bytes; no more than that is ever unpacked.

    Raises `TraceError`: 413 for more, 415 for an unknown encoding, 400 for an invalid stream.
    """
    kind = (encoding or "").strip().lower()
    if kind in ("", "identity"):
        if len(body) > limit:
            raise TraceError(f"the body has more than {limit} bytes", status=413, hint="send smaller batches")
        return body
    if kind not in ("gzip", "x-gzip", "deflate"):
        raise TraceError(f"a body packed by {kind[:40]!r} cannot be read", status=415, hint="use gzip, or no packing")
    # Deflate is meant to have a zlib header, and some send it without.
    raw = kind == "deflate" and (len(body) < 2 or (body[0] * 256 + body[1]) % 31 != 0 or body[0] % 16 != 8)
    parts: list[bytes] = []
    size = 0
    while body:
        unpacking = zlib.decompressobj(-15 if raw else 47)
        try:
            parts.append(unpacking.decompress(body, limit - size + 1))
        except zlib.error as error:
            raise TraceError(f"the body is not packed by {kind}: {error}") from error
        size += len(parts[-1])
        if size > limit:
            raise TraceError(f"the body has more than {limit} bytes unpacked", status=413, hint="send smaller batches")
        if not unpacking.eof:
            raise TraceError(f"the body is cut off: its {kind} stream does not end")
        body = unpacking.unused_data  # gzip streams may follow one another
    return b"".join(parts)


def encode_traces(spans: Iterable[Span], protocol: Protocol, resource: Mapping[str, JSONValue]) -> bytes:
    """An ``ExportTraceServiceRequest`` of spans that have OpenTelemetry ids (`otlp_export.with_ids`).

    Raises `TraceError` for protobuf without the extra ``otel``.
    """
    if protocol == "protobuf":
        value = request_value(spans, resource, lambda text: base64.b64encode(bytes.fromhex(text)).decode())
        return _to_protobuf("ExportTraceServiceRequest", value)
    return json.dumps(request_value(spans, resource), separators=(",", ":"), allow_nan=False).encode()


def response_body(protocol: Protocol, rejected: int = 0, problems: Sequence[str] = ()) -> bytes:
    """The ``ExportTraceServiceResponse`` that says how many spans were rejected, and why (``partial_success``)."""
    message = encodable("; ".join(problems))
    answer: dict[str, Any] = {}
    if rejected or message:
        answer["partialSuccess"] = {"rejectedSpans": str(rejected), "errorMessage": message}
    if protocol == "protobuf":
        return _to_protobuf("ExportTraceServiceResponse", answer)
    return json.dumps(answer).encode()


def status_body(protocol: Protocol, status: int, message: str) -> bytes:
    """The ``google.rpc.Status`` that a request refused with the HTTP ``status`` is answered with."""
    code = _RPC_CODES.get(status, _RPC_INTERNAL)
    if protocol == "protobuf":
        return _status_bytes(code, message)
    return json.dumps({"code": code, "message": message}).encode()


def rejected_in(body: bytes, content_type: str | None) -> tuple[int, str]:
    """How many spans a collector's answer says were rejected, and its message; (0, "") for an unreadable answer."""
    try:
        binary = protocol_of(content_type) == "protobuf"
        answer = _from_protobuf("ExportTraceServiceResponse", body) if binary else json.loads(body)
        partial = answer.get("partialSuccess") or {}
        return int(partial.get("rejectedSpans") or 0), str(partial.get("errorMessage") or "")
    except (TraceError, ValueError, AttributeError, TypeError):
        return 0, ""
