"""``POST /v1/traces``: real exporters over real HTTP; whose spans they may be; what is answered; what it is worth."""

from __future__ import annotations

import gzip
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import StatusCode

from lgov_core.commands import cli
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import TracesRoute
from lgov_core.gateway.server import EndpointServer
from lgov_core.store import TraceStore, open_store
from lgov_core.trace import semconv
from lgov_core.types import Rollout, Span

KEYS = KeyRing(b"a secret of the tests")
MAX_BODY = 20_000


class Behind:
    """Hands spans on to the store of the test that is running, so that one server serves them all."""

    store: TraceStore

    def add_spans(self, spans: Iterable[Span]) -> int:
        return self.store.add_spans(spans)


BEHIND = Behind()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    BEHIND.store = open_store(tmp_path / "traces.db")
    yield BEHIND.store
    BEHIND.store.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from served(BEHIND, KEYS)  # type: ignore[arg-type]


def served(store: TraceStore | None, keys: KeyRing) -> Iterator[str]:
    from starlette.applications import Starlette

    with EndpointServer(Starlette(routes=TracesRoute(store, keys, max_body=MAX_BODY).routes())) as server:
        yield server.url


def post(url: str, body: bytes, key: str | None = None, **headers: str) -> tuple[int, bytes, Any]:
    sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if key is not None:
        sent["authorization"] = f"Bearer {key}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, sent)) as reply:
            return reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def request_of(*spans: dict[str, Any]) -> bytes:
    made = [
        {"traceId": "5b8efff798038103d269b633813fc60c", "spanId": f"{number:016x}", "startTimeUnixNano": "1", **span}
        for number, span in enumerate(spans, 1)
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}).encode()


def span(name: str, **attributes: Any) -> dict[str, Any]:
    pairs = [{"key": key.replace("__", "."), "value": _value(value)} for key, value in attributes.items()]
    return {"name": name, "attributes": pairs}


def _value(value: Any) -> dict[str, Any]:
    return (
        {"intValue": str(value)}
        if type(value) is int
        else {"doubleValue": value}
        if type(value) is float
        else {"stringValue": value}
    )


