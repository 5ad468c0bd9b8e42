"""The SDK's run hooks: they show runs as spans, and stop tool calls that nothing else has evaluated."""

from __future__ import annotations

import weakref
from typing import Any

from agents import RunHooks

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.types import ToolOutcome
from lgov_openai_agents.guardrails import LgovToolGuardrails
from lgov_openai_agents.invokers import is_governed
from lgov_openai_agents.items import FRAMEWORK, arguments_of, reading_of
from lgov_openai_agents.model_request import model_name
from lgov_openai_agents.runs import agent_name, agent_span, current_run, tool_action


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
        arguments = arguments_of(getattr(context, "tool_arguments", None))
        call_id = getattr(context, "tool_call_id", None)
        action = tool_action(self.governor, name, "function", arguments, context, call_id=call_id, agent=agent)
        decision = await self.governor.adecide(action)
        if decision.blocks or decision.arguments is not None:
            await self.governor.arecord(ToolOutcome(action, "denied", decision=decision))
            raise PolicyDenied(decision)


def _is_governed(tool: Any) -> bool:
    """Whether the tool itself, or a guardrail of it, asks a governor."""
    for guard in getattr(tool, "tool_input_guardrails", None) or ():
        owner = getattr(getattr(guard, "guardrail_function", None), "__self__", None)
        if isinstance(owner, LgovToolGuardrails):
            return True
    return hasattr(tool, "lgov_governor") or is_governed(getattr(tool, "on_invoke_tool", None))
