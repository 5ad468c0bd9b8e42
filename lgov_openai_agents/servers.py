"""Calls of the tools of MCP servers: how a server says that one failed, and those that a program makes itself.

The SDK turns a server's result into what the model reads and forgets whether the server called it an error. It is heard
where every such call passes: `MCPServer.call_tool`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.shared_state import share_state
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool
from lgov_core.types import Action, Point
from lgov_openai_agents.items import FRAMEWORK, text_of
from lgov_openai_agents.runs import current_run
from lgov_openai_agents.tools import inside_server_tool, note_failure, watching_server

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


class MCPToolError(Exception):
    """A tool of an MCP server whose result says that it is an error."""


def _reading(result: Any) -> ToolReading:
    text = text_of(list(result.content))
    if getattr(result, "is_error", None) or getattr(result, "isError", None):  # mcp 2, mcp 1
        return ToolReading(text, "error", MCPToolError.__name__, text)
    return ToolReading(text)


def _heard(result: Any) -> Any:
    reading = _reading(result)
    if reading.status == "error":
        note_failure(MCPToolError(reading.text))
    return result


def governed_call_tool(inner: Callable[..., Any], acting: Callable[[], Governor | None]) -> Callable[..., Any]:
    """``call_tool`` of a class of servers, judged where no tool of an agent makes the call.

    A denial is a result that says of itself that it is an error.
    """

    @functools.wraps(inner)
    async def call_tool(self: Any, tool_name: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        governor = acting()
        if governor is None:
            return await inner(self, tool_name, arguments, *args, **kwargs)
        if inside_server_tool():
            return _heard(await inner(self, tool_name, arguments, *args, **kwargs))
        run = current_run(governor)
        given: dict[str, Any] = dict(arguments or {})
        agent = run.agent if run is not None else None
        action = Action(
            Point.PRE_TOOL_CALL, tool_name, "mcp", arguments=given, agent=agent, framework=FRAMEWORK, native=self
        )

        async def call(permitted: Mapping[str, Any]) -> Any:
            passed = arguments if permitted is action.arguments else dict(permitted)
            with watching_server():
                return await inner(self, tool_name, passed, *args, **kwargs)

        judged = await agovern_tool(governor, action, call, _reading)
        if judged.told is not None:
            return _result(judged.told, failed=True)
        if judged.text is not None:
            return _result(judged.text, failed=_reading(judged.result).status == "error")
        return judged.result

    return call_tool


def _result(text: str, *, failed: bool) -> Any:
    from mcp.types import CallToolResult

    return CallToolResult.model_validate({"content": [{"type": "text", "text": text}], "isError": failed})


def hearing(server: Any) -> Any:
    """``server`` for an agent of `LgovRunner`: it shares all that the server is, and its failures are heard."""
    if not hasattr(server, "__dict__") or isinstance(server, _Hearing):
        return server
    twin: Any = object.__new__(_hearing_class(type(server)))
    share_state(twin, server)
    return twin


class _Hearing:
    async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
        """The server's result."""
        parent: Any = super()
        return _heard(await parent.call_tool(*args, **kwargs))


@functools.cache
def _hearing_class(cls: type) -> type:
    return type(cls.__name__, (_Hearing, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