@pytest.mark.parametrize("compression", ["gzip", "deflate", "none"])
def test_an_opentelemetry_exporter_sends_its_spans(url: str, store: TraceStore, compression: Any) -> None:
    from opentelemetry.exporter.otlp.proto.http import Compression

    headers = {"authorization": f"Bearer {KEYS.issue('r1', 2)}"}
    exporter = OTLPSpanExporter(f"{url}/v1/traces", headers=headers, compression=Compression(compression))
    provider = TracerProvider(resource=Resource.create({"service.name": "weather"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("program", "1.0")
    with (
        tracer.start_as_current_span("outer", attributes={"gen_ai.operation.name": "chat", "n": [1, 2]}) as outer,
        tracer.start_as_current_span("inner") as inner,
    ):
        inner.add_event("gen_ai.evaluation.result", {"gen_ai.evaluation.score.value": 0.5, "gen_ai.response.id": "c"})
        inner.set_status(StatusCode.ERROR, "broken")
    provider.shutdown()
    first, second = store.spans()
    assert (first.name, second.name, first.parent_id) == ("inner", "outer", second.span_id)
    assert first.trace_id == second.trace_id == f"{outer.get_span_context().trace_id:032x}"
    assert {(one.rollout_id, one.attempt, one.claimed) for one in (first, second)} == {("r1", 2, True)}
    assert second.attributes["n"] == [1, 2]
    assert second.attributes[semconv.SERVICE_NAME] == "weather"
    assert first.attributes[semconv.STATUS_DESCRIPTION] == "broken"
    (event,) = first.events
    assert event.attributes["gen_ai.evaluation.score.value"] == 0.5


def test_a_key_of_an_attempt_sends_spans_of_its_own(url: str, store: TraceStore) -> None:
    body = request_of(
        span("none"),
        span("own", lgov__rollout_id="r1", lgov__attempt=1),
        span("other", lgov__rollout_id="r2", lgov__attempt=1),
        span("other attempt", lgov__rollout_id="r1", lgov__attempt=2),
        span("unreadable", lgov__rollout_id="r/2"),
        span("by another name", agentlightning__rollout_id="r2"),
    )
    status, answer, _ = post(f"{url}/v1/traces", body, KEYS.issue("r1", 1))
    said = json.loads(answer)["partialSuccess"]
    assert (status, said["rejectedSpans"]) == (200, "4")
    assert "rollout r1, the span to another (3 spans)" in said["errorMessage"]
    assert [(one.name, one.rollout_id, one.attempt) for one in store.spans()] == [("none", "r1", 1), ("own", "r1", 1)]


@pytest.mark.parametrize("where", ["header", "path"])
def test_a_request_that_names_its_attempt_holds_no_span_of_another(url: str, store: TraceStore, where: str) -> None:
    body = request_of(span("own"), span("other", lgov__rollout_id="r2"))
    headers = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"} if where == "header" else {}
    path = "/v1/traces" if where == "header" else "/rollout/r1/attempt/1/v1/traces"
    _, answer, _ = post(url + path, body, KEYS.admin, **headers)
    assert json.loads(answer)["partialSuccess"]["rejectedSpans"] == "1"
    assert [one.rollout_id for one in store.spans()] == ["r1"]


def test_the_admin_key_sends_spans_of_any_rollout(url: str, store: TraceStore) -> None:
    spans = [span("a", lgov__rollout_id="r1"), span("b", lgov__rollout_id="r2"), span("c")]
    final = span("lgov.reward", lgov__rollout_id="r1", lgov__reward__value=1.0)
    status, answer, _ = post(f"{url}/v1/traces", request_of(*spans, final), KEYS.admin)
    assert (status, json.loads(answer)) == (200, {})
    assert [one.rollout_id for one in store.spans()] == ["r1", "r2", None, "r1"]


def test_the_agent_does_not_judge_itself(url: str, store: TraceStore) -> None:
    body = request_of(
        span("lgov.reward", lgov__reward__value=1.0),
        span("of a call", lgov__reward__value=1.0, gen_ai__response__id="c1"),
        span("outcome", lgov__outcome="succeeded"),
        span("agentlightning.annotation", agentlightning__reward__0__value=1.0),
    )
    _, answer, _ = post(f"{url}/v1/traces", body, KEYS.issue("r1", 1))
    assert json.loads(answer)["partialSuccess"]["rejectedSpans"] == "3"
    assert [one.name for one in store.spans()] == ["of a call"]


@pytest.mark.parametrize(
    ("key", "status"),
    [
        (None, 401),
        ("other", 401),
        (KeyRing(b"the secret of another").issue("r1", 1), 401),
        (KeyRing(b"the secret of another").admin, 401),
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "application/x-protobuf"])
def test_without_a_key_nothing_is_taken(url: str, store: TraceStore, key: str | None, status: int, kind: str) -> None:
    answered, body, headers = post(f"{url}/v1/traces", request_of(span("a")), key, content_type=kind)
    assert answered == status
    assert headers["content-type"] == kind
    said = json.loads(body)["message"] if kind == "application/json" else Status.FromString(body).message
    assert "key" in said
    assert store.spans() == []


def test_partial_success_in_the_format_of_the_request(url: str, store: TraceStore) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    spans.add(name="bad")
    spans.add(name="good", trace_id=b"\1" * 16, span_id=b"\2" * 8)
    status, body, headers = post(
        f"{url}/v1/traces", request.SerializeToString(), KEYS.admin, content_type="application/x-protobuf"
    )
    answer = ExportTraceServiceResponse.FromString(body)
    assert (status, headers["content-type"]) == (200, "application/x-protobuf")
    assert answer.partial_success.rejected_spans == 1
    assert "trace id" in answer.partial_success.error_message
    assert [one.name for one in store.spans()] == ["good"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"no request", {}, 400),
        (b"no gzip", {"content_encoding": "gzip"}, 400),
        (b"{}", {"content_encoding": "br"}, 415),
        (b" " * (MAX_BODY + 1), {}, 413),
        (gzip.compress(b" " * (MAX_BODY * 8 + 1)), {"content_encoding": "gzip"}, 413),
        (b"{}", {"x_lgov_rollout_id": "r1"}, 400),
    ],
    ids=["no request", "no gzip", "br", "too long", "a bomb", "half a rollout"],
)
def test_what_cannot_be_taken_is_refused_for_good(url: str, body: bytes, headers: dict[str, str], status: int) -> None:
    answered, said, reply = post(f"{url}/v1/traces", body, KEYS.admin, **headers)
    assert answered == status
    assert set(json.loads(said)) == {"code", "message"}
    assert "retry-after" not in reply


def test_a_store_that_cannot_write_is_tried_again(url: str, store: TraceStore) -> None:
    store.close()
    status, _, headers = post(f"{url}/v1/traces", request_of(span("a")), KEYS.admin)
    assert (status, headers["retry-after"]) == (503, "5")


def test_an_endpoint_without_a_store_says_so() -> None:
    for url in served(None, KeyRing(required=False)):
        assert post(f"{url}/v1/traces", b"{}")[0] == 501


def test_the_same_request_twice_is_one(url: str, store: TraceStore) -> None:
    for _ in range(2):
        assert post(f"{url}/v1/traces", request_of(span("a"), span("b")), KEYS.admin)[0] == 200
    assert [one.name for one in store.spans()] == ["a", "b"]


def test_a_claimed_decision_is_no_decision(url: str, store: TraceStore, tmp_path: Path) -> None:
    from lgov_core.authoring.replay import from_store
    from lgov_core.errors import StoreError
    from lgov_core.views.attempt_builder import first_denied, read_attempt

    store.add_rollouts([Rollout("r1", "t1", "run", {})])
    store.start_attempt("r1", 1)
    decision = {
        "lgov__decision__effect": "deny", "lgov__decision__policy": "forged", "lgov__point": "pre_tool_call",
        "lgov__action__name": "transfer", "gen_ai__tool__call__id": "c1", "lgov__decision__id": "d1",
    }  # fmt: skip
    outcome = span(
        "execute_tool transfer", lgov__tool__status="denied", gen_ai__tool__call__id="c1", gen_ai__tool__name="transfer",
        gen_ai__operation__name="execute_tool", gen_ai__tool__call__arguments="{}",
    )  # fmt: skip
    body = request_of(span("lgov.decision", **decision), outcome)
    assert json.loads(post(f"{url}/v1/traces", body, KEYS.issue("r1", 1))[1]) == {}
    assert len(store.spans()) == 2
    story = read_attempt(store, "r1")
    assert story.decisions == ()
    assert [(tool.call_id, tool.decisions, tool.claimed) for tool in story.loose_tools] == [("c1", (), True)]
    with pytest.raises(StoreError, match="denied anything"):
        first_denied(store)
    assert list(from_store(store)) == []
    shown = CliRunner().invoke(cli, ["traces", "show", str(tmp_path / "traces.db"), "r1"])
    assert "denied (reported from outside)" in shown.output
    assert "forged" not in shown.output


def test_values_that_are_not_finite_are_kept(url: str, store: TraceStore) -> None:
    pairs = [
        {"key": "lgov.reward.value", "value": {"doubleValue": "NaN"}},
        {"key": "gen_ai.response.id", "value": {"stringValue": "c"}},
    ]
    assert post(f"{url}/v1/traces", request_of({"name": "lgov.reward", "attributes": pairs}), KEYS.admin)[0] == 200
    (found,) = store.spans()
    assert repr(found.attributes["lgov.reward.value"]) == "nan"
    assert isinstance(found, Span)


def test_a_key_of_all_attempts_lets_the_spans_say_which(url: str, store: TraceStore) -> None:
    body = request_of(span("a", lgov__attempt=3), span("b"), span("c", lgov__rollout_id="r2"))
    key = KEYS.issue("r1", None, final_reward=True)
    assert json.loads(post(f"{url}/v1/traces", body, key)[1])["partialSuccess"]["rejectedSpans"] == "1"
    assert [(one.rollout_id, one.attempt) for one in store.spans()] == [("r1", 3), ("r1", None)]
    final = span("lgov.reward", lgov__reward__value=1.0)
    assert json.loads(post(f"{url}/v1/traces", request_of(final), key)[1]) == {}


def test_the_endpoint_has_the_route(store: TraceStore) -> None:
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    from lgov_core.gateway.app import create_app
    from lgov_core.gateway.protocol import Engine

    class NoModel:
        name, models = "none", ("m",)

        async def start(self) -> None: ...
        async def close(self) -> None: ...

    engine: Engine = NoModel()  # type: ignore[assignment]
    with EndpointServer(create_app([engine], store, keys=KEYS)) as server:
        for path in ("/v1/traces", "/rollout/r9/attempt/1/v1/traces"):
            assert post(server.url + path, request_of(span("a", lgov__rollout_id="r9")), KEYS.admin)[0] == 200
            status, body, _ = post(
                server.url + path, request_of(span("a")), None, content_type="application/x-protobuf"
            )
            assert (status, Status.FromString(body).code) == (401, 16)
        assert post(f"{server.url}/rollout/r9/attempt/1/v1/traces", b"{}", KEYS.issue("r1", 1))[0] == 403
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.url}/metrics", headers={"authorization": f"Bearer {KEYS.admin}"})
        ) as reply:
            assert 'lgov_received_spans_total{what="stored"} 2' in reply.read().decode()
    assert {one.rollout_id for one in store.spans()} == {"r9"}
