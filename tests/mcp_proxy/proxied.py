"""MCP servers behind ``lgov mcp``, as the clients of the tests reach them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

HERE = Path(__file__).parent
FILES = [sys.executable, str(HERE.parent / "mcp_files_server.py")]
EVERYTHING = [sys.executable, str(HERE / "everything_server.py")]
HOSTILE = [sys.executable, str(HERE / "hostile_server.py")]
LGOV = [sys.executable, "-m", "lgov_core"]
NO_ORDERS = (
    '  - {name: no-orders, use: deny, on: [post_tool_call], when: {field: text, matches: "(?i)ignore all previous"}}\n'
)


def write_policy(folder: Path, allow: str, more: str = "") -> None:
    rules = f"version: 1\nrules:\n  - {{name: tools, use: tool, with: {{allow: [{allow}]}}}}\n{more}"
    (folder / "policy.yaml").write_text(rules)


def governed(*command: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that takes the place of the server's ``command``."""
    return [*LGOV, "mcp", *options, "--", *command]


@asynccontextmanager
async def connected(folder: Path, command: list[str], mode: Any = "legacy", **callbacks: Any) -> AsyncGenerator[Client]:
    """A client of the official SDK with the server that ``command`` starts in ``folder``."""
    program, *arguments = command
    parameters = StdioServerParameters(command=program, args=arguments, cwd=str(folder), env=environment())
    with (folder / "stderr").open("a") as errors:
        async with Client(stdio_client(parameters, errlog=errors), mode=mode, **callbacks) as client:
            yield client


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "ignore", **more}


@contextmanager
def serving(folder: Path, server: str | list[str], **more: str) -> Generator[str]:
    """``lgov mcp --port`` in front of the server at an address, or of a command; its own address."""
    command = [*LGOV, "mcp", "--port", "0", *(["--url", server] if isinstance(server, str) else ["--", *server])]
    with (folder / "stderr").open("a") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(**more), stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(20)


def text_of(result: Any) -> str:
    return "\n".join(getattr(one, "text", "") for one in result.content)


def entries(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / ".lgov/audit.db")) as record:
        return [json.loads(body) for (body,) in record.execute("SELECT body FROM entries ORDER BY position")]


def recorded(folder: Path, kind: str = "decision") -> list[tuple[str, str]]:
    """The names and the effects of the decisions on the record, or the names and statuses of the outcomes, in order."""
    value = "effect" if kind == "decision" else "status"
    return [(entry["name"], entry[value]) for entry in entries(folder) if entry.get("kind") == kind]


def recorded_sessions(folder: Path) -> list[str | None]:
    """The sessions of the entries of the record, in order."""
    return [entry.get("session_id") for entry in entries(folder)]
