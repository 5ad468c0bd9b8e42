"""Tool calls of agents with the middleware."""

from __future__ import annotations

import asyncio
import inspect
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command
from lc_agents import COUNT, DROP, Database, ask
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.governor import Governor
from lgov_core.policies import PolicySet
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import LgovMiddleware


def no_drop(action: Action) -> Decision | None:
    return deny("tables stay") if "DROP" in action.arguments.get("query", "") else None


@pytest.fixture
def governor(witness: Witness) -> Governor:
    return make_governor(at(Point.PRE_TOOL_CALL, no_drop), witness=witness)


@pytest.mark.parametrize(
    ("kind", "how"),
    [("sync", how) for how in ("invoke", "batch", "stream", "ainvoke", "astream")]
    + [("async", how) for how in ("ainvoke", "astream")],
)
@pytest.mark.surface("langchain", "pre_tool_call", "observe", "block", "tell")
def test_denied_call_has_no_effect_and_the_model_reads_why(
    how: str, kind: str, model_server: ModelServer, chat: Any, database: Database, governor: Governor, witness: Witness
) -> None:
    run_sql = database.sync_tool() if kind == "sync" else database.async_tool()
    model_server.play(calls(DROP), calls(COUNT), says("there are 3"))
    chat.streaming = how in ("stream", "astream")
    agent = create_agent(chat, [run_sql], middleware=[LgovMiddleware(governor)])

    messages = ask(agent, how)

    assert database.rows == 3
    denial = model_server.bodies[1]["messages"][-1]
    assert denial["role"] == "tool"
    assert denial["tool_call_id"] == "c1"
    assert "DENIED" in denial["content"]
    assert "tables stay" in denial["content"]
    assert model_server.last_results()["c2"] == "[(3,)]"
    assert messages[-1].text == "there are 3"
    assert [outcome.status for outcome in witness.outcomes] == ["denied", "ok"]
    assert [seen.decision.effect for seen in witness.decisions()] == [Effect.DENY, Effect.ALLOW]
    assert witness.outcomes[1].action.call_id == "c2"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_only_the_denied_one_of_parallel_calls_is_stopped(
    how: str, model_server: ModelServer, chat: Any, database: Database, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(DROP, COUNT), says("done"))
    ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    results = model_server.last_results()
    assert "DENIED" in results["c1"]
    assert results["c2"] == "[(3,)]"
    assert {outcome.action.call_id: outcome.status for outcome in witness.outcomes} == {"c1": "denied", "c2": "ok"}


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.surface("langchain", "pre_tool_call", "transform")
def test_a_transform_changes_what_runs_not_what_was_proposed(
    how: str, model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def limit(action: Action) -> Decision | None:
        query = action.arguments["query"]
        if query.endswith("LIMIT 1"):
            return None
        return Decision(Effect.TRANSFORM, policy="limit", arguments={"query": f"{query} LIMIT 1"})

    governor = make_governor(at(Point.PRE_TOOL_CALL, limit), witness=witness)
    model_server.play(calls(("c1", "run_sql", {"query": "SELECT name FROM staff"})), says("done"))
    ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    assert model_server.last_results()["c1"] == "[('a',)]"
    assert witness.outcomes[0].action.arguments == {"query": "SELECT name FROM staff"}


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_policy_that_raises_is_a_denial(
    how: str, model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def broken(action: Action) -> Decision | None:
        raise ZeroDivisionError("secret")

    governor = make_governor(at(Point.PRE_TOOL_CALL, broken), witness=witness)
    model_server.play(calls(COUNT), says("done"))
    ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    told = model_server.last_results()["c2"]
    assert "DENIED" in told
    assert "secret" not in told
    assert witness.outcomes[0].status == "denied"


def test_without_any_policy_no_tool_runs(
    model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    model_server.play(calls(COUNT), says("done"))
    ask(
        create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(make_governor(witness=witness))]),
        "invoke",
    )
    assert "DENIED" in model_server.last_results()["c2"]


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_raising_tool_is_recorded_and_ends_the_run(
    how: str, model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    @tool
    def run_sql(query: str) -> str:
        """Runs SQL."""
        raise ConnectionError("database is gone")

    model_server.play(calls(COUNT))
    agent = create_agent(chat, [run_sql], middleware=[LgovMiddleware(governor)])
    with pytest.raises(ConnectionError):
        ask(agent, how)
    (outcome,) = witness.outcomes
    assert (outcome.status, outcome.error_type, outcome.error) == ("error", "ConnectionError", "database is gone")


def test_a_tool_that_times_out_is_recorded_as_that(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    @tool
    async def run_sql(query: str) -> str:
        """Runs SQL."""
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
        return ""

    model_server.play(calls(COUNT))
    with pytest.raises(TimeoutError):
        ask(create_agent(chat, [run_sql], middleware=[LgovMiddleware(governor)]), "ainvoke")
    assert witness.outcomes[0].status == "timeout"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_calls_that_do_not_fit_are_recorded(
    how: str, model_server: ModelServer, chat: Any, database: Database, governor: Governor, witness: Witness
) -> None:
    model_server.play(
        calls(("c1", "run_sql", {"wrong": 1}), ("c2", "no_such_tool", {}), ("c3", "run_sql", {"query": "SELECT 1"})),
        says("done"),
    )
    ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    statuses = {outcome.action.call_id: outcome.status for outcome in witness.outcomes}
    assert statuses == {"c1": "invalid_args", "c2": "unknown_tool", "c3": "ok"}
    assert {seen.action.name for seen in witness.decisions()} == {"run_sql", "no_such_tool"}
    assert set(model_server.last_results()) == {"c1", "c2", "c3"}


def test_a_call_with_broken_json_is_recorded(
    model_server: ModelServer, chat: Any, database: Database, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(("c1", "run_sql", '{"query": '), COUNT), says("done"))
    ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), "invoke")
    assert {o.action.call_id: o.status for o in witness.outcomes} == {"c1": "invalid_args", "c2": "ok"}
    assert model_server.last_results()["c2"] == "[(3,)]"


def test_a_tool_that_returns_nothing_is_ok(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    @tool
    def run_sql(query: str) -> None:
        """Runs SQL."""

    model_server.play(calls(COUNT), says("done"))
    ask(create_agent(chat, [run_sql], middleware=[LgovMiddleware(governor)]), "invoke")
    assert witness.outcomes[0].status == "ok"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.surface("langchain", "post_tool_call", "block", "tell", "transform")
def test_results_are_judged_before_the_model_reads_them(
    how: str, model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        if action.text == "[(3,)]":
            return deny("counts are secret")
        if action.text and "'a'" in action.text:
            return Decision(Effect.TRANSFORM, policy="redact", text=action.text.replace("'a'", "[redacted]"))
        return None

    governor = make_governor(at(Point.POST_TOOL_CALL, judge), witness=witness)
    model_server.play(calls(COUNT, ("c3", "run_sql", {"query": "SELECT name FROM staff LIMIT 1"})), says("done"))
    ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    results = model_server.last_results()
    assert "counts are secret" in results["c2"]
    assert "3" not in results["c2"]
    assert results["c3"] == "[([redacted],)]"


def test_the_stream_of_updates_keeps_its_form(
    model_server: ModelServer, chat: Any, database: Database, governor: Governor
) -> None:
    model_server.play(calls(COUNT), says("done"))
    agent = create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)])
    updates = list(agent.stream({"messages": [("user", "count")]}, stream_mode="updates"))
    assert [list(update) for update in updates] == [["model"], ["tools"], ["model"]]
    assert all(len(update[node]["messages"]) == 1 for update in updates for node in update)


