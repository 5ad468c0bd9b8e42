"""Tools at the provider, a shell here, and patches of files."""

import asyncio
from pathlib import Path
from typing import Any

from agents import Agent, ApplyPatchTool, OpenAIResponsesModel, Runner, ShellTool, WebSearchTool, function_tool
from openai import AsyncOpenAI

from lgov_core.testing import ScriptedModelServer, call

HERE = Path(__file__).parent


class Editor:
    def create_file(self, operation: Any) -> None:
        print("RAN create_file")

    update_file = delete_file = create_file


def shell(request: Any) -> str:
    print("RAN shell", request.data.action.commands)
    return "notes.txt"


@function_tool
def sum_up(numbers: list[int]) -> int:
    """Adds numbers."""
    print("RAN sum_up")
    return sum(numbers)


REPLIES: list[Any] = [call("sum_up", numbers=[1, 2]), "3"]


async def main(base_url: str) -> None:
    model = OpenAIResponsesModel("m", AsyncOpenAI(base_url=base_url, api_key="k"))
    tools: list[Any] = [WebSearchTool(), ShellTool(executor=shell), ApplyPatchTool(editor=Editor()), sum_up]
    print((await Runner.run(Agent(name="all", model=model, tools=tools), "Add 1 and 2.")).final_output)


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
    offered = [tool.get("type") for tool in server.requests[0].body["tools"]] if server.requests else []
    print("RAN offered" if "web_search" in offered else offered)
