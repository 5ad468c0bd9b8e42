"""The sink that sends as it goes: what arrives, what is counted, and that nobody waits for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from lgov_core.trace.otlp_export import Collector, CollectorSink
from lgov_core.types import Action, Decision, Point, Reward, Span, ToolOutcome
from tests.cells import live_span
from tests.otlp.test_export import SECRET, CollectorServer, collector, one_span, said  # noqa: F401 - a fixture


class DenyAll(BoundedPolicy):
    name = "none"

    def judge(self, action: Action) -> Decision | None:
        return self.deny("rule", f"because of {SECRET}")


def act(governor: Governor) -> None:
    with enter_scope(RolloutScope("r1", 2)), live_span(governor, semconv.EXECUTE_TOOL, "f") as span:
        call = Action(
            Point.PRE_TOOL_CALL,
            "f",
            arguments={"a": SECRET},
            call_id="c1",
            rollout_id="r1",
            attempt=2,
            span_id=span.span_id,
        )
        decision = governor.decide(call)
        governor.record(ToolOutcome(call.changed(), "denied", decision=decision))
        governor.observe(Reward(0.5, rollout_id="r1", attempt=2, tool_call_id="c1"))


@pytest.mark.parametrize("content", [True, False])
def test_what_is_observed_arrives(collector: CollectorServer, content: bool) -> None:  # noqa: F811
    sink = CollectorSink(Collector(collector.url, compress=False), content=content)
    act(Governor([DenyAll()], plugins=[sink]))
    sink.close()
    spans = {span.name: span for span in collector.spans()}
    assert spans.keys() == {"execute_tool f", "lgov.decision", "lgov.reward"}
    assert (sink.sent, sink.dropped) == (3, 0)
    assert len({span.trace_id for span in spans.values()}) == 1
    assert spans["lgov.decision"].parent_span_id == spans["execute_tool f"].span_id
    assert said(spans["lgov.reward"])["gen_ai.tool.call.id"] == "c1"
    assert (SECRET.encode() in b"".join(collector.bodies)) == content


def test_a_decision_goes_into_the_trace_of_the_span_it_is_under(collector: CollectorServer) -> None:  # noqa: F811
    sink = CollectorSink(Collector(collector.url))
    decision = Span(semconv.DECISION_SPAN_NAME, "span_1", 1e9, 1e9, {}, "r1", 1, parent_id="00000000000000aa")
    sink.lgov_observe(decision)
    sink.lgov_observe(Span("s", "00000000000000aa", 1e9, 1e9, {}, "r1", 1, trace_id="0" * 31 + "7"))
    sink.lgov_observe(Span(semconv.DECISION_SPAN_NAME, "span_2", 1e9, 1e9, {}, "r1", 1, parent_id="never shown"))
    sink.close()
    traces = {span.name + str(number): span.trace_id.hex() for number, span in enumerate(collector.spans())}
    assert list(traces.values())[:2] == ["0" * 31 + "7"] * 2
    assert len(traces) == 3


def test_also_when_they_go_out_in_different_requests(collector: CollectorServer) -> None:  # noqa: F811
    sink = CollectorSink(Collector(collector.url))
    sink.lgov_observe(Span(semconv.DECISION_SPAN_NAME, "span_1", 1e9, 1e9, {}, "r1", 1, parent_id="00000000000000cc"))
    for span in one_span() * 511:
        sink.lgov_observe(span)
    sink.lgov_observe(Span("above", "00000000000000cc", 1e9, 1e9, {}, "r1", 1, trace_id="0" * 31 + "7"))
    sink.close()
    above, decision = (
        next(span for span in collector.spans() if span.name == name) for name in ("above", "lgov.decision")
    )
    assert (decision.trace_id, decision.parent_span_id) == (above.trace_id, above.span_id)


def test_a_full_queue_drops_and_counts(collector: CollectorServer) -> None:  # noqa: F811
    sink = CollectorSink(Collector(collector.url), queue=2)
    with sink._lock:  # the thread that sends waits
        waiting = threading.Thread(target=lambda: [sink.lgov_observe(span) for span in one_span() * 5])
        waiting.start()
    waiting.join()
    sink.close()
    assert sink.sent + sink.dropped == 5
    sink.lgov_observe(one_span()[0])
    assert sink.sent + sink.dropped == 6
    sink.close()


def test_a_collector_that_refuses_is_told_and_counted(collector: CollectorServer) -> None:  # noqa: F811
    collector.script = [(400, {}, b"no")]
    sink = CollectorSink(Collector(collector.url))
    sink.lgov_observe(one_span()[0])
    sink.close()
    assert (sink.sent, sink.dropped) == (0, 1)
    assert "it answered 400" in sink.last_problem


def test_closing_does_not_wait_for_a_collector_that_is_away(collector: CollectorServer) -> None:  # noqa: F811
    collector.script = [(503, {"retry-after": "30"}, b"")] * 10
    sink = CollectorSink(Collector(collector.url, attempts=3))
    sink.lgov_observe(one_span()[0])
    sink.close()
    assert (sink.sent, sink.dropped, len(collector.bodies)) == (0, 1, 3)


def test_a_span_is_sent_without_closing(collector: CollectorServer) -> None:  # noqa: F811
    arrived = threading.Event()
    sent: Any = CollectorSink(Collector(collector.url))
    collector.on_request = arrived.set
    try:
        for span in one_span() * 512:
            sent.lgov_observe(span)
        assert arrived.wait(20)
    finally:
        sent.close()
    assert (
        sum(
            len(ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans)
            for body in collector.bodies
        )
        == 512
    )


def test_an_outage_is_logged_once_and_its_end_too(
    collector: CollectorServer,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    collector.script = [(400, {}, b"no"), (400, {}, b"no"), (200, {}, b""), (400, {}, b"no")]
    caplog.set_level("INFO")
    sink = CollectorSink(Collector(f"{collector.url}?key=secret"))
    for _ in range(4):
        sink._send(one_span())
    assert [record.getMessage() for record in caplog.records] == [
        "collector is down",
        "collector is back",
        "collector is down",
    ]
    assert "it answered 400" in str(vars(caplog.records[0]))
    assert "secret" not in str([vars(record) for record in caplog.records])
    assert {name: value for _, _, _, _, counts in sink.readings() for name, value in counts.items()} == {
        "sent": 1,
        "dropped": 3,
    }
    sink.close()


def test_an_end_does_not_wait_for_each_batch_of_a_collector_that_is_away(collector: CollectorServer) -> None:  # noqa: F811
    collector.script = [(400, {}, b"no")] * 100
    sink = CollectorSink(Collector(collector.url))
    with sink._lock:
        sink._waiting.extend(one_span() * 2000)
    sink.close()
    assert (sink.sent, sink.dropped, len(collector.bodies) <= 2) == (0, 2000, True)


def test_a_decision_of_an_endpoint_does_not_wait_for_the_agents_span(collector: CollectorServer) -> None:  # noqa: F811
    sink = CollectorSink(Collector(collector.url))
    decision = Span(semconv.DECISION_SPAN_NAME, "span_1", 1e9, 1e9, {semconv.FRAMEWORK: "endpoint"}, "r1", 1, "c1")
    sink.lgov_observe(decision)
    assert not sink._held
    sink.close()
    assert sink.sent == 1
