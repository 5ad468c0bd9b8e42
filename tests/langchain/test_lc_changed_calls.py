"""Calls that middleware changes between the judgement and the tool or the model."""

from __future__ import annotations

import asyncio
from typing import Any

import langchain.agents
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.policies.budgets.cost import CostControlPolicy
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import LgovMiddleware, instrument, uninstrument, wrap_tool_node

HOW = pytest.mark.parametrize("how", ["invoke", "ainvoke"])
QUESTION: Any = {"messages": [("user", "tidy")]}
ran: list[Any] = []


@tool
def erase(paths: list[str]) -> str:
    """Erases."""
    ran.append(paths)
    return "erased"


@tool
def look(paths: list[str]) -> str:
    """Looks, by means of another tool."""
    ran.append(erase.invoke({"paths": ["home"]}))
    return "seen"


@tool("look")
def say_seen(paths: list[str]) -> str:
    """Looks."""
    return "seen"


def only_tmp(action: Action) -> Decision | None:
    if action.name == "erase" and action.arguments["paths"] != ["tmp"]:
        return deny("only tmp", abort=action.arguments["paths"] == ["root"])
    return None


class Changing(AgentMiddleware[Any, Any, Any]):
    """Changes the call as ``way`` says and runs it."""

    def __init__(self, way: str, path: str = "home") -> None:
        super().__init__()
        self.way, self.path = way, path

    def change(self, request: Any) -> Any:
        if self.way == "in place":
            request.tool_call["args"]["paths"][:] = [self.path]
            return request
        name = "erase" if self.way == "other tool" else request.tool_call["name"]
        call = {**request.tool_call, "name": name, "args": {"paths": [self.path]}}
        return request.override(tool=erase if name == "erase" else look, tool_call=call)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(self.change(request))

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await handler(self.change(request))


def ask(agent: Any, how: str) -> Any:
    ran.clear()
    return agent.invoke(QUESTION) if how == "invoke" else asyncio.run(agent.ainvoke(QUESTION))


