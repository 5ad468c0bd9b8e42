"""The OpenAI Agents SDK for the contract of the adapters: ``Runner``, or ours where that is the one line."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
from agents import Agent, Model, OpenAIResponsesModel, RunConfig, Runner, function_tool

from lgov_openai_agents import LgovRunner
from lgov_openai_agents.instrumentor import INSTRUMENTOR
from tests.contract.adapter_driver import Driver, Outcome, Program
from tests.openai_agents.cells_agents import MODELS, run_with


class AgentsSDK(Driver):
    instrumentor = INSTRUMENTOR
    modes = ("sync", "async", "async streaming")

    def __init__(self, api: str) -> None:
        self.api = api

    def patched(self) -> list[Any]:
        fields = [vars(agents.FunctionTool).get("on_invoke_tool"), vars(Model).get("__init_subclass__")]
        return [vars(Runner)["run"], OpenAIResponsesModel.get_response, *fields]

    def run(self, program: Program) -> Outcome:
        def agent(name: str, tools: Any, **options: Any) -> Agent[Any]:
            model: Any = MODELS[self.api](program)
            return Agent(name=name, model=model, tools=[function_tool(function) for function in tools], **options)

        handoffs = [] if program.eraser is None else [agent("eraser", [program.eraser])]
        clerk = agent("clerk", program.tools, handoffs=handoffs)
        runner: Any = LgovRunner(program.governor) if program.explicit else Runner
        if program.streams:
            return asyncio.run(_stream(runner, clerk, program.question))
        return Outcome(run_with(runner, program.mode, clerk, program.question).final_output)


async def _stream(runner: Any, agent: Agent[Any], question: str) -> Outcome:
    result = runner.run_streamed(agent, question, run_config=RunConfig(tracing_disabled=True))
    raw = [event.data async for event in result.stream_events() if event.type == "raw_response_event"]
    pieces = [event.delta for event in raw if event.type == "response.output_text.delta"]
    return Outcome(result.final_output, " ".join([*map(str, raw), str(result.final_output)]), pieces)


SETUPS = [(AgentsSDK("chat"), "explicit"), (AgentsSDK("responses"), "instrumented")]
