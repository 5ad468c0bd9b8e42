"""Calls that are judged where the model proposes them: hand-offs always, others where nothing governs them later."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, LLMMessage
from autogen_core.tools import BaseTool

from lgov_autogen.messages import FRAMEWORK, call_arguments, judged_arguments
from lgov_autogen.runs import current_run
from lgov_autogen.transcript import REMEMBERED
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, json_text, semconv
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool
from lgov_core.types import Action, Decision, Point, ToolOutcome, ToolStatus, new_id

#: Where AutoGen defines what its hand-off tools do.
_MODULE, _FUNCTION = "autogen_agentchat.base._handoff", "Handoff.handoff_tool."


def is_handoff(tool: object) -> bool:
    """Whether ``tool`` is one that AutoGen made for a hand-off. Running it does nothing; proposing it does."""
    function = getattr(tool, "_func", None)
    name = str(getattr(function, "__qualname__", ""))
    return getattr(function, "__module__", None) == _MODULE and name.startswith(_FUNCTION)


def is_offered_handoff(tool: object) -> bool:
    """Whether ``tool``, as the running model call offers it, hands the conversation to another agent.

    A hand-off may bring a tool of its own kind. An assistant offers its model the tools of its workbenches as schemas,
    and only hand-offs as tools; what a tool that it runs offers to a model is another matter.
    """
    if isinstance(tool, dict):  # a schema
        return False
    if is_handoff(tool):
        return True
    run = current_run()
    if run is None or not isinstance(tool, BaseTool):
        return False
    return hasattr(run.owner, "_handoffs") and covered_call() is run.inside


def tool_name(tool: Any) -> str:
    """The name of an offered tool, which may be a tool or its schema."""
    return str(tool["name"] if type(tool) is dict or isinstance(tool, Mapping) else tool.name)


@dataclass(slots=True)
class Proposed:
    """A call that may go on and whose end somebody else sees: the span and the action wait for the result."""

    governor: Governor
    call: FunctionCall
    action: Action
    decision: Decision
    span: LiveSpan
    started_at: float
    clock: float

    async def settle(self, text: str, failed: bool) -> None:
        """Records what the model's next prompt says came of it."""
        status: ToolStatus = "error" if failed else "ok"
        self.span.set({semconv.TOOL_STATUS: status, semconv.TOOL_RESULT: text})
        self.span.end(status if failed else None)
        await self.governor.arecord(
            ToolOutcome(
                self.action,
                status,
                result=text,
                error=text if failed else None,
                decision=self.decision,
                started_at=self.started_at,
                duration_s=time.perf_counter() - self.clock,
            )
        )


class Waiting:
    """Calls whose results a later prompt will show. May be used by any number of tasks and threads."""

    def __init__(self) -> None:
        self._calls: OrderedDict[int, Proposed] = OrderedDict()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, proposed: Proposed) -> None:
        """Waits for the result of this very call; the oldest of very many is given up."""
        with self._lock:
            self._calls[id(proposed.call)] = proposed
            while len(self._calls) > REMEMBERED:
                self._calls.popitem(last=False)[1].span.abandon()

    async def settle(self, messages: Sequence[LLMMessage]) -> None:
        """Records what the messages say came of calls that wait."""
        results: dict[str, tuple[str, bool]] | None = None
        for message in messages:
            if not isinstance(message, AssistantMessage) or isinstance(message.content, str):
                continue
            for call in message.content:
                if id(call) not in self._calls:
                    continue
                results = results_in(messages) if results is None else results
                if call.id not in results:
                    continue
                with self._lock:
                    proposed = self._calls.pop(id(call), None)
                if proposed is not None:
                    await proposed.settle(*results[call.id])


async def judge_handoff(governor: Governor, call: FunctionCall, agent: str | None) -> tuple[Decision, FunctionCall]:
    """Judges a hand-off. Letting the call through is what makes it happen, so that is also its outcome."""

    async def passed(arguments: Mapping[str, Any]) -> FunctionCall:
        if arguments == action.arguments:
            return call
        return FunctionCall(id=call.id, name=call.name, arguments=json.dumps(dict(arguments)))

    action = _action(call, "handoff", agent)
    result = await agovern_tool(governor, action, passed, lambda _call: ToolReading(f"handed off by {call.name}"))
    return result.decision, result.result if result.result is not None else call


async def judge_proposal(
    governor: Governor, call: FunctionCall, agent: str | None
) -> tuple[Decision, FunctionCall, Proposed | None]:
    """Judges a call that the agent will run out of our sight. Raises `PolicyDenied` where the decision says abort."""
    action = _action(call, "function", agent)
    attributes: dict[str, Any] = {
        semconv.TOOL_NAME: action.name,
        semconv.TOOL_TYPE: action.kind,
        semconv.TOOL_CALL_ID: action.call_id,
        semconv.AGENT_NAME: agent,
        semconv.FRAMEWORK: FRAMEWORK,
        semconv.TOOL_ARGUMENTS: json_text(action.arguments),
    }
    span = LiveSpan(governor, semconv.EXECUTE_TOOL, action.name, attributes)
    action = replace(action, span_id=span.span_id, operation_id=f"op_{span.span_id}")
    started, clock = time.time(), time.perf_counter()
    try:
        decision = await governor.adecide(action)
    except BaseException as error:
        span.end(error)
        raise
    if decision.blocks:
        span.set({semconv.TOOL_STATUS: "denied", semconv.DECISION_ID: decision.decision_id})
        span.end("denied")
        await governor.arecord(ToolOutcome(action, "denied", decision=decision, started_at=started))
        if decision.abort:
            raise PolicyDenied(decision)
        return decision, call, None
    if decision.arguments is not None:
        call = FunctionCall(id=call.id, name=call.name, arguments=json.dumps(dict(decision.arguments)))
    return decision, call, Proposed(governor, call, action, decision, span, started, clock)


def lost_call(call: FunctionCall, offered: Container[str], agent: str | None) -> ToolOutcome | None:
    """What came of a call of which nothing can come: its arguments are no JSON, or there is no such tool."""
    status: ToolStatus
    if call_arguments(call) is None:
        status, error_type, error = "invalid_args", "JSONDecodeError", "the arguments are no JSON object"
    elif offered and call.name not in offered:
        status, error_type, error = "unknown_tool", "UnknownTool", f"no tool {call.name} was offered"
    else:
        return None
    return ToolOutcome(_action(call, "function", agent), status, error_type=error_type, error=error)


def results_in(messages: Sequence[LLMMessage]) -> dict[str, tuple[str, bool]]:
    """What the messages say came of calls: text and whether it failed, by call id."""
    return {
        result.call_id: (result.content, bool(result.is_error))
        for message in messages
        if isinstance(message, FunctionExecutionResultMessage)
        for result in message.content
    }


def _action(call: FunctionCall, kind: Any, agent: str | None) -> Action:
    return Action(
        Point.PRE_TOOL_CALL,
        name=call.name,
        kind=kind,
        arguments=judged_arguments(call),
        agent=agent,
        framework=FRAMEWORK,
        call_id=call.id or None,
        operation_id=new_id("op"),
        native=call,
    )
