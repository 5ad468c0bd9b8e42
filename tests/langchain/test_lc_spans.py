"""Spans: one a call, nested as things happened, and those that the program opens inside a tool are below the tool's."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from scripted import ModelServer, Witness, at, calls, make_governor, says

from lgov_core.governor import Governor
from lgov_core.trace import semconv
from lgov_core.types import Point
from lgov_langchain import LgovCallbackHandler, LgovMiddleware, instrument, uninstrument


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@pytest.fixture
def governor(witness: Witness) -> Governor:
    return make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)


TREE = ["chat scripted", "chat scripted", "execute_tool add", "invoke_agent clerk"]


@pytest.mark.parametrize(
    "attached", ["middleware", "middleware and handler", "instrumented", "instrumented and handler"]
)
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
def test_one_span_a_call_whatever_is_attached(
    how: str, attached: str, model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    chat.streaming = chat.stream_usage = "stream" in how
    handler = LgovCallbackHandler(governor)
    config: Any = {"callbacks": [handler] if "handler" in attached else []}
    if "instrumented" in attached:
        instrument(governor)
    try:
        import langchain.agents

        middleware = [LgovMiddleware(governor)] if "middleware" in attached else []
        agent = langchain.agents.create_agent(chat, [add], name="clerk", middleware=middleware)
        question: Any = {"messages": [("user", "1 + 2?")]}
        if how == "invoke":
            agent.invoke(question, config)
        elif how == "stream":
            list(agent.stream(question, config))
        elif how == "ainvoke":
            asyncio.run(agent.ainvoke(question, config))
        else:
            asyncio.run(_consume(agent.astream(question, config)))
    finally:
        uninstrument()
    assert sorted(span.name for span in witness.spans) == TREE
    (top,) = [span for span in witness.spans if span.parent_id is None]
    assert {span.parent_id for span in witness.spans if span is not top} == {top.span_id}
    chats = [span for span in witness.spans if span.name == "chat scripted"]
    assert all(str(span.attributes[semconv.RESPONSE_ID]).startswith("chatcmpl") for span in chats)
    assert all(span.attributes[semconv.INPUT_TOKENS] for span in chats)
    assert len(witness.decisions()) == 1
    assert top.attributes[semconv.AGENT_NAME] == "clerk"
    assert handler.open_runs == 0


async def _consume(stream: Any) -> list[Any]:
    return [part async for part in stream]


def test_no_text_is_on_spans_unless_the_governor_says_so(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    for kept in (False, True):
        witness.events.clear()
        governor.capture_content = kept
        model_server.play(calls(("c1", "add", {"a": 1234567890, "b": 2})), says("it is 1234567892"))
        agent = create_agent(chat, [add], middleware=[LgovMiddleware(governor)])
        handler = LgovCallbackHandler(governor)
        agent.invoke({"messages": [("user", "1234567890 + 2?")]}, {"callbacks": [handler]})
        chat.invoke("and 1234567890?", {"callbacks": [handler]}) if model_server.play(
            says("1234567892")
        ) is None else None
        assert ("12345678" in str([span.attributes for span in witness.spans])) == kept


def test_an_agent_that_fails_has_an_ended_span(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    @tool
    def broken(a: int) -> int:
        """Breaks."""
        raise OSError("disk")

    model_server.play(calls(("c1", "broken", {"a": 1})))
    with pytest.raises(OSError, match="disk"):
        create_agent(chat, [broken], name="clerk", middleware=[LgovMiddleware(governor)]).invoke(
            {"messages": [("user", "go")]}
        )
    assert {span.name: span.attributes.get(semconv.ERROR_TYPE) for span in witness.spans} == {
        "chat scripted": None,
        "execute_tool broken": "OSError",
        "invoke_agent clerk": "OSError",
    }


@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_the_error_behind_a_nodes_text_is_recorded(
    how: str, model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    from langgraph.graph import MessagesState, StateGraph

    from lgov_langchain import wrap_tool_node

    @tool
    def broken(a: int) -> int:
        """Breaks."""
        raise ConnectionError("10.0.0.7 refused")

    graph = StateGraph(MessagesState)
    graph.add_node("tools", wrap_tool_node(governor, [broken], handle_tool_errors="Something went wrong."))
    graph.set_entry_point("tools")
    proposed: Any = {"messages": [_asking("broken", {"a": 1})]}
    built = graph.compile()
    state = built.invoke(proposed) if how == "invoke" else asyncio.run(built.ainvoke(proposed))
    assert state["messages"][-1].text == "Something went wrong."
    (outcome,) = witness.outcomes
    assert (outcome.status, outcome.error_type, outcome.error) == ("error", "ConnectionError", "10.0.0.7 refused")
    assert outcome.result == "Something went wrong."


def _asking(name: str, args: dict[str, Any]) -> Any:
    from langchain_core.messages import AIMessage

    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": "c1", "type": "tool_call"}])


PROGRAM = Path(__file__).with_name("lc_traced_program.py")


@pytest.mark.parametrize("attached", ["middleware", "instrumented"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("kind", ["sync", "async", "threaded"])
def test_the_programs_own_spans_stand_below_the_tools(
    kind: str, how: str, attached: str, model_server: ModelServer
) -> None:
    if kind == "async" and how in ("invoke", "stream"):
        pytest.skip("LangChain does not run asynchronous tools in synchronous agents")
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("done"))
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": root,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{model_server.url}/v1",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), kind, how, attached],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    above = dict(line.split(" < ") for line in done.stdout.splitlines())
    assert above == {
        "query": "execute_tool work",
        "execute_tool work": "invoke_agent clerk",
        "chat scripted": "invoke_agent clerk",
        "invoke_agent clerk": "request",
        "request": "",
    }


def test_what_agents_are_made_of_is_no_agent(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    """Chains, retries, prompts and parsers are no agents; a graph in a chain or in a tool is one."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.runnables import RunnableLambda
    from langgraph.graph import MessagesState, StateGraph

    def think(state: MessagesState) -> Any:
        return {"messages": [chat.with_retry().invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", think)
    graph.set_entry_point("model")
    inner = graph.compile(name="thinker")

    @tool
    def consult(what: str) -> str:
        """Consults."""
        return inner.invoke({"messages": [("user", what)]})["messages"][-1].text

    chain = ChatPromptTemplate.from_messages([("user", "{said}")]) | chat.with_retry() | StrOutputParser()
    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    instrument(governor)
    try:
        model_server.script = lambda body: says("thought")
        assert chain.invoke({"said": "hi"}) == "thought"
        assert [(span.name, span.parent_id) for span in witness.spans] == [("chat scripted", None)]
        witness.events.clear()
        (RunnableLambda(lambda x: {"messages": [("user", x)]}) | inner).invoke("hi")
        assert [span.name for span in witness.spans] == ["chat scripted", "invoke_agent thinker"]
        assert witness.spans[0].parent_id == witness.spans[1].span_id
        witness.events.clear()
        consult.invoke({"what": "hi"})
        above = {span.span_id: span.name for span in witness.spans}
        assert [(span.name, above.get(span.parent_id or "")) for span in witness.spans] == [
            ("chat scripted", "invoke_agent thinker"),
            ("invoke_agent thinker", "execute_tool consult"),
            ("execute_tool consult", None),
        ]
    finally:
        uninstrument()


def test_an_agents_span_belongs_to_where_the_agent_began(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    """Its span is opened by the first governed call inside, which may stand somewhere else."""
    from langchain.agents.middleware import AgentMiddleware

    from lgov_core.scope import RolloutScope, enter_scope

    class Elsewhere(AgentMiddleware[Any, Any, Any]):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            with enter_scope(RolloutScope("inner")):
                return handler(request)

    model_server.play(says("hello"))
    agent = create_agent(chat, [], name="clerk", middleware=[Elsewhere(), LgovMiddleware(governor)])
    with enter_scope(RolloutScope("outer")):
        agent.invoke({"messages": [("user", "hi")]})
    assert {span.name: span.rollout_id for span in witness.spans} == {
        "chat scripted": "inner",
        "invoke_agent clerk": "outer",
    }


class _Thinking(BaseChatModel):
    """A model that asks an agent before it answers."""

    asks: Any

    @property
    def _llm_type(self) -> str:
        return "thinking"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        answer = self.asks.invoke({"messages": [("user", "what?")]})["messages"][-1].text
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer))])


