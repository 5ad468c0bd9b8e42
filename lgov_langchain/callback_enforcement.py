"""Stops denied tools from inside a callback: what `LgovCallbackHandler` does where nothing else is attached."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from langchain_core.tools import ToolException
from langgraph.prebuilt.tool_node import ToolInvocationError

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation.tool_call import ToolCall
from lgov_core.types import Action, Decision, Effect
from lgov_langchain.runs import is_pause
from lgov_langchain.tool_results import result_reading

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


class DeniedToolError(ToolInvocationError):
    """A tool was denied. LangGraph's ``ToolNode`` makes the message the tool's answer, so that the model reads it."""

    def __init__(self, name: str, denial: str) -> None:  # not that of ToolInvocationError: there is no validation error
        ToolException.__init__(self, denial)
        self.message = denial
        self.tool_name = name
        self.tool_kwargs = {}
        self.filtered_errors = None


class CallbackEnforcement:
    """Evaluates the tool calls whose begin and end a callback handler observes. Callable from any thread. Fails closed."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._open: dict[Hashable, tuple[ToolCall, Decision]] = {}

    def permit(self, run_id: Hashable, action: Action, above: LiveSpan | None) -> LiveSpan:
        """Evaluates a call before it runs and returns its span. Raises `DeniedToolError` if it must not run."""
        call = ToolCall(self._governor, action, above)
        decision = self._governor.decide(call.action)
        enforced = enforceable(decision, "arguments")
        if enforced.blocks:
            self._governor.record(call.denied(decision))
            raise_denial(enforced, action.name)
        self._open[run_id] = call, decision
        return call.span

    def returned(self, run_id: Hashable, output: Any) -> None:
        """Records what a call returned and evaluates it. Raises `DeniedToolError` if the model must not read it."""
        if (found := self._open.pop(run_id, None)) is None:
            return
        call, decision = found
        reading = result_reading(output)
        outcome = call.returned(decision, reading)
        call.finish(outcome)
        self._governor.record(outcome)
        enforced = enforceable(self._governor.decide(call.result_action(reading, output)), "results")
        if enforced.blocks:
            raise_denial(enforced, call.action.name, ran=True)

    def raised(self, run_id: Hashable, error: BaseException) -> None:
        """Records that a call failed; a pause for a person records nothing."""
        if (found := self._open.pop(run_id, None)) is None:
            return
        call, decision = found
        if is_pause(error):
            call.span.end()
            return
        outcome = call.raised(decision, error)
        call.finish(outcome)
        self._governor.record(outcome)


def enforceable(decision: Decision, what: Literal["arguments", "messages", "results"]) -> Decision:
    """The decision as a callback can enforce it, which cannot replace ``what`` is evaluated: one that would is a denial."""
    if decision.blocks or (decision.text if what == "results" else decision.arguments) is None:
        return decision
    reason = f"the policy wants other {what}, which a callback cannot provide"
    return replace(decision, effect=Effect.DENY, reason=reason, arguments=None, text=None)


def raise_denial(decision: Decision, name: str, *, ran: bool = False) -> NoReturn:
    """Stops the tool, or withholds what it returned. Raises `DeniedToolError`, or `PolicyDenied` to abort."""
    if decision.abort:
        raise PolicyDenied(decision)
    raise DeniedToolError(name, decision.denial_message(after=ran))
