"""AutoGen's ``AssistantAgent`` under the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.tools import BaseTool, StaticStreamWorkbench
from autogen_ext.models.openai import OpenAIChatCompletionClient
from ctk_harness import LgovHarness
from pydantic import BaseModel, ConfigDict

from lgov_autogen import GovernedChatCompletionClient, GovernedWorkbench

MODEL_INFO: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "family": "unknown",
    "structured_output": True,
}


class AnyArguments(BaseModel):
    model_config = ConfigDict(extra="allow")


class KitTool(BaseTool[AnyArguments, Any]):
    """A tool of the kit; it takes whatever arguments the model gives."""

    def __init__(self, name: str, harness: LgovHarness) -> None:
        super().__init__(AnyArguments, str, name, "A tool.")
        self._harness = harness

    async def run(self, args: AnyArguments, cancellation_token: CancellationToken) -> str:
        value = self._harness.call_tool(self.name, args.model_dump())
        return value if isinstance(value, str) else json.dumps(value)

    async def run_json(
        self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
    ) -> Any:
        return await super().run_json(args, cancellation_token, call_id)


class AutoGenHarness(LgovHarness):
    name = "autogen"

    async def drive(self, base_url: str) -> str:
        client = OpenAIChatCompletionClient(
            model="scripted", base_url=base_url, api_key="none", model_info=MODEL_INFO, max_retries=0
        )
        workbench = StaticStreamWorkbench([KitTool(name, self) for name in self.scenario.tools])
        agent = AssistantAgent(
            "kit",
            GovernedChatCompletionClient(client, self.governor, agent="kit"),
            workbench=GovernedWorkbench(workbench, self.governor, agent="kit"),
            max_tool_iterations=20,
            model_client_stream=self.mode == "streaming",
        )
        task = self.scenario.input["content"]
        if self.mode == "async":
            result: Any = await agent.run(task=task)
        else:
            result = [event async for event in agent.run_stream(task=task)][-1]
        return result.messages[-1].to_text()
