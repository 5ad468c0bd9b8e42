"""An agent whose code is run, in a team of two."""

import asyncio
import tempfile
from typing import Any

from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_core.testing import ScriptedModelServer

REPLIES: list[Any] = ["```python\nprint('RAN', 6 * 7)\n```"]


async def main(base_url: str) -> None:
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": True,
    }
    client = OpenAIChatCompletionClient(model="m", base_url=base_url, api_key="k", model_info=info)
    with tempfile.TemporaryDirectory() as folder:
        runner = CodeExecutorAgent("runner", LocalCommandLineCodeExecutor(work_dir=folder))
        team = RoundRobinGroupChat(
            [AssistantAgent("writer", client), runner], termination_condition=MaxMessageTermination(3)
        )
        async for event in team.run_stream(task="6 times 7?"):
            print(getattr(event, "content", ""))


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