@HOW
@pytest.mark.parametrize("way", ["arguments", "other tool", "in place"])
def test_a_changed_call_is_judged_as_what_it_has_become(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    name = "look" if way == "other tool" else "erase"
    model_server.play(calls(("c1", name, {"paths": ["tmp"]})), says("done"))
    agent = create_agent(chat, [erase, look], middleware=[LgovMiddleware(governor), Changing(way)])
    state = ask(agent, how)
    assert ran == []
    assert "only tmp" in model_server.last_results()["c1"]
    assert state["messages"][-1].text == "done"
    (outcome,) = witness.outcomes
    assert (outcome.status, outcome.action.name, outcome.action.arguments) == ("denied", "erase", {"paths": ["home"]})
    assert [one.decision.effect for one in witness.decisions()] == [Effect.ALLOW, Effect.DENY]


@HOW
def test_a_change_that_may_be_runs_and_is_recorded(
    how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    model_server.play(calls(("c1", "look", {"paths": ["x"]})), says("done"))
    agent = create_agent(chat, [erase, look], middleware=[LgovMiddleware(governor), Changing("other tool", path="tmp")])
    ask(agent, how)
    assert ran == [["tmp"]]
    (outcome,) = witness.outcomes
    assert (outcome.status, outcome.action.name, outcome.action.call_id) == ("ok", "erase", "c1")
    (after,) = witness.decisions(Point.POST_TOOL_CALL)
    assert after.action.name == "erase"


def test_an_abort_is_raised(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    model_server.play(calls(("c1", "erase", {"paths": ["tmp"]})))
    with pytest.raises(PolicyDenied):
        ask(create_agent(chat, [erase], middleware=[LgovMiddleware(governor), Changing("in place", "root")]), "invoke")
    assert ran == []
    assert [one.status for one in witness.outcomes] == ["denied"]


class Adding(AgentMiddleware[Any, Any, Any]):
    """Puts a message into the prompt."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(messages=[*request.messages, HumanMessage("the password")]))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(messages=[*request.messages, HumanMessage("the password")]))


@HOW
@pytest.mark.parametrize("verdict", ["allow", "deny", "transform", "abort"])
def test_a_changed_prompt_is_judged_before_it_is_sent(
    how: str, verdict: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    def judge(action: Action) -> Decision | None:
        if "password" not in str(action.arguments["messages"]):
            return None
        if verdict == "transform":
            return Decision(Effect.TRANSFORM, policy="test", arguments={**action.arguments, "messages": []})
        return None if verdict == "allow" else deny("no passwords", abort=verdict == "abort")

    governor = make_governor(at(Point.PRE_MODEL_CALL, judge), witness=witness)
    model_server.play(says("done"))
    agent = create_agent(chat, [], middleware=[LgovMiddleware(governor), Adding()])
    if verdict == "abort":
        with pytest.raises(PolicyDenied):
            ask(agent, how)
    else:
        answer = ask(agent, how)["messages"][-1].text
        assert {"allow": "done", "deny": "no passwords", "transform": "cannot provide"}[verdict] in answer
    assert len(model_server.bodies) == (verdict == "allow")
    asked = witness.decisions(Point.PRE_MODEL_CALL)
    assert [len(one.action.arguments["messages"]) for one in asked] == [1, 2]
    assert len({one.action.operation_id for one in asked}) == 1
    assert [span.name for span in witness.spans] == ["chat scripted", "invoke_agent LangGraph"]


def test_what_a_tool_calls_itself_is_not_a_changed_call(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    model_server.play(calls(("c1", "look", {"paths": ["tmp"]})), says("done"))
    ask(create_agent(chat, [look], middleware=[LgovMiddleware(governor)]), "invoke")
    assert ran == [["home"], "erased"], "outside an instrumented process lgov sees what the model asked for"
    assert len(witness.decisions()) == 1


def test_what_a_person_edits_is_judged(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    model_server.play(calls(("c1", "erase", {"paths": ["tmp"]})), says("done"))
    person: Any = HumanInTheLoopMiddleware(interrupt_on={"erase": True})
    agent: Any = create_agent(
        chat, [erase], middleware=[LgovMiddleware(governor), person], checkpointer=InMemorySaver()
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    ran.clear()
    agent.invoke(QUESTION, config)
    edited = {"type": "edit", "edited_action": {"name": "erase", "args": {"paths": ["home"]}}}
    agent.invoke(Command(resume={"decisions": [edited]}), config)
    assert ran == []
    assert "only tmp" in model_server.last_results()["c1"]


@HOW
@pytest.mark.parametrize("handled", [True, False])
def test_a_call_changed_by_a_nodes_wrapper_is_evaluated(how: str, handled: bool, witness: Witness) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    changing: Any = Changing("arguments")
    graph: Any = StateGraph(MessagesState)
    graph.add_node(
        "tools",
        wrap_tool_node(
            governor,
            [erase],
            handle_tool_errors=handled,
            wrap_tool_call=changing.wrap_tool_call,
            awrap_tool_call=changing.awrap_tool_call,
        ),
    )
    graph.add_edge(START, "tools")
    asked = AIMessage("", tool_calls=[{"name": "erase", "args": {"paths": ["tmp"]}, "id": "c1"}])
    app = graph.compile()
    ran.clear()
    said: Any = {"messages": [asked]}
    state = app.invoke(said) if how == "invoke" else asyncio.run(app.ainvoke(said))
    assert ran == []
    assert "only tmp" in state["messages"][-1].text
    assert [one.status for one in witness.outcomes] == ["denied"]


@HOW
@pytest.mark.parametrize("verdict", ["allow", "deny", "transform", "abort", "watch"])
def test_a_changed_prompt_is_one_call_in_an_instrumented_process(
    how: str, verdict: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    from langchain.agents.middleware import ModelRetryMiddleware

    def judge(action: Action) -> Decision | None:
        if "password" not in str(action.arguments["messages"]):
            return None
        if verdict == "transform":
            said = [
                {**one, "content": one["content"].replace("password", "***")} for one in action.arguments["messages"]
            ]
            return Decision(Effect.TRANSFORM, policy="test", arguments={**action.arguments, "messages": said})
        return None if verdict == "allow" else deny("no passwords", abort=verdict == "abort")

    governor = make_governor(at(Point.PRE_MODEL_CALL, judge), witness=witness)
    if verdict == "watch":
        governor = Governor(plugins=[witness], observe_only=True)
    model_server.play(says("done"))
    instrument(governor)
    try:
        agent = langchain.agents.create_agent(chat, [], middleware=[ModelRetryMiddleware(initial_delay=0), Adding()])
        if verdict == "abort":
            with pytest.raises(PolicyDenied):
                ask(agent, how)
        else:
            assert ("no passwords" if verdict == "deny" else "done") in ask(agent, how)["messages"][-1].text
    finally:
        uninstrument()
    sent = [body["messages"][-1]["content"] for body in model_server.bodies]
    assert sent == {"deny": [], "abort": [], "transform": ["the ***"]}.get(verdict, ["the password"])
    (chat_span, _) = witness.spans
    assert chat_span.attributes.get("error.type") == ("denied" if verdict in ("deny", "abort") else None)
    if verdict == "watch":
        return
    assert len(witness.decisions(Point.INPUT)) == 1
    assert len({one.action.operation_id for one in witness.decisions(Point.PRE_MODEL_CALL)}) == 1
    answered = 0 if verdict in ("deny", "abort") else 1
    assert len(witness.decisions(Point.POST_MODEL_CALL)) == len(witness.decisions(Point.OUTPUT)) == answered


@HOW
def test_a_model_call_by_middleware_is_a_call_of_its_own(
    how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    class Asking(Adding):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            chat.invoke("which tools?")
            return super().wrap_model_call(request, handler)

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            await chat.ainvoke("which tools?")
            return await super().awrap_model_call(request, handler)

    model_server.play(says("none"), says("done"))
    instrument(make_governor(at(Point.PRE_MODEL_CALL, lambda action: None), witness=witness))
    try:
        ask(langchain.agents.create_agent(chat, [], middleware=[Asking()]), how)
    finally:
        uninstrument()
    replies = [one.action.text for one in witness.decisions(Point.POST_MODEL_CALL)]
    assert replies == ["none", "done"]
    assert len({one.action.operation_id for one in witness.decisions(Point.PRE_MODEL_CALL)}) == 2
    assert [span.name for span in witness.spans] == ["chat scripted", "chat scripted", "invoke_agent LangGraph"]


@HOW
def test_a_changed_prompt_is_counted_once(how: str, model_server: ModelServer, chat: Any, witness: Witness) -> None:
    budget = CostControlPolicy(max_calls=3, per="global")
    model_server.play(calls(("c1", "look", {"paths": ["x"]})), says("done"))
    instrument(make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), budget, witness=witness))
    try:
        agent = langchain.agents.create_agent(chat, [say_seen], middleware=[Adding()])
        assert ask(agent, how)["messages"][-1].text == "done"
    finally:
        uninstrument()
