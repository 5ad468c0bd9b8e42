"""The middleware in real agents, against a real HTTP model that plays a script."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.errors import PolicyDenied, SettingsError
from lgov_core.governor import Governor
from lgov_core.policies import PolicySet
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import LgovMiddleware, messages

DROP = ("c1", "run_sql", {"query": "DROP TABLE staff"})
COUNT = ("c2", "run_sql", {"query": "SELECT count(*) FROM staff"})


class Database:
    """A SQLite file with three rows, and tools over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute("CREATE TABLE staff(name)")
        self.execute("INSERT INTO staff VALUES ('a'), ('b'), ('c')")

    def execute(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                return connection.execute(query).fetchall()
        finally:
            connection.close()

    @property
    def rows(self) -> int:
        return self.execute("SELECT count(*) FROM staff")[0][0]

    def sync_tool(self) -> Any:
        @tool
        def run_sql(query: str) -> str:
            """Runs SQL."""
            return str(self.execute(query))

        return run_sql

    def async_tool(self) -> Any:
        @tool
        async def run_sql(query: str) -> str:
            """Runs SQL."""
            return await asyncio.to_thread(lambda: str(self.execute(query)))

        return run_sql


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "company.db")


def no_drop(action: Action) -> Decision | None:
    return deny("tables stay") if "DROP" in action.arguments.get("query", "") else None


@pytest.fixture
def governor(witness: Witness) -> Governor:
    return make_governor(at(Point.PRE_TOOL_CALL, no_drop), witness=witness)


def ask(agent: Any, how: str, text: str = "tidy up") -> list[Any]:
    """Runs the agent in one of LangChain's ways and returns the messages of the conversation."""
    question = {"messages": [{"role": "user", "content": text}]}
    if how == "invoke":
        return agent.invoke(question)["messages"]
    if how == "batch":
        return agent.batch([question])[0]["messages"]
    if how == "stream":
        return list(agent.stream(question, stream_mode="values"))[-1]["messages"]
    if how == "ainvoke":
        return asyncio.run(agent.ainvoke(question))["messages"]

    async def consume() -> list[Any]:
        last: Any = None
        async for mode, chunk in agent.astream(question, stream_mode=["values", "messages"]):
            last = chunk if mode == "values" else last
        return last["messages"]

    return asyncio.run(consume())


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
def test_transform_changes_what_runs_but_not_what_is_recorded_as_proposed(
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
def test_a_raising_tool_is_recorded_and_ends_the_run_as_langchain_has_it(
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
def test_calls_that_do_not_fit_are_judged_and_recorded_as_what_they_are(
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


def test_a_call_with_broken_json_is_recorded_and_the_good_one_beside_it_runs(
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
def test_abort_ends_the_run(
    how: str, model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True)), witness=witness)
    model_server.play(calls(DROP))
    with pytest.raises(PolicyDenied, match="stop"):
        ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    assert database.rows == 3
    assert witness.outcomes[0].status == "denied"


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


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("point", [Point.INPUT, Point.PRE_MODEL_CALL])
def test_a_denied_question_never_reaches_the_model(
    point: Point, how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(point, lambda action: deny("not that")), witness=witness)
    messages = ask(create_agent(chat, [], middleware=[LgovMiddleware(governor)]), how, "something bad")
    assert model_server.bodies == []
    assert "not that" in messages[-1].text
    (seen,) = witness.decisions(point)
    said = seen.action.text if point is Point.INPUT else seen.action.arguments["messages"][-1]["content"]
    assert said == "something bad"


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_denied_reply_proposes_nothing(
    how: str, model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        return deny("no drops") if "DROP" in str(action.arguments["tool_calls"]) else None

    governor = make_governor(at(Point.POST_MODEL_CALL, judge), witness=witness)
    model_server.play(calls(DROP))
    messages = ask(create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)]), how)
    assert database.rows == 3
    assert isinstance(messages[-1], AIMessage)
    assert messages[-1].tool_calls == []
    assert "no drops" in messages[-1].text
    assert witness.decisions() == []