@pytest.mark.parametrize("watches", [True, False])
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_an_agent_that_a_model_asks_is_below_the_model(
    how: str, watches: bool, model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    """LangChain's events of a model call that has its span are declined; what the model calls is seen all the same."""
    import langchain.agents

    model_server.script = lambda body: says("that")
    instrument(Governor(plugins=[witness], observe_only=True) if watches else governor)
    try:
        inner = langchain.agents.create_agent(chat, [add], name="inner")
        model = _Thinking(asks=inner)
        outer = langchain.agents.create_agent(model, [add], name="outer")
        question: Any = {"messages": [("user", "hi")]}
        outer.invoke(question) if how == "invoke" else asyncio.run(outer.ainvoke(question))
        above = {span.span_id: span.name for span in witness.spans}
        assert sorted((span.name, above.get(span.parent_id or "")) for span in witness.spans) == [
            ("chat _Thinking", "invoke_agent outer"),
            ("chat scripted", "invoke_agent inner"),
            ("invoke_agent inner", "invoke_agent outer"),
            ("invoke_agent outer", None),
        ]
        witness.events.clear()
        model.invoke("hi") if how == "invoke" else asyncio.run(model.ainvoke("hi"))
        above = {span.span_id: span.name for span in witness.spans}
        assert [(span.name, above.get(span.parent_id or "")) for span in witness.spans] == [
            ("chat scripted", "invoke_agent inner"),
            ("invoke_agent inner", "chat _Thinking"),
            ("chat _Thinking", None),
        ]
    finally:
        uninstrument()
