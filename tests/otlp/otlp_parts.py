"""Values and helpers of these tests."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from lgov_core.trace import otlp_spans as otlp_span
from lgov_core.trace import semconv
from lgov_core.trace.otlp_export import with_ids
from lgov_core.trace.otlp_http import (
    Protocol,
    encode_traces,
)
from lgov_core.types import Span, SpanEvent

PROTOCOLS: tuple[Protocol, ...] = ("protobuf", "json")

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)
#: Names of lgov's own that have no place of their own in OTLP, and names of others.
names = (
    st.sampled_from([semconv.RESPONSE_ID, semconv.PROMPT_TOKEN_IDS, semconv.REWARD_VALUE, "input.value", "x"]) | text
)
#: Hypothesis tries texts that stand in the code, so also these: they have a place of their own, and are not left there.
PLACED = {*semconv.ROLLOUT_NAMES, *semconv.ATTEMPT_NAMES, *otlp_span.ELSEWHERE, semconv.CLAIMED}
attributes = st.dictionaries(names.filter(lambda name: name not in PLACED), values, max_size=5)
#: A float of today's times is coarser than a nanosecond, so it comes back as it was.
moments = st.floats(1e9, 4e9)
span_ids = st.integers(1, 2**64 - 1).map(lambda number: f"{number:016x}")
trace_ids = st.integers(1, 2**128 - 1).map(lambda number: f"{number:032x}")
elsewhere = st.fixed_dictionaries(
    {},
    optional={
        semconv.SCOPE_NAME: st.just("instrumentation"),
        semconv.STATUS_CODE: st.sampled_from(["OK", "ERROR"]),
        semconv.STATUS_DESCRIPTION: text.filter(bool),
        semconv.SPAN_KIND: st.sampled_from(["server", "client", "producer", "consumer"]),
        semconv.LINKS: st.lists(
            st.fixed_dictionaries({"trace_id": trace_ids, "span_id": span_ids}), min_size=1, max_size=2
        ),
        semconv.DROPPED_ATTRIBUTES: st.integers(1, 2**32 - 1),
    },
)
spans = st.builds(
    Span,
    name=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    span_id=span_ids,
    started_at=moments,
    ended_at=st.none() | moments,
    attributes=st.builds(lambda one, more: {**one, **more}, attributes, elsewhere),
    rollout_id=st.none() | st.text(st.characters(codec="ascii", exclude_characters="/\r\n\0"), min_size=1, max_size=8),
    attempt=st.none() | st.integers(1, 99),
    parent_id=st.none() | span_ids,
    trace_id=trace_ids,
    events=st.lists(st.builds(SpanEvent, text, moments, attributes), max_size=2).map(tuple),
    claimed=st.just(True),
)


def sent(spans: list[Span], protocol: Protocol) -> bytes:
    return encode_traces(with_ids(spans), protocol, {"service.name": "lgov"})


def fixed_point(span: Span) -> bool:
    """A failed span's status is its error; it has one or the other."""
    return semconv.ERROR_TYPE not in span.attributes


def a_span(**changes: Any) -> Span:
    span = Span("chat m", "00000000000000a1", 5.25, 6.5, {semconv.OPERATION: "chat"}, "r1", 2, None, "0" * 31 + "1")
    return replace(span, **changes)


IDS = {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}


def request_of(*spans: Any, resource: Any = None, **scope: Any) -> bytes:
    group = {"resource": {"attributes": resource or []}, "scopeSpans": [{"scope": scope, "spans": list(spans)}]}
    return json.dumps({"resourceSpans": [group]}).encode()
