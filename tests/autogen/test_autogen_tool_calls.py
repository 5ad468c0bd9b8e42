"""Tool calls of AutoGen agents: arguments, results, errors, and which calls are evaluated once."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool, StaticStreamWorkbench, StaticWorkbench
from pydantic import ValidationError

from lgov_autogen import GovernedWorkbench
from lgov_autogen.messages import RAW_ARGUMENTS
from lgov_autogen.runs import RUN, Run
from lgov_autogen.tool_models import as_arguments
from lgov_autogen.tools import as_given, tool_action
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, as_tool, at, deny, playing, results_read, rewrite
from tests.cells import Seen, asks, says

BOTH = pytest.mark.parametrize("way", WAYS)


MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])


def shout(word: str) -> str:
    """Says a word loudly."""
    if word == "bad":
        raise OSError("disk full")
    return word.upper()


@BOTH
@MODES
async def test_the_true_error_of_a_tool_is_recorded(way: str, stream: bool) -> None:
    replies = [
        asks(
            ("c1", "shout", {"word": "bad"}),
            ("c2", "shout", {"loud": True}),
            ("c3", "shout", "{broken"),
            ("c4", "whisper", {}),
            ("c5", "shout", {"word": "hi"}),
        ),
        says("done"),
    ]
    with playing(way, at(Point.OUTPUT, lambda action: None), *replies) as (parts, seen, server):
        assert await answer_of(parts.agent("clerk", [shout], stream=stream), "go", stream=stream) == "done"
    outcomes = {one.action.call_id: (one.status, one.error_type) for one in seen.outcomes}
    assert outcomes == {
        "c1": ("error", "OSError"),
        "c2": ("invalid_args", "ValidationError"),
        "c3": ("invalid_args", "InvalidToolCall"),
        "c4": ("unknown_tool", "UnknownTool"),
        "c5": ("ok", None),
    }
    assert {one.action.agent for one in seen.outcomes} == {"clerk"}
    assert len(seen.outcomes) == 5, "a call has one outcome"
    assert "disk full" in results_read(server)["c1"]
    assert results_read(server)["c5"] == "HI"


@BOTH
@MODES
@pytest.mark.surface("autogen", "pre_tool_call", "transform")
@pytest.mark.surface("autogen", "post_tool_call", "block", "tell", "transform")
async def test_arguments_and_results_can_be_rewritten_and_withheld(way: str, stream: bool) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL and action.arguments["word"] == "one":
            return rewrite(arguments={"word": "two"})
        if action.point is Point.POST_TOOL_CALL and action.text == "SECRET":
            return deny("a secret")
        if action.point is Point.POST_TOOL_CALL and action.text == "PIN 1234":
            return rewrite(text="PIN ****")
        return at(Point.INPUT, lambda action: None).judge(action)

    words = {"c1": "one", "c2": "secret", "c3": "pin 1234"}
    replies = [asks(*((call_id, "shout", {"word": word}) for call_id, word in words.items())), says("done")]
    policy = at(Point.INPUT, lambda action: None)
    policy.judge = judge
    with playing(way, policy, *replies) as (parts, seen, server):
        await answer_of(parts.agent("clerk", [shout], stream=stream), "go", stream=stream)
    read = results_read(server)
    assert read["c1"] == "TWO"
    assert "DENIED" in read["c2"]
    assert "SECRET" not in read["c2"]
    assert read["c3"] == "PIN ****"
    assert {one.action.call_id: one.status for one in seen.outcomes} == {"c1": "ok", "c2": "ok", "c3": "ok"}


async def test_a_single_tool_returns_the_denial_in_its_own_form() -> None:
    with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: deny("no")), says("x")) as (
        parts,
        seen,
        _server,
    ):
        tool = as_tool(shout)
        text = tool.return_value_as_string(await tool.run_json({"word": "x"}, CancellationToken()))
        assert "DENIED by policy test/no" in text
        agent_tool = AgentTool(AssistantAgent("inner", parts.client()), return_value_as_last_message=True)
        for value in (
            await agent_tool.run_json({"task": "x"}, CancellationToken()),
            [event async for event in agent_tool.run_json_stream({"task": "x"}, CancellationToken())][-1],
        ):
            assert "DENIED by policy test/no" in agent_tool.return_value_as_string(value)
        # A workbench that shows the tool under another name is no way around.
        workbench = StaticWorkbench([tool])
        result = await workbench.call_tool("shout", {"word": "x"})
        assert result.is_error
        await parts.client().create([])  # the script wants to be played
    assert {one.status for one in seen.outcomes} == {"denied"}


async def test_a_tool_under_another_name_is_judged_under_its_own_too() -> None:
    from autogen_core.tools import ToolOverride

    def judge(action: Action) -> Decision | None:
        return deny("never") if action.name == "shout" else None

    workbench = StaticStreamWorkbench([as_tool(shout)], tool_overrides={"shout": ToolOverride(name="harmless")})
    with playing("instrumented", at(Point.PRE_TOOL_CALL, judge)) as (_parts, seen, _server):
        result = await workbench.call_tool("harmless", {"word": "x"})
    assert "DENIED" in result.to_text()
    assert [one.action.name for one in seen.decisions()] == ["harmless", "shout"]


@BOTH
async def test_each_call_is_judged_once(way: str) -> None:
    """Also where a program governs its parts itself and is instrumented as well, by the same governor."""
    replies = [asks(("c1", "shout", {"word": "hi"})), says("done")]
    with playing("instrumented", at(Point.INPUT, lambda action: None), *replies) as (parts, seen, _server):
        if way == "explicit":
            parts.name = "explicit"
        await answer_of(parts.agent("clerk", [shout]), "go", stream=False)
        parts.name = "instrumented"
    points = [one.action.point for one in (event for point in Point for event in seen.decisions(point))]
    assert sorted(points) == sorted(
        [
            Point.INPUT,
            Point.PRE_MODEL_CALL,
            Point.POST_MODEL_CALL,
            Point.PRE_TOOL_CALL,
            Point.POST_TOOL_CALL,
            Point.PRE_MODEL_CALL,
            Point.POST_MODEL_CALL,
            Point.OUTPUT,
        ]
    )
    assert len([span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]) == 1


async def test_a_lenient_wrapper_does_not_replace_the_governor() -> None:
    ran: list[str] = []

    def act() -> str:
        """Acts."""
        ran.append("act")
        return "acted"

    with playing("explicit", at(Point.INPUT, lambda action: None), says("x")) as (lenient, _, _server):
        replies = [asks(("c1", "act", {})), says("done")]
        with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: deny("no")), *replies) as (
            parts,
            _seen,
            server,
        ):
            workbench = GovernedWorkbench([as_tool(act)], lenient.governor)
            agent = AssistantAgent("clerk", parts.client(), workbench=workbench, max_tool_iterations=3)
            await agent.run(task="go")
            assert "DENIED" in results_read(server)["c1"]
        await lenient.bare_client().create([])
    assert ran == []


@BOTH
@MODES
async def test_a_tool_refuses_what_it_would_refuse_without_lgov(way: str, stream: bool) -> None:
    ran: list[str] = []

    def ring(loudness: int = 1) -> str:
        """Rings."""
        ran.append("rang")
        return "rang"

    replies = [asks(("c1", "ring", {"loudness": "very"}), ("c2", "ring", "{}")), says("done")]
    with playing(way, at(Point.OUTPUT, lambda action: None), *replies) as (parts, seen, server):
        await answer_of(parts.agent("clerk", [ring], stream=stream), "go", stream=stream)
    assert "valid integer" in results_read(server)["c1"]
    assert ran == ["rang"]
    assert {one.action.call_id: (one.status, one.error_type) for one in seen.outcomes} == {
        "c1": ("invalid_args", "ValidationError"),
        "c2": ("ok", None),
    }


@pytest.mark.parametrize("given", [None, "", "hi", "{}", 0, [], [1], {}, {"loudness": 2}], ids=repr)
async def test_arguments_reach_a_tool_in_the_form_in_which_they_came(given: Any) -> None:
    def ring(loudness: int = 1) -> str:
        """Rings."""
        return f"rang {loudness}"

    async def outcomes() -> list[str]:
        tool = FunctionTool(ring, "Rings.")
        try:
            said = await tool.run_json(given, CancellationToken())
        except ValidationError as error:
            said = str(error)
        result = await StaticWorkbench([tool]).call_tool("ring", given)
        return [said, result.to_text()]

    without_us = await outcomes()
    with playing("instrumented", at(Point.OUTPUT, lambda action: None)):
        assert await outcomes() == without_us


@pytest.mark.parametrize("given", [[1], "hi", None, {"word": "hi"}])
async def test_rewritten_arguments_run_whatever_they_replace(given: Any) -> None:
    policy = at(Point.PRE_TOOL_CALL, lambda action: rewrite(arguments={"word": "quiet"}))
    with playing("instrumented", policy) as (_parts, _seen, _server):
        tool = FunctionTool(shout, "Says a word loudly.")
        assert await tool.run_json(given, CancellationToken()) == "QUIET"
        result = await StaticWorkbench([tool]).call_tool("shout", given)
        assert result.to_text() == "QUIET"
    with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: rewrite(arguments={"arguments": 7}))):
        tool = FunctionTool(shout, "Says a word loudly.")
        if isinstance(given, dict):
            assert "word Field required" in await tool.run_json(given, CancellationToken())
            return
        with pytest.raises(ValidationError):  # as without the policy
            await tool.run_json(given, CancellationToken())


async def test_a_tool_that_a_tool_calls_is_a_call_of_its_own() -> None:
    """Also by `run_json`, a workbench, or a loop of its own with a model, inside an assistant's run."""
    harm: list[str] = []

    async def destroy(what: str) -> str:
        """Destroys."""
        harm.append(what)
        return "destroyed"

    inner = as_tool(destroy)

    async def tidy(how: str) -> str:
        """Tidies."""
        if how == "run_json":
            return str(await inner.run_json({"what": "x"}, CancellationToken()))
        if how == "workbench":
            return (await StaticStreamWorkbench([inner]).call_tool("destroy", {"what": "x"})).to_text()
        reply = await client.create([UserMessage(content="tidy", source="user")], tools=[inner])
        (call,) = reply.content
        return str(await inner.run_json({"what": "x"}, CancellationToken(), call_id=call.id))

    replies = [
        asks(("c1", "tidy", {"how": "run_json"}), ("c2", "tidy", {"how": "workbench"})),
        asks(("c3", "tidy", {"how": "loop"})),
        asks(("c4", "destroy", {"what": "x"})),
        says("done"),
    ]
    no = at(Point.PRE_TOOL_CALL, lambda action: deny("never") if action.name == "destroy" else None)
    with playing("instrumented", no, *replies) as (parts, seen, server):
        client: Any = parts.client()
        await parts.agent("clerk", [tidy]).run(task="go")
        assert all("DENIED" in text for text in results_read(server).values())
    assert harm == []
    inside = [one.action for one in seen.decisions() if one.action.name == "destroy"]
    assert [action.kind for action in inside] == ["function"] * 3, "a tool of a tool's own loop is no hand-off"


