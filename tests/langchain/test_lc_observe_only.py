"""A process instrumented with a governor that evaluates nothing: the same spans, below the same parents."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import langchain.agents
import pytest
from langchain_core.callbacks import CallbackManager
from langchain_core.language_models import BaseChatModel, FakeListLLM
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripted import Judging, Witness, deny, make_governor

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.trace import semconv
from lgov_core.types import Point
from lgov_langchain import LgovCallbackHandler, LgovMiddleware, instrument, uninstrument, wrap_tool_node
from lgov_langchain.process_handler import process_handler

Q: Any = {"messages": [("user", "go")]}


class Replies(BaseChatModel):
    """Answers with the call it is given, if any, and then with a word."""

    call: dict[str, Any] | None = None

    @property
    def _llm_type(self) -> str:
        return "replies"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        asks = self.call is not None and messages[-1].type == "human"
        calls: Any = [{"name": "add", "id": "c1", "type": "tool_call", **self.call}] if asks and self.call else []
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if calls else "done", tool_calls=calls))])


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def agent(name: str | None = "clerk", tools: Any = (add,), **options: Any) -> Any:
    call = {"name": tools[0].name, "args": {"a": 1, "b": 2} if tools[0] is add else {}}
    return langchain.agents.create_agent(Replies(call=call), list(tools), name=name, **options)


def node(function: Any, name: str = "plain") -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("n", function)
    graph.set_entry_point("n")
    return graph.compile(name=name)


def observing(witness: Witness) -> Governor:
    manager = make_plugin_manager(builtin=(), third_party=False)
    return Governor(plugins=[witness], manager=manager, capture_content=True, observe_only=True)


@pytest.fixture
def governor(witness: Witness) -> Iterator[Governor]:
    governor = observing(witness)
    instrument(governor)
    try:
        yield governor
    finally:
        uninstrument()
        assert len(process_handler().tree) == 0


def paths(witness: Witness) -> list[str]:
    """Each span with those above it, in the order in which they ended."""
    spans = {span.span_id: span for span in witness.spans}

    def path(span: Any) -> str:
        above = spans.get(span.parent_id)
        tail = "" if span.parent_id is None else f" < {'?' if above is None else path(above)}"
        return span.name + tail

    return [path(span) for span in witness.spans]


CLERK = [
    "chat Replies < invoke_agent clerk",
    "execute_tool add < invoke_agent clerk",
    "chat Replies < invoke_agent clerk",
    "invoke_agent clerk",
]


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
def test_an_agent_is_observed_however_it_is_run(how: str, governor: Governor, witness: Witness) -> None:
    clerk = agent()

    async def read() -> Any:
        return await clerk.ainvoke(Q) if how == "ainvoke" else [chunk async for chunk in clerk.astream(Q)]

    asyncio.run(read()) if how[0] == "a" else list(clerk.stream(Q)) if how == "stream" else clerk.invoke(Q)
    assert paths(witness) == CLERK


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.filterwarnings("error")
def test_a_stream_that_is_not_read_to_its_end_is_closed(
    asynchronous: bool, collected: bool, governor: Governor, witness: Witness
) -> None:
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what other tests have left unclosed

    async def read_one() -> None:
        steps: Any = agent().astream(Q)
        await anext(steps)
        if not collected:
            await steps.aclose()
        del steps
        gc.collect()
        await asyncio.sleep(0.05)

    if asynchronous:
        asyncio.run(read_one())
    else:
        steps: Any = agent().stream(Q)
        next(steps)
        if not collected:
            steps.close()
        del steps
        gc.collect()
    run = witness.spans[-1]
    assert (run.name, run.attributes[semconv.ERROR_TYPE]) == ("invoke_agent clerk", "GeneratorExit")
    assert run.ended_at is not None
    Replies().invoke("after")
    assert witness.spans[-1].parent_id is None


@pytest.mark.parametrize("asynchronous", [False, True])
def test_calls_between_two_steps_are_not_the_agents(asynchronous: bool, governor: Governor, witness: Witness) -> None:
    async def aread() -> None:
        async for _ in agent().astream(Q):
            await Replies().ainvoke("between")

    if asynchronous:
        asyncio.run(aread())
    else:
        for _ in agent().stream(Q):
            Replies().invoke("between")
    assert sorted(paths(witness)) == sorted([*CLERK, *["chat Replies"] * 3])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_agents_read_in_turn_do_not_mix(asynchronous: bool, governor: Governor, witness: Witness) -> None:
    async def aread() -> None:
        one, two = agent("one").astream(Q), agent("two").astream(Q)
        while (await anext(one, None), await anext(two, None)) != (None, None):
            pass

    if asynchronous:
        asyncio.run(aread())
    else:
        one, two = agent("one").stream(Q), agent("two").stream(Q)
        while (next(one, None), next(two, None)) != (None, None):
            pass
    expected = [path.replace("clerk", name) for path in CLERK for name in ("one", "two")]
    assert sorted(paths(witness)) == sorted(expected)


@pytest.mark.parametrize("name", ["inner", None])
@pytest.mark.parametrize("where", ["here", "with a thread_id of its own", "in a thread of its own"])
def test_an_agent_in_a_tool_of_another(where: str, name: str | None, governor: Governor, witness: Witness) -> None:
    @tool
    def ask(config: RunnableConfig) -> str:
        """Asks."""
        given: Any = {"configurable": {"thread_id": "own"}} if "thread_id" in where else None
        inner = agent(name)
        if where != "in a thread of its own":
            return inner.invoke(Q, given)["messages"][-1].text
        thread = threading.Thread(target=inner.invoke, args=(Q, config))
        thread.start()
        thread.join()
        return "done"

    agent("outer", [ask]).invoke(Q)
    above = "invoke_agent outer" if where == "in a thread of its own" else "execute_tool ask < invoke_agent outer"
    named = f"invoke_agent inner < {above}"
    found = paths(witness)
    if name is None or where == "in a thread of its own":  # where the outer agent's config names the inner one's calls
        assert f"execute_tool add < {above}" in found
        assert not [path for path in found if path.startswith("invoke_agent") and path != "invoke_agent outer"]
    else:
        assert f"execute_tool add < {named}" in found
        assert found.count(named) == 1


def test_calls_in_threads_that_are_given_the_config(governor: Governor, witness: Witness) -> None:
    def work(state: Any, config: RunnableConfig) -> Any:
        calls: list[Any] = [Replies().invoke, FakeListLLM(responses=["a"]).invoke, lambda x, c: add.invoke(CALL, c)]
        for call in calls:
            thread = threading.Thread(target=call, args=("hi", config))
            thread.start()
            thread.join()
        return {"messages": []}

    CALL = {"a": 1, "b": 2}
    node(work).invoke(Q)
    assert [path.partition(" < ")[2] for path in paths(witness)] == [*["invoke_agent plain"] * 3, ""]


@pytest.mark.parametrize("how", ["invoke", "stream", "generate"])
def test_plain_text_models_are_observed(how: str, governor: Governor, witness: Witness) -> None:
    def work(state: Any) -> Any:
        model = FakeListLLM(responses=["answered"])
        model.generate(["hi"]) if how == "generate" else list(getattr(model, how)("hi"))
        return {"messages": []}

    node(work).invoke(Q)
    assert paths(witness) == ["chat FakeListLLM < invoke_agent plain", "invoke_agent plain"]


def test_a_model_with_its_own_generate_is_observed(governor: Governor, witness: Witness) -> None:
    class Own(Replies):
        def generate(self, messages: Any, stop: Any = None, callbacks: Any = None, **kwargs: Any) -> LLMResult:
            (run,) = CallbackManager.configure(callbacks).on_chat_model_start({"name": "Own"}, messages)
            result = LLMResult(generations=[list(self._generate(messages[0]).generations)])
            run.on_llm_end(result)
            return result

    node(lambda state: {"messages": [Own().invoke("hi")]}).invoke(Q)
    assert paths(witness) == ["chat Own < invoke_agent plain", "invoke_agent plain"]


def test_beside_middleware_of_a_governor_with_policies(governor: Governor, witness: Witness) -> None:
    others = Witness()
    judge = make_governor(Judging(lambda a: deny("no") if a.point is Point.PRE_TOOL_CALL else None), witness=others)
    result = agent(middleware=[LgovMiddleware(judge)]).invoke(Q)
    assert "no" in result["messages"][-2].text
    assert paths(others) == CLERK
    assert paths(witness).count("invoke_agent clerk") == 1
    assert {path.partition(" < ")[2] for path in paths(witness) if path != "invoke_agent clerk"} == {
        "invoke_agent clerk"
    }


def test_beside_a_tool_node_of_a_governor_with_policies(governor: Governor, witness: Witness) -> None:
    others = Witness()
    judge = make_governor(Judging(lambda action: deny("no")), witness=others)
    asked = AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}, "id": "c1", "type": "tool_call"}])
    graph = node(wrap_tool_node(judge, [add]))
    assert "no" in graph.invoke({"messages": [asked]})["messages"][-1].text
    assert paths(others) == ["execute_tool add < invoke_agent plain", "invoke_agent plain"]
    assert paths(witness) == []


@pytest.mark.parametrize("where", ["outer", "inner"])
def test_beside_a_handler_of_the_same_governor_all_is_shown_once(
    where: str, governor: Governor, witness: Witness
) -> None:
    handler = LgovCallbackHandler(governor)
    config: Any = {"callbacks": [handler]}

    @tool
    def ask() -> str:
        """Asks."""
        return agent("inner").invoke(Q, config if where == "inner" else None)["messages"][-1].text

    agent("outer", [ask]).invoke(Q, config if where == "outer" else None)
    found = paths(witness)
    assert found.count("invoke_agent inner < execute_tool ask < invoke_agent outer") == 1
    assert found.count("invoke_agent outer") == 1
    assert len(found) == 8
    assert handler.open_runs == 0


def test_beside_a_handler_and_middleware_of_another_governor(governor: Governor, witness: Witness) -> None:
    others = Witness()
    clerk = agent(middleware=[LgovMiddleware(observing(others))])
    clerk.invoke(Q, {"callbacks": [LgovCallbackHandler(governor)]})
    assert paths(others) == CLERK
    assert paths(witness).count("invoke_agent clerk") == 1


def test_a_pause_for_a_person_is_not_an_error(governor: Governor, witness: Witness) -> None:
    @tool
    def sure() -> str:
        """Asks a person."""
        return interrupt("sure?")

    clerk = agent(tools=[sure], checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    clerk.invoke(Q, config)
    clerk.invoke(Command(resume="yes"), config)
    runs = [span for span in witness.spans if span.name == "invoke_agent clerk"]
    assert len(runs) == 2
    assert not [span for span in witness.spans if semconv.ERROR_TYPE in span.attributes]


def test_what_a_node_raises_is_the_agents_error(governor: Governor, witness: Witness) -> None:
    def work(state: Any) -> Any:
        Replies().invoke("hi")
        raise KeyError("gone")

    with pytest.raises(KeyError):
        node(work).invoke(Q)
    assert witness.spans[-1].attributes[semconv.ERROR_TYPE] == "KeyError"


def test_the_error_behind_a_tools_text_is_recorded(governor: Governor, witness: Witness) -> None:
    model = Replies(call={"args": {"a": "x"}})
    langchain.agents.create_agent(model, [add], name="clerk").invoke(Q)
    (call,) = [span for span in witness.spans if span.name == "execute_tool add"]
    assert call.attributes[semconv.ERROR_TYPE] == "ValidationError"


@pytest.mark.parametrize("run_id", ["mine", 7, str(uuid4()), uuid4()], ids=["text", "number", "uuid in text", "uuid"])
def test_a_run_id_may_have_any_type(run_id: Any, governor: Governor, witness: Witness) -> None:
    @tool
    def ask(callbacks: Any = None) -> str:
        """Asks, in a thread of its own."""
        with ThreadPoolExecutor() as pool:
            return pool.submit(agent("inner").invoke, Q, {"callbacks": callbacks}).result()["messages"][-1].text

    config: Any = {"run_id": run_id}
    assert ask.invoke({}, config) == "done"
    inside = [f"{path} < execute_tool ask" for path in CLERK]
    assert paths(witness) == [path.replace("clerk", "inner") for path in inside] + ["execute_tool ask"]
    agent().invoke(Q, config)
    assert paths(witness)[5:] == CLERK


def test_a_graph_that_calls_nothing_shows_nothing(governor: Governor, witness: Witness) -> None:
    node(lambda state: {"messages": []}).invoke(Q)
    assert witness.spans == []


def test_after_uninstrument_an_earlier_agent_has_its_span(witness: Witness) -> None:
    governor = observing(witness)
    instrument(governor)
    try:
        clerk = langchain.agents.create_agent(
            Replies(call={"args": {"a": 1, "b": 2}}),
            [add],
            name="clerk",
            middleware=[LgovMiddleware(governor)],
        )
    finally:
        uninstrument()
    clerk.invoke(Q)
    assert paths(witness) == CLERK


def test_a_call_that_outlived_its_agents_run_is_still_above(governor: Governor, witness: Witness) -> None:
    called, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def ask() -> str:
        """Asks, after its agent was cancelled."""
        called.set()
        cancelled.wait(30)
        agent(None).invoke(Q)
        ended.set()
        return "done"

    async def cancel() -> None:
        run = asyncio.create_task(agent("outer", [ask]).ainvoke(Q))
        await asyncio.to_thread(called.wait, 30)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        cancelled.set()
        await asyncio.to_thread(ended.wait, 30)

    asyncio.run(cancel())
    assert [path for path in paths(witness) if path.startswith("invoke_agent")] == [
        "invoke_agent outer",  # without a name of its own, the second is called as those around it
        "invoke_agent outer < execute_tool ask < invoke_agent outer",
    ]
