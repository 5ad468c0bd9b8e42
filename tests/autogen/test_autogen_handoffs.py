"""Hand-offs that a model proposes, and a governed client without a governed workbench."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import Swarm
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    UserMessage,
)

from lgov_autogen import proposals
from lgov_core.errors import PolicyDenied
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, as_tool, at, deny, playing, results_read, rewrite
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)


MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])


FINE = at(Point.AGENT_STARTUP, lambda action: None)


def shout(word: str) -> str:
    """Says a word loudly."""
    return word.upper()


def no_handoff(action: Action) -> Decision | None:
    return deny("nobody is handed over") if action.kind == "handoff" else None


def sent(server: Any) -> list[list[Mapping[str, Any]]]:
    return [request.body["messages"] for request in server.requests]


@BOTH
@MODES
async def test_an_allowed_handoff_happens_and_is_recorded_once(way: str, stream: bool) -> None:
    replies = [asks(("c1", "transfer_to_two", {})), says("two here")]
    with playing(way, FINE, *replies) as (parts, seen, _server):
        team = Swarm(
            [parts.agent("one", stream=stream, handoffs=["two"]), parts.agent("two", stream=stream)],
            termination_condition=MaxMessageTermination(3),
        )
        assert await answer_of(team, "go", stream=stream) == "two here"
    assert [(one.action.name, one.action.kind, one.status) for one in seen.outcomes] == [
        ("transfer_to_two", "handoff", "ok")
    ]
    assert len(seen.decisions()) == 1


@BOTH
@MODES
async def test_a_denied_handoff_beside_a_tool_leaves_the_tool(way: str, stream: bool) -> None:
    """The agent sees only the tool; the model's next prompt has both of its calls, and the denial."""
    replies = [asks(("c1", "transfer_to_two", {}), ("c2", "shout", {"word": "hi"})), says("stayed"), says("more")]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, seen, server):
        agent = parts.agent("one", [shout], stream=stream, handoffs=["two"])
        assert await answer_of(agent, "go", stream=stream) == "stayed"
        assert await answer_of(agent, "go on", stream=stream) == "more"
    assert {one.action.call_id: one.status for one in seen.outcomes} == {"c1": "denied", "c2": "ok"}
    first, second, third = sent(server)
    assert [call["id"] for call in second[len(first)]["tool_calls"]] == ["c1", "c2"]
    assert results_read(server, 1)["c2"] == "HI"
    assert "DENIED by policy test/no: nobody is handed over" in results_read(server, 1)["c1"]
    assert second[: len(first)] == first
    assert third[: len(second)] == second, "the conversation only grows"


@BOTH
@MODES
async def test_later_prompts_hold_the_denied_handoff(way: str, stream: bool) -> None:
    """Otherwise it would try again, and its calls would not be prefixes of one another for training."""
    replies = [
        asks(("c1", "transfer_to_two", {})),
        asks(("c2", "shout", {"word": "hi"})),
        asks(("c3", "transfer_to_two", {})),
        says("stayed"),
        says("more"),
    ]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, _seen, server):
        agent = parts.agent("one", [shout], stream=stream, handoffs=["two"])
        assert await answer_of(agent, "go", stream=stream) == "stayed"
        assert await answer_of(agent, "go on", stream=stream) == "more"
    prompts = sent(server)
    for shorter, longer in itertools.pairwise(prompts):
        assert longer[: len(shorter)] == shorter, "the conversation only grows"
    assert {call_id: "DENIED" in text for call_id, text in results_read(server).items()} == {
        "c1": True,
        "c2": False,
        "c3": True,
    }


@BOTH
async def test_a_handoff_with_broken_arguments_is_denied(way: str) -> None:
    """AutoGen hands off by the name alone, whatever the arguments are."""
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), asks(("c1", "transfer_to_two", "{broken")), says("no")) as (
        parts,
        seen,
        _server,
    ):
        result = await parts.agent("one", handoffs=["two"]).run(task="go")
    assert not any(isinstance(message, HandoffMessage) for message in result.messages)
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.decision.rule) == ("invalid_args", "unreadable-arguments")
    assert [event.decision for event in seen.decisions()] == [outcome.decision]
    assert outcome.action.arguments == {"arguments": "{broken"}


@BOTH
@MODES
async def test_a_model_that_insists_gets_the_denial_as_its_answer(way: str, stream: bool) -> None:
    replies = [asks((f"c{number}", "transfer_to_two", {})) for number in range(4)]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, seen, server):
        agent = parts.agent("one", stream=stream, handoffs=["two"])
        assert "DENIED by policy test/no" in await answer_of(agent, "go", stream=stream)
        assert len(server.requests) == 4
    assert [one.status for one in seen.outcomes] == ["denied"] * 4


@BOTH
async def test_hidden_calls_count_in_the_usage(way: str) -> None:
    replies = [asks(("c1", "transfer_to_two", {})), says("no")]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, seen, _server):
        result = await parts.agent("one", handoffs=["two"]).run(task="go")
    usage = result.messages[-1].models_usage
    assert usage is not None
    told = [one.action.arguments["usage"]["output_tokens"] for one in seen.decisions(Point.POST_MODEL_CALL)]
    assert len(told) == 2
    assert usage.completion_tokens == sum(told)


