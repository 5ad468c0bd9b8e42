"""What happens at the edges: streams given up, slow policies, cancellation, shared agents."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import langchain.agents
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from scripted import ModelServer, Witness, allow, at, calls, deny, make_governor, says

from lgov_core.governor import Governor
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope
from lgov_core.testing import ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from lgov_langchain import LgovMiddleware, instrument, uninstrument

QUESTION: Any = {"messages": [("user", "go")]}
WAYS = pytest.mark.parametrize("way", ["explicit", "instrumented"])
ran: list[str] = []


@tool
def work(what: str) -> str:
    """Works."""
    ran.append(what)
    return f"{what} done"


@contextmanager
def governed(way: str, governor: Governor) -> Any:
    ran.clear()
    if way == "instrumented":
        instrument(governor)
    try:
        yield [] if way == "instrumented" else [LgovMiddleware(governor)]
    finally:
        uninstrument()


def no_digging(action: Action) -> Decision | None:
    return deny("no digging") if action.arguments.get("what") == "dig" else None


@WAYS
@pytest.mark.parametrize("how", ["stream", "astream"])
def test_a_reader_of_a_stream_gets_the_denial(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)
    chat.streaming = True
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("I could not"))
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [work], middleware=middleware)
        if how == "stream":
            parts = list(agent.stream(QUESTION, stream_mode="messages"))
        else:
            parts = asyncio.run(consume(agent.astream(QUESTION, stream_mode="messages")))
    messages = [message for message, _ in parts]
    (told,) = [message for message in messages if isinstance(message, ToolMessage)]
    assert "no digging" in told.text
    assert "".join(one.text for one in messages[messages.index(told) + 1 :]) == "I could not"
    assert ran == []


async def consume(stream: Any) -> list[Any]:
    return [part async for part in stream]


@WAYS
@pytest.mark.parametrize("how", ["stream", "astream"])
def test_a_stream_given_up_ends_its_spans(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("never read"))
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [work], name="clerk", middleware=middleware)
        if how == "stream":
            stream = agent.stream(QUESTION, stream_mode="updates")
            next(stream)
            stream.close()
        else:

            async def give_up() -> None:
                stream = agent.astream(QUESTION, stream_mode="updates")
                await anext(stream)
                await stream.aclose()

            asyncio.run(give_up())
    by_name = {span.name: span for span in witness.spans}
    assert "invoke_agent clerk" in by_name
    assert all(span.ended_at is not None for span in witness.spans)


class Stuck:
    """A policy that does not answer until it is let go, and does not promise to."""

    name = "stuck"
    bounded = False

    def __init__(self) -> None:
        self.go = threading.Event()

    def judge(self, action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            self.go.wait()
        return allow()


@WAYS
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_policy_that_takes_too_long_is_a_denial(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    stuck = Stuck()
    governor = make_governor(stuck, witness=witness)
    governor.timeout_s = 0.05
    model_server.play(calls(("c1", "work", {"what": "rest"})), says("done"))
    try:
        with governed(way, governor) as middleware:
            agent = langchain.agents.create_agent(chat, [work], middleware=middleware)
            _ = agent.invoke(QUESTION) if how == "invoke" else asyncio.run(agent.ainvoke(QUESTION))
    finally:
        stuck.go.set()
    assert ran == []
    assert "did not answer within" in model_server.last_results()["c1"]
    assert witness.outcomes[0].decision is not None
    assert witness.outcomes[0].decision.fault


@WAYS
@pytest.mark.parametrize("where", ["tool", "policy", "model"])
def test_a_cancelled_run_leaves_nothing_open_and_says_what_ran(
    where: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    reached, hold = threading.Event(), threading.Event()

    async def wait_here() -> None:
        reached.set()
        await asyncio.Event().wait()

    @tool
    async def wait(what: str) -> str:
        """Waits."""
        if where == "tool":
            await wait_here()
        return "never"

    class Thinking:
        name, bounded = "thinking", False

        def judge(self, action: Action) -> Decision | None:
            if where == "policy" and action.point is Point.PRE_TOOL_CALL:
                reached.set()
                hold.wait()
            return allow()

    governor = make_governor(Thinking(), witness=witness)
    governor.timeout_s = 60
    slow = ScriptedReply("never", gate=hold, headers={"connection": "close"})
    first = calls(("c1", "wait", {"what": "x"}))
    model_server.script = lambda body: (reached.set(), slow)[1] if where == "model" else first

    async def run(agent: Any) -> None:
        task = asyncio.create_task(agent.ainvoke(QUESTION))
        await asyncio.to_thread(reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        with governed(way, governor) as middleware:
            agent = langchain.agents.create_agent(chat, [wait], name="clerk", middleware=middleware)
            asyncio.run(run(agent))
    finally:
        hold.set()
    names = {span.name for span in witness.spans}
    assert {"chat scripted", "invoke_agent clerk"} <= names
    assert all(span.ended_at is not None for span in witness.spans)
    cancelled = {"tool": "execute_tool wait", "policy": "execute_tool wait", "model": "chat scripted"}[where]
    (span,) = [span for span in witness.spans if span.name == cancelled]
    assert span.attributes[semconv.ERROR_TYPE] == "CancelledError"
    assert [one.error_type for one in witness.outcomes] == (["CancelledError"] if where == "tool" else [])


@WAYS
@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_one_agent_in_several_rollouts_at_once(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    count = 12
    together = threading.Barrier(count, timeout=60) if how == "threads" else None

    def reply(body: Any) -> ScriptedReply:
        number = body["messages"][0]["content"]
        if len(body["messages"]) > 1:
            return says(f"answer {number}")
        return calls((f"bad-{number}", "work", {"what": "dig"}), (f"good-{number}", "work", {"what": number}))

    model_server.script = reply
    governor = make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)
    carry_into_threads()
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [work], name="clerk", middleware=middleware)

        def roll(number: int) -> str:
            assert together is not None
            together.wait()
            with enter_scope(RolloutScope(f"r{number}")):
                return agent.invoke({"messages": [("user", str(number))]})["messages"][-1].text

        async def roll_later(number: int) -> str:
            with enter_scope(RolloutScope(f"r{number}")):
                return (await agent.ainvoke({"messages": [("user", str(number))]}))["messages"][-1].text

        async def all_later() -> list[str]:
            return list(await asyncio.gather(*(roll_later(number) for number in range(count))))

        if how == "threads":
            with ThreadPoolExecutor(count) as pool:
                answers = list(pool.map(roll, range(count)))
        else:
            answers = asyncio.run(all_later())
    assert answers == [f"answer {number}" for number in range(count)]
    spans = {span.span_id: span for span in witness.spans}
    assert len(spans) == count * 5
    for span in spans.values():
        if span.parent_id is None:
            assert span.name == "invoke_agent clerk"
        else:
            assert spans[span.parent_id].rollout_id == span.rollout_id
    for outcome in witness.outcomes:
        assert str(outcome.action.call_id).partition("-")[2] == str(outcome.action.rollout_id)[1:]
    assert sorted(ran) == sorted(str(number) for number in range(count))
