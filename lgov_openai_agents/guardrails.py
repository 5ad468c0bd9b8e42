"""The SDK's own guardrails, run hooks and traces, answered by a governor: for programs that put them together by hand.

Inside a run that is governed as a whole (`LgovRunner`, `instrument`) by the same governor the guardrails do nothing, since
everything is evaluated there already. The hooks show runs as spans, and stop tool calls that nothing else has evaluated. The
SDK's traces are not sent to the vendor, and are shown to the governor where nothing else shows them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunHooks,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    ToolOutputGuardrail,
    ToolOutputGuardrailData,
    set_trace_processors,
)
from agents.tracing import get_trace_provider
from agents.tracing.processor_interface import TracingProcessor
from agents.tracing.processors import default_processor

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, readable_json, semconv
from lgov_core.instrumentation.live_span import LiveSpan, covered_call
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, denied_outcome, refuse_arguments
from lgov_core.types import Action, Decision, Effect, Point
from lgov_openai_agents._internals import trace_processors
from lgov_openai_agents.items import (
    FRAMEWORK,
    arguments_of,
    as_list,
    as_mapping,
    end_of_history,
    reading_of,
    result_text,
)
from lgov_openai_agents.proposals import model_name
from lgov_openai_agents.runs import FunctionArguments, agent_name, agent_span, current_run, tool_action
from lgov_openai_agents.tools import is_governed

_NAME = "lgov"

_UNCHANGEABLE = (
    "DENIED: a policy would run this call with other arguments, which a guardrail cannot do. It was not run."
)


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
        self._permitted: weakref.WeakKeyDictionary[Any, tuple[GovernedToolCall, Decision]] = weakref.WeakKeyDictionary()

    async def _before(self, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        if current_run(self.governor) is not None:
            return ToolGuardrailFunctionOutput.allow()
        context = data.context
        name, call_id = context.qualified_tool_name, context.tool_call_id
        tool = next((tool for tool in data.agent.tools if getattr(tool, "qualified_name", None) == name), None)
        arguments, problem = _as_run(self.governor, tool, name, context.tool_arguments)
        action = tool_action(self.governor, name, "function", arguments, data, call_id=call_id, agent=data.agent)
        call = GovernedToolCall(self.governor, action)
        decision = await self.governor.adecide(call.action) if problem is None else call.refuse(problem)
        if not decision.blocks and decision.arguments is None:
            self._permitted[context] = call, decision
            return ToolGuardrailFunctionOutput.allow()
        await self.governor.arecord(call.denied(decision))
        return _output(decision, decision.denial_message() if decision.blocks else _UNCHANGEABLE)

    async def _after(self, data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
        permitted = self._permitted.pop(data.context, None)
        if permitted is None:
            return ToolGuardrailFunctionOutput.allow()
        call, decision = permitted
        reading = ToolReading(result_text(data.output))
        outcome = call.returned(decision, reading)
        call.finish(outcome)
        await self.governor.arecord(outcome)
        decision = await self.governor.adecide(call.result_action(reading, data))
        return _output(decision, decision.denial_message(after=True) if decision.blocks else decision.text)


def _as_run(governor: Governor, tool: Any, name: str, text: str | None) -> tuple[Mapping[str, Any], str | None]:
    """The arguments with which the SDK will run ``tool``, and why no policy can judge them, if that is so.

    It validates them again itself: nothing can be handed over from here.
    """
    if not isinstance(tool, FunctionTool):
        return arguments_of(text), None
    validated = FunctionArguments(tool, text or "", name)
    return validated.arguments, validated.problem if governor.evaluates(Point.PRE_TOOL_CALL) else None


def _output(decision: Decision, text: str | None) -> ToolGuardrailFunctionOutput:
    """The answer of a tool's guardrail; the model reads ``text`` instead of the tool's result."""
    if decision.blocks and decision.abort:
        return ToolGuardrailFunctionOutput.raise_exception(output_info=_info(decision))
    if text is None:
        return ToolGuardrailFunctionOutput.allow()
    return ToolGuardrailFunctionOutput.reject_content(text, output_info=_info(decision))


def lgov_input_guardrail(governor: Governor) -> InputGuardrail[Any]:
    """A guardrail for ``Agent(input_guardrails=[...])`` that evaluates what the user said before anything happens.

    It blocks: by the SDK's default a guardrail runs beside the agent, whose first tools have then acted before it trips.
    The SDK asks only those of the first agent. A denial (or a change, which a guardrail cannot make) raises the SDK's
    ``InputGuardrailTripwireTriggered``. Fails closed.
    """

    async def evaluate(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        if current_run(governor) is not None:
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)
        listed = as_list(input)
        for item in listed[end_of_history(listed) :]:
            action = _text_action(Point.INPUT, agent, as_mapping(item)["content"], context)
            decision = await governor.adecide(action)
            if decision.effect >= Effect.TRANSFORM:
                return GuardrailFunctionOutput(output_info=_info(decision), tripwire_triggered=True)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    return InputGuardrail(evaluate, _NAME, run_in_parallel=False)


def lgov_output_guardrail(governor: Governor) -> OutputGuardrail[Any]:
    """A guardrail for ``Agent(output_guardrails=[...])`` that evaluates the final answer before the caller gets it.

    A denial (or a change, which a guardrail cannot make) raises the SDK's ``OutputGuardrailTripwireTriggered``. Fails
    closed.
    """

    async def evaluate(context: Any, agent: Any, answer: Any) -> GuardrailFunctionOutput:
        if current_run(governor) is not None:
            return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)
        decision = await governor.adecide(_text_action(Point.OUTPUT, agent, result_text(answer), context))
        denied = decision.effect >= Effect.TRANSFORM
        return GuardrailFunctionOutput(output_info=_info(decision) if denied else None, tripwire_triggered=denied)

    return OutputGuardrail(evaluate, _NAME)


def _text_action(point: Point, agent: Any, text: str, native: Any) -> Action:
    name = agent_name(agent)
    return Action(point, name=name or "agent", kind="text", text=text, agent=name, framework=FRAMEWORK, native=native)


def _info(decision: Decision) -> dict[str, Any]:
    """The decision in the SDK's guardrail result."""
    return {
        "policy": decision.policy,
        "rule": decision.rule,
        "reason": decision.reason,
        "decision_id": decision.decision_id,
    }


