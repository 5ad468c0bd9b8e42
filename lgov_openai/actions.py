"""The actions that this adapter has evaluates."""

from __future__ import annotations

from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.live_span import current_span
from lgov_core.instrumentation.tool_call import ToolReading
from lgov_core.scope import current_scope
from lgov_core.types import Action, Point
from lgov_openai.content import JSON, read_arguments
from lgov_openai.protocol import Proposal

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


def user_action(text: str) -> Action:
    """A user message. Inside a tool it is the tool that speaks, so its span is the parent."""
    above = current_span()
    nested = above is not None and above.operation == semconv.EXECUTE_TOOL
    parent_id = above.span_id if above is not None and nested else None
    return Action(Point.INPUT, name="agent", kind="text", text=text, framework=FRAMEWORK, parent_id=parent_id)


def result_reading(entry: JSON, text: str, proposal: Proposal | None) -> ToolReading:
    """A tool result in a transcript. It only says that the call failed where its arguments were unreadable for any tool."""
    if proposal is not None and read_arguments(proposal.raw, unique_keys=False) is None and proposal.arguments is None:
        return ToolReading(text, "invalid_args", "InvalidToolCall")
    return ToolReading(text, "error" if entry.get("status") == "incomplete" else "ok")
