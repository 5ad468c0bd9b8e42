"""LangChain's ``create_agent`` under the conformance kit."""

from __future__ import annotations

import json
from typing import Any

from ctk_harness import LgovHarness
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from lgov_langchain import LgovMiddleware


class LangChainHarness(LgovHarness):
    name = "langchain"

    def agent(self, base_url: str) -> Any:
        model = ChatOpenAI(model="scripted", base_url=base_url, api_key="none", max_retries=0)
        tools = [self.tool(name) for name in self.scenario.tools]
        return create_agent(model, tools, middleware=[LgovMiddleware(self.governor)])

    def tool(self, name: str) -> StructuredTool:
        def run(**arguments: Any) -> str:
            value = self.call_tool(name, arguments)
            return value if isinstance(value, str) else json.dumps(value)

        schema = {"type": "object", "properties": {}, "additionalProperties": True}
        return StructuredTool(name=name, description="A tool.", func=run, args_schema=schema)

    @property
    def task(self) -> Any:
        return {"messages": [{"role": "user", "content": self.scenario.input["content"]}]}

    async def drive(self, base_url: str) -> str:
        agent = self.agent(base_url)
        if self.mode == "async":
            state = await agent.ainvoke(self.task)
        else:
            state = [one async for one in agent.astream(self.task, stream_mode="values")][-1]
        return str(state["messages"][-1].text)

    def drive_sync(self, base_url: str) -> str:
        return str(self.agent(base_url).invoke(self.task)["messages"][-1].text)
