"""The span processor: what the program's own OpenTelemetry traces is stored, never in its way; and it agrees with lgov."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Link, SpanKind, StatusCode

from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import TraceStore, open_store
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.trace import semconv
from lgov_core.trace.otlp_http import decode_traces
from lgov_core.trace.sink import LgovSpanProcessor
from lgov_core.types import Span


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    opened = open_store(tmp_path / "traces.db")
    yield opened
    opened.close()


def traced(processor: Any, **options: Any) -> TracerProvider:
    provider = TracerProvider(**options)
    provider.add_span_processor(processor)
    return provider


def test_a_span_is_stored_with_all_it_has(store: TraceStore) -> None:
    provider = traced(LgovSpanProcessor(store), resource=Resource.create({"lgov.task_id": "t", "service.name": "s"}))
    tracer = provider.get_tracer("program", "1.2")
    with tracer.start_as_current_span("outer") as outer:
        link = Link(outer.get_span_context(), {"why": "because"})
        with tracer.start_as_current_span("inner", kind=SpanKind.SERVER, links=[link]) as inner:
            inner.set_attributes({"n": [1, 2], "x": 0.5, "gen_ai.response.id": "c"})
            inner.add_event("e", {"a": "b"})
            inner.set_status(StatusCode.ERROR, "broken")
    assert provider.force_flush()
    first, second = store.spans()
    ids = outer.get_span_context()
    assert (first.parent_id, first.trace_id, first.claimed) == (second.span_id, f"{ids.trace_id:032x}", True)
    assert first.span_id == f"{inner.get_span_context().span_id:016x}"
    assert first.attributes == {
        "n": [1, 2], "x": 0.5, "gen_ai.response.id": "c", semconv.TASK_ID: "t", semconv.SERVICE_NAME: "s",
        semconv.SPAN_KIND: "server", semconv.STATUS_CODE: "ERROR", semconv.STATUS_DESCRIPTION: "broken",
        semconv.SCOPE_NAME: "program", semconv.SCOPE_VERSION: "1.2",
        semconv.LINKS: [{"trace_id": first.trace_id, "span_id": second.span_id, "attributes": {"why": "because"}}],
    }  # fmt: skip
    assert [(event.name, event.attributes) for event in first.events] == [("e", {"a": "b"})]
    assert first.ended_at is not None
    assert first.started_at <= first.ended_at


def test_the_processor_and_otlp_say_the_same(store: TraceStore) -> None:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    memory = InMemorySpanExporter()
    provider = traced(LgovSpanProcessor(store))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with enter_scope(RolloutScope("r1", 3)), provider.get_tracer("program").start_as_current_span("s") as span:
        span.set_attributes({"n": [1, 2], "t": ("a",), "flag": True})
        span.record_exception(KeyError("k"))
    store.flush()
    body = encode_spans(memory.get_finished_spans()).SerializeToString()
    assert list(decode_traces(body, "application/x-protobuf")) == store.spans()


def test_whose_span_it_is(store: TraceStore) -> None:
    tracer = traced(LgovSpanProcessor(store)).get_tracer("program")
    tracer.start_span("nobody's").end()
    with enter_scope(RolloutScope("scope", 2, task_id="t")):
        tracer.start_span("of the scope").end()
        tracer.start_span("its own", attributes={"lgov.rollout_id": "own", "lgov.attempt": 5}).end()
        token = context.attach(baggage.set_baggage("lgov.rollout_id", "baggage"))
        try:
            tracer.start_span("of the baggage").end()
        finally:
            context.detach(token)
    store.flush()
    whose = {span.name: (span.rollout_id, span.attempt, span.attributes.get(semconv.TASK_ID)) for span in store.spans()}
    assert whose == {
        "nobody's": (None, None, None),
        "of the scope": ("scope", 2, "t"),
        "its own": ("own", 5, "t"),
        "of the baggage": ("baggage", None, None),
    }


def test_a_span_ends_elsewhere_than_it_began(store: TraceStore) -> None:
    tracer = traced(LgovSpanProcessor(store)).get_tracer("program")
    with enter_scope(RolloutScope("r1", 1)):
        span = tracer.start_span("s")
    thread = threading.Thread(target=span.end)
    thread.start()
    thread.join()
    store.flush()
    assert [one.rollout_id for one in store.spans()] == ["r1"]


def test_spans_of_lgov_and_spans_not_sampled_are_left_out(store: TraceStore) -> None:
    traced(LgovSpanProcessor(store)).get_tracer("lgov").start_span("ours").end()
    traced(LgovSpanProcessor(store), sampler=ALWAYS_OFF).get_tracer("program").start_span("unsampled").end()
    store.flush()
    assert store.spans() == []


class BrokenStore:
    def add_span(self, span: Span) -> None:
        raise OSError("disk full")

    def flush(self) -> None:
        raise OSError("disk full")


def test_what_the_store_raises_does_not_reach_the_program() -> None:
    processor = LgovSpanProcessor(BrokenStore())
    with traced(processor).get_tracer("program").start_as_current_span("s"):
        pass
    assert processor.failed == 1
    assert processor.force_flush() is False


def test_a_full_queue_drops_and_does_not_block(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "t.db", span_queue=5) as store:
        store.add_spans([])
        held = store._writer._database  # what it writes waits for this lock
        processor = LgovSpanProcessor(store)
        tracer = traced(processor).get_tracer("program")
        held.hold()
        try:
            for number in range(50):
                tracer.start_span(f"s{number}").end()
        finally:
            held.release()
        assert processor.failed == 0
        assert processor.force_flush() in (True, False)
        assert len(store.spans()) + store.dropped_spans == 50
        assert store.dropped_spans > 0


def test_a_flush_that_takes_too_long_is_given_up() -> None:
    gate = threading.Event()

    class Slow(BrokenStore):
        def flush(self) -> None:
            gate.wait()

    assert LgovSpanProcessor(Slow()).force_flush(timeout_millis=1) is False
    gate.set()


def test_after_shutdown_nothing_is_taken(store: TraceStore) -> None:
    provider = traced(LgovSpanProcessor(store))
    tracer = provider.get_tracer("program")
    tracer.start_span("before").end()
    provider.shutdown()
    tracer.start_span("after").end()
    store.flush()
    assert [span.name for span in store.spans()] == ["before"]


def test_live_spans_and_opentelemetry_record_the_same_run(tmp_path: Path) -> None:
    program = Path(__file__).with_name("traced_agent.py")
    environment = {
        **os.environ,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    recorded = json.loads(done.stdout.splitlines()[-1])
    live = {span["span_id"]: span for span in recorded["live"] if span["name"] != semconv.DECISION_SPAN_NAME}
    otel = {span["span_id"]: span for span in recorded["otel"]}
    assert sorted(span["name"] for span in live.values()) == [
        "chat scripted",
        "chat scripted",
        "execute_tool add",
        "invoke_agent clerk",
    ]
    for span in otel.values():  # what only a span from outside has
        assert span.pop("claimed")
        assert span["attributes"].pop(semconv.SERVICE_NAME)
    for span in live.values():
        assert not span.pop("claimed")
    assert otel == live
    assert {(span["rollout_id"], span["attempt"]) for span in live.values()} == {("r1", 2)}
    decisions = [span for span in recorded["live"] if span["name"] == semconv.DECISION_SPAN_NAME]
    assert {span["parent_id"] for span in decisions} <= live.keys()
    assert not [span for span in recorded["otel"] if span["name"] == semconv.DECISION_SPAN_NAME]
