"""Governed models and providers, and the SDK's own traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from agents import (
    Agent,
    RunConfig,
    add_trace_processor,
    function_tool,
    set_trace_processors,
    set_tracing_export_api_key,
)
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor
from cells import ANSWER, Seen, asks, says
from cells_agents import chat_model, denying, instrumented, make_governor, run, transform

from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import (
    GovernedModel,
    GovernedModelProvider,
    LgovTracingProcessor,
)

MODES = ("sync", "async", "streaming")


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.mark.parametrize("mode", MODES)
def test_a_governed_provider_stops_hand_offs_by_official_means(mode: str, seen: Seen) -> None:
    governor = make_governor(denying("transfer_to_other"), seen)
    from agents import OpenAIProvider

    with ScriptedModelServer([asks(("c1", "transfer_to_other", {})), says(ANSWER)]) as server:
        inner = OpenAIProvider(base_url=server.base_url, api_key="none", use_responses=False)
        config = RunConfig(tracing_disabled=True, model_provider=GovernedModelProvider(governor, inner))
        result = run(mode, Agent(name="a", model="m", handoffs=[Agent(name="other")]), "go", run_config=config)
        assert "DENIED by policy judging/no" in str(server.requests[-1].body)
    assert result.final_output == ANSWER
    assert result.last_agent.name == "a"


def test_a_governed_model_stands_for_the_model_of_an_agent(seen: Seen) -> None:
    def judge(action: Action) -> Decision | None:
        return transform(text="[name]") if action.point is Point.INPUT and "Ada" in (action.text or "") else None

    governor = make_governor(judge, seen)
    replies = [asks(("c1", "look", {})), says(ANSWER)]

    @function_tool
    def look() -> str:
        """Looks."""
        return "looked"

    with ScriptedModelServer(replies) as server:
        model = GovernedModel(chat_model(server), governor, agent="named")
        run("sync", Agent(name="a", model=model, tools=[look]), "Ada asks")
        assert ["Ada" in str(one.body) for one in server.requests] == [False, False]
    assert {one.action.agent for one in seen.decisions(Point.PRE_MODEL_CALL)} == {"named"}


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector on loopback, in place of the vendor's."""
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces/ingest", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("case", "arrives"),
    [("bare", True), ("instrumented", False), ("the user says so", True), ("the user adds one", True)],
)
def test_prompts_are_not_sent_to_the_vendor_by_default(
    case: str, arrives: bool, collector: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import agents.tracing.processors as processors

    url, got = collector
    exporter = BackendSpanExporter(api_key="none", endpoint=url)
    vendor = BatchTraceProcessor(exporter, schedule_delay=0.01)
    monkeypatch.setattr(processors, "_global_exporter", exporter, raising=False)
    monkeypatch.setattr(processors, "_global_processor", vendor, raising=False)
    monkeypatch.setattr(processors, "default_processor", lambda: vendor)
    set_trace_processors([vendor])
    set_tracing_export_api_key("none")
    if case == "the user says so":
        monkeypatch.setenv("LGOV_OPENAI_TRACES", "1")
    governor = make_governor(lambda action: None)
    try:
        with ScriptedModelServer([says(ANSWER)]) as server:
            agent = Agent(name="a", model=chat_model(server))
            if case == "bare":
                run("sync", agent, "the private prompt", run_config=RunConfig())
            else:
                with instrumented(governor):
                    if case == "the user adds one":
                        add_trace_processor(vendor)
                    run("sync", agent, "the private prompt", run_config=RunConfig())
        vendor.force_flush()
        assert ("the private prompt" in str(got)) is arrives
        assert bool(got) is arrives
    finally:
        vendor.shutdown()
        set_trace_processors([])


def test_uninstrumenting_puts_the_exporter_back() -> None:
    from agents.tracing import get_trace_provider
    from agents.tracing.processors import default_processor

    def present() -> Any:
        return list(get_trace_provider()._multi_processor._processors)  # type: ignore[attr-defined]

    class Own(LgovTracingProcessor):
        pass

    own = Own(make_governor(lambda action: None))
    set_trace_processors([default_processor(), own])
    try:
        with instrumented(make_governor(lambda action: None)):
            assert present() == [own]
        assert set(map(id, present())) == {id(default_processor()), id(own)}
    finally:
        set_trace_processors([])


@pytest.mark.parametrize("content", [False, True])
def test_the_processor_shows_the_sdks_traces(content: bool, seen: Seen) -> None:
    governor = make_governor(lambda action: None, seen, capture_content=content)
    set_trace_processors([LgovTracingProcessor(governor)])

    @function_tool
    def look(where: str) -> str:
        """Looks."""
        return "a view"

    try:
        with ScriptedModelServer([asks(("c1", "look", {"where": "the private place"})), says(ANSWER)]) as server:
            agent = Agent(name="a", model=chat_model(server), tools=[look])
            run("sync", agent, "the private prompt", run_config=RunConfig())
    finally:
        set_trace_processors([])
    spans = {span.name: span for span in seen.spans}
    assert {"invoke_agent a", "chat scripted", "execute_tool look"} <= set(spans)
    by_id = {span.span_id: span for span in seen.spans}

    def above(span: Any) -> list[str]:
        found = []
        while span.parent_id is not None:
            span = by_id[span.parent_id]
            found.append(span.name)
        return found

    assert "invoke_agent a" in above(spans["execute_tool look"])
    assert ("the private" in str([dict(span.attributes) for span in seen.spans])) is content


@pytest.mark.parametrize("content", [False, True])
def test_without_capture_no_content_is_on_a_span(content: bool, seen: Seen) -> None:
    @function_tool
    def look(where: str) -> str:
        """Looks."""
        return "a private view"

    governor = make_governor(lambda action: None, seen, capture_content=content)
    replies = [asks(("c1", "look", {"where": "the private place"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(governor):
        run("sync", Agent(name="a", model=chat_model(server), tools=[look]), "the private prompt")
    text = str([dict(span.attributes) for span in seen.spans])
    assert ("private" in text) is content
    assert (ANSWER in text) is content


def test_a_run_without_the_sdks_traces_is_seen_all_the_same(seen: Seen) -> None:
    with ScriptedModelServer([says(ANSWER)]) as server, instrumented(make_governor(lambda action: None, seen)):
        run("async", Agent(name="a", model=chat_model(server)), "go", run_config=RunConfig(tracing_disabled=True))
    assert [span.name for span in seen.spans] == ["chat scripted", "invoke_agent a"]
    assert seen.spans[0].parent_id == seen.spans[1].span_id
