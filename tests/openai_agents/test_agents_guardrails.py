"""The parts for programs that put them together by hand: guardrails, hooks, governed models, the tracing processor."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from agents import (
    Agent,
    FunctionTool,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    ToolInputGuardrailTripwireTriggered,
    UserError,
    add_trace_processor,
    function_tool,
    set_trace_processors,
    set_tracing_export_api_key,
)
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor
from cells import ANSWER, Seen, asks, says
from cells_agents import chat_model, deny, denying, instrumented, make_governor, run, transform

from lgov_core.errors import PolicyDenied
from lgov_core.testing import ScriptedModelServer
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import (
    GovernedModel,
    GovernedModelProvider,
    LgovRunHooks,
    LgovToolGuardrails,
    LgovTracingProcessor,
    lgov_input_guardrail,
    lgov_output_guardrail,
)

MODES = ("sync", "async", "streaming")


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def ran() -> list[str]:
    return []


def guarded(governor: Any, ran: list[str]) -> FunctionTool:
    guards = LgovToolGuardrails(governor)

    @function_tool(tool_input_guardrails=[guards.before], tool_output_guardrails=[guards.after])
    def read(path: str) -> str:
        """Reads."""
        ran.append(path)
        return f"{path}: secret"

    return read


# ---------------------------------------------------------------------- tool guardrails


@pytest.mark.parametrize("mode", MODES)
def test_a_guarded_tool_is_rejected_with_words_for_the_model(mode: str, seen: Seen, ran: list[str]) -> None:
    governor = make_governor(denying("read"), seen)
    with ScriptedModelServer([asks(("c1", "read", {"path": "x"})), says(ANSWER)]) as server:
        result = run(mode, Agent(name="a", model=chat_model(server), tools=[guarded(governor, ran)]), "go")
        assert "DENIED by policy judging/no" in str(server.requests[-1].body)
    assert result.final_output == ANSWER
    assert ran == []
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.action.agent, outcome.action.call_id) == ("denied", "a", "c1")
    (span,) = seen.spans
    assert span.attributes[semconv.TOOL_STATUS] == "denied"
    assert seen.decisions()[0].action.span_id == span.span_id


@pytest.mark.parametrize(
    ("change", "read"), [(transform(text="***"), "***"), (deny("private"), "its result is withheld")]
)
def test_a_guarded_result_is_replaced(change: Decision, read: str, seen: Seen, ran: list[str]) -> None:
    governor = make_governor(lambda action: change if action.point is Point.POST_TOOL_CALL else None, seen)
    with ScriptedModelServer([asks(("c1", "read", {"path": "x"})), says(ANSWER)]) as server:
        run("async", Agent(name="a", model=chat_model(server), tools=[guarded(governor, ran)]), "go")
        prompt = str(server.requests[-1].body)
    assert read in prompt
    assert "secret" not in prompt
    assert ran == ["x"]
    assert [outcome.status for outcome in seen.outcomes] == ["ok"]


def test_a_guardrail_cannot_change_arguments_so_it_rejects(seen: Seen, ran: list[str]) -> None:
    governor = make_governor(
        lambda action: transform(arguments={"path": "safe"}) if action.point is Point.PRE_TOOL_CALL else None, seen
    )
    with ScriptedModelServer([asks(("c1", "read", {"path": "x"})), says(ANSWER)]) as server:
        run("sync", Agent(name="a", model=chat_model(server), tools=[guarded(governor, ran)]), "go")
        assert "with other arguments" in str(server.requests[-1].body)
    assert ran == []
    assert [outcome.status for outcome in seen.outcomes] == ["denied"]


def test_abort_trips_the_guardrail(seen: Seen, ran: list[str]) -> None:
    governor = make_governor(
        lambda action: deny("stop", abort=True) if action.point is Point.PRE_TOOL_CALL else None, seen
    )
    with (
        ScriptedModelServer([asks(("c1", "read", {"path": "x"}))]) as server,
        pytest.raises(ToolInputGuardrailTripwireTriggered),
    ):
        run("sync", Agent(name="a", model=chat_model(server), tools=[guarded(governor, ran)]), "go")
    assert ran == []


# ---------------------------------------------------------------------- agent guardrails


@pytest.mark.parametrize("mode", MODES)
def test_the_input_guardrail_trips_before_anything_happens(mode: str, ran: list[str]) -> None:
    governor = make_governor(denying("a", point=Point.INPUT))
    with ScriptedModelServer([]) as server:
        agent = Agent(name="a", model=chat_model(server), input_guardrails=[lgov_input_guardrail(governor)])
        with pytest.raises(InputGuardrailTripwireTriggered):
            run(mode, agent, "go")
    assert server.requests == []


def test_the_sdks_default_would_let_the_tool_act_first(ran: list[str]) -> None:
    """Why the guardrail blocks: beside the agent it comes too late. If this fails, the SDK has become safer."""
    from agents import GuardrailFunctionOutput, InputGuardrail

    acted = asyncio.Event()

    @function_tool
    async def act() -> str:
        """Acts."""
        ran.append("acted")
        acted.set()
        return "acted"

    async def slow(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        await asyncio.wait_for(acted.wait(), 30)
        return GuardrailFunctionOutput(None, tripwire_triggered=True)

    async def go(server: ScriptedModelServer) -> None:
        guardrail = InputGuardrail(slow, "beside")
        agent = Agent(name="a", model=chat_model(server), tools=[act], input_guardrails=[guardrail])
        await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))

    with (
        ScriptedModelServer([asks(("c1", "act", {})), says(ANSWER)]) as server,
        pytest.raises(InputGuardrailTripwireTriggered),
    ):
        asyncio.run(go(server))
    assert ran == ["acted"]
    assert not lgov_input_guardrail(make_governor(lambda action: None)).run_in_parallel


@pytest.mark.parametrize("mode", MODES)
def test_the_output_guardrail_keeps_the_answer(mode: str) -> None:
    governor = make_governor(denying("a", point=Point.OUTPUT))
    with ScriptedModelServer([says("the secret")]) as server:
        agent = Agent(name="a", model=chat_model(server), output_guardrails=[lgov_output_guardrail(governor)])
        with pytest.raises(OutputGuardrailTripwireTriggered) as caught:
            run(mode, agent, "go")
    assert caught.value.guardrail_result.output.output_info["reason"] == "forbidden"


def test_guardrails_let_through_what_is_allowed_and_stand_aside_in_a_governed_run(seen: Seen, ran: list[str]) -> None:
    governor = make_governor(lambda action: None, seen)
    tool = guarded(governor, ran)
    for way in ("by themselves", "instrumented"):
        replies = [asks(("c1", "read", {"path": way})), says(ANSWER)]
        with ScriptedModelServer(replies) as server:
            agent = Agent(
                name="a",
                model=chat_model(server),
                tools=[tool],
                input_guardrails=[lgov_input_guardrail(governor)],
                output_guardrails=[lgov_output_guardrail(governor)],
            )
            if way == "instrumented":
                with instrumented(governor):
                    run("sync", agent, "go", hooks=LgovRunHooks(governor))
            else:
                run("sync", agent, "go")
        for point in (Point.INPUT, Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL, Point.OUTPUT):
            assert len(seen.decisions(point)) == 1, (way, point)
        assert len([one for one in seen.spans if one.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]) == 1
        seen.events.clear()
    assert ran == ["by themselves", "instrumented"]


# ---------------------------------------------------------------------- hooks


def test_hooks_stop_a_tool_that_nothing_else_judges(seen: Seen, ran: list[str]) -> None:
    @function_tool
    def erase(path: str) -> str:
        """Erases."""
        ran.append(path)
        return "erased"

    governor = make_governor(lambda action: deny("not home") if action.arguments.get("path") == "home" else None, seen)
    with ScriptedModelServer([asks(("c1", "erase", {"path": "home"}))]) as server, pytest.raises(UserError) as caught:
        run("sync", Agent(name="a", model=chat_model(server), tools=[erase]), "go", hooks=LgovRunHooks(governor))
    assert isinstance(caught.value.__cause__, PolicyDenied)
    assert ran == []
    assert [outcome.status for outcome in seen.outcomes] == ["denied"]


def test_hooks_show_agents_and_model_calls(seen: Seen, ran: list[str]) -> None:
    governor = make_governor(lambda action: None, seen)
    replies = [asks(("c1", "read", {"path": "x"})), asks(("c2", "transfer_to_other", {})), says(ANSWER)]
    with ScriptedModelServer(replies) as server:
        other = Agent(name="other", model=chat_model(server))
        agent = Agent(name="a", model=chat_model(server), tools=[guarded(governor, ran)], handoffs=[other])
        run("sync", agent, "go", hooks=LgovRunHooks(governor))
    assert [span.name for span in seen.spans] == [
        "chat scripted",
        "execute_tool read",
        "chat scripted",
        "invoke_agent a",
        "chat scripted",
        "invoke_agent other",
    ]
    agents = {span.span_id: span.name for span in seen.spans if span.name.startswith("invoke_agent")}
    chats = [span for span in seen.spans if span.name.startswith("chat")]
    assert [agents[chat.parent_id or ""] for chat in chats] == ["invoke_agent a"] * 2 + ["invoke_agent other"]
    assert all(str(chat.attributes[semconv.RESPONSE_ID]).startswith("chatcmpl") for chat in chats)


# ---------------------------------------------------------------------- models


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


# ---------------------------------------------------------------------- traces


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
def test_prompts_do_not_leave_for_the_vendor_unless_the_user_says_so(
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
