"""What happens at the edges: streams given up, slow policies, cancellation, retries, shared agents, other versions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import langchain.agents
import pytest
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from scripted import ModelServer, Witness, allow, at, calls, deny, make_governor, says

import lgov_langchain.instrumentor as instrumentation
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


# ---------------------------------------------------------------------- streams


@WAYS
@pytest.mark.parametrize("how", ["stream", "astream"])
def test_a_denial_in_the_middle_of_a_stream_is_seen_by_who_streams(
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


# ---------------------------------------------------------------------- slow policies


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


# ---------------------------------------------------------------------- cancellation


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


# ---------------------------------------------------------------------- retries


@WAYS
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_tool_that_is_tried_again_is_one_call(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    tries: list[str] = []

    @tool
    def flaky(what: str) -> str:
        """Works at the third try."""
        tries.append(what)
        if len(tries) < 3:
            raise ConnectionError("again")
        return "at last"

    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    retry: Any = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    model_server.play(calls(("c1", "flaky", {"what": "x"})), says("done"))
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [flaky], middleware=[*middleware, retry])
        _ = agent.invoke(QUESTION) if how == "invoke" else asyncio.run(agent.ainvoke(QUESTION))
    assert len(tries) == 3
    assert model_server.last_results()["c1"] == "at last"
    assert len(witness.decisions()) == 1
    assert [(one.status, one.error_type) for one in witness.outcomes] == [("ok", None)]
    assert len([span for span in witness.spans if span.name == "execute_tool flaky"]) == 1


def test_a_denial_is_not_tried_again(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)
    retry: Any = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("done"))
    agent = langchain.agents.create_agent(chat, [work], middleware=[retry, LgovMiddleware(governor)])
    agent.invoke(QUESTION)
    assert len(witness.decisions()) == 1


@WAYS
def test_a_model_that_is_tried_again_is_one_call(
    way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    retry: Any = ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    model_server.play(ScriptedReply("busy", status=503, headers={"connection": "close"}), says("done"))
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [work], middleware=[*middleware, retry])
        assert agent.invoke(QUESTION)["messages"][-1].text == "done"
    assert len(witness.decisions(Point.PRE_MODEL_CALL)) == 1
    (span,) = [span for span in witness.spans if span.name == "chat scripted"]
    assert str(span.attributes[semconv.RESPONSE_ID]).startswith("chatcmpl")


def test_a_model_with_retries_of_its_own_is_judged_at_each_try(
    model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    model_server.play(ScriptedReply("busy", status=503, headers={"connection": "close"}), says("done"))
    with governed("instrumented", governor):
        assert chat.with_retry(wait_exponential_jitter=False).invoke("hi").text == "done"
    errors = [span.attributes.get(semconv.ERROR_TYPE) is not None for span in witness.spans]
    assert errors == [True, False]


# ---------------------------------------------------------------------- one agent, several rollouts


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


# ---------------------------------------------------------------------- other versions, none at all


def test_a_version_outside_the_tested_range_is_warned_of_and_still_proved(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrumentation._INSTRUMENTOR, "tested", {"langchain-core": ">=0.1,<0.2"})
    governor = make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)
    with pytest.warns(UserWarning, match=r"langchain-core .* is outside the range lgov was tested with \(>=0.1,<0.2\)"):
        instrument(governor)
    try:
        assert "no digging" in work.invoke({"what": "dig"})
    finally:
        uninstrument()


PROGRAM = """
import sys
for name in {missing}:
    sys.modules[name] = None
from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_langchain.plugin import lgov_framework
adapter = lgov_framework()
print("installed", adapter.installed())
try:
    adapter.instrument(Governor())
except InstrumentationError as error:
    print("refused", error)
else:
    print("instrumented")
    adapter.uninstrument()
"""


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (["langchain_core", "langgraph", "langchain"], "installed False\nrefused LangChain cannot be governed here"),
        (["langchain_openai"], "installed True\ninstrumented"),
    ],
)
def test_without_the_framework(missing: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(missing=missing)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(said), done.stdout


# ---------------------------------------------------------------------- the self-test finds every way around


@pytest.mark.parametrize(
    ("owner", "name", "found"),
    [
        ("tool", "run", "probe tool ran.*run"),
        ("tool", "arun", "probe tool ran.*arun"),
        ("model", "generate", "probe model was asked.*invoke"),
        ("model", "agenerate", "probe model was asked.*ainvoke"),
        ("model", "stream", "probe model was asked.*stream"),
        ("model", "astream", "probe model was asked.*astream"),
        ("langchain", "create_agent", "did not get the governing middleware"),
    ],
)
def test_a_patch_that_does_not_hold_is_found(
    owner: str, name: str, found: str, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the patch of one path had no effect in some other version: instrumentation refuses, and nothing stays patched."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from lgov_core.errors import InstrumentationError
    from lgov_core.instrumentation.instrumentor import Patches

    replace: Callable[..., None] = Patches.replace

    def all_but_one(self: Any, target: Any, attribute: str, new: Any) -> None:
        if attribute != name:
            replace(self, target, attribute, new)

    before = (BaseTool.run, BaseTool.arun, BaseChatModel.generate, BaseChatModel.stream, langchain.agents.create_agent)
    monkeypatch.setattr(Patches, "replace", all_but_one)
    with pytest.raises(InstrumentationError, match=found):
        instrument(make_governor(witness=witness))
    assert before == (
        BaseTool.run,
        BaseTool.arun,
        BaseChatModel.generate,
        BaseChatModel.stream,
        langchain.agents.create_agent,
    )
    assert instrumentation.acting_governor() is None
