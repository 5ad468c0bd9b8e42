"""The edges: slow policies, cancelled and retried runs, one agent in two runs, nested agents, sessions, approvals."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    CustomTool,
    Model,
    ModelRetryBackoffSettings,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
    retry_policies,
)
from agents.mcp import MCPServer
from cells import ANSWER, Seen, asks, open_cell, says
from cells_agents import (
    MODELS,
    as_response,
    chat_model,
    deny,
    denying,
    eraser,
    instrumented,
    make_governor,
    responses_model,
    run,
    run_with,
    transform,
)
from openai import AsyncOpenAI

import lgov_openai_agents.instrumentor as instrumentation
from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.instrumentation.instrumentor import outside_tested_range
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, ModelCallFailed, Point
from lgov_openai_agents import LgovRunner, instrument, uninstrument
from lgov_openai_agents.plugin import lgov_framework

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


# ---------------------------------------------------------------------- policies that are slow or broken


@pytest.mark.parametrize("mode", ["sync", "async", "streaming"])
def test_a_policy_that_is_too_slow_denies(mode: str, erase: Any, ran: list[str], seen: Seen) -> None:
    hold = threading.Event()

    class Slow:
        name = "slow"
        bounded = False

        def judge(self, action: Action) -> Decision | None:
            if action.point is Point.PRE_TOOL_CALL:
                hold.wait(60)
            return None

    with ScriptedModelServer([asks(("c1", "erase", {"path": "x"})), says(ANSWER)]) as server:
        governor = make_governor(Slow(), seen, timeout_s=0.2)
        with instrumented(governor):
            hold.clear()
            result = run(mode, Agent(name="a", model=chat_model(server), tools=[erase]), "go")
            hold.set()
        assert "did not answer within" in str(server.requests[-1].body)
    assert result.final_output == ANSWER
    assert ran == []
    assert seen.outcomes[0].decision is not None
    assert seen.outcomes[0].decision.fault


def test_a_policy_that_raises_denies(erase: Any, ran: list[str]) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            raise RuntimeError("broken")
        return None

    with ScriptedModelServer([asks(("c1", "erase", {"path": "x"})), says(ANSWER)]) as server:
        with instrumented(make_governor(judge)):
            run("sync", Agent(name="a", model=chat_model(server), tools=[erase]), "go")
        assert "DENIED" in str(server.requests[-1].body)
    assert ran == []


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.surface("openai-agents", "input", "block")
def test_a_denied_input_reaches_no_model(mode: str, seen: Seen) -> None:
    with ScriptedModelServer([]) as server, instrumented(make_governor(denying("a", point=Point.INPUT), seen)):
        result = run(mode, Agent(name="a", model=chat_model(server)), "the secret")
        assert "DENIED by policy judging/no" in result.final_output
        assert server.requests == []
    assert [span.attributes.get("error.type") for span in seen.spans if span.name.startswith("chat")] == ["denied"]


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.surface("openai-agents", "input", "transform")
def test_a_rewritten_input_stays_rewritten_in_later_turns(mode: str, erase: Any) -> None:
    def judge(action: Action) -> Decision | None:
        return transform(text="[name] asks") if action.point is Point.INPUT else None

    with ScriptedModelServer([asks(("c1", "erase", {"path": "x"})), says(ANSWER)]) as server:
        with instrumented(make_governor(judge)):
            run(mode, Agent(name="a", model=chat_model(server), tools=[erase]), "Ada asks")
        assert ["Ada" in str(request.body) for request in server.requests] == [False, False]
        assert ["[name] asks" in str(request.body) for request in server.requests] == [True, True]


@pytest.mark.surface("openai-agents", "pre_model_call", "block", "transform", "sync")
def test_a_request_is_rewritten_or_refused(seen: Seen) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is not Point.PRE_MODEL_CALL:
            return None
        messages = [dict(one) for one in action.arguments["messages"]]
        if any("forbidden" in one["content"] for one in messages):
            return deny("not this")
        return transform(arguments={"messages": [{**one, "content": one["content"].upper()} for one in messages]})

    with ScriptedModelServer([says(ANSWER)]) as server, instrumented(make_governor(judge, seen)):
        agent = Agent(name="a", model=chat_model(server), instructions="be brief")
        run("sync", agent, "hello")
        assert [one["content"] for one in server.requests[0].body["messages"]] == ["BE BRIEF", "HELLO"]
        assert "DENIED" in run("sync", agent, "forbidden").final_output
        assert len(server.requests) == 1


def masking(action: Action) -> Decision | None:
    """Masks a number wherever it stands in the messages of a model call, as a policy that redacts does."""

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("4711", "****")
        if isinstance(value, Mapping):
            return {key: masked(one) for key, one in value.items()}
        return [masked(one) for one in value] if isinstance(value, list | tuple) else value

    if action.point is not Point.PRE_MODEL_CALL:
        return None
    return transform(arguments={"messages": masked(action.arguments["messages"])})


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_the_arguments_of_earlier_calls_are_rewritten_too(kind: str, mode: str, erase: Any, ran: list[str]) -> None:
    with (
        ScriptedModelServer([asks(("c1", "erase", {"path": "é4711"})), says(ANSWER)]) as server,
        instrumented(make_governor(masking)),
    ):
        agent = Agent(name="a", model=MODELS[kind](server), tools=[erase], instructions="of 4711")
        assert run(mode, agent, "erase 4711").final_output == ANSWER
        assert ran == ["é4711"]
        sent = [json.dumps(request.body) for request in server.requests]
        assert [("4711" in one, one.count("****")) for one in sent] == [(False, 2), (False, 4)]
        last = server.requests[-1].body
        call = last["messages"][2]["tool_calls"][0]["function"] if kind == "chat" else last["input"][1]
        assert json.loads(call["arguments"]) == {"path": "é****"}


def test_every_kind_of_item_is_rewritten_where_it_stands() -> None:
    async def on_invoke_tool(context: Any, given: str) -> str:
        return f"did {given}"

    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "it is 4711"}]}
    asked = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c1", "name": "do", "input": "send 4711"}
    said = {"type": "output_text", "text": ANSWER, "annotations": []}
    answer = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [said]}
    replies = [as_response(thought, asked), as_response(answer)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(masking)):
        tool = CustomTool(name="do", description="d", on_invoke_tool=on_invoke_tool)
        assert run("sync", Agent(name="a", model=responses_model(server), tools=[tool]), "go").final_output == ANSWER
        _, thought_sent, asked_sent, result_sent = server.requests[-1].body["input"]
    assert thought_sent == {**thought, "summary": [{"type": "summary_text", "text": "it is ****"}]}
    assert asked_sent == {**asked, "input": "send ****"}
    assert result_sent == {"type": "custom_tool_call_output", "call_id": "c1", "output": "did send ****"}


def test_messages_that_cannot_be_sent_are_a_denial() -> None:
    def judge(action: Action) -> Decision | None:
        odd = {"messages": [{"role": "tool", "x": 1}]}
        return transform(arguments=odd) if action.point is Point.PRE_MODEL_CALL else None

    with ScriptedModelServer([]) as server, instrumented(make_governor(judge)):
        answer = run("sync", Agent(name="a", model=chat_model(server)), "go").final_output
    assert "unclear-transform" in answer


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point.POST_MODEL_CALL, marks=pytest.mark.surface("openai-agents", "post_model_call", "stream")),
        pytest.param(Point.OUTPUT, marks=pytest.mark.surface("openai-agents", "output", "stream")),
    ],
)
@pytest.mark.parametrize("kind", ["deny", "transform"])
def test_a_streamed_reply_is_held_until_it_is_judged(point: Point, kind: str) -> None:
    """A denial in the middle of a stream: no word of what is denied reaches the caller."""

    def judge(action: Action) -> Decision | None:
        if action.point is not point or "secret" not in (action.text or ""):
            return None
        return deny("private") if kind == "deny" else transform(text="the answer is ***")

    async def go(server: ScriptedModelServer) -> tuple[list[str], Any]:
        result = Runner.run_streamed(Agent(name="a", model=chat_model(server)), "go", run_config=CONFIG)
        texts = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return texts, result

    with (
        ScriptedModelServer([says("the answer is the secret of them all")]) as server,
        instrumented(make_governor(judge)),
    ):
        texts, result = asyncio.run(go(server))
    expected = "DENIED by policy judging/no" if kind == "deny" else "the answer is ***"
    assert expected in "".join(texts)
    assert expected in result.final_output
    assert "secret" not in "".join(texts)


def test_a_stream_that_is_allowed_keeps_its_pieces() -> None:
    async def go(server: ScriptedModelServer) -> list[str]:
        result = Runner.run_streamed(Agent(name="a", model=chat_model(server)), "go", run_config=CONFIG)
        return [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]

    with ScriptedModelServer([says("one two three")]) as server, instrumented(make_governor(lambda action: None)):
        assert asyncio.run(go(server)) == ["one", " two", " three"]


def test_a_denied_answer_of_an_agent_with_a_type_is_an_error() -> None:
    """The denial is no value of that type, so it cannot stand for the answer."""
    with (
        ScriptedModelServer([says('{"response": 7}')]) as server,
        instrumented(make_governor(denying("a", point=Point.OUTPUT))),
        pytest.raises(PolicyDenied),
    ):
        run("sync", Agent(name="a", model=chat_model(server), output_type=int), "go")


# ---------------------------------------------------------------------- hand-offs


@pytest.mark.parametrize("mode", ["sync", "streaming"])
def test_an_allowed_hand_off_goes_on_with_the_other_agent(mode: str, erase: Any, ran: list[str], seen: Seen) -> None:
    replies = [asks(("c1", "transfer_to_eraser", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(lambda action: None, seen)):
        other = Agent(name="eraser", model=chat_model(server), tools=[erase])
        first = Agent(name="first", model=chat_model(server), handoffs=[other])
        result = run(mode, first, "go")
    assert result.last_agent is other
    assert ran == ["x"]
    spans = {span.span_id: span for span in seen.spans}
    agents = {span.attributes[semconv.AGENT_NAME]: span for span in seen.spans if span.name.startswith("invoke_agent")}
    assert set(agents) == {"first", "eraser"}
    assert agents["eraser"].parent_id == agents["first"].span_id
    (tool,) = [span for span in seen.spans if span.name == "execute_tool erase"]
    assert spans[tool.parent_id or ""] is agents["eraser"]
    assert tool.attributes[semconv.AGENT_NAME] == "eraser"
    assert [span.attributes[semconv.AGENT_NAME] for span in seen.spans if span.name.startswith("chat")] == [
        "first",
        "eraser",
        "eraser",
    ]
    assert [outcome.action.kind for outcome in seen.outcomes] == ["handoff", "function"]


@pytest.mark.parametrize("way", ["instrumented", "runner"])
@pytest.mark.parametrize("form", ["agent", "handoff"])
def test_the_tools_of_an_agent_that_was_handed_over_to_are_governed(
    way: str, form: str, erase: Any, ran: list[str]
) -> None:
    replies = [asks(("c1", "transfer_to_eraser", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    governor = make_governor(denying("erase"))
    with ScriptedModelServer(replies) as server:
        other = Agent(name="eraser", model=chat_model(server), tools=[erase])
        first = Agent(name="first", model=chat_model(server), handoffs=[other if form == "agent" else handoff(other)])
        other.handoffs = [first]  # in a circle
        if way == "instrumented":
            with instrumented(governor):
                result = run("sync", first, "go")
        else:
            result = LgovRunner(governor).run_sync(first, "go", run_config=CONFIG)
        assert "DENIED by policy judging/no" in str(server.requests[-1].body)
    assert result.last_agent.name == "eraser"
    assert ran == []
    assert other.tools == [erase]


def test_a_tool_beside_a_denied_hand_off_is_asked_for_again(erase: Any, ran: list[str]) -> None:
    both = asks(("c1", "transfer_to_other", {}), ("c2", "erase", {"path": "x"}))
    replies = [both, asks(("c3", "erase", {"path": "x"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("transfer_to_other"))):
        other = Agent(name="other", model=chat_model(server))
        result = run("sync", Agent(name="a", model=chat_model(server), tools=[erase], handoffs=[other]), "go")
        assert "NOT RUN: another call of the same reply was denied" in str(server.requests[1].body)
        assert result.context_wrapper.usage.requests == 3
    assert result.final_output == ANSWER
    assert ran == ["x"]


@pytest.mark.parametrize("mode", ["sync", "streaming"])
def test_later_turns_still_know_of_a_denied_hand_off(mode: str, erase: Any, ran: list[str]) -> None:
    """The SDK's history has no place for it, so it is put back where it was: the prompts extend one another."""
    replies = [asks(("c1", "transfer_to_other", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("transfer_to_other"))):
        other = Agent(name="other", model=chat_model(server))
        run(mode, Agent(name="a", model=chat_model(server), tools=[erase], handoffs=[other]), "go")
        first, second, third = (request.body["messages"] for request in server.requests)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert "DENIED by policy judging/no" in str(third)
    assert ran == ["x"]


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.parametrize("kept_in", [{"conversation_id": "conv_1"}, {"previous_response_id": "resp_0"}])
def test_a_transcript_on_the_server_gets_the_denial_and_goes_on(
    mode: str, kept_in: dict[str, str], erase: Any, ran: list[str]
) -> None:
    """A server waits for an answer to each call that it has, and refuses everything else until then."""
    replies = [asks(("c1", "transfer_to_other", {})), asks(("c2", "erase", {"path": "x"})), says(ANSWER)]
    insisting = [asks((f"d{n}", "transfer_to_other", {})) for n in range(4)]
    with (
        ScriptedModelServer([*replies, *insisting, says("fine")]) as server,
        instrumented(make_governor(denying("transfer_to_other"))),
    ):
        model = responses_model(server)
        agent = Agent(name="a", model=model, tools=[erase], handoffs=[Agent(name="other", model=model)])
        agent.model_settings = ModelSettings(tool_choice="transfer_to_other")
        assert run(mode, agent, "go", **kept_in).final_output == ANSWER
        insisted = run(mode, agent, "again", **kept_in)
        further = {"previous_response_id": insisted.last_response_id} if "previous_response_id" in kept_in else kept_in
        assert run(mode, agent, "so?", **further).final_output == "fine"
        bodies = [request.body for request in server.requests]
    sent = [[item.get("call_id") for item in body["input"]] for body in bodies]
    assert sent == [[None], ["c1"], ["c2"], [None], ["d0"], ["d1"], ["d2"], ["d3", None]]
    assert "DENIED" in bodies[1]["input"][0]["output"]
    assert [body.get("tool_choice") for body in bodies[:2]] == [
        {"type": "function", "name": "transfer_to_other"},
        None,
    ], "a model that is made to ask for it can ask for nothing else"
    assert ran == ["x"]


def test_a_model_that_insists_gets_the_denial_as_its_answer(seen: Seen) -> None:
    replies = [asks((f"c{n}", "transfer_to_other", {})) for n in range(4)]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("transfer_to_other"), seen)):
        other = Agent(name="other", model=chat_model(server))
        result = run("sync", Agent(name="a", model=chat_model(server), handoffs=[other]), "go")
    assert "DENIED by policy judging/no" in result.final_output
    assert [outcome.status for outcome in seen.outcomes] == ["denied"] * 4


