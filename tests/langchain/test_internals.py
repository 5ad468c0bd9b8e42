"""The private parts of LangChain that lgov relies on, in the installed versions."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import BaseTool, tool
from langgraph.prebuilt import ToolNode
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


def test_the_function_of_a_tool_class() -> None:
    class Own(BaseTool):
        name: str = "own"
        description: str = "Own."

        def _run(self, text: str) -> str:
            return text

    assert _internals.tool_function(Own())("a") == "a"


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
