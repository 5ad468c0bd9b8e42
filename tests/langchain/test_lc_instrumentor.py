"""A process that is instrumented: nothing that LangChain runs slips through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent as create_agent_from_before
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, tool
from scripted import Judging, ModelServer, Witness, allow, at, calls, deny, make_governor, says

from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.governor import Governor
from lgov_core.types import Action, Decision, Effect, Point
from lgov_langchain import LgovMiddleware, instrument, uninstrument
from lgov_langchain.instrumentor import INSTRUMENTOR

ran: list[Any] = []


@tool
def erase(path: str) -> str:
    """Erases a file."""
    ran.append(path)
    return f"erased {path}"


@tool
async def erase_later(path: str) -> str:
    """Erases a file."""
    ran.append(path)
    return f"erased {path}"


def only_tmp(action: Action) -> Decision | None:
    return None if str(action.arguments.get("path", "")).startswith("tmp") else deny("only tmp")


@pytest.fixture
def governor(witness: Witness) -> Iterator[Governor]:
    ran.clear()
    governor = make_governor(at(Point.PRE_TOOL_CALL, only_tmp), witness=witness)
    instrument(governor)
    yield governor
    uninstrument()


def call(path: str, name: str = "erase") -> dict[str, Any]:
    return {"name": name, "args": {"path": path}, "id": "c1", "type": "tool_call"}


def test_agents_made_after_instrumentation_have_the_middleware(
    governor: Governor, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    from langchain.agents import create_agent
    from langchain.agents.factory import create_agent as from_the_factory

    assert create_agent is from_the_factory
    model_server.play(calls(("c1", "erase", {"path": "home"}), ("c2", "erase", {"path": "tmp1"})), says("done"))
    create_agent(chat, [erase]).invoke({"messages": [("user", "tidy")]})
    assert ran == ["tmp1"]
    assert "only tmp" in model_server.last_results()["c1"]
    assert len(witness.decisions(Point.PRE_MODEL_CALL)) == 2
    assert len(witness.decisions()) == 2, "each call is judged once, although the backstop sees it too"
    assert {outcome.action.call_id: outcome.status for outcome in witness.outcomes} == {"c1": "denied", "c2": "ok"}
    assert {span.name.split()[0] for span in witness.spans} == {"chat", "execute_tool", "invoke_agent"}


def test_a_middleware_of_the_same_governor_is_not_doubled(
    governor: Governor, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    from langchain.agents import create_agent

    model_server.play(calls(("c1", "erase", {"path": "tmp"})), says("done"))
    create_agent(chat, [erase], middleware=[LgovMiddleware(governor)]).invoke({"messages": [("user", "tidy")]})
    assert len(witness.decisions()) == 1


def test_a_lenient_middleware_does_not_replace_ours(governor: Governor, model_server: ModelServer, chat: Any) -> None:
    from langchain.agents import create_agent

    lenient = make_governor(Judging(lambda action: allow()), witness=Witness())
    model_server.play(calls(("c1", "erase", {"path": "home"})), says("done"))
    create_agent(chat, [erase], middleware=[LgovMiddleware(lenient)]).invoke({"messages": [("user", "tidy")]})
    assert ran == []


def test_a_lenient_middleware_on_an_older_create_agent(
    governor: Governor, model_server: ModelServer, chat: Any
) -> None:
    lenient = make_governor(Judging(lambda action: allow()), witness=Witness())
    model_server.play(calls(("c1", "erase", {"path": "home"})), says("done"))
    agent = create_agent_from_before(chat, [erase], middleware=[LgovMiddleware(lenient)])
    agent.invoke({"messages": [("user", "tidy")]})
    assert ran == []
    assert "only tmp" in model_server.last_results()["c1"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_create_agent_imported_before_is_governed(
    asynchronous: bool, governor: Governor, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(calls(("c1", "erase", {"path": "home"}), ("c2", "erase", {"path": "tmp"})), says("done"))
    agent = create_agent_from_before(chat, [erase])
    question: Any = {"messages": [("user", "tidy")]}
    _ = asyncio.run(agent.ainvoke(question)) if asynchronous else agent.invoke(question)
    assert ran == ["tmp"]
    assert "only tmp" in model_server.last_results()["c1"]
    assert {outcome.action.call_id: outcome.status for outcome in witness.outcomes} == {"c1": "denied", "c2": "ok"}


def test_hand_made_graphs_are_governed(governor: Governor) -> None:
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([erase, erase_later]))
    graph.set_entry_point("tools")
    proposed = AIMessage("", tool_calls=[call("home"), {**call("tmp", "erase_later"), "id": "c2"}])
    state = asyncio.run(graph.compile().ainvoke({"messages": [proposed]}))
    results = {message.tool_call_id: message for message in state["messages"] if isinstance(message, ToolMessage)}
    assert ran == ["tmp"]
    assert results["c1"].status == "error"
    assert "only tmp" in results["c1"].text
    assert results["c2"].text == "erased tmp"


def test_bare_tools_are_governed(governor: Governor, witness: Witness) -> None:
    assert "only tmp" in erase.invoke({"path": "home"})
    assert "only tmp" in erase.run("home")
    answer = erase.invoke(call("home"))
    assert isinstance(answer, ToolMessage)
    assert answer.status == "error"
    assert "only tmp" in asyncio.run(erase_later.ainvoke({"path": "home"}))
    assert "only tmp" in asyncio.run(erase.ainvoke({"path": "home"}))
    assert all("only tmp" in one for one in erase.batch([{"path": "a"}, {"path": "b"}]))
    assert ran == []
    assert erase.invoke({"path": "tmp"}) == "erased tmp"
    assert [outcome.status for outcome in witness.outcomes] == ["denied"] * 7 + ["ok"]


def test_arguments_that_middleware_rewrites_are_evaluated(
    governor: Governor, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    from langchain.agents import create_agent

    class Rewriting(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(tool_call={**request.tool_call, "args": {"path": "home"}}))

    model_server.play(calls(("c1", "erase", {"path": "tmp"})), says("done"))
    create_agent(chat, [erase], middleware=[Rewriting()]).invoke({"messages": [("user", "tidy")]})
    assert ran == []
    assert [outcome.status for outcome in witness.outcomes] == ["denied"], "one call has one outcome"


def test_a_call_that_runs_after_its_changed_form_was_denied(
    governor: Governor, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    from langchain.agents import create_agent

    class Trying(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            handler(request.override(tool_call={**request.tool_call, "args": {"path": "home"}}))
            return handler(request)

    model_server.play(calls(("c1", "erase", {"path": "tmp"})), says("done"))
    create_agent(chat, [erase], middleware=[Trying()]).invoke({"messages": [("user", "tidy")]})
    assert ran == ["tmp"]
    assert [(one.status, one.action.arguments["path"]) for one in witness.outcomes] == [
        ("denied", "home"),
        ("ok", "tmp"),
    ]


def test_a_tool_inside_a_tool_is_a_call_of_its_own(governor: Governor, model_server: ModelServer, chat: Any) -> None:
    from langchain.agents import create_agent

    @tool
    def tidy(path: str) -> str:
        """Tidies."""
        return erase.invoke({"path": "home"})

    model_server.play(calls(("c1", "tidy", {"path": "tmp"})), says("done"))
    create_agent(chat, [tidy]).invoke({"messages": [("user", "tidy")]})
    assert ran == []
    assert "only tmp" in model_server.last_results()["c1"]


def test_bare_tools_have_transforms_results_and_failures(witness: Witness) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is Point.POST_TOOL_CALL and "tmp" in (action.text or ""):
            return Decision(Effect.TRANSFORM, policy="redact", text=(action.text or "").replace("tmp", "***"))
        if action.point is Point.PRE_TOOL_CALL and action.arguments["path"] == "here":
            return Decision(Effect.TRANSFORM, policy="move", arguments={"path": "tmp"})
        return allow()

    @tool
    def move(path: str, owner: Annotated[str, InjectedToolArg]) -> str:
        """Moves a file."""
        if path == "bad":
            raise OSError("disk")
        return f"{path} of {owner}"

    instrument(make_governor(Judging(judge), witness=witness))
    try:
        assert move.invoke({"path": "here", "owner": "me"}) == "*** of me"
        assert dict(witness.outcomes[0].action.arguments) == {"path": "here"}
        with pytest.raises(OSError, match="disk"):
            move.invoke({"path": "bad", "owner": "me"})
        with pytest.raises(ValueError, match="path"):
            move.invoke({"path": ["not", "text"], "owner": "me"})
    finally:
        uninstrument()
    assert [outcome.status for outcome in witness.outcomes] == ["ok", "error", "invalid_args"]


def test_abort_is_raised_by_the_backstop(witness: Witness) -> None:
    instrument(make_governor(Judging(lambda action: deny("stop", abort=True)), witness=witness))
    try:
        with pytest.raises(PolicyDenied):
            erase.invoke({"path": "tmp"})
        with pytest.raises(PolicyDenied):
            asyncio.run(erase_later.ainvoke({"path": "tmp"}))
    finally:
        uninstrument()


def test_a_way_around_is_found_by_the_self_test(witness: Witness, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a future LangChain no longer called ``run`` from ``invoke``."""
    before = BaseTool.run
    monkeypatch.setattr(BaseTool, "invoke", lambda self, input, config=None, **kwargs: self._run(**input["args"]))
    with pytest.raises(InstrumentationError, match=r"denied probes got through \(tool\.invoke"):
        instrument(make_governor(witness=witness))
    assert BaseTool.run is before
    assert INSTRUMENTOR.governor is None


def test_the_self_test_leaves_tracing_settings_alone(witness: Witness) -> None:
    """LangSmith remembers its settings at first use; instrumentation must not be that use, or a program's own come too late."""
    from langsmith.utils import get_env_var

    get_env_var.cache_clear()
    instrument(make_governor(witness=witness))
    try:
        assert get_env_var.cache_info().currsize == 0
    finally:
        uninstrument()
