"""The cell of an MCP tool, as a program: AutoGen's own MCP client needs the first generation of the mcp package.

``python -m tests.autogen.mcp_program WAY MODE FOLDER`` prints ``done`` if everything holds; with ``single`` as the way the
server's tools are used without an agent.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams, create_mcp_server_session, mcp_server_tools

from tests.autogen.autogen_parts import answer_of, governed
from tests.cells import ANSWER, asks, open_cell, says

SERVER = Path(__file__).parents[1] / "mcp_files_server.py"


async def mcp_cell(folder: Path, way: str, stream: bool) -> None:
    """One tool of the server is denied, the other runs."""
    path = str(folder / "precious.txt")
    replies = [asks(("c1", "read_file", {"path": path})), asks(("c2", "erase_file", {"path": path})), says(ANSWER)]
    with open_cell(folder, *replies) as cell:
        with governed(way, cell.governor, cell.base_url) as parts:
            inner = McpWorkbench(StdioServerParams(command=sys.executable, args=[str(SERVER)]))
            async with parts.workbench(inner, "clerk") as workbench:
                agent = AssistantAgent(
                    "clerk",
                    parts.client("clerk"),
                    workbench=workbench,
                    model_client_stream=stream,
                    max_tool_iterations=5,
                )
                answer = await answer_of(agent, "tidy up", stream=stream)
        assert {one.action.kind for one in cell.seen.decisions()} == {"mcp"}
        outcomes = {one.action.call_id: (one.status, one.result) for one in cell.seen.outcomes}
        assert outcomes == {"c1": ("ok", "precious"), "c2": ("denied", None)}
        cell.check(answer, ran=["read_file"], agent_span=parts.instrumented)


async def single_tools(folder: Path) -> None:
    """Tools of the server as tools of AutoGen, and, as the known gap, the same call on a session of the program's own."""
    path = str(folder / "precious.txt")
    server = StdioServerParams(command=sys.executable, args=[str(SERVER)])
    with open_cell(folder, says("x")) as cell, governed("instrumented", cell.governor, cell.base_url) as parts:
        tools = {tool.name: tool for tool in await mcp_server_tools(server)}
        erase, token = tools["erase_file"], CancellationToken()
        told = erase.return_value_as_string(await erase.run_json({"path": path}, token))
        assert "DENIED by policy cells/no-erasing" in told, told
        read = tools["read_file"]
        assert "precious" in read.return_value_as_string(await read.run_json({"path": path}, token))
        assert [one.action.kind for one in cell.seen.decisions()] == ["mcp", "mcp"]
        async with McpWorkbench(server) as workbench:
            failed = await workbench.call_tool("read_file", {"path": f"{path}.missing"})
            assert failed.is_error
        assert [one.status for one in cell.seen.outcomes] == ["denied", "ok", "error"]
        async with create_mcp_server_session(server) as session:
            await session.initialize()
            await session.call_tool("erase_file", {"path": path})
        assert not Path(path).exists(), "the gap has been closed: say so"
        await parts.bare_client().create([])


if __name__ == "__main__":
    way, mode, folder = sys.argv[1:]
    asyncio.run(single_tools(Path(folder)) if way == "single" else mcp_cell(Path(folder), way, mode == "streaming"))
    print("done")