class LgovRunHooks(RunHooks[Any]):
    """Shows runs, and as a last resort stops them: ``Runner.run(agent, ..., hooks=LgovRunHooks(governor))``.

    Shows the agents and their model calls as spans. A local tool whose call a policy denies does not run, but hooks can
    tell the model nothing: the run ends with the SDK's ``UserError``, whose cause is `lgov_core.PolicyDenied`. Tools
    of other kinds are evaluated without their arguments, which the SDK does not show to hooks. Results, hosted tools and
    hand-offs are not evaluated; `LgovRunner` evaluates everything and lets the run go on. Inside a run of that, or of an
    instrumented process, under the same governor these hooks do nothing. One object serves any number of runs.
    """

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self._agents: weakref.WeakKeyDictionary[Any, tuple[Any, LiveSpan]] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, ModelCall] = weakref.WeakKeyDictionary()

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]) -> None:
        """Opens the agent's span, if that is new, and the model call's."""
        if current_run(self.governor) is not None:
            return
        acting = self._agents.get(context)
        if acting is None or acting[0] is not agent:
            self._leave(context)
            acting = self._agents[context] = (agent, agent_span(self.governor, agent_name(agent)))
        model = getattr(agent, "model", None)
        self._calls[context] = ModelCall(
            self.governor,
            framework=FRAMEWORK,
            model=model if isinstance(model, str) else model_name(model) if model is not None else "model",
            agent=agent_name(agent),
            parent=acting[1],
        )

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Ends the model call's span."""
        call = self._calls.pop(context, None)
        if call is not None:
            call.answered(reading_of(response, str(call.span.name)))

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Another agent acts."""
        self._leave(context)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """The run is over: the SDK gives this hook a context of its own, with the run's usage in it."""
        for run, (acting, _) in list(self._agents.items()):
            if acting is agent and run.usage is context.usage:
                self._leave(run)

    def _leave(self, context: Any) -> None:
        acting = self._agents.pop(context, None)
        if acting is not None:
            acting[1].end()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Evaluates a call that is about to run. Raises `PolicyDenied`."""
        if current_run(self.governor) is not None or covered_call() is not None or _is_governed(tool):
            return
        name = getattr(context, "qualified_tool_name", None) or tool.name
        arguments, problem = _as_run(self.governor, tool, name, getattr(context, "tool_arguments", None))
        call_id = getattr(context, "tool_call_id", None)
        action = tool_action(self.governor, name, "function", arguments, context, call_id=call_id, agent=agent)
        if problem is None:
            decision = await self.governor.adecide(action)
        else:
            decision = refuse_arguments(self.governor, action, problem)
        if decision.blocks or decision.arguments is not None:
            await self.governor.arecord(denied_outcome(action, decision))
            raise PolicyDenied(decision)


def _is_governed(tool: Any) -> bool:
    """Returns whether the tool itself, or a guardrail of it, asks a governor."""
    for guard in getattr(tool, "tool_input_guardrails", None) or ():
        owner = getattr(getattr(guard, "guardrail_function", None), "__self__", None)
        if isinstance(owner, LgovToolGuardrails):
            return True
    return hasattr(tool, "lgov_governor") or is_governed(getattr(tool, "on_invoke_tool", None))


_OPERATIONS = {
    "agent": semconv.INVOKE_AGENT,
    "generation": semconv.CHAT,
    "response": semconv.CHAT,
    "function": semconv.EXECUTE_TOOL,
}


class LgovTracingProcessor(TracingProcessor):
    """Shows the SDK's traces to ``governor`` as spans with GenAI names; it observes and stops nothing::

        set_trace_processors([LgovTracingProcessor(governor)])

    For programs that are not governed in another way: `instrument` and `LgovRunner` make agent, model and tool spans, and
    these would be a second copy. ``set_trace_processors`` also takes out the SDK's exporter, which
    sends prompts to the vendor. Callable from any thread.
    """

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._open: dict[str, LiveSpan] = {}

    def on_trace_start(self, trace: Any) -> None:
        """Nothing: only spans are shown."""

    def on_trace_end(self, trace: Any) -> None:
        """Nothing."""

    def on_span_start(self, span: Any) -> None:
        """Opens a span for the SDK's."""
        data = span.span_data
        operation = _OPERATIONS.get(data.type) or str(data.type)
        name = getattr(data, "name", None) or getattr(data, "model", None) or ""
        parent = self._open.get(span.parent_id) if span.parent_id else None
        attributes: dict[str, Any] = {semconv.FRAMEWORK: FRAMEWORK}
        if data.type == "agent":
            attributes[semconv.AGENT_NAME] = data.name
        if data.type == "function":
            attributes[semconv.TOOL_NAME] = data.name
        self._open[span.span_id] = LiveSpan(self._governor, operation, str(name), attributes, parent=parent)

    def on_span_end(self, span: Any) -> None:
        """Ends it, with the attributes of the SDK's."""
        ours = self._open.pop(span.span_id, None)
        if ours is not None:
            ours.set(_attributes_of(span.span_data))
            ours.end(str(span.error.get("message")) if span.error else None)

    def shutdown(self) -> None:
        """Shows the spans that never ended."""
        for span in list(self._open.values()):
            span.abandon()
        self._open.clear()

    def force_flush(self) -> None:
        """Nothing is held back."""


