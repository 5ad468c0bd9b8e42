"""LangChain for the contract of the adapters: ``create_agent``, with our middleware where that is the one line."""

from __future__ import annotations

import asyncio
from typing import Any

import langchain.agents
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import BaseTool, StructuredTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, MessagesState, StateGraph
from langgraph.types import Command

from lgov_langchain import LgovMiddleware
from lgov_langchain.instrumentor import INSTRUMENTOR
from tests.contract.adapter_driver import Driver, Outcome, Program


class LangChain(Driver):
    instrumentor = INSTRUMENTOR

    def patched(self) -> list[Any]:
        return [
            *(getattr(BaseTool, name) for name in ("run", "arun")),
            *(getattr(BaseChatModel, name) for name in ("generate", "agenerate", "stream", "astream")),
            langchain.agents.create_agent,
        ]

    def run(self, program: Program) -> Outcome:
        tools: list[Any] = [
            StructuredTool.from_function(function, name=function.__name__, description=function.__doc__)
            for function in program.tools
        ]
        graph = self._office(program, tools) if program.eraser is not None else self.agent(program, tools)
        question: Any = {"messages": [("user", program.question)]}
        if not program.streams:
            state = graph.invoke(question) if program.mode == "sync" else asyncio.run(graph.ainvoke(question))
            return Outcome(state["messages"][-1].text, str(state["messages"]))
        how: Any = {"stream_mode": ["messages", "values"], "subgraphs": True}

        async def read() -> list[Any]:
            return [event async for event in graph.astream(question, **how)]

        events = list(graph.stream(question, **how)) if program.mode == "streaming" else asyncio.run(read())
        pieces = [
            what[0].text for _, kind, what in events if kind == "messages" and isinstance(what[0], AIMessageChunk)
        ]
        texts = [what[0].text for _, kind, what in events if kind == "messages"]
        states = [what for space, kind, what in events if kind == "values" and not space]
        shown = f"{''.join(texts)} {states[-1]['messages']}"
        return Outcome(states[-1]["messages"][-1].text, shown, [piece for piece in pieces if piece])

    def agent(self, program: Program, tools: list[Any], **more: Any) -> Any:
        streaming: Any = {"streaming": True, "stream_usage": True} if program.streams else {}
        chat: Any = ChatOpenAI(model="scripted", base_url=program.base_url, api_key="none", max_retries=0, **streaming)  # type: ignore[arg-type]
        middleware = [LgovMiddleware(program.governor)] if program.explicit else []
        return langchain.agents.create_agent(chat, tools, name="clerk", middleware=middleware, **more)

    def _office(self, program: Program, tools: list[Any]) -> Any:
        """Two stations; the clerk may hand over to one that erases."""

        @tool
        def transfer_to_eraser() -> Command[Any]:
            """Hands the conversation over to the eraser."""
            return Command(goto="eraser", graph=Command.PARENT)

        def eraser(state: MessagesState) -> Any:
            assert program.eraser is not None
            program.eraser("all")
            return {}

        graph = StateGraph(MessagesState)
        graph.add_node("clerk", self.agent(program, [*tools, transfer_to_eraser]), destinations=("eraser", END))
        graph.add_node("eraser", eraser)
        graph.set_entry_point("clerk")
        return graph.compile(name="office")


SETUPS = [(LangChain(), "explicit"), (LangChain(), "instrumented")]
