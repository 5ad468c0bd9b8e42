"""Stops denied tools from inside a callback: what `LgovCallbackHandler` does where nothing else is attached."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from uuid import UUID

from langchain_core.tools import ToolException
from langgraph.prebuilt.tool_node import ToolInvocationError

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import json_text, semconv
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.tool_call import failure_status
from lgov_core.types import Action, Decision, Effect, JSONValue, Point, ToolOutcome
from lgov_langchain import actions

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


class DeniedToolError(ToolInvocationError):
    """A tool was denied. LangGraph's ``ToolNode`` makes the message the tool's answer, so that the model reads it."""

    def __init__(self, name: str, told: str) -> None:  # not that of ToolInvocationError: there is no validation error
        ToolException.__init__(self, told)
        self.message = told
        self.tool_name = name
        self.tool_kwargs = {}
        self.filtered_errors = None


@dataclass(slots=True)
class _Open:
    action: Action
    decision: Decision
    span: LiveSpan
    started_at: float
    clock: float


class CallbackEnforcement:
    """Judges the tool calls that a callback handler sees begin and end. Callable from any thread. Fails closed."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._open: dict[UUID, _Open] = {}

    def permit(
        self,
        run_id: UUID,
        name: str,
        arguments: Mapping[str, Any],
        call_id: str | None,
        agent: str | None,
        above: LiveSpan | None,
    ) -> LiveSpan:
        """Judges a call before it runs and returns its span. Raises `DeniedToolError` if it must not run."""
        attributes: dict[str, JSONValue] = {
            semconv.TOOL_NAME: name,
            semconv.TOOL_TYPE: actions.kind_of(name),
            semconv.TOOL_CALL_ID: call_id,
            semconv.AGENT_NAME: agent,
            semconv.FRAMEWORK: actions.FRAMEWORK,
            semconv.TOOL_ARGUMENTS: json_text(arguments) if self._governor.capture_content else None,
        }
        span = LiveSpan(self._governor, semconv.EXECUTE_TOOL, name, attributes, parent=above)
        action = Action(
            Point.PRE_TOOL_CALL,
            name,
            actions.kind_of(name),
            arguments,
            agent=agent,
            framework=actions.FRAMEWORK,
            call_id=call_id,
            operation_id=f"op_{span.span_id}",
            span_id=span.span_id,
        )
        call = _Open(action, self._governor.decide(action), span, time.time(), time.perf_counter())
        obeyed = as_obeyed(call.decision, what="arguments")
        if not obeyed.blocks:
            self._open[run_id] = call
            return span
        self._record(call, "denied")
        refuse(obeyed, name)

    def returned(self, run_id: UUID, output: Any) -> None:
        """Records what a call returned and judges it. Raises `DeniedToolError` if the model must not read it."""
        call = self._open.pop(run_id, None)
        if call is None:
            return
        messages = actions.result_messages(output)
        text = actions.result_text(output) if messages else str(output)
        failed = any(message.status == "error" for message in messages)
        self._record(call, "error" if failed else "ok", result=text, error=text if failed else None)
        decision = self._governor.decide(replace(call.action, point=Point.POST_TOOL_CALL, text=text, native=output))
        obeyed = as_obeyed(decision, what="results")
        if obeyed.blocks:
            refuse(obeyed, call.action.name, ran=True)

    def raised(self, run_id: UUID, error: BaseException) -> None:
        """Records that a call failed; a pause for a person records nothing."""
        call = self._open.pop(run_id, None)
        if call is None:
            return
        if actions.is_interrupt(error):
            call.span.end()
        else:
            self._record(call, failure_status(error), error_type=type(error).__name__, error=str(error))

    def _record(self, call: _Open, status: Any, **fields: Any) -> None:
        duration = 0.0 if status == "denied" else time.perf_counter() - call.clock
        outcome = ToolOutcome(
            call.action, status, decision=call.decision, started_at=call.started_at, duration_s=duration, **fields
        )
        call.span.set(
            {
                semconv.TOOL_STATUS: status,
                semconv.TOOL_RESULT: outcome.result,
                semconv.ERROR_MESSAGE: outcome.error,
                semconv.DECISION_ID: call.decision.decision_id,
            }
        )
        call.span.end(None if status == "ok" else outcome.error_type or status)
        self._governor.record(outcome)


def as_obeyed(decision: Decision, *, what: Literal["arguments", "messages", "results"]) -> Decision:
    """The decision as a callback can obey it, which cannot change ``what`` is judged: one that wants that denies."""
    if decision.blocks or (decision.text if what == "results" else decision.arguments) is None:
        return decision
    reason = f"other {what} were demanded, which cannot be given here"
    return replace(decision, effect=Effect.DENY, reason=reason, arguments=None, text=None)


def refuse(decision: Decision, name: str, *, ran: bool = False) -> NoReturn:
    """Stops the tool, or withholds what it returned. Raises `DeniedToolError`, or `PolicyDenied` to abort."""
    if decision.abort:
        raise PolicyDenied(decision)
    raise DeniedToolError(name, decision.denial_message(after=ran))
