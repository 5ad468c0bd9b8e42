"""What spans say in OTLP, in both encodings."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from lgov_core.errors import TraceError
from lgov_core.trace import semconv
from lgov_core.trace.canonical import canonical, states_result
from lgov_core.trace.otlp_export import with_ids
from lgov_core.trace.otlp_http import (
    CONTENT_TYPE_OF,
    Protocol,
    decode_traces,
    encode_traces,
)
from lgov_core.trace.rollout_spans import without_content
from lgov_core.types import Span, SpanEvent
from tests.otlp.otlp_parts import (
    IDS,
    PROTOCOLS,
    a_span,
    fixed_point,
    request_of,
    sent,
    spans,
    text,
)
from tests.slow import examples


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(given=st.lists(spans.filter(fixed_point), max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_what_goes_out_comes_back(protocol: Protocol, given: list[Span]) -> None:
    found = decode_traces(sent(given, protocol), CONTENT_TYPE_OF[protocol])
    # Spans of one scope stand together: the order within each is kept.
    order = lambda span: span.attributes.get(semconv.SCOPE_NAME, "")  # noqa: E731
    scopes = list(dict.fromkeys(map(order, given)))
    assert list(found) == sorted(given, key=lambda span: scopes.index(order(span)))
    assert found.rejected == 0


@given(given=st.lists(spans, max_size=4))
@settings(max_examples=40, deadline=None)
def test_both_encodings_say_the_same(given: list[Span]) -> None:
    one, other = (decode_traces(sent(given, protocol), CONTENT_TYPE_OF[protocol]) for protocol in PROTOCOLS)
    assert one == other


def test_an_independent_reader_of_the_protobuf_sees_the_span() -> None:
    failed = a_span(attributes={semconv.OPERATION: "chat", semconv.ERROR_TYPE: "TimeoutError"}, ended_at=None)
    request = ExportTraceServiceRequest.FromString(sent([a_span(), failed], "protobuf"))
    (group,) = request.resource_spans
    (scope,) = group.scope_spans
    first, second = scope.spans
    assert (scope.scope.name, first.name, first.kind) == ("lgov", "chat m", 3)
    assert (first.trace_id.hex(), first.span_id.hex()) == ("0" * 31 + "1", "00000000000000a1")
    assert (first.start_time_unix_nano, first.end_time_unix_nano) == (5_250_000_000, 6_500_000_000)
    said = {pair.key: pair.value for pair in first.attributes}
    assert (said["lgov.rollout_id"].string_value, said["lgov.attempt"].int_value) == ("r1", 2)
    assert (first.status.code, second.status.code, second.end_time_unix_nano) == (0, 2, 0)
    assert decode_traces(sent([failed], "protobuf"), "application/x-protobuf").spans == (replace(failed, claimed=True),)


def test_the_json_is_written_as_the_specification_has_it() -> None:
    request = json.loads(sent([a_span(attributes={"ids": [1, 2], "n": 2**62, "x": math.nan})], "json"))
    (span,) = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert span["traceId"] == "0" * 31 + "1"
    assert span["startTimeUnixNano"] == "5250000000"
    said = {pair["key"]: pair["value"] for pair in span["attributes"]}
    assert said["ids"] == {"arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}}
    assert (said["n"], said["x"]) == ({"intValue": str(2**62)}, {"doubleValue": "NaN"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_stays_one(protocol: Protocol, value: float) -> None:
    (found,) = decode_traces(sent([a_span(attributes={"v": value})], protocol), CONTENT_TYPE_OF[protocol])
    assert repr(found.attributes["v"]) == repr(value)


def pair(name: str, **value: Any) -> dict[str, Any]:
    return {"key": name, "value": value}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"intValue": "9007199254740993"}, 9007199254740993),
        ({"intValue": 7}, 7),
        ({"int_value": "7"}, 7),
        ({"doubleValue": 3}, 3.0),
        ({"doubleValue": "-Infinity"}, -math.inf),
        ({"boolValue": False}, False),
        ({"stringValue": ""}, ""),
        ({"bytesValue": "AAE="}, "AAE="),
        ({"arrayValue": {"values": [{"stringValue": "a"}, {}]}}, ["a", None]),
        ({"arrayValue": {}}, []),
        ({"kvlistValue": {"values": [pair("k", array_value={"values": [{"intValue": 1}]})]}}, {"k": [1]}),
        ({}, None),
    ],
)
def test_values_as_senders_write_them(value: Any, expected: Any) -> None:
    (span,) = decode_traces(request_of({**IDS, "attributes": [{"key": "v", "value": value}]}))
    assert span.attributes["v"] == expected
    assert type(span.attributes["v"]) is type(expected)


@pytest.mark.parametrize(
    "odd",
    [
        {"intValue": "x"},
        {"intValue": ""},
        {"intValue": True},
        {"intValue": 1.5},
        {"intValue": 2.0},
        {"intValue": None},
        {"intValue": [1]},
        {"intValue": str(2**64)},
        {"intValue": str(2**63)},
        {"intValue": -(2**64)},
        {"intValue": "9" * 5000},
        {"intValue": " 7 "},
        {"intValue": "7", "stringValue": "7"},
        {"int_value": "7"},
        {"doubleValue": 1},
        {"doubleValue": "NaN"},
        {"doubleValue": False},
        {"doubleValue": 10**400},
        {"stringValue": "7"},
        {},
        None,
        [],
        "7",
        7,
    ],
    ids=lambda odd: json.dumps(odd)[:40],
)
@pytest.mark.parametrize("plain", ["intValue", "doubleValue"])
def test_a_list_of_numbers_says_what_its_values_say_alone(plain: str, odd: Any) -> None:
    def said(*items: Any) -> Any:
        found = decode_traces(request_of({**IDS, "attributes": [pair("v", arrayValue={"values": [*items]})]}))
        return repr([span.attributes["v"] for span in found]), found.problems

    usual = {plain: 5}
    # Beside a value that is empty each is read by itself.
    assert said(usual, odd, usual) == tuple(
        part.replace(", None]", "]") if isinstance(part, str) else part for part in said(usual, odd, usual, {})
    )


def test_bytes_are_the_same_text_in_both_encodings() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    span.attributes.add(key="v").value.bytes_value = b"\0\1"
    (found,) = decode_traces(request.SerializeToString(), "application/x-protobuf")
    assert found.attributes["v"] == "AAE="


@pytest.mark.parametrize("case", ["hex", "upper", "base64", "unpadded"])
def test_ids_in_hexadecimal_and_in_base64(case: str) -> None:
    def written(text: str) -> str:
        as_base64 = base64.b64encode(bytes.fromhex(text)).decode()
        return {"hex": text, "upper": text.upper(), "base64": as_base64, "unpadded": as_base64.rstrip("=")}[case]

    span = {
        "traceId": written(IDS["traceId"]),
        "spanId": written(IDS["spanId"]),
        "parentSpanId": written("00" * 7 + "0a"),
    }
    (found,) = decode_traces(request_of(span))
    assert (found.trace_id, found.span_id, found.parent_id) == (IDS["traceId"], IDS["spanId"], "000000000000000a")


def test_snake_case_and_names_of_enums() -> None:
    span = {
        "trace_id": IDS["traceId"], "span_id": IDS["spanId"], "name": "n", "kind": "SPAN_KIND_SERVER",
        "start_time_unix_nano": 1_500_000_000, "end_time_unix_nano": "2500000000",
        "status": {"code": "STATUS_CODE_ERROR", "message": "boom"},
        "events": [{"time_unix_nano": "2000000000", "name": "e", "attributes": [pair("a", stringValue="b")]}],
    }  # fmt: skip
    body = json.dumps({"resource_spans": [{"scope_spans": [{"spans": [span]}]}]}).encode()
    (found,) = decode_traces(body)
    assert (found.started_at, found.ended_at) == (1.5, 2.5)
    assert found.attributes == {"span.kind": "server", "otel.status_code": "ERROR", "otel.status_description": "boom"}
    assert found.events == (SpanEvent("e", 2.0, {"a": "b"}),)


def test_the_rollout_is_the_spans_or_else_its_resources() -> None:
    own = {**IDS, "attributes": [pair("lgov.rollout_id", stringValue="mine"), pair("lgov.attempt", intValue="3")]}
    resource = [
        pair("lgov.rollout_id", stringValue="theirs"),
        pair("lgov.task_id", stringValue="t"),
        pair("host.name", stringValue="h"),
    ]
    first, second = decode_traces(request_of(own, IDS, resource=resource, name="lib", version="1"))
    assert (first.rollout_id, first.attempt, second.rollout_id, second.attempt) == ("mine", 3, "theirs", None)
    assert second.attributes == {"lgov.task_id": "t", "otel.scope.name": "lib", "otel.scope.version": "1"}
    theirs = {
        **IDS,
        "attributes": [
            pair("agentlightning.rollout_id", stringValue="a"),
            pair("agentlightning.attempt_id", stringValue="at-1"),
        ],
    }
    (span,) = decode_traces(request_of(theirs))
    assert (span.rollout_id, span.attempt) == ("a", None)
    assert span.attributes["agentlightning.attempt_id"] == "at-1"


BAD = {
    "no ids": {},
    "zero ids": {"traceId": "0" * 32, "spanId": "0" * 16},
    "short id": {**IDS, "spanId": "abc"},
    "id of another type": {**IDS, "spanId": 5},
    "bad parent": {**IDS, "parentSpanId": "xyz"},
    "bad time": {**IDS, "startTimeUnixNano": "yesterday"},
    "time before 1970": {**IDS, "startTimeUnixNano": "-5"},
    "huge number": {**IDS, "attributes": [pair("v", intValue="9" * 5000)]},
    "no boolean": {**IDS, "attributes": [pair("v", boolValue="yes")]},
    "no double": {**IDS, "attributes": [pair("v", doubleValue="much")]},
    "no value": {**IDS, "attributes": [{"key": "v", "value": 5}]},
    "no span": [],
    "name of another type": {**IDS, "name": {"a": 1}},
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_span_loses_no_other(bad: str) -> None:
    good = {**IDS, "name": "good"}
    found = decode_traces(request_of(good, BAD[bad], good))
    assert [span.name for span in found] == ["good", "good"]
    assert found.rejected == 1
    assert len(found.problems) == 1


def test_values_nested_too_deep_reject_their_span_only() -> None:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(40):
        value = {"arrayValue": {"values": [value]}}
    found = decode_traces(request_of({**IDS, "attributes": [{"key": "v", "value": value}]}, IDS))
    assert (len(found), found.rejected) == (1, 1)


def test_half_a_character_is_replaced() -> None:
    (span,) = decode_traces(
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + json.dumps({**IDS, "name": "\ud800"}).encode() + b"]}]}]}"
    )
    assert span.name.encode() == b"?"


def test_a_name_with_what_a_store_cannot_keep_loses_no_other() -> None:
    """PostgreSQL has no text with a NUL in it: of such a span no span of the batch would be kept."""
    (span,) = decode_traces(
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + json.dumps({**IDS, "name": "a\0b"}).encode() + b"]}]}]}"
    )
    assert span.name == "a\ufffdb"


def test_a_bad_span_in_protobuf_loses_no_other() -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    spans.add(name="bad")
    spans.add(name="good", trace_id=b"\1" * 16, span_id=b"\2" * 8)
    found = decode_traces(request.SerializeToString(), "application/x-protobuf; charset=utf-8")
    assert ([span.name for span in found], found.rejected) == (["good"], 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"resourceSpans":' + b"9" * 5000 + b"}",
        b'{"resourceSpans":"x"}',
        b'{"resourceSpans":[5]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":{}}]}]}',
    ],
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(TraceError, match="not an ExportTraceServiceRequest") as caught:
        decode_traces(body, "application/json")
    assert caught.value.status == 400


def test_protobuf_that_is_none_is_refused_and_an_empty_request_is_one() -> None:
    with pytest.raises(TraceError, match="not an ExportTraceServiceRequest"):
        decode_traces(b"\x0a\xff\xff", "application/x-protobuf")
    assert len(decode_traces(b"", "application/x-protobuf")) == 0
    assert len(decode_traces(b"{}", "application/json")) == 0


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/grpc"])
def test_another_content_type_is_refused(content_type: str | None) -> None:
    with pytest.raises(TraceError) as caught:
        decode_traces(b"{}", content_type)
    assert caught.value.status == 415


KEYS = st.sampled_from(
    [
        "traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "attributes", "events", "links", "status",
        "key", "value", "stringValue", "intValue", "doubleValue", "boolValue", "arrayValue", "kvlistValue", "bytesValue",
        "values", "code", "message", "droppedEventsCount",
    ]
)  # fmt: skip
NAMES = st.sampled_from(
    [
        "gen_ai.input.messages", "llm.output_messages.0.message.content", "output.value", "openinference.span.kind",
        "agentlightning.reward.0.value", "gen_ai.response.id", "lgov.rollout_id", "lgov.attempt", "otel.links",
        "otel.status_code", "lgov.outcome",
    ]
)  # fmt: skip
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | text
    | st.sampled_from([*IDS.values(), "NaN", '[{"parts":[{}]}]']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | text, inner, max_size=3),
    max_leaves=8,
)
attribute_lists = st.lists(
    st.fixed_dictionaries({"key": NAMES, "value": st.dictionaries(KEYS, anything, max_size=2)}), max_size=4
)


@given(
    st.lists(st.fixed_dictionaries({}, optional={"attributes": attribute_lists}), max_size=2),
    st.dictionaries(KEYS, anything),
)
@settings(max_examples=examples(80), deadline=None)
def test_whatever_is_sent_nothing_but_refusals_come_of_it(spans: list[Any], further: dict[str, Any]) -> None:
    try:
        found = decode_traces(request_of({**IDS, **further}, *({**IDS, **span} for span in spans)))
    except TraceError:
        return
    assert len(found) + found.rejected == len(spans) + 1
    for span in found:
        known = canonical(span)
        assert canonical(known) == known or "nan" in repr(known)
        states_result(span)
        bare = without_content(span)
        for protocol in PROTOCOLS:
            encode_traces(with_ids([span, bare]), protocol, {})


@given(st.binary(max_size=60))
@settings(max_examples=examples(80), deadline=None)
def test_any_bytes_as_protobuf(body: bytes) -> None:
    with contextlib.suppress(TraceError):
        assert all(span.claimed for span in decode_traces(body, "application/x-protobuf"))