def test_a_pause_for_a_person_is_no_failure(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import interrupt

    @tool
    def run_sql(query: str) -> str:
        """Runs SQL."""
        return f"person said {interrupt('may I?')}"

    model_server.play(calls(COUNT), says("done"))
    agent = create_agent(chat, [run_sql], middleware=[LgovMiddleware(governor)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": [("user", "count")]}, config)
    assert witness.outcomes == []
    agent.invoke(Command(resume="yes"), config)
    assert [outcome.status for outcome in witness.outcomes] == ["ok"]
    assert model_server.last_results()["c2"] == "person said yes"


def test_the_agents_name_is_known_to_policies(
    model_server: ModelServer, chat: Any, database: Database, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(COUNT), says("done"))
    ask(create_agent(chat, [database.sync_tool()], name="clerk", middleware=[LgovMiddleware(governor)]), "invoke")
    assert {seen.action.agent for point in Point for seen in witness.decisions(point)} == {"clerk"}


def test_state_updates_of_a_denied_result_are_dropped(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    @tool
    def look_up(word: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Looks a word up."""
        return Command(update={"messages": [ToolMessage(f"secret of {word}", tool_call_id=call_id)]})

    governor = make_governor(
        at(Point.POST_TOOL_CALL, lambda action: deny("secret") if action.arguments["word"] == "a" else None),
        witness=witness,
    )
    model_server.play(calls(("c1", "look_up", {"word": "a"}), ("c2", "look_up", {"word": "b"})), says("done"))
    ask(create_agent(chat, [look_up], middleware=[LgovMiddleware(governor)]), "invoke")
    results = model_server.last_results()
    assert "DENIED" in results["c1"]
    assert "secret of" not in results["c1"]
    assert results["c2"] == "secret of b"


def test_both_ways_of_every_hook_are_there() -> None:
    for name in ("wrap_tool_call", "wrap_model_call"):
        assert getattr(LgovMiddleware, name) is not getattr(AgentMiddleware, name)
        assert getattr(LgovMiddleware, f"a{name}") is not getattr(AgentMiddleware, f"a{name}")


async def test_governing_an_asynchronous_agent_takes_no_thread(
    model_server: ModelServer, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    governor = Governor(PolicySet(default="allow"))
    asked: list[Any] = []
    loop = asyncio.get_running_loop()
    run_in_executor = loop.run_in_executor

    def counted(executor: Any, function: Any, *args: Any) -> Any:
        asked.append(function)
        return run_in_executor(executor, function, *args)

    monkeypatch.setattr(loop, "run_in_executor", counted)

    @tool
    async def look() -> str:
        """Looks."""
        return "seen"

    model_server.play(calls(("c1", "look", {})), says("done"))
    agent: Any = create_agent(chat, [look], middleware=[LgovMiddleware(governor)])
    answer = await agent.ainvoke({"messages": [("user", "look")]})
    whose = [part.__module__ for job in asked for part in getattr(job, "args", ()) if inspect.isfunction(part)]
    assert answer["messages"][-2].text == "seen"
    assert not [module for module in whose if module.startswith("langsmith")]
