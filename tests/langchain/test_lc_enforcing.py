"""The callback handler alone: it stops a denied tool where a callback can, and refuses to be attached where it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from lc_cells import chat_model, erase_tool, note, run_graph
from scripted import Judging, ModelServer, Witness, allow, calls, deny, make_governor, says

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import DeniedToolError, LgovCallbackHandler
from tests.cells import ANSWER, asks, open_cell
from tests.cells import says as tells


@pytest.mark.parametrize(
    ("mode", "is_async"),
    [("sync", False), ("async", True), ("async", False), ("streaming", False), ("streaming", True)],
)
@pytest.mark.parametrize("shape", ["agent", "graph"])
def test_a_denied_tool_does_not_run_and_the_model_reads_why(
    tmp_path: Path, mode: str, is_async: bool, shape: str
) -> None:
    path = str(tmp_path / "precious.txt")
    both = asks(("c1", "erase_file", {"path": path}), ("c2", "note", {"text": "hello"}))
    with open_cell(tmp_path, both, tells(ANSWER)) as cell:
        tools = [erase_tool(cell, is_async=is_async), note]
        agent = create_agent(chat_model(cell, mode), tools) if shape == "agent" else handmade(cell, mode, tools)
        handler = LgovCallbackHandler(cell.governor)
        cell.check(run_graph(agent, mode, is_async=is_async, callbacks=[handler]), ran=["note"])
        assert {one.action.call_id: one.status for one in cell.seen.outcomes} == {"c1": "denied", "c2": "ok"}
        assert handler.open_runs == 0


def handmade(cell: Any, mode: str, tools: list[Any]) -> Any:
    """A graph with LangGraph's own tool node, ungoverned."""
    from langchain_core.runnables import RunnableLambda
    from langgraph.prebuilt import tools_condition

    bound = chat_model(cell, mode).bind_tools(tools)

    async def think_later(state: MessagesState) -> Any:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", RunnableLambda(lambda state: {"messages": [bound.invoke(state["messages"])]}, think_later))
    graph.add_node("tools", ToolNode(tools))
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


ran: list[str] = []


@tool
def work(what: str) -> str:
    """Works."""
    ran.append(what)
    if what == "break":
        raise OSError("disk")
    return f"{what} secret"


def judge(action: Action) -> Decision | None:
    if action.point is Point.PRE_TOOL_CALL:
        what = action.arguments.get("what")
        if what == "move":
            return Decision(Effect.TRANSFORM, "mover", text=None, arguments={"what": "elsewhere"})
        return deny("stop", abort=True) if what == "abort" else allow()
    if action.point is Point.POST_TOOL_CALL and action.arguments["what"] == "hide":
        return deny("the result is secret")
    if action.point is Point.POST_TOOL_CALL and action.arguments["what"] == "mask":
        return Decision(Effect.TRANSFORM, "mask", text="***")
    return None


@pytest.fixture
def handler(witness: Witness) -> LgovCallbackHandler:
    ran.clear()
    return LgovCallbackHandler(make_governor(Judging(judge), witness=witness))


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    ("what", "runs", "told"),
    [
        ("move", False, "the policy wants other arguments"),
        ("hide", True, "the result is secret"),
        ("mask", True, "the policy wants other results"),
    ],
)
def test_what_a_callback_cannot_do_is_a_denial(
    how: str, what: str, runs: bool, told: str, handler: LgovCallbackHandler, model_server: ModelServer, chat: Any
) -> None:
    model_server.play(calls(("c1", "work", {"what": what})), says("done"))
    agent = create_agent(chat, [work])
    question: Any = {"messages": [("user", "go")]}
    config: Any = {"callbacks": [handler]}
    _ = agent.invoke(question, config) if how == "invoke" else asyncio.run(agent.ainvoke(question, config))
    assert bool(ran) == runs
    read = model_server.last_results()["c1"]
    assert "DENIED" in read
    assert told in read
    assert "hide secret" not in read
    assert "mask secret" not in read


def test_failures_and_aborts_end_the_run_and_are_recorded(
    handler: LgovCallbackHandler, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    for what, expected in (("break", OSError), ("abort", PolicyDenied)):
        model_server.play(calls(("c1", "work", {"what": what})))
        with pytest.raises(expected):
            create_agent(chat, [work]).invoke({"messages": [("user", "go")]}, {"callbacks": [handler]})
    assert ran == ["break"]
    assert [(one.status, one.error_type) for one in witness.outcomes] == [("error", "OSError"), ("denied", None)]
    assert handler.open_runs == 0
    assert all(span.ended_at is not None for span in witness.spans)


def test_without_a_tool_node_the_denial_is_raised() -> None:
    ran.clear()
    governor = make_governor(Judging(lambda action: deny("no")), witness=Witness())
    alone = LgovCallbackHandler(governor)
    call = {"name": "work", "args": {"what": "dig"}, "id": "c1", "type": "tool_call"}
    with pytest.raises(DeniedToolError, match="DENIED by policy test/no: no"):
        work.invoke(call, {"callbacks": [alone]})
    with pytest.raises(DeniedToolError, match="DENIED"):
        asyncio.run(work.ainvoke(call, {"callbacks": [alone]}))
    assert ran == []


def test_a_policy_that_raises_stops_the_tool(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    def broken(action: Action) -> Decision | None:
        raise ZeroDivisionError("secret")

    ran.clear()
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("done"))
    handler = LgovCallbackHandler(make_governor(Judging(broken), witness=witness))
    create_agent(chat, [work]).invoke({"messages": [("user", "go")]}, {"callbacks": [handler]})
    assert ran == []
    assert "DENIED" in model_server.last_results()["c1"]


def test_a_handler_that_could_not_stop_anything_is_not_made(witness: Witness) -> None:
    class Asynchronous(LgovCallbackHandler):
        async def on_tool_start(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
            super().on_tool_start(*args, **kwargs)

    class Both(LgovCallbackHandler, AsyncCallbackHandler):
        pass

    class Elsewhere(LgovCallbackHandler):
        run_inline = False

    class Quiet(LgovCallbackHandler):
        raise_error = False

    governor = make_governor(witness=witness)
    for cls, why in (
        (Asynchronous, "asynchronous"),
        (Both, "asynchronous"),
        (Elsewhere, "run_inline"),
        (Quiet, "raise_error"),
    ):
        with pytest.raises(PolicyError, match=f"{cls.__name__} cannot stop a denied tool.*{why}"):
            cls(governor)
        assert cls(governor, enforce=False).governor is governor


def test_what_langchain_does_with_an_asynchronous_handler_is_why(model_server: ModelServer, chat: Any) -> None:
    """The reason for refusing: the tool runs although the handler raised."""

    class Raising(AsyncCallbackHandler):
        raise_error = True

        async def on_tool_start(self, *args: Any, **kwargs: Any) -> None:
            raise DeniedToolError("work", "no")

    ran.clear()
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("done"))
    create_agent(chat, [work]).invoke({"messages": [("user", "go")]}, {"callbacks": [Raising()]})
    assert ran == ["dig"]


def test_a_handler_that_only_observes_stops_nothing(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    ran.clear()
    governor = make_governor(Judging(lambda action: deny("no")), witness=witness)
    handler = LgovCallbackHandler(governor, enforce=False)
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("done"))
    proposed: Any = {"messages": [("user", "go")]}
    state = create_agent(chat, [work]).invoke(proposed, {"callbacks": [handler]})
    assert isinstance(state["messages"][-1], AIMessage)
    assert ran == ["dig"]
    assert witness.decisions() == []
    assert not handler.raise_error
