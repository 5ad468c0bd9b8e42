"""The cell of an MCP tool, as a program: AutoGen's own MCP client needs the first generation of the mcp package.

``python -m tests.autogen.mcp_program WAY MODE FOLDER`` prints ``done`` if everything holds.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.tools.mcp import McpWorkbench, StdioServerParams

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
        cell.check(answer, ran=["read_file"], agent_span=parts.armed)


if __name__ == "__main__":
    way, mode, folder = sys.argv[1:]
    asyncio.run(mcp_cell(Path(folder), way, mode == "streaming"))
    print("done")