# ---------------------------------------------------------------------- cancelled, retried, broken off


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


# ---------------------------------------------------------------------- one agent, many runs


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


def test_nested_agents_stand_under_the_tool_that_they_are(erase: Any, seen: Seen) -> None:
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


def test_spans_that_the_program_opens_in_a_tool_are_its_children(seen: Seen) -> None:
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


# ---------------------------------------------------------------------- sessions and approvals


def test_a_session_remembers_the_denial(erase: Any, ran: list[str]) -> None:
    session = SQLiteSession("one")
    replies = [asks(("c1", "erase", {"path": "x"})), says(ANSWER), says("as I said")]
    with ScriptedModelServer(replies) as server, instrumented(make_governor(denying("erase"))):
        agent = Agent(name="a", model=chat_model(server), tools=[erase])
        run("sync", agent, "go", session=session)
        run("sync", agent, "again", session=session)
        assert "DENIED by policy judging/no" in str(server.requests[2].body)
    assert ran == []
    session.close()


@pytest.mark.parametrize("way", ["instrumented", "runner"])
@pytest.mark.parametrize("effect", ["deny", "transform"])
def test_what_a_user_may_not_say_reaches_no_model_with_a_later_run_either(way: str, effect: str) -> None:
    """Sessions, and a result's list of input, give back what the user said."""

    def judge(action: Action) -> Decision | None:
        if action.point is not Point.INPUT or "hunter2" not in (action.text or ""):
            return None
        return deny("a password") if effect == "deny" else transform(text="***")

    governor, session = make_governor(judge), SQLiteSession("one")
    with ScriptedModelServer(lambda body: says("fine")) as server:
        agent = Agent(name="a", model=chat_model(server))
        runner: Any = Runner if way == "instrumented" else LgovRunner(governor)
        with instrumented(governor) if way == "instrumented" else nullcontext():
            first = run_with(runner, "sync", agent, "it is hunter2", session=session)
            assert ("DENIED" in first.final_output) is (effect == "deny")
            assert run_with(runner, "sync", agent, "hello", session=session).final_output == "fine"
            again = [*first.to_input_list(), {"role": "user", "content": "hello"}]
            assert run_with(runner, "sync", agent, again).final_output == "fine"
        assert not [request for request in server.requests if "hunter2" in str(request.body)]
    session.close()


