"""Calls that are evaluated when the model proposes them: hand-offs always, others where nothing evaluates them later."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
)
from autogen_core.tools import BaseTool

from lgov_autogen._internals import has_handoffs, is_handoff
from lgov_autogen.messages import call_arguments, judged_arguments
from lgov_autogen.runs import current_run
from lgov_autogen.tool_models import ToolModel
from lgov_autogen.tools import tool_action
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import BoundedDict, Flow, Governor
from lgov_core.instrumentation.conversation_memory import MAX_REMEMBERED
from lgov_core.instrumentation.live_span import covered_call
from lgov_core.instrumentation.tool_call import (
    GovernedToolCall,
    ToolReading,
    denied_outcome,
    refuse_arguments,
    tool_flow,
)
from lgov_core.types import Action, Decision, Kind, Point, ToolOutcome, ToolStatus, new_id


def is_offered_handoff(tool: object) -> bool:
    """Returns whether ``tool``, as the running model call offers it, hands the conversation to another agent.

    A hand-off may have a tool of its own class. An assistant offers its model the tools of its workbenches as schemas,
    and only hand-offs as tools; but what a tool that it runs offers to a model is not a hand-off.
    """
    if isinstance(tool, dict):  # a schema
        return False
    if is_handoff(tool):
        return True
    run = current_run()
    if run is None or not isinstance(tool, BaseTool):
        return False
    return has_handoffs(run.owner) and covered_call() is run.inside


@dataclass(frozen=True, slots=True)
class _PendingCall:
    """A permitted call that the agent runs unobserved; its span and outcome wait for the result in a later prompt."""

    call: FunctionCall
    governed: GovernedToolCall
    decision: Decision


class ProposedCalls:
    """Evaluates the calls that models propose. Serves any number of clients, tasks and threads.

    ``evaluated_later`` tells of an offered tool (or schema; None for one that was not offered) whether its calls are
    evaluated when they run; calls of other tools are evaluated here, and wait for their results in a later prompt.
    Hand-offs always are.
    """

    def __init__(self, evaluated_later: Callable[[Governor, Any], bool]) -> None:
        self._evaluated_later = evaluated_later
        self._pending: BoundedDict[int, _PendingCall] = BoundedDict(MAX_REMEMBERED)

    def judge_flow(
        self, governor: Governor, proposed: Sequence[FunctionCall], options: Mapping[str, Any], agent: str | None
    ) -> Flow[tuple[list[FunctionCall | None], list[tuple[FunctionExecutionResult, Decision]]]]:
        """The proposed calls as they go on, None for a denied one; and the denials, as results for the model.

        ``options`` are the keyword arguments of ``create``. Raises `PolicyDenied` where a decision says abort.
        """
        tools = options.get("tools") or ()  # each a tool or its schema
        offered = {str(tool["name"] if isinstance(tool, Mapping) else tool.name): tool for tool in tools}
        passed: list[FunctionCall | None] = []
        denials: list[tuple[FunctionExecutionResult, Decision]] = []
        for call in proposed:
            tool = offered.get(call.name)
            if call_arguments(call) is None and governor.evaluates(Point.PRE_TOOL_CALL):
                action = _action(call, "function", agent).changed(operation_id=new_id("op"))
                decision, permitted = refuse_arguments(governor, action), call
                yield from governor.record_flow(denied_outcome(action, decision))
            elif tool is not None and is_offered_handoff(tool):
                decision, permitted = yield from _handoff_flow(governor, call, agent)
            elif (outcome := _unrunnable(call, offered, agent)) is not None:
                yield from governor.record_flow(outcome)
                passed.append(call)
                continue
            elif self._evaluated_later(governor, tool):
                passed.append(call)
                continue
            else:
                decision, permitted = yield from self._unobserved_flow(governor, call, tool, agent)
            if decision.blocks:
                text = decision.denial_message()
                result = FunctionExecutionResult(content=text, name=call.name, call_id=call.id, is_error=True)
                denials.append((result, decision))
            passed.append(None if decision.blocks else permitted)
        return passed, denials

    def _unobserved_flow(
        self, governor: Governor, call: FunctionCall, tool: Any, agent: str | None
    ) -> Flow[tuple[Decision, FunctionCall]]:
        """Judges a call that the agent will run unobserved. Beyond `MAX_REMEMBERED` the oldest span stays open."""
        action, method = _action(call, "function", agent), getattr(type(tool), "run_json", None)
        validated = ToolModel.of(tool, method, action.arguments) if isinstance(tool, BaseTool) else None
        if validated is not None:
            action = action.changed(arguments=validated.judged)
        governed = GovernedToolCall(governor, action, validated=validated)
        decision = yield from governed.judge_flow()
        if decision.blocks:
            if decision.abort:
                raise PolicyDenied(decision)
            return decision, call
        if decision.arguments is not None:
            call = _with_arguments(call, decision.arguments)
        dropped = self._pending.put(id(call), _PendingCall(call, governed, decision))
        if dropped is not None:
            dropped.governed.span.abandon()
        return decision, call

    async def settle(self, messages: Sequence[LLMMessage]) -> None:
        """Records the results that the messages show of pending calls."""
        if not len(self._pending):
            return
        results: dict[str, tuple[str, bool]] = {}
        for message in reversed(messages):
            results = {**results, **results_in([message])}
            if not isinstance(message, AssistantMessage):
                continue
            for call in message.content if isinstance(message.content, list) else ():
                pending = self._pending.pop(id(call)) if call.id in results else None
                if pending is not None:
                    text, failed = results[call.id]
                    governed = pending.governed
                    outcome = governed.returned(pending.decision, ToolReading(text, "error" if failed else "ok"))
                    governed.finish(outcome)
                    await governed.governor.arecord(outcome)
            results = {}  # those of earlier calls come before this message


def _handoff_flow(governor: Governor, call: FunctionCall, agent: str | None) -> Flow[tuple[Decision, FunctionCall]]:
    """Judges a hand-off. Passing the call on makes it happen, so that is also its outcome."""
    action = _action(call, "handoff", agent)

    def passed(arguments: Mapping[str, Any]) -> FunctionCall:
        return call if arguments == action.arguments else _with_arguments(call, arguments)

    result = yield from tool_flow(
        GovernedToolCall(governor, action), passed, lambda _call: ToolReading(f"handed off by {call.name}")
    )
    return result.decision, result.result if result.result is not None else call


def _unrunnable(call: FunctionCall, offered: Container[str], agent: str | None) -> ToolOutcome | None:
    """The outcome of a call that cannot run: its arguments are not a JSON object, or there is no such tool."""
    status: ToolStatus
    if call_arguments(call) is None:
        status, error_type, error = "invalid_args", "JSONDecodeError", "the arguments are not a JSON object"
    elif offered and call.name not in offered:
        status, error_type, error = "unknown_tool", "UnknownTool", f"no tool {call.name} was offered"
    else:
        return None
    action = replace(_action(call, "function", agent), operation_id=new_id("op"))
    return ToolOutcome(action, status, error_type=error_type, error=error)


def results_in(messages: Sequence[LLMMessage]) -> dict[str, tuple[str, bool]]:
    """The results of calls in the messages: text and whether it failed, by call id."""
    return {
        result.call_id: (result.content, bool(result.is_error))
        for message in messages
        if isinstance(message, FunctionExecutionResultMessage)
        for result in message.content
    }


def _action(call: FunctionCall, kind: Kind, agent: str | None) -> Action:
    return tool_action(call.name, kind, judged_arguments(call), call, call_id=call.id, agent=agent)


def _with_arguments(call: FunctionCall, arguments: Mapping[str, Any]) -> FunctionCall:
    return FunctionCall(id=call.id, name=call.name, arguments=json.dumps(dict(arguments)))
