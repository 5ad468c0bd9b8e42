"""The SDK's own guardrails, asked of a governor: for programs that put them on their agents and tools by hand.

Inside a run that is governed as a whole (`LgovRunner`, `instrument`) by the same governor they stand aside, since everything is
judged there already.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agents import (
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    ToolOutputGuardrail,
    ToolOutputGuardrailData,
)

from lgov_core.instrumentation import json_text, semconv
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome, new_id
from lgov_openai_agents.items import FRAMEWORK, arguments_of, as_list, as_mapping, new_user_positions, result_text
from lgov_openai_agents.runs import agent_name, current_run

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

_NAME = "lgov"


@dataclass(frozen=True, slots=True)
class _Begun:
    action: Action
    decision: Decision
    span: LiveSpan
    started_at: float
    clock: float


class LgovToolGuardrails:
    """The guardrails of a function tool, before and after it runs; they belong together::

        guards = LgovToolGuardrails(governor)
        @function_tool(tool_input_guardrails=[guards.before], tool_output_guardrails=[guards.after])

    A denied call does not run and the model reads why; a denied result is withheld, a rewritten one replaced. Two
    things that a guardrail cannot do: change arguments (a call whose arguments a policy would change is rejected), and
    see what the tool raised (a tool that raises is recorded as one that answered). `governed_tool` does both. One object
    serves any number of tools and tasks. Fails closed: the SDK stops the run if a guardrail itself fails.
    """

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self.before = ToolInputGuardrail[Any](self._before, _NAME)
        self.after = ToolOutputGuardrail[Any](self._after, _NAME)
        self._begun: weakref.WeakKeyDictionary[Any, _Begun] = weakref.WeakKeyDictionary()

    async def _before(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        if current_run(self.governor) is not None:
            return ToolGuardrailFunctionOutput.allow()
        context = data.context
        arguments = arguments_of(context.tool_arguments)
        attributes = {
            semconv.TOOL_NAME: context.qualified_tool_name,
            semconv.TOOL_TYPE: "function",
            semconv.TOOL_CALL_ID: context.tool_call_id,
            semconv.AGENT_NAME: agent_name(data.agent),
            semconv.FRAMEWORK: FRAMEWORK,
            semconv.TOOL_ARGUMENTS: json_text(arguments),
        }
        span = LiveSpan(self.governor, semconv.EXECUTE_TOOL, context.qualified_tool_name, attributes)
        action = Action(
            Point.PRE_TOOL_CALL,
            name=context.qualified_tool_name,
            arguments=arguments,
            agent=agent_name(data.agent),
            framework=FRAMEWORK,
            call_id=context.tool_call_id,
            operation_id=new_id("op"),
            native=data,
            span_id=span.span_id,
        )
        decision = await self.governor.adecide(action)
        begun = _Begun(action, decision, span, time.time(), time.perf_counter())
        if not decision.blocks and decision.arguments is None:
            self._begun[context] = begun
            return ToolGuardrailFunctionOutput.allow()
        await self._end(begun, "denied", None)
        if decision.blocks and decision.abort:
            return ToolGuardrailFunctionOutput.raise_exception(output_info=_info(decision))
        told = decision.denial_message() if decision.blocks else _UNCHANGEABLE
        return ToolGuardrailFunctionOutput.reject_content(told, output_info=_info(decision))

    async def _after(self, data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        begun = self._begun.pop(data.context, None)
        if begun is None:
            return ToolGuardrailFunctionOutput.allow()
        text = result_text(data.output)
        await self._end(begun, "ok", text)
        action = replace(begun.action, point=Point.POST_TOOL_CALL, text=text, native=data)
        decision = await self.governor.adecide(action)
        if decision.blocks and decision.abort:
            return ToolGuardrailFunctionOutput.raise_exception(output_info=_info(decision))
        if decision.blocks:
            return ToolGuardrailFunctionOutput.reject_content(
                decision.denial_message(after=True), output_info=_info(decision)
            )
        if decision.text is not None:
            return ToolGuardrailFunctionOutput.reject_content(decision.text, output_info=_info(decision))
        return ToolGuardrailFunctionOutput.allow()

    async def _end(self, begun: _Begun, status: Any, result: str | None) -> None:
        duration = 0.0 if status == "denied" else time.perf_counter() - begun.clock
        begun.span.set(
            {
                semconv.TOOL_STATUS: status,
                semconv.TOOL_RESULT: result,
                semconv.DECISION_ID: begun.decision.decision_id,
            }
        )
        begun.span.end(None if status == "ok" else status)
        await self.governor.arecord(
            ToolOutcome(
                begun.action,
                status,
                result=result,
                decision=begun.decision,
                started_at=begun.started_at,
                duration_s=duration,
            )
        )


_UNCHANGEABLE = "DENIED: a policy would run this call with other arguments, which cannot be done here. It was not run."


def lgov_input_guardrail(governor: Governor) -> InputGuardrail[Any]:
    """A guardrail for ``Agent(input_guardrails=[...])`` that judges what the user said before anything happens.

    It blocks: by the SDK's default a guardrail runs beside the agent, whose first tools have then acted before it trips.
    The SDK asks only those of the first agent. A denial (or a change, which a guardrail cannot make) raises the SDK's
    ``InputGuardrailTripwireTriggered``. Fails closed.
    """

    async def judge(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        if current_run(governor) is not None:
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)
        listed = as_list(given)
        for position in new_user_positions(listed):
            action = _text_action(Point.INPUT, agent, as_mapping(listed[position])["content"], context)
            decision = await governor.adecide(action)
            if decision.effect >= Effect.TRANSFORM:
                return GuardrailFunctionOutput(output_info=_info(decision), tripwire_triggered=True)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    return InputGuardrail(judge, _NAME, run_in_parallel=False)


def lgov_output_guardrail(governor: Governor) -> OutputGuardrail[Any]:
    """A guardrail for ``Agent(output_guardrails=[...])`` that judges the final answer before the caller gets it.

    A denial (or a change, which a guardrail cannot make) raises the SDK's ``OutputGuardrailTripwireTriggered``. Fails
    closed.
    """

    async def judge(context: Any, agent: Any, answer: Any) -> GuardrailFunctionOutput:
        if current_run(governor) is not None:
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)
        decision = await governor.adecide(_text_action(Point.OUTPUT, agent, result_text(answer), context))
        denied = decision.effect >= Effect.TRANSFORM
        return GuardrailFunctionOutput(output_info=_info(decision) if denied else None, tripwire_triggered=denied)

    return OutputGuardrail(judge, _NAME)


def _text_action(point: Point, agent: Any, text: str, native: Any) -> Action:
    name = agent_name(agent)
    return Action(point, name=name or "agent", kind="text", text=text, agent=name, framework=FRAMEWORK, native=native)


def _info(decision: Decision) -> dict[str, Any]:
    """What stands in the SDK's guardrail result."""
    return {
        "policy": decision.policy,
        "rule": decision.rule,
        "reason": decision.reason,
        "decision_id": decision.decision_id,
    }