def test_an_action_says_which_tool_is_called_and_by_which_agent() -> None:
    with_all = tool_action("shout", "mcp", {"word": "hi"}, shout, call_id="c1", agent="clerk")
    assert with_all == Action(
        Point.PRE_TOOL_CALL, "shout", "mcp", {"word": "hi"}, agent="clerk", framework="autogen", call_id="c1"
    )
    assert with_all.native is shout
    bare = tool_action("shout", "function", "hi", None, call_id="")
    assert (bare.call_id, bare.agent, bare.arguments) == (None, None, as_arguments("hi"))
    token = RUN.set(Run(agent="runner"))
    assert tool_action("shout", "function", {}, None).agent == "runner"
    assert tool_action("shout", "function", {}, None, agent="clerk").agent == "clerk"
    RUN.reset(token)


def test_permitted_arguments_have_the_form_of_those_that_were_given() -> None:
    assert as_given({"word": "hi"}, {"word": "ho"}) == {"word": "ho"}
    assert as_given("hi", as_arguments("hi")) == "hi"
    assert as_given("hi", {RAW_ARGUMENTS: "ho"}) == "ho"
    assert as_given("hi", {"word": "ho"}) == {"word": "ho"}


class Repeats(BoundedPolicy):
    """Wants everything to be said ``times`` times, and keeps what it was asked about."""

    name = "repeats"

    def __init__(self, times: str) -> None:
        self.times = times
        self.asked: list[dict[str, Any]] = []

    def judge(self, action: Action) -> Decision:
        self.asked.append(dict(action.arguments))
        if action.arguments["times"] in (1, "1"):
            return rewrite(arguments={**action.arguments, "times": self.times})
        return self.allow()