@BOTH
async def test_a_denied_handoff_with_abort_ends_the_run(way: str) -> None:
    stop = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True))
    with playing(way, stop, asks(("c1", "transfer_to_two", {}))) as (parts, _seen, _server):
        agent = parts.agent("one", handoffs=["two"])
        with pytest.raises(PolicyDenied, match="stop"):
            await agent.run(task="go")


@BOTH
async def test_a_handoff_of_an_own_kind_is_known(way: str) -> None:
    """A subclass of Handoff may bring another tool; in an instrumented process the assistant tells."""
    from autogen_agentchat.base import Handoff
    from autogen_core.tools import FunctionTool

    class Quiet(Handoff):
        @property
        def handoff_tool(self) -> Any:
            def leave() -> str:
                return "bye"

            return FunctionTool(leave, name=self.name, description="Leaves.", strict=True)

    replies = [asks(("c1", "transfer_to_two", {})), says("stayed")]
    with playing(way, at(Point.PRE_TOOL_CALL, lambda action: deny("no")), *replies) as (parts, seen, _server):
        result = await parts.agent("one", handoffs=[Quiet(target="two")]).run(task="go")
    assert not any(isinstance(message, HandoffMessage) for message in result.messages)
    (one,) = seen.decisions()
    assert one.action.kind == ("handoff" if parts.instrumented else "function")


@MODES
async def test_the_client_alone_governs_what_nothing_else_does(stream: bool) -> None:
    """Plain tools without a governed workbench: judged when proposed, their outcome read from the next prompt."""
    replies = [asks(("c1", "shout", {"word": "no"}), ("c2", "shout", {"word": "hi"})), says("done")]

    def judge(action: Action) -> Decision | None:
        return deny("no") if action.arguments["word"] == "no" else None

    with playing("explicit", at(Point.PRE_TOOL_CALL, judge), *replies) as (parts, seen, server):
        client = parts.client("clerk")
        agent: Any = _agent_of_tools("clerk", client, [shout], stream)
        assert await answer_of(agent, "go", stream=stream) == "done"
        read = results_read(server)
    assert read["c2"] == "HI"
    assert "DENIED" in read["c1"]
    assert {one.action.call_id: (one.status, one.result) for one in seen.outcomes} == {
        "c1": ("denied", None),
        "c2": ("ok", "HI"),
    }
    tools = [span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]
    assert {span.attributes[semconv.TOOL_STATUS] for span in tools} == {"denied", "ok"}
    assert {one.action.span_id for one in seen.decisions()} == {span.span_id for span in tools}


async def test_results_of_other_conversations_settle_nothing() -> None:
    """Ids of calls repeat between conversations: a result belongs to the very call of its own one."""
    replies = [asks(("c1", "shout", {"word": "hi"})), asks(("c1", "shout", {"word": "ho"})), says("a"), says("b")]
    with playing("explicit", FINE, *replies) as (parts, seen, _server):
        client, tool = parts.client(), as_tool(shout)

        def loop(task: str) -> list[Any]:
            return [UserMessage(content=task, source="user")]

        async def ask(messages: list[Any]) -> None:
            reply = await client.create(messages, tools=[tool])
            messages.append(AssistantMessage(content=reply.content, source="loop"))

        def answer(messages: list[Any], text: str) -> None:
            one = FunctionExecutionResult(content=text, name="shout", call_id="c1", is_error=False)
            messages.append(FunctionExecutionResultMessage(content=[one]))

        first, second = loop("one"), loop("two")
        await ask(first)
        await ask(second)
        answer(second, "HO")
        await ask(second)
        answer(first, "HI")
        await ask(first)
    assert [(one.action.arguments["word"], one.result) for one in seen.outcomes] == [("ho", "HO"), ("hi", "HI")]


async def test_the_client_alone_can_rewrite_arguments_and_end_a_run() -> None:
    def judge(action: Action) -> Decision | None:
        if action.arguments["word"] == "stop":
            return deny("stop", abort=True)
        return rewrite(arguments={"word": "two"}) if action.arguments["word"] == "one" else None

    replies = [asks(("c1", "shout", {"word": "one"})), asks(("c2", "shout", {"word": "stop"}))]
    with playing("explicit", at(Point.PRE_TOOL_CALL, judge), *replies) as (parts, _seen, _server):
        client, tool = parts.client(), as_tool(shout)
        reply = await client.create([UserMessage(content="go", source="user")], tools=[tool])
        assert isinstance(reply.content, list)
        assert [json.loads(call.arguments) for call in reply.content] == [{"word": "two"}]
        with pytest.raises(PolicyDenied, match="stop"):
            await client.create([UserMessage(content="go", source="user")], tools=[tool])


async def test_of_too_many_pending_calls_the_oldest_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "MAX_REMEMBERED", 1)
    replies = [asks(("c1", "shout", {"word": "a"}), ("c2", "shout", {"word": "b"}))]
    with playing("explicit", FINE, *replies) as (parts, seen, _server):
        await parts.client().create([UserMessage(content="go", source="user")], tools=[as_tool(shout)])
    tools = [span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]
    assert [(span.attributes[semconv.TOOL_CALL_ID], span.ended_at) for span in tools] == [("c1", None)]


def _agent_of_tools(name: str, client: Any, tools: Sequence[Any], stream: bool) -> Any:
    from autogen_agentchat.agents import AssistantAgent

    return AssistantAgent(name, client, tools=list(tools), model_client_stream=stream, max_tool_iterations=3)
