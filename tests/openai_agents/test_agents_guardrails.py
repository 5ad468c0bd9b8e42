"""The SDK's guardrails and hooks, answered by a governor."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any

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
    function_tool,
)
from cells import ANSWER, Seen, asks, says
from cells_agents import chat_model, deny, denying, instrumented, make_governor, run, transform
from pydantic import AliasChoices, Field

from lgov_core.errors import PolicyDenied
from lgov_core.testing import ScriptedModelServer
from lgov_core.trace import semconv
from lgov_core.types import Decision, Point
from lgov_openai_agents import (
    LgovRunHooks,
    LgovToolGuardrails,
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


@pytest.mark.parametrize("way", ["guardrail", "hooks"])
@pytest.mark.parametrize("text", ['{"file": "a", "file": "b"}', '{"file": "a", "path": "b"}', '{"file": "a"}'])
def test_what_the_tool_will_get_is_judged(way: str, text: str, seen: Seen) -> None:
    governor, got = make_governor(lambda action: None, seen), list[str]()
    guards = LgovToolGuardrails(governor)
    options: Any = {"tool_input_guardrails": [guards.before], "tool_output_guardrails": [guards.after]}

    def read(path: Annotated[str, Field(validation_alias=AliasChoices("file", "path"))]) -> str:
        """Reads."""
        got.append(path)
        return "read"

    tool = function_tool(read, strict_mode=False, **(options if way == "guardrail" else {}))
    hooks: Any = {"hooks": LgovRunHooks(governor)} if way == "hooks" else {}

    def reply(body: Any) -> Any:
        return says(ANSWER) if "tool_call_id" in str(body) else asks(("c1", "read", text))

    with ScriptedModelServer(reply) as server, suppress(UserError):
        run("async", Agent(name="a", model=chat_model(server), tools=[tool]), "go", **hooks)
    if text != '{"file": "a"}':
        assert got == []
        (outcome,), (decided,) = seen.outcomes, seen.decisions()
        assert (outcome.status, decided.decision.rule) == ("invalid_args", "unreadable-arguments")
        assert outcome.decision is decided.decision
        return
    assert got == ["a"]
    assert {str(event.action.arguments) for event in seen.decisions(Point.PRE_TOOL_CALL)} == {"{'path': 'a'}"}


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


def test_guardrails_allow_and_do_nothing_in_a_governed_run(seen: Seen, ran: list[str]) -> None:
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


def test_hooks_stop_a_tool_that_nothing_else_evaluates(seen: Seen, ran: list[str]) -> None:
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
