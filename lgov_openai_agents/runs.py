"""The agent run that the running code belongs to, and the spans of the agents in it."""

from __future__ import annotations

import contextvars
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from agents import RunHooks

from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.live_span import LiveSpan, current_span
from lgov_openai_agents.items import FRAMEWORK, SentText

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_openai_agents.message_decisions import Heard


_NOTHING = nullcontext()


class AgentRun:
    """One run of an agent and those it hands over to; made for each run, never shared between two.

    Who acts at the moment stands in an object and not in context variables of its own, because the SDK calls hooks in
    tasks whose changes nobody sees. ``heard`` is what policies made of what users said, in this run and those before it;
    ``input_judged`` says that the user's words have been judged, ``history_judged`` that those before them have.
    ``sent`` is what the last request looked like, for who only watches: each later request begins with it.
    ``exchanges`` holds what was denied inside a model call, by the id of a call in the reply that followed. ``waiting``
    says that whoever opened the run has still to call the SDK for it.
    """

    def __init__(self, governor: Governor, agent: Any, outer: AgentRun | None, heard: Heard) -> None:
        name = agent_name(agent)
        attributes = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
        self.governor = governor
        self.outer = outer
        self.root = LiveSpan(governor, semconv.INVOKE_AGENT, name or "", attributes)
        self.span = self.root
        self.agent = name
        self.heard = heard
        self.sent: SentText | None = None
        self.exchanges: dict[str, list[Any]] = {}
        self.input_judged = False
        self.history_judged = False
        self.waiting = False
        self._starting = agent

    @property
    def nested(self) -> bool:
        """Whether the agent works for another one, so that its input is not the user's."""
        return self.outer is not None

    def enter(self, agent: Any) -> None:
        """Notes that ``agent`` acts from now on; one that was handed over to gets a span of its own."""
        name = agent_name(agent)
        if name == self.agent:
            return
        self._leave()
        self.agent = name
        if name != agent_name(self._starting):
            attributes = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
            self.span = LiveSpan(self.governor, semconv.INVOKE_AGENT, name or "", attributes, parent=self.root)

    def _leave(self) -> None:
        if self.span is not self.root:
            self.span.end()
            self.span = self.root

    def end(self, error: BaseException | str | None = None) -> None:
        """Ends the run's spans."""
        if self.span is not self.root:
            self.span.end(error)
        self.root.end(error)


_RUN: contextvars.ContextVar[AgentRun | None] = contextvars.ContextVar("lgov_agents_run", default=None)


def current_run(governor: Governor) -> AgentRun | None:
    """The run that ``governor`` governs and the running code belongs to, or None."""
    run = _RUN.get()
    return run if run is not None and run.governor is governor else None


def acting_in(run: AgentRun | None) -> AbstractContextManager[Any, None]:
    """Makes the span of who acts in ``run`` current inside the block, unless the running code is deeper inside already."""
    if run is None or run.span is run.root or current_span() is not run.root:
        return _NOTHING
    return run.span.active()


@contextmanager
def entering(run: AgentRun) -> Generator[AgentRun]:
    """Makes ``run`` the current one inside the block, and in the tasks that are started there."""
    token = _RUN.set(run)
    try:
        with run.root.active():
            yield run
    finally:
        _RUN.reset(token)


def new_run(governor: Governor, agent: Any, given: Any, heard: Heard) -> AgentRun:
    """The run of ``agent`` that is about to begin. ``given`` is its input; a paused run's state was judged before."""
    state_agent = getattr(given, "_current_agent", None)
    run = AgentRun(governor, state_agent or agent, current_run(governor), heard)
    run.input_judged = not isinstance(given, (str, Sequence))
    return run


def agent_name(agent: Any) -> str | None:
    """The agent's name, or None if it has none."""
    name = getattr(agent, "name", None)
    return name if isinstance(name, str) else None


class TrackingHooks(RunHooks[Any]):
    """Notes who acts in ``run`` and passes everything on to the program's own hooks."""

    def __init__(self, run: AgentRun, inner: Any) -> None:
        self._run = run
        self._inner = inner

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """The agent that acts changes."""
        self._run.enter(agent)
        if self._inner is not None:
            await self._inner.on_agent_start(context, agent)

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: list[Any]) -> None:
        """A resumed run has no start of its agent."""
        self._run.enter(agent)
        if self._inner is not None:
            await self._inner.on_llm_start(context, agent, system_prompt, input_items)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """Passes it on."""
        if self._inner is not None:
            await self._inner.on_agent_end(context, agent, output)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """Passes it on."""
        if self._inner is not None:
            await self._inner.on_llm_end(context, agent, response)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Passes it on."""
        if self._inner is not None:
            await self._inner.on_handoff(context=context, from_agent=from_agent, to_agent=to_agent)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        """Passes it on."""
        if self._inner is not None:
            await self._inner.on_tool_start(context, agent, tool)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """Passes it on."""
        if self._inner is not None:
            await self._inner.on_tool_end(context, agent, tool, result)
