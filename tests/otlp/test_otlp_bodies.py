"""Compressed OTLP bodies, and answers."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
import zlib
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)

from lgov_core.errors import TraceError
from lgov_core.trace.otlp_http import (
    decode_traces,
    response_body,
    status_body,
)
from tests.otlp.otlp_parts import (
    IDS,
    a_span,
    request_of,
    sent,
)


def raw_deflate(body: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-15)
    return packing.compress(body) + packing.flush()


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("gzip", lambda body: gzip.compress(body[:9]) + gzip.compress(body[9:])),
        ("identity", bytes),
    ],
)
def test_packed_bodies(encoding: str, packed: Any) -> None:
    body = sent([a_span()], "json")
    assert decode_traces(packed(body), "application/json", encoding).spans == (a_span(claimed=True),)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(TraceError) as caught:
            decode_traces(bomb, "application/json", "gzip", max_inflated=1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.status == 413
    many = gzip.compress(b" " * 600) * 2
    with pytest.raises(TraceError, match="more than 1000 bytes"):
        decode_traces(many, "application/json", "gzip", max_inflated=1000)


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip", "gzip", 400),
        (gzip.compress(b"{}" * 100)[:-9], "gzip", 400),
        (gzip.compress(b"{}") + b"junk", "gzip", 400),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
    ids=["no gzip", "cut off", "more after it", "br", "twice"],  # a compressed body holds the time: no name for a test
)
def test_bodies_that_cannot_be_unpacked(body: bytes, encoding: str, status: int) -> None:
    with pytest.raises(TraceError) as caught:
        decode_traces(body, "application/json", encoding)
    assert caught.value.status == status


def test_protobuf_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.collector.trace.v1", None)
    with pytest.raises(TraceError, match="needs opentelemetry-proto") as caught:
        decode_traces(b"", "application/x-protobuf")
    assert caught.value.status == 415
    assert b"opentelemetry-proto" in status_body("protobuf", 415, str(caught.value))
    assert len(decode_traces(request_of(IDS), "application/json")) == 1


def test_answers_are_read_by_others() -> None:
    assert json.loads(response_body("json")) == {}
    assert response_body("protobuf") == b""
    assert json.loads(response_body("json", 2, ["why"])) == {
        "partialSuccess": {"rejectedSpans": "2", "errorMessage": "why"}
    }
    answer = ExportTraceServiceResponse.FromString(response_body("protobuf", 2, ["why"]))
    assert (answer.partial_success.rejected_spans, answer.partial_success.error_message) == (2, "why")
    from google.rpc.status_pb2 import Status

    status = Status.FromString(status_body("protobuf", 400, "bad"))
    assert (status.code, status.message) == (3, "bad")
    long = "no way. " * 40
    assert Status.FromString(status_body("protobuf", 403, long)).message == long
    assert json.loads(status_body("json", 403, "no")) == {"code": 7, "message": "no"}
