"""What came of a tool call in an agent, as lgov records it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from langgraph.prebuilt.tool_node import TOOL_INVOCATION_ERROR_TEMPLATE

from lgov_core.types import Action, Decision, Point, ToolOutcome, ToolStatus
from lgov_langchain import actions

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

#: How the installed LangGraph begins its answer to a call whose arguments do not fit.
_INVALID_ARGUMENTS = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{")[0]


def outcome_of(
    action: Action, decision: Decision, request: ToolCallRequest, result: Any, started: float, clock: float
) -> ToolOutcome:
    """The outcome of a call that returned ``result``; ``clock`` is when it began, by ``time.perf_counter``."""
    text = actions.result_text(result)
    status: ToolStatus = "ok"
    if any(message.status == "error" for message in actions.result_messages(result)):
        bad_call: ToolStatus = "invalid_args" if text.startswith(_INVALID_ARGUMENTS) else "error"
        status = "unknown_tool" if request.tool is None else bad_call
    return ToolOutcome(
        action,
        status,
        result=text,
        error=None if status == "ok" else text,
        decision=decision,
        started_at=started,
        duration_s=time.perf_counter() - clock,
    )


def failure_of(action: Action, decision: Decision, error: BaseException, started: float, clock: float) -> ToolOutcome:
    """The outcome of a call that raised ``error``."""
    return ToolOutcome(
        action,
        actions.failure_status(error),
        error_type=type(error).__name__,
        error=str(error),
        decision=decision,
        started_at=started,
        duration_s=time.perf_counter() - clock,
    )


def result_action(action: Action, result: Any) -> Action:
    """The result of ``action``, to be judged before the model reads it."""
    return Action(
        Point.POST_TOOL_CALL,
        name=action.name,
        arguments=action.arguments,
        text=actions.result_text(result),
        agent=action.agent,
        framework=action.framework,
        call_id=action.call_id,
        operation_id=action.operation_id,
        native=result,
    )