@pytest.mark.parametrize("effect", ["deny", "transform"])
def test_what_was_said_where_nobody_judged_it_is_judged_before_it_is_sent(effect: str, seen: Seen) -> None:
    """A session, or the state of a paused run, may come from another process."""

    def judge(action: Action) -> Decision | None:
        if action.point is not Point.INPUT or "hunter2" not in (action.text or ""):
            return None
        return deny("a password") if effect == "deny" else transform(text="***")

    session = SQLiteSession("one")
    with ScriptedModelServer([says("so"), says("fine"), says("fine")]) as server:
        agent = Agent(name="a", model=chat_model(server))
        run("sync", agent, "it is hunter2", session=session)
        with instrumented(make_governor(judge, seen)):
            assert run("sync", agent, "hello", session=session).final_output == "fine"
            assert [one.action.text for one in seen.decisions(Point.INPUT)][-1] == "hello"
            first = len(seen.decisions(Point.INPUT))
            assert run("sync", agent, "well?", session=session).final_output == "fine"
            assert len(seen.decisions(Point.INPUT)) == first + 1, "what has been judged is known"
        said = [[one["content"] for one in request.body["messages"]] for request in server.requests]
    assert "hunter2" not in str(said[1:])
    assert said[2][: len(said[1])] == said[1]
    session.close()


