"""The agents of the table of denials: ordinary LangChain programs, governed by one line or by none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessageChunk, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import lgov_langchain
from lgov_langchain import LgovCallbackHandler, LgovMiddleware, wrap_tool_node
from tests.cells import Cell

MODES = ("sync", "async", "streaming")
QUESTION: Any = {"messages": [("user", "Tidy up.")]}


@contextmanager
def instrumented(cell: Cell, way: str) -> Iterator[None]:
    """Zero lines: the process is instrumented. In the explicit way nothing is."""
    if way == "instrumented":
        lgov_langchain.instrument(cell.governor)
    try:
        yield
    finally:
        lgov_langchain.uninstrument()


def middleware(cell: Cell, way: str) -> Any:
    """One line: what a program adds to its agent."""
    return [LgovMiddleware(cell.governor)] if way == "explicit" else []


def chat_model(cell: Cell, mode: str) -> Any:
    from langchain_openai import ChatOpenAI

    streaming = {"streaming": True, "stream_usage": True} if mode == "streaming" else {}
    return ChatOpenAI(model="scripted", base_url=cell.base_url, api_key="none", max_retries=0, **streaming)  # type: ignore[arg-type]


def run_graph(graph: Any, mode: str, *, is_async: bool = False, callbacks: Any = ()) -> str:
    """Runs an agent or graph in one of LangChain's ways and gives the last message's text."""
    config: Any = {"callbacks": list(callbacks)}
    if mode == "sync":
        return graph.invoke(QUESTION, config)["messages"][-1].text
    if mode == "async":
        return asyncio.run(graph.ainvoke(QUESTION, config))["messages"][-1].text
    how: Any = {"stream_mode": ["messages", "values"], "subgraphs": True}
    if not is_async:
        seen = list(graph.stream(QUESTION, config, **how))
    else:

        async def consume() -> list[Any]:
            return [one async for one in graph.astream(QUESTION, config, **how)]

        seen = asyncio.run(consume())
    tokens = [part for _, kind, part in seen if kind == "messages" and isinstance(part[0], AIMessageChunk)]
    assert tokens, "nothing was streamed"
    return [part for space, kind, part in seen if kind == "values" and not space][-1]["messages"][-1].text


def erase_tool(cell: Cell, *, is_async: bool = False) -> Any:
    if is_async:

        @tool("erase_file")
        async def erase_later(path: str) -> str:
            """Removes a file."""
            return cell.erase(path)

        return erase_later

    @tool
    def erase_file(path: str) -> str:
        """Removes a file."""
        return cell.erase(path)

    return erase_file


@tool
def note(text: str) -> str:
    """Notes something."""
    return f"noted {text}"


# ---------------------------------------------------------------------- shapes


def make_agent(cell: Cell, way: str, mode: str, tools: list[Any], name: str = "clerk") -> Any:
    from langchain.agents import create_agent

    return create_agent(chat_model(cell, mode), tools, name=name, middleware=middleware(cell, way))


def make_agent_as_tool(cell: Cell, way: str, mode: str, inner: Any) -> Any:
    """An agent whose tool is another agent."""

    def ask(task: str) -> str:
        return inner.invoke({"messages": [("user", task)]})["messages"][-1].text

    async def ask_later(task: str) -> str:
        return (await inner.ainvoke({"messages": [("user", task)]}))["messages"][-1].text

    asking = StructuredTool.from_function(ask, ask_later, name="ask_eraser", description="Has a file erased.")
    return make_agent(cell, way, mode, [asking], name="boss")


def make_graph(cell: Cell, way: str, mode: str, tools: list[Any]) -> Any:
    """A graph made by hand: a model node and a tool node."""
    bound = chat_model(cell, mode).bind_tools(tools)

    def think(state: MessagesState) -> Any:
        return {"messages": [bound.invoke(state["messages"])]}

    async def think_later(state: MessagesState) -> Any:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    graph = StateGraph(MessagesState)
    graph.add_node("model", RunnableLambda(think, think_later))
    graph.add_node("tools", wrap_tool_node(cell.governor, tools) if way == "explicit" else ToolNode(tools))
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(name="handmade")


def handlers(cell: Cell, way: str) -> list[Any]:
    """What shows the model calls of a hand-made graph whose tool node alone is governed."""
    return [LgovCallbackHandler(cell.governor)] if way == "explicit" else []


def bare_loop(cell: Cell, mode: str, tools: list[Any], *, is_async: bool = False) -> str:
    """No graph at all: a model, its tools, a loop."""
    model, by_name = chat_model(cell, mode).bind_tools(tools), {one.name: one for one in tools}
    messages: list[Any] = [("user", "Tidy up.")]

    def loop() -> str:
        while True:
            if mode == "streaming":
                first, *rest = list(model.stream(messages))
                reply = first + rest if rest else first
            else:
                reply = model.invoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                return reply.text
            messages.extend(by_name[call["name"]].invoke(call) for call in reply.tool_calls)

    async def loop_later() -> str:
        while True:
            if mode == "streaming":
                first, *rest = [chunk async for chunk in model.astream(messages)]
                reply = first + rest if rest else first
            else:
                reply = await model.ainvoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                return reply.text
            calls = (by_name[call["name"]].ainvoke(call) for call in reply.tool_calls)
            answers: list[ToolMessage] = list(await asyncio.gather(*calls))
            messages.extend(answers)

    return asyncio.run(loop_later()) if is_async or mode == "async" else loop()


# ---------------------------------------------------------------------- MCP

SERVER = Path(__file__).parents[1] / "mcp_files_server.py"


@contextmanager
def mcp_tools() -> Iterator[list[StructuredTool]]:
    """The tools of a real MCP server over stdio, by the client of the ``mcp`` package, as LangChain tools."""
    from anyio.from_thread import start_blocking_portal
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    @contextmanager
    def session() -> Iterator[tuple[Any, Any]]:
        parameters = StdioServerParameters(command=sys.executable, args=[str(SERVER)])
        with (
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(stdio_client(parameters)) as streams,
            portal.wrap_async_context_manager(ClientSession(*streams)) as opened,
        ):
            portal.call(opened.initialize)
            yield portal, opened

    with session() as (portal, opened):

        def as_tool(described: Any) -> StructuredTool:
            def call(**arguments: Any) -> str:
                result = portal.call(opened.call_tool, described.name, arguments)
                return "\n".join(part.text for part in result.content)

            async def call_later(**arguments: Any) -> str:
                future = portal.start_task_soon(opened.call_tool, described.name, arguments)
                result = await asyncio.wrap_future(future)
                return "\n".join(part.text for part in result.content)

            schema: dict[str, Any] = getattr(described, "input_schema", None) or described.inputSchema
            make: Callable[..., StructuredTool] = StructuredTool.from_function
            return make(
                call,
                call_later,
                name=described.name,
                description=described.description,
                args_schema=schema,
                infer_schema=False,
            )

        yield [as_tool(described) for described in portal.call(opened.list_tools).tools]
