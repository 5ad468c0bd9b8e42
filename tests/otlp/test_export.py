"""Spans out: what a collector gets, in which order things are tried again, and what does not go out."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from lgov_core.commands import cli
from lgov_core.errors import TraceError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import TracesRoute
from lgov_core.gateway.server import EndpointServer
from lgov_core.store import TraceStore, open_store
from lgov_core.trace import semconv
from lgov_core.trace.otlp_export import Collector, export_spans, send_spans, with_ids
from lgov_core.trace.rollout_spans import rollout_spans, without_content
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span, SpanEvent

SECRET = "the launch code is 0000"


class CollectorServer:
    """A collector with a script: answers each request with the next (status, headers, body), then with 200."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], bytes]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.on_request: Callable[[], object] = lambda: None
        ours = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                ours.headers.append({name.lower(): value for name, value in self.headers.items()})
                ours.bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
                ours.on_request()
                status, headers, answer = ours.script.pop(0) if ours.script else (200, {}, b"")
                if not status:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {"content-length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def spans(self) -> list[Any]:
        """Every span that came, read by OpenTelemetry's own classes."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [
            span
            for one in requests
            for group in one.resource_spans
            for part in group.scope_spans
            for span in part.spans
        ]


@pytest.fixture
def collector() -> Iterator[CollectorServer]:
    made = CollectorServer()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    opened = open_store(tmp_path / "traces.db")
    fill(opened)
    yield opened
    opened.close()


def fill(store: TraceStore) -> None:
    """Two rollouts: one with everything there is, one that only began."""
    store.add_rollouts([Rollout("r1", "t1", "run", {"q": SECRET}, 1e9), Rollout("r2", "t2", "other", {}, 1e9)])
    store.start_attempt("r1", 1)
    call = CapturedCall(
        "chat-1", "m", {"messages": [{"role": "user", "content": SECRET}]},
        {"choices": [{"message": {"role": "assistant", "content": SECRET}}]}, (1, 2), (3,), (-0.5,), "stop", 4, 0.7, 1.0,
        1e9, 1e9 + 1, "r1", 1, "clerk", ("c1",),
    )  # fmt: skip
    store.add_call(call)
    store.add_rewards(
        [Reward(0.25, "air", "r1", 1, tool_call_id="c1", source="rule"), Reward(0.5, "task", "r1", 1, "chat-1")]
    )
    agent = Span("invoke_agent clerk", "00000000000000aa", 1e9, 1e9 + 2, {semconv.OPERATION: "invoke_agent"}, "r1", 1)
    chat = replace(
        agent,
        name="chat m",
        span_id="00000000000000bb",
        parent_id=agent.span_id,
        attributes={semconv.OPERATION: "chat", semconv.RESPONSE_ID: "chat-1", semconv.INPUT_MESSAGES: SECRET},
    )
    tool = replace(
        agent,
        name="execute_tool f",
        span_id="c1",
        parent_id=agent.span_id,
        attributes={semconv.OPERATION: "execute_tool", semconv.TOOL_CALL_ID: "c1", semconv.TOOL_RESULT: SECRET},
    )
    decision = replace(
        agent,
        name=semconv.DECISION_SPAN_NAME,
        span_id="span_1",
        parent_id="c1",
        attributes={semconv.DECISION_EFFECT: "deny", semconv.DECISION_REASON: SECRET, semconv.ERROR_MESSAGE: SECRET},
    )
    claim = replace(
        agent,
        name=f"ask {SECRET}",
        span_id="00000000000000cc",
        trace_id="0" * 31 + "5",
        claimed=True,
        attributes={
            "llm.model_name": "m",
            "input.value": SECRET,
            "openinference.span.kind": "LLM",
            "x": [SECRET],
            "y": {"z": SECRET},
        },
        events=(
            SpanEvent("note", 1e9, {"text": SECRET}),
            SpanEvent("exception", 1e9, {"exception.message": SECRET, "exception.type": "E"}),
        ),
    )
    store.add_spans([agent, chat, tool, decision, claim])
    store.finish_attempt("r1", 1, Outcome.FAILED, error=SECRET, rewards=[Reward(1.0)])
    store.start_attempt("r2", 1)


def said(span: Any) -> dict[str, Any]:
    values = {pair.key: pair.value for pair in span.attributes}
    return {name: getattr(value, value.WhichOneof("value") or "string_value") for name, value in values.items()}


def test_a_rollout_with_all_that_belongs_to_it(store: TraceStore, collector: CollectorServer) -> None:
    sent = export_spans(store, Collector(collector.url, {"x-tenant": "t"}))
    assert (sent.rollouts, sent.spans, sent.requests, sent.rejected) == (2, len(collector.spans()), 1, 0)
    assert collector.headers[0]["x-tenant"] == "t"
    spans = [span for span in collector.spans() if said(span)["lgov.rollout_id"] == "r1"]
    by_name: dict[str, Any] = {}
    for span in spans:
        by_name.setdefault(span.name, span)
    root, agent, call = by_name["lgov.rollout"], by_name["invoke_agent clerk"], spans[6]
    assert {span.trace_id for span in spans if span.name != f"ask {SECRET}"} == {root.trace_id}
    assert said(root)["lgov.outcome"] == "failed"
    assert (said(root)["lgov.task_id"], said(root)["lgov.run_id"], said(root)["lgov.attempt"]) == ("t1", "run", 1)
    assert agent.parent_span_id == root.span_id
    assert agent.span_id.hex() == "00000000000000aa"
    assert by_name["lgov.decision"].parent_span_id == by_name["execute_tool f"].span_id
    assert call.parent_span_id == by_name["chat m"].span_id
    assert said(call)["gen_ai.response.id"] == "chat-1"
    assert [value.int_value for value in said(call)["lgov.prompt_token_ids"].values] == [1, 2]
    assert said(call)["lgov.weights_version"] == 4
    rewards = [said(span) for span in spans if span.name == "lgov.reward"]
    assert [(one["lgov.reward.value"], one["lgov.reward.dimension"]) for one in rewards] == [
        (0.25, "air"),
        (0.5, "task"),
        (1.0, "task"),
    ]
    assert (rewards[0]["gen_ai.tool.call.id"], rewards[1]["gen_ai.response.id"]) == ("c1", "chat-1")
    assert not {"gen_ai.tool.call.id", "gen_ai.response.id"} & rewards[2].keys()
    assert [span.name for span in spans if said(span).get("lgov.claimed")] == [f"ask {SECRET}"]
    running = next(span for span in collector.spans() if said(span)["lgov.rollout_id"] == "r2")
    assert (running.end_time_unix_nano, "lgov.outcome" in said(running)) == (0, False)


def test_a_rollout_that_nobody_opened_goes_out_too(tmp_path: Path, collector: CollectorServer) -> None:
    with open_store(tmp_path / "other.db") as opened:  # type: ignore[attr-defined]
        for name in ("seen", "called"):
            opened.add_spans(
                [Span("s", f"{len(name):016x}", 1e9, 1e9, {}, name, 3), Span("nobody's", "0" * 15 + "9", 1e9, 1e9, {})]
            )
        assert export_spans(opened, Collector(collector.url)).rollouts == 2
        assert rollout_spans(opened, "unknown") == []
    assert {(said(span)["lgov.rollout_id"], said(span)["lgov.attempt"]) for span in collector.spans()} == {
        ("seen", 3),
        ("called", 3),
    }


def test_the_same_rollout_has_the_same_ids_each_time(store: TraceStore, collector: CollectorServer) -> None:
    export_spans(store, Collector(collector.url))
    export_spans(store, Collector(collector.url))
    first, second = collector.bodies
    assert first == second
    ids = [span.span_id for span in ExportTraceServiceRequest.FromString(first).resource_spans[0].scope_spans[0].spans]
    assert len(set(ids)) == len(ids)
    assert all(len(one) == 8 for one in ids)


def test_the_top_of_another_trace_stays_one(tmp_path: Path) -> None:
    with open_store(tmp_path / "traces.db") as opened:
        opened.add_spans(
            [Span("ours", "s1", 1.0, 2.0, {}, "r", 1), Span("theirs", "s2", 1.0, 2.0, {}, "r", 1, trace_id="t")]
        )
        parents = {span.name: span.parent_id for span in rollout_spans(opened, "r")}
    assert parents == {semconv.ROLLOUT_SPAN_NAME: None, "ours": "r/1", "theirs": None}


def test_ids_do_not_depend_on_what_else_is_sent(store: TraceStore) -> None:
    spans = rollout_spans(store, "r1")
    alone = {(span.trace_id, span.span_id, span.parent_id) for span in with_ids(spans)}
    others = with_ids([*rollout_spans(store, "r2"), *reversed(spans)])
    assert len(alone) == len(spans)
    assert alone < {(span.trace_id, span.span_id, span.parent_id) for span in others}


def test_a_span_without_a_trace_is_in_its_parents() -> None:
    top = Span("top", "00000000000000aa", 1.0, 2.0, {}, "r1", 1, trace_id="0" * 31 + "7")
    below = [replace(top, span_id=f"s{number}", parent_id=f"s{number - 1}", trace_id=None) for number in range(1, 3000)]
    spans = [*reversed(below), replace(top, span_id="s0", parent_id=top.span_id, trace_id=None), top]
    assert {span.trace_id for span in with_ids(spans)} == {top.trace_id}


def test_a_cycle_of_spans_has_one_trace() -> None:
    one = Span("one", "a", 1.0, 2.0, {}, parent_id="b")
    made = with_ids([one, replace(one, span_id="b", parent_id="c"), replace(one, span_id="c", parent_id="a")])
    assert len({span.trace_id for span in made}) == 1
    assert {span.parent_id for span in made} == {span.span_id for span in made}


def test_nothing_that_was_said_goes_out_without_content(store: TraceStore, collector: CollectorServer) -> None:
    export_spans(store, Collector(collector.url, compress=False), content=True)
    export_spans(store, Collector(collector.url, compress=False), content=False)
    whole, bare = collector.bodies
    assert whole.count(SECRET.encode()) == 13
    assert SECRET.encode() not in bare
    spans = {
        span.name: said(span)
        for span in ExportTraceServiceRequest.FromString(bare).resource_spans[0].scope_spans[0].spans
    }
    assert {"lgov.rollout", "chat m", "execute_tool f", "lgov.decision", "lgov.reward"} <= spans.keys()
    assert "lgov.prompt_token_ids" not in spans["chat m"]
    assert spans["lgov.decision"]["lgov.decision.effect"] == "deny"
    assert spans["chat m"]["gen_ai.request.model"] == "m"


def test_names_and_values_of_strangers_do_not_go_out_without_content() -> None:
    claim = Span(
        SECRET, "00000000000000cc", 1.0, 2.0, {"a": SECRET, semconv.AGENT_NAME: "x" * 1000}, "r", 1, claimed=True
    )
    bare = without_content(claim)
    assert (bare.name, bare.attributes) == ("span", {})
    assert without_content(bare) == bare


# ---------------------------------------------------------------------- failures


def one_span() -> list[Span]:
    return [Span("s", "00000000000000aa", 1e9, 1e9, {}, "r1", 1)]


def test_what_may_pass_is_tried_again_with_growing_waits(collector: CollectorServer) -> None:
    collector.script = [
        (503, {}, b""),
        (429, {"retry-after": "7"}, b""),
        (0, {}, b""),
        (502, {"retry-after": "9999"}, b""),
        (504, {}, b""),
    ]
    waits: list[float] = []
    sent = send_spans(one_span(), Collector(collector.url, backoff_limit_s=12), sleep=waits.append)
    assert (sent.spans, sent.retries, len(set(collector.bodies))) == (1, 5, 1)
    first, asked, lost, limited, last = waits
    assert 1 <= first <= 1.5
    assert (asked, limited) == (7, 12)
    assert 4 <= lost <= 6
    assert 12 <= last <= 18


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 301])
def test_what_will_not_pass_is_not_tried_again(collector: CollectorServer, status: int) -> None:
    collector.script = [(status, {"retry-after": "1"}, b"no\x1b[31m")]
    with pytest.raises(TraceError, match=f"it answered {status}: no ") as caught:
        send_spans(one_span(), Collector(collector.url), sleep=lambda seconds: pytest.fail("it waited"))
    assert len(collector.bodies) == 1
    assert "\x1b" not in str(caught.value)


def test_a_collector_that_never_comes_is_given_up(collector: CollectorServer) -> None:
    collector.server.shutdown()
    collector.server.server_close()
    waits: list[float] = []
    with pytest.raises(TraceError, match="is the collector running there") as caught:
        send_spans(one_span(), Collector(f"{collector.url}?key=secret", attempts=3), sleep=waits.append)
    assert len(waits) == 2
    assert "secret" not in str(caught.value)


def test_what_the_collector_rejects_is_counted(collector: CollectorServer) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    answer.partial_success.error_message = "too old"
    collector.script = [(200, {"content-type": "application/x-protobuf"}, answer.SerializeToString())]
    sent = send_spans(one_span() * 2, Collector(collector.url))
    assert (sent.spans, sent.rejected, sent.messages) == (1, 1, ["too old"])


def test_batches(collector: CollectorServer) -> None:
    send_spans(one_span() * 5, Collector(collector.url, batch_spans=2))
    assert [
        len(ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans)
        for body in collector.bodies
    ] == [2, 2, 1]
    collector.bodies.clear()
    long = [replace(span, attributes={"x": "y" * 1000}) for span in one_span()]
    send_spans(long * 4, Collector(collector.url, batch_bytes=2000))
    assert len(collector.bodies) == 2


@pytest.mark.parametrize("url", ["", "collector:4318", "ftp://host/x", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(TraceError, match="not the address of a collector"):
        Collector(url)


# ---------------------------------------------------------------------- a real collector, and the command


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[str, TraceStore]]:
    """Another store behind ``/v1/traces``."""
    from starlette.applications import Starlette

    with open_store(tmp_path / "other.db") as opened:  # type: ignore[attr-defined]
        route = TracesRoute(opened, KeyRing(b"a secret of the tests"), max_body=10**6)
        with EndpointServer(Starlette(routes=route.routes())) as server:
            yield f"{server.url}/v1/traces", opened


def test_the_command_sends_to_another_endpoint(
    store: TraceStore, other: tuple[str, TraceStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, behind = other
    key = KeyRing(b"a secret of the tests").admin
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{key}")
    for form in ("otlp-json", "otlp"):
        arguments = ["export", "--format", form, str(tmp_path / "traces.db"), "--to", url, "--json"]
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
        assert json.loads(done.output)["rollouts"] == 2
    expected = {
        (one.name, one.rollout_id, one.attempt) for rollout in ("r1", "r2") for one in rollout_spans(store, rollout)
    }
    assert {(one.name, one.rollout_id, one.attempt) for one in behind.spans()} == expected
    assert len(behind.spans()) == 11  # the second time brought nothing new
    (found,) = (one for one in behind.spans() if one.name == "lgov.decision")
    assert found.claimed


def test_the_command_says_what_is_wrong(other: tuple[str, TraceStore], store: TraceStore, tmp_path: Path) -> None:
    url, behind = other
    place = str(tmp_path / "traces.db")
    refused = CliRunner().invoke(cli, ["export", "--format", "otlp", place, "--to", url])
    assert refused.exit_code == 1
    assert "401" in refused.output
    export = ["export", "--format", "otlp", place, "--to", url, "--where"]
    assert CliRunner().invoke(cli, [*export, "rollout=nobody"]).exit_code == 2
    wrong = CliRunner().invoke(cli, [*export, "rollout=r2"], env={"OTEL_EXPORTER_OTLP_HEADERS": "secret"})
    assert (wrong.exit_code, "NAME=VALUE" in wrong.output, "secret" in wrong.output) == (2, True, False)
    assert CliRunner().invoke(cli, ["export", "--format", "otlp", place]).exit_code == 2
    assert behind.spans() == []
    header = f"Authorization=Bearer%20{KeyRing(b'a secret of the tests').admin}"
    sent = CliRunner().invoke(cli, [*export, "rollout=r2"], env={"OTEL_EXPORTER_OTLP_HEADERS": header})
    assert sent.exit_code == 0, sent.output
    assert {span.rollout_id for span in behind.spans()} == {"r2"}


def test_a_collector_that_rejects_makes_the_command_fail(
    collector: CollectorServer, store: TraceStore, tmp_path: Path
) -> None:
    answer = {"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too\x1b old"}}
    collector.script = [(200, {"content-type": "application/json"}, json.dumps(answer).encode())]
    done = CliRunner().invoke(cli, ["export", "--format", "otlp", str(tmp_path / "traces.db"), "--to", collector.url])
    assert done.exit_code == 1
    assert "2 spans were rejected" in done.output
    assert "\x1b" not in done.output