def test_the_runner_in_an_instrumented_process_judges_once(erase: Any, ran: list[str], seen: Seen) -> None:
    governor = make_governor(lambda action: None, seen)
    before = inspect.signature(Runner.run)
    with ScriptedModelServer([asks(("c1", "erase", {"path": "x"})), says(ANSWER)]) as server, instrumented(governor):
        assert inspect.signature(Runner.run) == before
        run_with(LgovRunner(governor), "sync", Agent(name="a", model=chat_model(server), tools=[erase]), "go")
    assert ran == ["x"]
    assert len(seen.decisions()) == len(seen.decisions(Point.INPUT)) == 1
    assert sorted(span.name.split()[0] for span in seen.spans) == ["chat", "chat", "execute_tool", "invoke_agent"]


@pytest.mark.parametrize("way", ["instrumented", "runner"])
@pytest.mark.parametrize("through_json", [False, True])
@pytest.mark.parametrize("denied", [False, True])
def test_an_approved_call_is_judged_when_the_run_is_resumed(
    way: str, through_json: bool, denied: bool, ran: list[str], seen: Seen
) -> None:
    @function_tool(needs_approval=True)
    def erase(path: str) -> str:
        """Erases."""
        ran.append(path)
        return "erased"

    async def go(server: ScriptedModelServer, governor: Any) -> Any:
        runner: Any = Runner if way == "instrumented" else LgovRunner(governor)
        agent = Agent(name="a", model=chat_model(server), tools=[erase])
        if way == "runner":
            agent = runner.govern(agent)
        first = await runner.run(agent, "go", run_config=CONFIG)
        assert len(first.interruptions) == 1
        assert ran == []
        state = first.to_state()
        if through_json:
            state = await RunState.from_json(agent, state.to_json())
        state.approve(state.get_interruptions()[0])
        return await runner.run(agent, state, run_config=CONFIG)

    governor = make_governor(denying("erase") if denied else lambda action: None, seen)
    with ScriptedModelServer([asks(("c1", "erase", {"path": "x"})), says(ANSWER)]) as server:
        if way == "instrumented":
            with instrumented(governor):
                result = asyncio.run(go(server, governor))
        else:
            result = asyncio.run(go(server, governor))
        assert ("DENIED" in str(server.requests[-1].body)) is denied
    assert result.final_output == ANSWER
    assert ran == ([] if denied else ["x"])
    assert [outcome.status for outcome in seen.outcomes] == ["denied" if denied else "ok"]


