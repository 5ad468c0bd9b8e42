"""Sessions, paused runs and approvals."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext
from typing import Any

import pytest
from agents import (
    Agent,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
)
from cells import ANSWER, Seen, asks, says
from cells_agents import (
    chat_model,
    deny,
    denying,
    instrumented,
    make_governor,
    run,
    run_with,
    transform,
)

from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import LgovRunner

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
def test_a_denied_text_reaches_no_model_in_a_later_run(way: str, effect: str) -> None:
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
def test_an_unknown_history_is_evaluated_before_it_is_sent(effect: str, seen: Seen) -> None:
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