async def test_what_a_policy_rewrites_is_judged_again_as_the_tools_schema_reads_it() -> None:
    def shout(word: str, times: int = 1) -> str:
        ran.append((word, times))
        return word * times

    ran: list[tuple[str, int]] = []
    seen, policy = Seen(), Repeats("2")
    governor = Governor([policy], plugins=[seen], capture_content=True)
    workbench = GovernedWorkbench([FunctionTool(shout, description="Shouts.")], governor)
    result = await workbench.call_tool("shout", {"word": "hi"}, CancellationToken())
    assert (result.to_text(), result.is_error, ran) == ("hihi", False, [("hi", 2)])
    assert {"word": "hi", "times": 2} in policy.asked
    (outcome,) = seen.outcomes
    assert outcome.action.arguments == {"word": "hi", "times": 2}
    (span,) = seen.spans
    assert span.attributes[semconv.TOOL_ARGUMENTS] == '{"word": "hi", "times": 2}'


async def test_what_a_policy_rewrites_must_fit_the_tool() -> None:
    def shout(word: str, times: int = 1) -> str:
        raise AssertionError("it must not run")

    governor = Governor([Repeats("often")])
    workbench = GovernedWorkbench([FunctionTool(shout, description="Shouts.")], governor)
    result = await workbench.call_tool("shout", {"word": "hi"}, CancellationToken())
    assert result.is_error
    assert "rewrote them, and so they do not fit the tool" in result.to_text()