def test_the_state_of_an_ungoverned_agent_is_refused(ran: list[str]) -> None:
    @function_tool(needs_approval=True)
    def erase(path: str) -> str:
        """Erases."""
        ran.append(path)
        return "erased"

    with ScriptedModelServer([asks(("c1", "erase", {"path": "x"}))]) as server:
        agent = Agent(name="a", model=chat_model(server), tools=[erase])
        state = run("sync", agent, "go").to_state()
        state.approve(state.get_interruptions()[0])
        with pytest.raises(Exception, match="not governed"):
            LgovRunner(make_governor(denying("erase"))).run_sync(agent, state)
    assert ran == []


# ---------------------------------------------------------------------- governed copies that a program changes


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.parametrize("change", ["hand-off", "tools", "clone", "replace", "copy"])
def test_what_a_governed_agent_is_given_later_is_governed_too(
    mode: str, change: str, erase: Any, ran: list[str], seen: Seen
) -> None:
    runner = LgovRunner(make_governor(denying("erase"), seen))
    replies = [asks(("c1", "erase", {"path": "x"})), says(ANSWER)]
    if change == "hand-off":
        replies.insert(0, asks(("h1", "transfer_to_b", {})))
    with ScriptedModelServer(replies) as server:
        agent = runner.govern(Agent(name="a", model=chat_model(server)))
        if change == "hand-off":
            agent.handoffs.append(Agent(name="b", model=chat_model(server), tools=[erase]))
        elif change == "tools":
            agent.tools.append(erase)
        elif change == "clone":
            agent = agent.clone(name="c", tools=[erase])
        elif change == "replace":
            agent = dataclasses.replace(agent, tools=[erase])
        else:
            agent = copy.copy(agent)
            agent.tools = [erase]
        result = run_with(runner, mode, agent, "go")
        assert "DENIED" in str(server.requests[-1].body)
    assert result.final_output == ANSWER
    assert ran == []
    assert len(seen.decisions(Point.INPUT)) == 1


