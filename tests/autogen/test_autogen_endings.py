"""Tool calls that end early: slow policies, cancelled runs, and decisions that abort."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.tools import StaticStreamWorkbench

from lgov_core.errors import PolicyDenied
from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, as_tool, at, deny, playing, results_read
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)


MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])


#: An agent that would wait for ever fails its test instead.
PATIENCE_S = 60


def shout(word: str) -> str:
    """Says a word loudly."""
    if word == "bad":
        raise OSError("disk full")
    return word.upper()


@BOTH
@MODES
async def test_a_policy_that_does_not_answer_is_a_denial(way: str, stream: bool) -> None:
    never = threading.Event()

    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            never.wait(PATIENCE_S)
        return None

    policy = at(Point.INPUT, lambda action: None)
    policy.judge, policy.bounded = judge, False  # type: ignore[misc]
    replies = [asks(("c1", "shout", {"word": "hi"})), says("done")]
    try:
        with playing(way, policy, *replies, timeout_s=0.2) as (parts, seen, server):
            assert await answer_of(parts.agent("clerk", [shout], stream=stream), "go", stream=stream) == "done"
            assert "did not answer" in results_read(server)["c1"]
        assert [one.status for one in seen.outcomes] == ["denied"]
    finally:
        never.set()


@BOTH
@MODES
async def test_a_run_cancelled_by_its_token_while_a_tool_runs_ends(way: str, stream: bool) -> None:
    """Without lgov this agent would wait for ever: the cancelled tool takes the end of its event queue with it."""
    running = asyncio.Event()

    async def wait(word: str) -> str:
        """Waits."""
        running.set()
        await asyncio.sleep(PATIENCE_S)
        return word

    token = CancellationToken()
    replies = [asks(("c1", "wait", {"word": "x"}))]
    with playing(way, at(Point.INPUT, lambda action: None), *replies) as (parts, seen, _server):
        agent = parts.agent("clerk", [wait], stream=stream)
        run = asyncio.create_task(agent.run(task="go", cancellation_token=token))
        await running.wait()
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, PATIENCE_S / 2)
    assert [(one.status, one.error_type) for one in seen.outcomes] == [("error", "CancelledError")]
    assert all(span.ended_at is not None for span in seen.spans)


@BOTH
async def test_a_cancelled_task_ends_and_its_tool_with_it(way: str) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(word: str) -> str:
        """Waits."""
        running.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return word

    workbench = [as_tool(wait)]
    with playing(way, at(Point.INPUT, lambda action: None), says("x")) as (parts, seen, _server):
        governed: Any = parts.workbench(StaticStreamWorkbench(workbench))

        async def use() -> None:
            async for _event in governed.call_tool_stream("wait", {"word": "x"}, CancellationToken(), "c1"):
                pass

        task = asyncio.create_task(use())
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
        await parts.bare_client().create([])
    assert [one.error_type for one in seen.outcomes] == ["CancelledError"]


@BOTH
@MODES
async def test_abort_ends_the_run_and_does_not_leave_it_waiting(way: str, stream: bool) -> None:
    def judge(action: Action) -> Decision | None:
        return deny("stop", abort=True) if action.arguments["word"] == "bad" else None

    replies = [asks(("c1", "shout", {"word": "hi"}), ("c2", "shout", {"word": "bad"}))]
    with playing(way, at(Point.PRE_TOOL_CALL, judge), *replies) as (parts, seen, _server):
        agent = parts.agent("clerk", [shout], stream=stream)
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(answer_of(agent, "go", stream=stream), PATIENCE_S)
    assert {one.action.call_id: one.status for one in seen.outcomes} == {"c1": "ok", "c2": "denied"}
    assert all(span.ended_at is not None for span in seen.spans)


@MODES
async def test_abort_in_the_last_tool_call_ends_the_run_too(stream: bool) -> None:
    """The model would not be asked again, so it is the run itself that ends."""
    stop = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True))
    with playing("instrumented", stop, asks(("c1", "shout", {"word": "x"}))) as (parts, _seen, _server):
        agent = parts.agent("clerk", [shout], stream=stream, max_tool_iterations=1)
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(answer_of(agent, "go", stream=stream), PATIENCE_S)


@BOTH
@MODES
async def test_abort_inside_an_agent_as_tool_ends_the_outer_run_too(way: str, stream: bool) -> None:
    replies = [asks(("c1", "inner", {"task": "x"})), asks(("c2", "shout", {"word": "x"}))]
    abort = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True) if action.name == "shout" else None)
    with playing(way, abort, *replies) as (parts, _seen, _server):
        boss = parts.agent("boss", [AgentTool(parts.agent("inner", [shout], stream=stream))], stream=stream)
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(answer_of(boss, "go", stream=stream), PATIENCE_S)


async def test_abort_in_one_loop_does_not_end_the_next() -> None:
    """A loop of the program's own may never ask its model again; the next one must not pay for that."""
    replies = [asks(("c1", "shout", {"word": "x"})), says("fresh")]
    abort = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True))
    with playing("explicit", abort, *replies) as (parts, _seen, _server):
        agent = parts.agent("clerk", [shout], max_tool_iterations=1)
        await agent.run(task="go")
        assert await answer_of(parts.agent("other"), "go", stream=False) == "fresh"


async def test_abort_in_a_team_ends_the_team() -> None:
    replies = [asks(("c1", "shout", {"word": "x"}))]
    with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True)), *replies) as (
        parts,
        _,
        _s,
    ):
        team = RoundRobinGroupChat([parts.agent("clerk", [shout])], termination_condition=MaxMessageTermination(5))
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(team.run(task="go"), PATIENCE_S)