@pytest.mark.parametrize("point", [Point.POST_MODEL_CALL, Point.OUTPUT])
def test_the_answer_can_be_rewritten(point: Point, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    def judge(action: Action) -> Decision | None:
        if action.text and "42" in action.text:
            return Decision(Effect.TRANSFORM, policy="redact", text=action.text.replace("42", "**"))
        return None

    model_server.play(says("it is 42"))
    agent = create_agent(chat, [], middleware=[LgovMiddleware(make_governor(at(point, judge), witness=witness))])
    assert ask(agent, "invoke")[-1].text == "it is **"


@pytest.mark.surface("langchain", "input", "observe", "transform", "sync")
def test_rewritten_user_text_stays_rewritten_for_the_whole_conversation(
    model_server: ModelServer, chat: Any, database: Database, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        if action.text and "1234" in action.text:
            return Decision(Effect.TRANSFORM, policy="redact", text=action.text.replace("1234", "****"))
        return None

    governor = make_governor(at(Point.INPUT, judge), witness=witness)
    model_server.play(calls(COUNT), says("done"))
    agent = create_agent(chat, [database.sync_tool()], middleware=[LgovMiddleware(governor)])
    messages = ask(agent, "invoke", "my pin is 1234")
    assert [body["messages"][0]["content"] for body in model_server.bodies] == ["my pin is ****"] * 2
    assert messages[0].content == "my pin is ****"
    assert len(witness.decisions(Point.INPUT)) == 1


@pytest.mark.surface("langchain", "pre_model_call", "transform", "sync")
def test_messages_rewritten_before_the_call_are_what_is_sent(
    model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        said = action.arguments["messages"]
        if said[0]["content"] == "be safe":
            return None
        return Decision(
            Effect.TRANSFORM, policy="frame", arguments={"messages": [{"role": "system", "content": "be safe"}, *said]}
        )

    model_server.play(says("ok"))
    governor = make_governor(at(Point.PRE_MODEL_CALL, judge), witness=witness)
    ask(create_agent(chat, [], middleware=[LgovMiddleware(governor)]), "invoke", "hello")
    sent = [(message["role"], message["content"]) for message in model_server.bodies[0]["messages"]]
    assert sent == [("system", "be safe"), ("user", "hello")]


def test_a_denied_structured_answer_is_not_returned(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    from langchain.agents.structured_output import ToolStrategy
    from pydantic import BaseModel

    class Answer(BaseModel):
        """The answer."""

        number: int

    def judge(action: Action) -> Decision | None:
        return deny("no numbers") if "42" in (action.text or "") else None

    governor = make_governor(at(Point.OUTPUT, judge), witness=witness)
    model_server.play(calls(("c1", "Answer", {"number": 42})))
    agent = create_agent(chat, [], response_format=ToolStrategy(Answer), middleware=[LgovMiddleware(governor)])
    state = agent.invoke({"messages": [("user", "how many?")]})
    assert state.get("structured_response") is None
    assert "no numbers" in state["messages"][-1].text


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


# ---------------------------------------------------------------------- attribution


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_calls_to_our_endpoint_carry_the_rollout(
    how: str, model_server: ModelServer, chat: Any, governor: Governor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", model_server.url)
    model_server.play(says("one"), says("two"))
    agent = create_agent(chat, [], name="clérk", middleware=[LgovMiddleware(governor, endpoint_headers=True)])
    with enter_scope(RolloutScope("rollout-7", attempt=2)):
        ask(agent, how)
    ask(agent, how)
    inside, outside = model_server.headers
    assert (inside["x-lgov-rollout-id"], inside["x-lgov-attempt"]) == ("rollout-7", "2")
    assert inside["x-lgov-agent"] == "cl%C3%A9rk"
    assert not any(name.startswith("x-lgov-") for name in outside)


@pytest.mark.parametrize("endpoint", ["", "http://127.0.0.1:1", "https://{host}", "http://{host}0", "http://{host}/v"])
def test_no_other_host_learns_of_rollouts(
    endpoint: str, model_server: ModelServer, chat: Any, governor: Governor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LGOV_ENDPOINT", endpoint.format(host=model_server.url.removeprefix("http://")))
    model_server.play(says("one"))
    with enter_scope(RolloutScope("rollout-7")):
        ask(create_agent(chat, [], middleware=[LgovMiddleware(governor)]), "invoke")
    assert not any(name.startswith("x-lgov-") for name in model_server.headers[0])


def test_demanding_headers_needs_an_endpoint(governor: Governor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LGOV_ENDPOINT", raising=False)
    with pytest.raises(SettingsError, match="LGOV_ENDPOINT"):
        LgovMiddleware(governor, endpoint_headers=True)


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


def test_a_transform_of_messages_leaves_each_picture_with_its_own() -> None:
    def picture(data: str) -> HumanMessage:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return HumanMessage([{"type": "text", "text": "look"}, image])

    first, asked, second = given = [picture("aa"), HumanMessage("well?"), picture("bb")]
    said = messages.as_mappings(given)
    assert [id(one) for one in messages.with_messages(given, [said[0], said[2]])] == [id(first), id(second)]
    reworded = messages.with_messages(given, [{**said[0], "content": "so?"}, *said[1:]])
    assert reworded[0].content == [{"type": "text", "text": "so?"}, first.content[1]]
    assert reworded[1:] == [asked, second]
    alone = messages.with_messages(given, [{**said[0], "content": "so?"}])
    assert [one.content for one in alone] == ["so?"], "the picture of a message that is gone does not stay"