def test_a_model_that_a_governed_agent_is_given_later_is_governed(seen: Seen) -> None:
    runner = LgovRunner(make_governor(lambda action: deny("no") if action.point is Point.INPUT else None, seen))
    with ScriptedModelServer([]) as server:
        agent = runner.govern(Agent(name="a"))
        agent.model = chat_model(server)
        assert "DENIED" in str(run_with(runner, "sync", agent, "go").final_output)


def test_an_agent_that_is_a_tool_is_governed_with_what_it_is_given_later(erase: Any, ran: list[str]) -> None:
    runner = LgovRunner(make_governor(denying("erase")))
    replies = [
        asks(("t1", "helper", {"input": "x"})),
        asks(("h1", "transfer_to_b", {})),
        asks(("c1", "erase", {"path": "x"})),
        says("in"),
        says(ANSWER),
    ]
    with ScriptedModelServer(replies) as server:
        inner = runner.govern(Agent(name="inner", model=chat_model(server)))
        boss = Agent(name="boss", model=chat_model(server), tools=[inner.as_tool("helper", "Helps")])
        inner.handoffs.append(Agent(name="b", model=chat_model(server), tools=[erase]))
        assert run_with(runner, "sync", boss, "go").final_output == ANSWER
    assert ran == []


def test_an_agent_of_another_governor_and_a_copy_of_nobody_are_refused() -> None:
    governor, other = make_governor(lambda action: None), make_governor(lambda action: None)
    with ScriptedModelServer([]) as server:
        agent = LgovRunner(other).govern(Agent(name="a", model=chat_model(server)))
        with pytest.raises(UserError, match="another governor"):
            run_with(LgovRunner(governor), "sync", agent, "go")
        with pytest.raises(UserError, match="has no governor"):
            run("sync", dataclasses.replace(agent), "go")


