"""Runs that are cancelled, retried or broken off, and runs at the same time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelRetryBackoffSettings,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    function_tool,
    retry_policies,
)
from cells import ANSWER, Seen, asks, says
from cells_agents import (
    chat_model,
    deny,
    instrumented,
    make_governor,
    run,
)
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseIncompleteEvent, ResponseTextDeltaEvent

from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, ModelCallFailed, Point
from lgov_openai_agents import GovernedModel, LgovRunner

CONFIG = RunConfig(tracing_disabled=True)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def erase(ran: list[str]) -> Any:
    @function_tool
    def erase(path: str) -> str:
        """Erases."""
        ran.append(path)
        return f"erased {path}"

    return erase


def test_a_cancelled_run_leaves_no_span_open(seen: Seen) -> None:
    started = threading.Event()

    @function_tool
    async def wait() -> str:
        """Waits."""
        started.set()
        await asyncio.sleep(60)
        return "done"

    async def go(server: ScriptedModelServer) -> None:
        agent = Agent(name="a", model=chat_model(server), tools=[wait])
        task = asyncio.create_task(Runner.run(agent, "go", run_config=CONFIG))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)

    with (
        ScriptedModelServer([asks(("c1", "wait", {}))]) as server,
        instrumented(make_governor(lambda action: None, seen)),
    ):
        asyncio.run(go(server))
    assert {span.name.split()[0]: span.attributes.get("error.type") for span in seen.spans} == {
        "chat": None,
        "execute_tool": "CancelledError",
        "invoke_agent": "CancelledError",
    }
    assert [outcome.error_type for outcome in seen.outcomes] == ["CancelledError"]


def test_a_cancelled_stream_ends_its_spans(seen: Seen) -> None:
    gate = threading.Event()

    async def go(server: ScriptedModelServer) -> None:
        result = Runner.run_streamed(Agent(name="a", model=chat_model(server)), "go", run_config=CONFIG)
        while not server.requests:
            await asyncio.sleep(0.01)
        result.cancel()
        async for _ in result.stream_events():
            pass
        with pytest.raises(asyncio.CancelledError):
            await result.run_loop_task  # type: ignore[misc]

    reply = ScriptedReply("never read", gate=gate, gate_at=2)
    with ScriptedModelServer([reply]) as server, instrumented(make_governor(lambda action: None, seen)):
        asyncio.run(go(server))
        gate.set()
    assert {span.name.split()[0] for span in seen.spans} == {"chat", "invoke_agent"}
    assert all(span.ended_at is not None for span in seen.spans)


def test_a_retried_model_call_is_a_call_each_time(seen: Seen) -> None:
    settings = ModelSettings(
        retry=ModelRetrySettings(
            max_retries=2,
            backoff=ModelRetryBackoffSettings(initial_delay=0.01),
            policy=retry_policies.http_status([503]),
        )
    )
    replies = [ScriptedReply("busy", status=503), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(lambda action: None, seen)):
        result = run("sync", Agent(name="a", model=chat_model(server), model_settings=settings), "go")
    assert result.final_output == ANSWER
    chats = [span for span in seen.spans if span.name.startswith("chat")]
    assert ["error.type" in span.attributes for span in chats] == [True, False]
    (failed,) = [event for event in seen.events if isinstance(event, ModelCallFailed)]
    assert failed.refused
    assert len(seen.decisions(Point.INPUT)) == 1, "what the user said is judged once"


def test_a_client_that_retries_by_itself_is_one_call(seen: Seen) -> None:
    with ScriptedModelServer([ScriptedReply("busy", status=503), says(ANSWER)]) as server:
        from agents import OpenAIChatCompletionsModel

        client = AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=1)
        with instrumented(make_governor(lambda action: None, seen)):
            run("sync", Agent(name="a", model=OpenAIChatCompletionsModel("m", client)), "go")
    assert len([span for span in seen.spans if span.name.startswith("chat")]) == 1


def test_a_stream_that_breaks_off_fails_as_it_would(seen: Seen) -> None:
    with (
        ScriptedModelServer([ScriptedReply("one two three", cut_at=2)]) as server,
        instrumented(make_governor(lambda action: None, seen)),
        pytest.raises(Exception),  # noqa: B017, PT011 - whatever the SDK says of it
    ):
        run("streaming", Agent(name="a", model=chat_model(server)), "go")
    (chat,) = [span for span in seen.spans if span.name.startswith("chat")]
    assert "error.type" in chat.attributes


@pytest.mark.parametrize("ended", [True, False])
def test_an_incomplete_stream_shows_nothing_of_its_text(ended: bool, seen: Seen) -> None:
    """No policy has seen it; the SDK still learns why the reply is incomplete."""
    part: dict[str, Any] = {"type": "output_text", "text": "secret", "annotations": []}
    said = {"type": "message", "id": "m", "role": "assistant", "status": "incomplete", "content": [part]}
    response = Response.model_construct(id="r", output=[said], incomplete_details={"reason": "max_output_tokens"})

    class Cut(Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            yield ResponseTextDeltaEvent.model_construct(type="response.output_text.delta", delta="secret")
            if ended:
                yield ResponseIncompleteEvent.model_construct(type="response.incomplete", response=response)

    async def go() -> list[Any]:
        model = GovernedModel(Cut(), make_governor(lambda action: None, seen))
        return [event async for event in model.stream_response(None, "go", None, [], None, [], None)]

    events = asyncio.run(go())
    assert [event.type for event in events] == (["response.incomplete"] if ended else [])
    assert "secret" not in str(events)
    (chat,) = [span for span in seen.spans if span.name.startswith("chat")]
    assert chat.attributes["error.type"] == "IncompleteReply"


@pytest.mark.parametrize("way", ["instrumented", "runner"])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_same_agent_in_two_rollouts_at_once(
    way: str, streamed: bool, erase: Any, ran: list[str], seen: Seen
) -> None:
    """Each run has its own verdicts, spans and rollout, and the agent is as it was."""

    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL and action.rollout_id == "rol_denied":
            return deny("not in this rollout")
        return None

    def answer(body: Any) -> ScriptedReply:
        told = str(body)
        if "tool_call_id" not in told:
            path = "allowed" if "allowed" in told else "denied"
            return asks(("c1", "erase", {"path": path}))
        return says("refused" if "DENIED" in told else "done")

    async def one(runner: Any, agent: Agent[Any], word: str) -> Any:
        with enter_scope(RolloutScope(f"rol_{word}")):
            if not streamed:
                return (await runner.run(agent, word, run_config=CONFIG)).final_output
            result = runner.run_streamed(agent, word, run_config=CONFIG)
            async for _ in result.stream_events():
                pass
            return result.final_output

    async def both(runner: Any, agent: Agent[Any]) -> list[Any]:
        words = ["allowed", "denied"] * 5
        return await asyncio.gather(*(one(runner, agent, word) for word in words))

    governor = make_governor(judge, seen)
    with ScriptedModelServer(answer) as server:
        agent = Agent(name="a", model=chat_model(server), tools=[erase])
        before = dict(vars(agent))
        if way == "instrumented":
            with instrumented(governor):
                answers = asyncio.run(both(Runner, agent))
        else:
            answers = asyncio.run(both(LgovRunner(governor), agent))
    assert answers == ["done", "refused"] * 5
    assert ran == ["allowed"] * 5
    assert {name: value for name, value in vars(agent).items() if name in before} == before
    assert agent.tools == [erase]
    by_id = {span.span_id: span for span in seen.spans}
    for span in seen.spans:
        assert span.parent_id is None or by_id[span.parent_id].rollout_id == span.rollout_id
    tools = [span for span in seen.spans if span.name == "execute_tool erase"]
    assert sorted((span.rollout_id, span.attributes[semconv.TOOL_STATUS]) for span in tools) == sorted(
        [("rol_allowed", "ok"), ("rol_denied", "denied")] * 5
    )


def test_nested_agents_are_below_the_tool_that_they_are(erase: Any, seen: Seen) -> None:
    replies = [
        asks(("c1", "ask", {"input": "erase x"})),
        asks(("c2", "erase", {"path": "x"})),
        says("inner done"),
        says(ANSWER),
    ]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(lambda action: None, seen)):
        inner = Agent(name="inner", model=chat_model(server), tools=[erase])
        outer = Agent(name="outer", model=chat_model(server), tools=[inner.as_tool("ask", "Asks.")])
        run("async", outer, "go")
    by_name = {span.name: span for span in seen.spans if not span.name.startswith("chat")}
    assert by_name["execute_tool erase"].parent_id == by_name["invoke_agent inner"].span_id
    assert by_name["invoke_agent inner"].parent_id == by_name["execute_tool ask"].span_id
    assert by_name["execute_tool ask"].parent_id == by_name["invoke_agent outer"].span_id
    inputs = {one.action.agent: one.action for one in seen.decisions(Point.INPUT)}
    assert inputs["outer"].parent_id is None
    assert inputs["inner"].parent_id is not None, "what another agent says is not the user's"
    assert {one.action.name: one.action.kind for one in seen.decisions()} == {"ask": "agent", "erase": "function"}


def test_the_programs_spans_in_a_tool_are_its_children(seen: Seen) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider()
    parents: list[Any] = []

    @function_tool
    def look() -> str:
        """Looks."""
        with provider.get_tracer("user").start_as_current_span("mine") as span:
            parents.append(span.parent)  # type: ignore[attr-defined]
        return "looked"

    governor = make_governor(lambda action: None, seen)
    with ScriptedModelServer([asks(("c1", "look", {})), says(ANSWER)]) as server, instrumented(governor):
        run("async", Agent(name="a", model=chat_model(server), tools=[look]), "go")
    (tool,) = [span for span in seen.spans if span.name == "execute_tool look"]
    assert f"{parents[0].span_id:016x}" == tool.span_id
