"""The MCP server that the tests of every adapter use: a real process, a real session."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).parents[1] / "mcp_files_server.py")])


async def test_its_tools_really_act(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("precious")
    async with stdio_client(SERVER) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        names = [tool.name for tool in (await session.list_tools()).tools]
        read = await session.call_tool("read_file", {"path": str(file)})
        added = await session.call_tool("add", {"a": 2, "b": 3})
        erased = await session.call_tool("erase_file", {"path": str(file)})
        again = await session.call_tool("erase_file", {"path": str(file)})
    assert names == ["erase_file", "read_file", "add"]
    assert [one.content[0].text for one in (read, added)] == ["precious", "5"]
    assert erased.content[0].text == f"erased {file}"
    assert not file.exists()
    assert again.is_error
