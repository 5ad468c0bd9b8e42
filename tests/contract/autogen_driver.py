"""AutoGen for the contract of the adapters: an ``AssistantAgent``, with governed parts where that is the one line."""

from __future__ import annotations

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.teams import Swarm
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen.instrumentor import INSTRUMENTOR
from tests.autogen.autogen_parts import Way
from tests.contract.adapter_driver import Driver, Outcome, Program


class AutoGen(Driver):
    instrumentor = INSTRUMENTOR
    modes = ("async", "async streaming")

    def patched(self) -> list[Any]:
        return [
            StaticWorkbench.call_tool,
            StaticStreamWorkbench.call_tool_stream,
            BaseTool.run_json,
            FunctionTool.run,
            OpenAIChatCompletionClient.create,
            OpenAIChatCompletionClient.create_stream,
            AssistantAgent.on_messages_stream,
            *(vars(cls).get("__init_subclass__") for cls in (Workbench, BaseTool, ChatCompletionClient, BaseChatAgent)),
        ]

    def has_agent_span(self, program: Program) -> bool:
        return not program.explicit

    def run(self, program: Program) -> Outcome:
        parts, stream = (
            Way("explicit" if program.explicit else "instrumented", program.governor, program.base_url),
            program.streams,
        )
        if program.eraser is None:
            agent = parts.agent("clerk", program.tools, stream=stream)
        else:
            clerk = parts.agent("clerk", program.tools, stream=stream, handoffs=["eraser"])
            eraser = parts.agent("eraser", [program.eraser], stream=stream, handoffs=["clerk"])
            agent = Swarm([clerk, eraser], termination_condition=MaxMessageTermination(2))
        return asyncio.run(_run(agent, program))


async def _run(agent: Any, program: Program) -> Outcome:
    if not program.streams:
        messages = list((await agent.run(task=program.question)).messages)
        return Outcome(messages[-1].to_text(), str(messages))
    events = [event async for event in agent.run_stream(task=program.question)]
    pieces = [event.content for event in events if isinstance(event, ModelClientStreamingChunkEvent)]
    return Outcome(events[-1].messages[-1].to_text(), str(events), pieces)


SETUPS = [(AutoGen(), "explicit"), (AutoGen(), "instrumented")]
