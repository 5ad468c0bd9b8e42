"""Agents of frameworks, and the file server that everyone knows, behind ``lgov mcp``: nothing else about them changes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply, call
from tests.mcp_proxy.conformance import table
from tests.mcp_proxy.proxied import FILES, connected, environment, governed, recorded, text_of, write_policy

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


def settings_of(work: Path, client: str) -> None:
    """Names lgov in front of the server in the settings of a coding agent, as the page says."""
    program, *arguments = governed(*FILES, options=("--policy", str(work / "policy.yaml")))
    server = {"command": program, "args": arguments, "env": {"PYTHONPATH": environment()["PYTHONPATH"]}}
    if client == "Codex":
        members = "\n".join(f"{name} = {json.dumps(server[name])}" for name in ("command", "args"))
        told = json.dumps(server["env"]).replace(": ", " = ")
        with (work / "home/.codex/config.toml").open("a") as settings:
            settings.write(f"\n[mcp_servers.files]\n{members}\nenv = {told}\nrequired = true\n")
    elif client == "Qwen Code":
        (work / ".qwen").mkdir()
        (work / ".qwen/settings.json").write_text(json.dumps({"mcpServers": {"files": {**server, "trust": True}}}))
    else:
        settings = json.loads((work / "opencode.json").read_text())
        local = {"type": "local", "command": [program, *arguments], "environment": server["env"], "enabled": True}
        (work / "opencode.json").write_text(json.dumps({**settings, "mcp": {"files": local}}))


def namespaced(namespace: str, tool: str, arguments: dict[str, Any]) -> ScriptedReply:
    """A streamed reply of the Responses API that calls a tool of a namespace, as Codex offers those of a server."""
    item = {"type": "function_call", "id": "fc_1", "call_id": f"call_{tool}", "namespace": namespace, "name": tool,
            "arguments": json.dumps(arguments), "status": "completed"}  # fmt: skip
    response = {
        "id": f"resp_{tool}",
        "object": "response",
        "status": "completed",
        "model": "scripted",
        "output": [item],
    }
    events = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return ScriptedReply(body=body.encode(), content_type="text/event-stream")


@pytest.mark.parametrize("name", ["Codex", "Qwen Code", "opencode"])
def test_a_coding_agent_calls_a_tool_and_reads_a_denial(tmp_path: Path, name: str) -> None:
    from tests.clients.programs_of_users import CLIENTS

    client = replace(
        CLIENTS[name], configure=lambda work, url: (CLIENTS[name].configure(work, url), settings_of(work, name))
    )
    write_policy(tmp_path, "add")
    (tmp_path / "notes.txt").write_text("precious")

    steps: list[tuple[str, dict[str, Any]]] = [("erase_file", {"path": "notes.txt"}), ("add", {"a": 2, "b": 3})]
    prefix = "files_" if name == "opencode" else "mcp__files__"

    def script(body: Mapping[str, Any]) -> ScriptedReply | str:
        offered = json.dumps(body.get("tools", ()))
        if "erase_file" not in offered and "tool_search" in offered:  # Qwen Code shows tools of servers on request
            query = f"select:{prefix}erase_file,{prefix}add"
            return ScriptedReply(tool_calls=[ScriptedCall("tool_search", {"query": query})])
        if "erase_file" not in offered or not steps:
            return "All done."
        tool, arguments = steps.pop(0)
        if name == "Codex":
            return namespaced("mcp__files", tool, arguments)
        return ScriptedReply(tool_calls=[ScriptedCall(f"{prefix}{tool}", arguments)])

    with ScriptedModelServer(script) as model:
        done = client.run(tmp_path, model.base_url)
        read = json.dumps([request.body for request in model.requests])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All done." in done.stdout
    assert "DENIED by policy tools/" in read
    assert (tmp_path / "notes.txt").exists()
    assert recorded(tmp_path, "outcome") == [("erase_file", "denied"), ("add", "ok")]


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
    checks = Counter({("ping", "answers", "SUCCESS"): 44, ("initialize", "id", "WARNING"): 1})
    lines = table({"without lgov": (checks, Counter()), "with lgov": (checks, Counter())}).splitlines()
    assert lines[2:4] == [
        "| of a server (2) | without lgov | 44 | 0 | 1 |",
        "| of a server (2) | with lgov | 44 | 0 | 1 |",
    ]
