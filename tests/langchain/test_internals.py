"""The private parts of LangChain that lgov relies on, in the installed versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, StructuredTool, Tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode
from langgraph.runtime import Runtime, ServerInfo
from pydantic import BaseModel, Field, create_model
from scripted import ModelServer, says

from lgov_core.instrumentation.framework import outside_tested_range
from lgov_langchain import _internals
from lgov_langchain.instrumentor import INSTRUMENTOR


@tool
def add(a: int) -> int:
    """Adds."""
    return a


def test_the_installed_versions_are_those_the_internals_are_for() -> None:
    assert outside_tested_range(_internals.VERSIONS) == []
    assert {**INSTRUMENTOR.tested, "langchain-openai": _internals.VERSIONS["langchain-openai"]} == {
        **_internals.VERSIONS,
        **INSTRUMENTOR.tested,
    }


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_a_graph_with_a_checkpointer_can_be_resumed(saver: Any) -> None:
    graph = StateGraph(MessagesState)
    seen: list[bool] = []

    def node(state: Any, config: RunnableConfig) -> dict[str, Any]:
        seen.append(_internals.is_resumable(config))
        return {}

    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.compile(checkpointer=saver).invoke({"messages": []}, {"configurable": {"thread_id": "1"}})
    assert seen == [saver is not None]
    assert not _internals.is_resumable({})


def test_the_user_whom_a_server_knows_resumes_a_run() -> None:
    user: Any = SimpleNamespace(identity="ada")
    runtime = Runtime(server_info=ServerInfo(assistant_id="a", graph_id="g", user=user))
    assert _internals.resumed_by(runtime) == "ada"
    assert _internals.resumed_by(Runtime()) is None


def test_the_options_of_a_tool_node() -> None:
    def wrap(request: Any, handler: Any) -> Any:
        return handler(request)

    async def awrap(request: Any, handler: Any) -> Any:
        return await handler(request)

    options: dict[str, Any] = {
        "handle_tool_errors": "oh",
        "messages_key": "said",
        "wrap_tool_call": wrap,
        "awrap_tool_call": awrap,
    }
    assert _internals.node_options(ToolNode([add], **options)) == options


def test_the_types_that_an_error_handler_is_for() -> None:
    def handle(error: OSError) -> str:
        return "oh"

    def handle_all(error):  # type: ignore[no-untyped-def]
        return "oh"

    assert _internals.handled_error_types(handle) == (OSError,)
    assert _internals.handled_error_types(handle_all) == (Exception,)


def test_the_outputs_of_several_calls_are_combined(chat: Any) -> None:
    outputs = [{"token_usage": {"total_tokens": 1}}, {"token_usage": {"total_tokens": 2}}, None]
    assert _internals.combine_llm_outputs(chat, outputs)["token_usage"]["total_tokens"] == 3


@pytest.mark.parametrize("calls", [1, 2])
def test_a_streamed_reply_keeps_the_endpoints_id(calls: int, model_server: ModelServer, chat: Any) -> None:
    for _ in range(calls):
        _internals.keep_reply_ids()
    model_server.play(says("hello"))
    first, *others = list(chat.stream("hi"))
    assert str((first + others).response_metadata["id"]).startswith("chatcmpl")


def test_the_metadata_of_an_agents_runs(model_server: ModelServer, chat: Any) -> None:
    found: list[dict[str, Any]] = []

    class Noting(BaseCallbackHandler):
        def on_chain_start(self, *args: Any, metadata: Any = None, **kwargs: Any) -> None:
            found.append(metadata)

    model_server.play(says("hello"))
    create_agent(chat, [], name="clerk").invoke({"messages": [("user", "hi")]}, {"callbacks": [Noting()]})
    assert {one[_internals.AGENT_NAME] for one in found} == {"clerk"}
    assert {one[_internals.INTEGRATION] for one in found} <= _internals.GRAPHS


class Hiding(BaseModel):
    state: Annotated[dict[str, Any], InjectedState]
    call_id: Annotated[str, InjectedToolCallId]
    word: str = Field("hi", alias="say")


def test_what_langchain_calls_a_function_with_is_known_by_the_names_of_fields() -> None:
    def shout(word: str, state: Any, call_id: str) -> str:
        return word

    given: dict[str, Any] = {"say": "ho", "state": {"x": 1}}
    several = StructuredTool.from_function(shout, args_schema=Hiding, description="Shouts.")
    arguments, values = _internals.arguments_and_names(several, dict(given), "c1")
    assert arguments == ((), {"word": "ho", "state": {"x": 1}, "call_id": "c1"})
    assert _internals.injected_names(several, values) == {"state", "call_id"}
    single = Tool(
        "shout", lambda word: word, "Shouts.", args_schema=create_model("One", word=(str, Field(alias="say")))
    )
    assert _internals.arguments_and_names(single, {"say": "ho"}, None) == ((("ho",), {}), {"word": "ho"})


def test_a_schema_of_plain_json_hides_only_what_no_model_writes() -> None:
    def act(runtime: ToolRuntime, **arguments: Any) -> str:
        return "done"

    tool = StructuredTool.from_function(act, args_schema={"type": "object", "properties": {}}, description="Acts.")
    assert _internals.injected_names(tool, {"runtime": object(), "x": 1}) == {"runtime"}
    assert _internals.injected_names(tool, {"runtime": {"x": 1}}) == set()
    assert _internals.schema_of(tool) is None


@pytest.mark.parametrize("state", [{"messages": [], "x": 1}, [HumanMessage("hi")]])
def test_what_a_node_puts_in_is_known_before_it_runs(state: Any) -> None:
    @tool("look")
    def look(at: str, state: Annotated[Any, InjectedState]) -> str:
        """Looks."""
        return at

    call: Any = {"name": "look", "args": {"at": "a", "state": "forged"}, "id": "c1", "type": "tool_call"}
    request: Any = SimpleNamespace(tool_call=call, tool=look, runtime=SimpleNamespace(state=state, store=None))
    found = _internals.injected_arguments(request)
    assert found["at"] == "a"
    assert found["state"] == (state if isinstance(state, dict) else {"messages": state})