def test_a_sandbox_agent_is_governed(seen: Seen, tmp_path: Path) -> None:
    sandbox = pytest.importorskip("agents.sandbox")
    local = pytest.importorskip("agents.sandbox.sandboxes.unix_local")
    kept = tmp_path / "kept"
    kept.write_text("")
    asked = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec_command", "status": "completed"}
    asked["arguments"] = json.dumps({"cmd": f"rm {kept}"})
    said = {"type": "output_text", "text": ANSWER, "annotations": []}
    answer = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [said]}
    with ScriptedModelServer([as_response(asked), as_response(answer)]) as server:
        runner = LgovRunner(make_governor(denying("exec_command"), seen))
        agent = sandbox.SandboxAgent(name="a", model=responses_model(server), default_manifest=sandbox.Manifest())
        config = RunConfig(
            tracing_disabled=True, sandbox=sandbox.SandboxRunConfig(client=local.UnixLocalSandboxClient())
        )
        assert run_with(runner, "async", agent, "go", run_config=config).final_output == ANSWER
        assert "DENIED" in str(server.requests[-1].body)
    assert kept.exists()
    assert [outcome.status for outcome in seen.outcomes] == ["denied"]


# ---------------------------------------------------------------------- headers, instrumentation


def test_calls_to_our_endpoint_say_whose_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedModelServer([says(ANSWER), says(ANSWER)]) as server:
        agent = Agent(name="a", model=chat_model(server))
        with instrumented(make_governor(lambda action: None)), enter_scope(RolloutScope("rol_1", 2)):
            run("sync", agent, "go")
            monkeypatch.setenv("LGOV_ENDPOINT", server.base_url.removesuffix("/v1"))
            run("sync", agent, "go")
        assert "x-lgov-rollout-id" not in server.requests[0].headers
        sent = server.requests[1].headers
        assert (sent["x-lgov-rollout-id"], sent["x-lgov-attempt"], sent["x-lgov-agent"]) == ("rol_1", "2", "a")