def _attributes_of(data: Any) -> dict[str, Any]:
    if data.type == "function":
        return {semconv.TOOL_ARGUMENTS: _text(data.input), semconv.TOOL_RESULT: _text(data.output)}
    if data.type == "generation":
        return {
            semconv.REQUEST_MODEL: data.model,
            semconv.INPUT_MESSAGES: _text(data.input),
            semconv.OUTPUT_MESSAGES: _text(data.output),
            **_usage(data.usage or {}),
        }
    if data.type == "response" and data.response is not None:
        usage = data.response.usage
        return {
            semconv.REQUEST_MODEL: data.response.model,
            semconv.RESPONSE_ID: data.response.id,
            semconv.INPUT_MESSAGES: _text(data.input),
            semconv.OUTPUT_MESSAGES: _text([item.model_dump() for item in data.response.output]),
            **(_usage({"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}) if usage else {}),
        }
    return {}


def _usage(used: dict[str, Any]) -> dict[str, Any]:
    return {semconv.INPUT_TOKENS: used.get("input_tokens"), semconv.OUTPUT_TOKENS: used.get("output_tokens")}


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else readable_json(value)


def keep_traces_here() -> Callable[[], None]:
    """Takes the SDK's exporter out of its trace processors, and nothing else; returns what puts it back."""
    provider: Any = get_trace_provider()
    present = trace_processors(provider)
    vendor = default_processor()
    set_trace_processors([processor for processor in present if processor is not vendor])

    def put_back() -> None:
        current = trace_processors(provider)
        if vendor in present and vendor not in current:
            set_trace_processors([vendor, *current])

    return put_back
