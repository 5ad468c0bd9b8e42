"""Calls of the tools of MCP servers: those that a program makes itself, and how a server says that one failed.

The SDK turns a server's result into what the model reads and drops whether the server called it an error, so the result
is read in `MCPServer.call_tool`, which every such call goes through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.evaluated_call import covered_call, note_error
from lgov_core.instrumentation.tool_call import ToolReading, tool_flow
from lgov_openai_agents.items import text_of
from lgov_openai_agents.runs import tool_action


class MCPToolError(Exception):
    """A tool of an MCP server whose result says that it is an error."""


def _reading(result: Any) -> ToolReading:
    text = text_of(list(result.content))
    if getattr(result, "is_error", None) or getattr(result, "isError", None):  # mcp 2, mcp 1
        return ToolReading(text, "error", MCPToolError.__name__, text)
    return ToolReading(text)


def _observed(result: Any) -> Any:
    reading = _reading(result)
    if reading.status == "error":
        note_error(MCPToolError(reading.text))
    return result


async def call_tool(
    governor: Governor | None,
    server: Any,
    own: Callable[..., Any],
    tool_name: str,
    arguments: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``MCPServer.call_tool``, evaluated where no tool of an agent makes the call; ``own`` is the server's own method.

    A denial is an error result.
    """
    around = covered_call()
    if governor is None or (around is not None and around.action is not None and around.action.kind == "mcp"):
        return _observed(await own(tool_name, arguments, *args, **kwargs))
    action = tool_action(governor, tool_name, "mcp", dict(arguments or {}), server)

    async def call(permitted: Mapping[str, Any]) -> Any:
        passed = arguments if permitted is action.arguments else dict(permitted)
        return await own(tool_name, passed, *args, **kwargs)

    governed = await arun_flow(tool_flow(governor, action, call, _reading))
    if governed.denial is not None:
        return _result(governed.denial, failed=True)
    if governed.text is not None:
        return _result(governed.text, failed=_reading(governed.result).status == "error")
    return governed.result


def _result(text: str, *, failed: bool) -> Any:
    from mcp.types import CallToolResult

    return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})


class ObservedServer:
    """``inner``, an MCP server, for an agent of `LgovRunner`: everything is that server's, and its failures are noted."""

    def __init__(self, inner: Any) -> None:
        self.__dict__["inner"] = inner

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """That of the server: the SDK and programs ask ``isinstance``."""
        return type(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["inner"], name, value)

    async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        """The server's result."""
        return _observed(await self.inner.call_tool(*args, **kwargs))


def observed_server(server: Any) -> Any:
    """``server`` with its failures noted; one that is observed already as it is."""
    return server if type(server) is ObservedServer else ObservedServer(server)