def test_models_by_name_and_models_of_the_program_are_governed(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent without a model instance gets one from the provider; a class made after instrumentation is governed too."""
    from agents import Model, ModelResponse, Usage

    from lgov_openai_agents.items import message

    with ScriptedModelServer([as_response(_said())]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        with instrumented(make_governor(denying("late", "gpt-x", point=Point.OUTPUT), seen)):

            class Late(Model):
                async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
                    return ModelResponse(output=[message("late")], usage=Usage(), response_id=None)

                async def stream_response(self, *args: Any, **kwargs: Any) -> Any:
                    raise NotImplementedError
                    yield

            assert "DENIED" in run("sync", Agent(name="late", model=Late()), "go").final_output
            assert "DENIED" in run("sync", Agent(name="gpt-x", model="gpt-x"), "go").final_output
    assert {span.name for span in seen.spans if span.name.startswith("chat")} == {"chat Late", "chat gpt-x"}


def _said() -> dict[str, Any]:
    part = {"type": "output_text", "text": ANSWER, "annotations": []}
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}


def test_instrumentation_is_undone_and_repeated() -> None:
    from agents import FunctionTool, Model, OpenAIResponsesModel

    before = (vars(Runner)["run"], OpenAIResponsesModel.get_response, Model.__init_subclass__)
    governor = make_governor(lambda action: None)
    instrument(governor)
    instrument(governor)
    with pytest.raises(InstrumentationError, match="another governor"):
        instrument(make_governor(lambda action: None))
    assert vars(Runner)["run"] is not before[0]
    uninstrument()
    uninstrument()
    assert (vars(Runner)["run"], OpenAIResponsesModel.get_response) == before[:2]
    assert "on_invoke_tool" not in vars(FunctionTool)
    assert "__init_subclass__" not in vars(Model)


@pytest.mark.parametrize("broken", ["tool", "model", "MCP server", "runner"])
def test_a_way_around_is_found_by_the_self_test(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a future SDK called a tool or a model in another way than it does."""
    if broken == "tool":
        import agents.run_internal.tool_execution as execution

        async def around(*, function_tool: Any, context: Any, arguments: str) -> Any:
            from agents.tool import _FunctionToolInvocationResult

            return _FunctionToolInvocationResult(await vars(function_tool)["on_invoke_tool"](context, arguments))

        monkeypatch.setattr(execution, "_invoke_function_tool_with_metadata", around)
    elif broken in ("model", "MCP server"):
        left_out, patch = Model if broken == "model" else MCPServer, instrumentation.wrap_methods
        monkeypatch.setattr(instrumentation, "wrap_methods", lambda p, base, w: base is left_out or patch(p, base, w))
    else:
        import agents

        monkeypatch.setattr(agents.FunctionTool, "__getattribute__", lambda self, name: vars_of(self, name))
    with pytest.raises(InstrumentationError, match="ran all the same" if broken in ("model", "MCP server") else None):
        instrument(make_governor(lambda action: None))
    assert instrumentation.acting_governor() is None


def vars_of(instance: Any, name: str) -> Any:
    stored = object.__getattribute__(instance, "__dict__")
    return stored[name] if name in stored else object.__getattribute__(instance, name)


def test_versions_outside_the_tested_range_are_named() -> None:
    (problem,) = outside_tested_range(lgov_framework().tested, {"openai-agents": "0.99.0"}.__getitem__)
    assert "openai-agents 0.99.0" in problem
    assert ">=0.24,<0.25" in problem


def test_the_adapter_says_what_it_can_do() -> None:
    adapter = lgov_framework()
    assert adapter.installed()
    assert set(adapter.surface) == set(Point) - {Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN}
    assert all(
        one.observe and one.block and one.transform and one.stream and one.sync for one in adapter.surface.values()
    )
    assert {point for point, one in adapter.surface.items() if one.tell} == {Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL}
    assert adapter.unsupported == {}


def test_the_cell_that_is_not_governed_loses_its_file(tmp_path: Path) -> None:
    """The cells test something: the same agent without lgov erases the file."""
    call = ("c1", "erase_file", {"path": str(tmp_path / "precious.txt")})
    with open_cell(tmp_path, asks(call), says(ANSWER)) as cell:
        run("sync", Agent(name="cleaner", model=responses_model(cell), tools=[eraser(cell)]), "tidy up")
        assert not cell.file.exists()
