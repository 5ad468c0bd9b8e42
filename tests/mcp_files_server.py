"""A small MCP server over stdio, for tests: ``python tests/mcp_files_server.py``.

It really does what it is asked: `erase_file` removes the file.
"""

from __future__ import annotations

from pathlib import Path

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # mcp 1, which some clients need
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("files")


@server.tool()
def erase_file(path: str) -> str:
    """Removes a file for good."""
    Path(path).unlink()
    return f"erased {path}"


@server.tool()
def read_file(path: str) -> str:
    """Gives the text of a file."""
    return Path(path).read_text(encoding="utf-8")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


if __name__ == "__main__":
    server.run("stdio")
