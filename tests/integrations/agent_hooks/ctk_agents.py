"""The OpenAI Agents SDK's ``Runner`` under the conformance kit, in an instrumented process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner
from ctk_harness import LgovHarness
from openai import AsyncOpenAI

from lgov_openai_agents import instrument, uninstrument


class AgentsHarness(LgovHarness):
    name = "openai-agents"
    model: type[Any] = OpenAIChatCompletionsModel

    def agent(self, base_url: str) -> Agent[Any]:
        client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        return Agent(
            name="kit", model=self.model("scripted", client), tools=[self.tool(n) for n in self.scenario.tools]
        )

    def tool(self, name: str) -> FunctionTool:
        async def run(_context: Any, text: str) -> str:
            value = self.call_tool(name, json.loads(text))
            return value if isinstance(value, str) else json.dumps(value)

        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return FunctionTool(
            name=name, description="A tool.", params_json_schema=schema, on_invoke_tool=run, strict_json_schema=False
        )

    @property
    def task(self) -> Any:
        return self.scenario.input["content"]

    @contextmanager
    def instrumented(self) -> Iterator[RunConfig]:
        instrument(self.governor)
        try:
            yield RunConfig(tracing_disabled=True)
        finally:
            uninstrument()

    async def drive(self, base_url: str) -> str:
        with self.instrumented() as config:
            if self.mode == "async":
                result: Any = await Runner.run(self.agent(base_url), self.task, run_config=config)
            else:
                result = Runner.run_streamed(self.agent(base_url), self.task, run_config=config)
                async for _ in result.stream_events():
                    pass
            return str(result.final_output)

    def drive_sync(self, base_url: str) -> str:
        with self.instrumented() as config:
            return str(Runner.run_sync(self.agent(base_url), self.task, run_config=config).final_output)


class ResponsesHarness(AgentsHarness):
    model = OpenAIResponsesModel
