"""An MCP server over stdio, whose tools the program does not name."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

from lgov_core.testing import ScriptedModelServer, call

HERE = Path(__file__).parent
REPLIES: list[Any] = [call("read_file", path=str(HERE / "notes.txt")), "It says hello."]


async def main(base_url: str) -> None:
    model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=base_url, api_key="k"))
    parameters: Any = {"command": sys.executable, "args": [str(HERE / "mcp_files_server.py")]}
    async with MCPServerStdio(name="files", params=parameters, client_session_timeout_seconds=60) as files:
        agent = Agent(name="reader", model=model, mcp_servers=[files])
        result = await Runner.run(agent, "What do the notes say?")
        for item in result.to_input_list():
            if "output" in item:
                print("RAN", item["output"])


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
