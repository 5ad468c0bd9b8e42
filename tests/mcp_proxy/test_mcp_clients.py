"""Agents of frameworks, and the file server that everyone knows, behind ``lgov mcp``: nothing else about them changes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lgov_core.testing import ScriptedModelServer, call
from tests.mcp_proxy.conformance import table
from tests.mcp_proxy.proxied import FILES, LGOV, connected, environment, governed, recorded, text_of, write_policy

REPLIES: list[Any] = [call("erase_file", path="notes.txt"), call("add", a=2, b=3), "It is 5."]


def tool_messages(server: ScriptedModelServer) -> list[str]:
    return [str(one["content"]) for one in server.requests[-1].body["messages"] if one["role"] == "tool"]


def test_an_agent_of_the_agents_sdk(tmp_path: Path) -> None:
    agents = pytest.importorskip("agents")
    from agents.mcp import MCPServerStdio
    from openai import AsyncOpenAI

    write_policy(tmp_path, "add")
    (tmp_path / "notes.txt").write_text("precious")

    async def run(base_url: str) -> Any:
        command, *arguments = governed(*FILES)
        parameters: Any = {"command": command, "args": arguments, "cwd": str(tmp_path), "env": environment()}
        async with MCPServerStdio(parameters, client_session_timeout_seconds=120) as server:
            client = AsyncOpenAI(base_url=base_url, api_key="none")
            model = agents.OpenAIChatCompletionsModel("m", client)
            agent = agents.Agent(name="clerk", model=model, mcp_servers=[server])
            config = agents.RunConfig(tracing_disabled=True)
            return await agents.Runner.run(agent, "Add 2 and 3.", run_config=config)

    with ScriptedModelServer(list(REPLIES)) as server:
        result = asyncio.run(run(server.base_url))
        erased, added = tool_messages(server)
    assert result.final_output == "It is 5."
    assert "DENIED by policy tools/" in erased
    assert "5" in added
    assert (tmp_path / "notes.txt").exists()
    assert ("erase_file", "denied") in recorded(tmp_path, "outcome")


def test_an_agent_of_langchain(tmp_path: Path) -> None:
    agents = pytest.importorskip("langchain.agents")
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI

    write_policy(tmp_path, "add")
    (tmp_path / "notes.txt").write_text("precious")

    async def run(base_url: str) -> Any:
        async with connected(tmp_path, governed(*FILES)) as client:

            def as_tool(described: Any) -> StructuredTool:
                async def use(**arguments: Any) -> str:
                    return text_of(await client.call_tool(described.name, arguments))

                return StructuredTool.from_function(
                    coroutine=use, name=described.name, description="A tool.", args_schema=described.input_schema
                )

            tools = [as_tool(tool) for tool in (await client.list_tools()).tools]
            model = ChatOpenAI(model="m", base_url=base_url, api_key="none")  # pyright: ignore
            agent = agents.create_agent(model, tools)
            return await agent.ainvoke({"messages": [{"role": "user", "content": "Add 2 and 3."}]})

    with ScriptedModelServer(list(REPLIES)) as server:
        result = asyncio.run(run(server.base_url))
        erased, added = tool_messages(server)
    assert result["messages"][-1].content == "It is 5."
    assert "DENIED by policy tools/" in erased
    assert "5" in added
    assert (tmp_path / "notes.txt").exists()


#: A folder in which ``npm install @modelcontextprotocol/server-filesystem`` has been run.
INSTALLED = os.environ.get("MCP_FILESYSTEM_SERVER", "")


@pytest.mark.skipif(
    not INSTALLED or shutil.which("node") is None,
    reason="needs node, and MCP_FILESYSTEM_SERVER with the folder in which npm has installed server-filesystem",
)
async def test_the_file_server_of_the_protocols_authors(tmp_path: Path) -> None:
    program = Path(INSTALLED) / "node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("precious")
    policy = """version: 1
rules:
  - {name: look, use: tool, with: {allow: [list_directory, read_text_file, write_file]}}
  - {name: files, tools: [read_text_file, write_file], use: path, with: {roots: [work], deny: ["*.key"]}}
"""
    (tmp_path / "policy.yaml").write_text(policy)
    (work / "a.key").write_text("secret")
    async with connected(tmp_path, governed("node", str(program), str(work))) as client:
        listed = await client.call_tool("list_directory", {"path": str(work)})
        read = await client.call_tool("read_text_file", {"path": str(work / "notes.txt")})
        written = await client.call_tool("write_file", {"path": str(work / "new.txt"), "content": "x"})
        key = await client.call_tool("read_text_file", {"path": str(work / "a.key")})
        moved = await client.call_tool("move_file", {"source": str(work / "notes.txt"), "destination": str(work / "b")})
    assert "notes.txt" in text_of(listed)
    assert (text_of(read), written.is_error) == ("precious", None or False)
    assert (work / "new.txt").read_text() == "x"
    assert [result.is_error and text_of(result)[:16] for result in (key, moved)] == ["DENIED by policy"] * 2
    assert (work / "notes.txt").exists()


def test_the_figures_of_the_suite_stand_side_by_side() -> None:
    from collections import Counter

    counts = Counter({"SUCCESS": 44, "INFO": 9})
    lines = table({"without lgov": (counts, Counter()), "with lgov": (counts, Counter())}).splitlines()
    assert lines[2:4] == [
        "| of a server (32) | without lgov | 44 | 0 | 0 |",
        "| of a server (32) | with lgov | 44 | 0 | 0 |",
    ]
    assert (sys.executable, *LGOV[1:]) == tuple(LGOV)
