"""The SDK's run hooks: they watch, and stop what nothing else has judged."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from agents import RunHooks

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.types import Action, Point, ToolOutcome
from lgov_openai_agents.items import FRAMEWORK, arguments_of, reading_of
from lgov_openai_agents.runs import agent_name, current_run

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


class LgovRunHooks(RunHooks[Any]):
    """Watches runs, and as a last resort stops them: ``Runner.run(agent, ..., hooks=LgovRunHooks(governor))``.

    Shows the agents and their model calls as spans. A local tool whose call a policy denies does not run, but hooks can
    tell the model nothing: the run ends with the SDK's ``UserError``, whose cause is `lgov_core.PolicyDenied`. Tools
    that are no function tools are judged without their arguments, which the SDK does not show to hooks. Results, hosted
    tools and hand-offs are not judged; `LgovRunner` judges everything and lets the run go on. Inside a run of that, or
    of an instrumented process, under the same governor these hooks stand aside. One object serves any number of runs.
    """

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        self._agents: weakref.WeakKeyDictionary[Any, tuple[Any, LiveSpan]] = weakref.WeakKeyDictionary()
        self._calls: weakref.WeakKeyDictionary[Any, ModelCall] = weakref.WeakKeyDictionary()

    def _aside(self) -> bool:
        return current_run(self.governor) is not None

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]) -> None:
        """Opens the agent's span, if that is new, and the model call's."""
        if self._aside():
            return
        acting = self._agents.get(context)
        if acting is None or acting[0] is not agent:
            self._leave(context)
            name = agent_name(agent)
            attributes = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
            acting = self._agents[context] = (
                agent,
                LiveSpan(self.governor, semconv.INVOKE_AGENT, name or "", attributes),
            )
        model = getattr(agent, "model", None)
        with acting[1].active():
            self._calls[context] = ModelCall(
                self.governor,
                framework=FRAMEWORK,
                model=model if isinstance(model, str) else getattr(model, "model", None) or "model",
                agent=agent_name(agent),
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
        """Judges a call that is about to run. Raises `PolicyDenied`."""
        if self._aside() or covered_call() is not None or hasattr(tool, "lgov_governor") or _is_judged(tool):
            return
        action = Action(
            Point.PRE_TOOL_CALL,
            name=getattr(context, "qualified_tool_name", None) or tool.name,
            arguments=arguments_of(getattr(context, "tool_arguments", None)),
            agent=agent_name(agent),
            framework=FRAMEWORK,
            call_id=getattr(context, "tool_call_id", None),
            native=context,
        )
        decision = await self.governor.adecide(action)
        if decision.blocks or decision.arguments is not None:
            await self.governor.arecord(ToolOutcome(action, "denied", decision=decision))
            raise PolicyDenied(decision)


def _is_judged(tool: Any) -> bool:
    from lgov_openai_agents.guardrails import LgovToolGuardrails
    from lgov_openai_agents.invokers import is_governed

    for guard in getattr(tool, "tool_input_guardrails", None) or ():
        owner = getattr(getattr(guard, "guardrail_function", None), "__self__", None)
        if isinstance(owner, LgovToolGuardrails):
            return True
    return is_governed(getattr(tool, "on_invoke_tool", None))
