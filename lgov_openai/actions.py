"""The actions that this adapter has evaluates."""

from __future__ import annotations

from collections.abc import Mapping

from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.live_span import LiveSpan, started_span
from lgov_core.instrumentation.tool_call import ToolReading
from lgov_core.scope import current_scope
from lgov_core.types import Action, Point
from lgov_core.wire.content import JSON, read_arguments
from lgov_core.wire.turns import Proposal

FRAMEWORK = "openai"


def tool_action(point: Point, name: str, call_id: str | None, proposal: Proposal | None) -> Action:
    """A tool call, or its result; ``proposal`` is what the model wrote, where it is known."""
    scope = current_scope()
    return Action(
        point,
        name=name,
        kind=proposal.kind if proposal is not None else "function",
        arguments=(proposal.arguments or {}) if proposal is not None else {},
        framework=FRAMEWORK,
        session_id=scope.session_id if scope else None,
        rollout_id=scope.rollout_id if scope else None,
        attempt=scope.attempt if scope else None,
        call_id=call_id,
    )


def offered_tools(body: JSON) -> frozenset[str] | None:
    """The names of the tools that a request offers; None where that is not known of all, or there are none."""
    tools = [*(body.get("tools") or ()), *(body.get("functions") or ())]
    names = {name for tool in tools if (name := _tool_name(tool)) is not None}
    return frozenset(names) if names and all(_tool_name(tool) for tool in tools) else None


def _tool_name(tool: JSON) -> str | None:
    """The name in a request of chat completions or of the Responses API. Hosted tools and MCP servers have none."""
    inner = tool.get(str(tool.get("type")))
    name = (inner if isinstance(inner, Mapping) else tool).get("name")
    return name if isinstance(name, str) else None


def current_tool() -> LiveSpan | None:
    """The span of the tool that the running code is in: what the program says there is not the user's."""
    span = started_span()
    return span if span is not None and span.operation == semconv.EXECUTE_TOOL else None


def user_action(text: str) -> Action:
    """A user message. Inside a tool it is the tool that speaks, so its span is the parent."""
    tool = current_tool()
    action = Action(Point.INPUT, name="agent", kind="text", text=text, framework=FRAMEWORK, source="user")
    return action if tool is None else action.changed(source="tool", parent_id=tool.span_id)


def result_reading(entry: JSON, text: str, proposal: Proposal | None) -> ToolReading:
    """A tool result in a transcript. It only says that the call failed where its arguments were unreadable for any tool."""
    if proposal is not None and read_arguments(proposal.raw, unique_keys=False) is None and proposal.arguments is None:
        return ToolReading(text, "invalid_args", "InvalidToolCall")
    return ToolReading(text, "error" if entry.get("status") == "incomplete" else "ok")
