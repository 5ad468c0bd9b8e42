"""An agent of AutoGen."""

import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from tools import bash, write


async def main() -> None:
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    }
    client = OpenAIChatCompletionClient(model="scripted", model_info=info, max_retries=0)
    agent = AssistantAgent("coder", client, tools=[bash, write], reflect_on_tool_use=True)
    print((await agent.run(task=sys.argv[1])).messages[-1].content)


asyncio.run(main())
