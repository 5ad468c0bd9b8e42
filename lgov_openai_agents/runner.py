"""`LgovRunner`, the governed copies of agents that it runs, and the governed run around each call of ``Runner``."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from agents import Agent, Handoff, Model, RunConfig, Runner, UserError
from agents.lifecycle import RunHooksBase

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, Governor, foreign, wait
from lgov_core.instrumentation.framework import flow_method
from lgov_openai_agents._internals import agent_of, paused_agent
from lgov_openai_agents.models import GovernedModel, GovernedModelProvider
from lgov_openai_agents.runs import (
    RunMemory,
    SdkRun,
    TrackingHooks,
    current_run,
    entering,
    new_run,
)
from lgov_openai_agents.tools import governed_tool, observed_server, settle_flow


class _GovernedAgent:
    """An agent whose parts are governed at the start of each turn.

    The SDK asks for the tools first of all. The tools of MCP servers are there only then, and the program may have given
    the copy other hand-offs or another model since it was made.
    """

    lgov_governor: Governor | None = None  # None in what `dataclasses.replace` makes of a copy

    @classmethod
    def copy_of(cls, agent: Any, governor: Governor) -> Any:
        """A copy of ``agent`` with all its attributes."""
        copied = cls.__new__(cls)
        vars(copied).update(vars(agent))
        copied.lgov_governor = governor
        return copied

    async def get_all_tools(self, run_context: Any) -> list[Any]:
        """All tools, governed."""
        governor = self.lgov_governor
        if governor is None:
            raise UserError(
                "this is a copy of a governed agent that has no governor; make copies with agent.clone(...)"
            )
        AgentCopies(governor).govern_parts(self)
        parent: Any = super()
        return [_checked_tool(tool, governor, self) for tool in await parent.get_all_tools(run_context)]

    def clone(self, **kwargs: Any) -> Any:
        """As the SDK's; the clone is governed too."""
        parent: Any = super()
        clone = parent.clone(**kwargs)
        clone.lgov_governor = self.lgov_governor
        return clone


@functools.cache
def _governed_class(cls: type) -> type[_GovernedAgent]:
    return type(cls.__name__, (_GovernedAgent, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def is_governed_copy(agent: object) -> bool:
    """Returns whether ``agent`` is a copy made here."""
    return isinstance(agent, _GovernedAgent)


class AgentCopies:
    """Governed copies of agents, one each: agents may hand over to one another in circles."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, agent: Any) -> Any:
        """The copy of ``agent``, or itself if it is one. Raises `UserError` for a copy of another governor."""
        if isinstance(agent, _GovernedAgent):
            governed: Any = agent
            if governed.lgov_governor not in (None, self._governor):
                raise UserError("this agent is governed by another governor already; give the agent it was made of")
            governed.lgov_governor = self._governor
            return governed
        if id(agent) in self._made:
            return self._made[id(agent)][1]
        copied = _governed_class(type(agent)).copy_of(agent, self._governor)
        self._made[id(agent)] = (agent, copied)  # the original is kept, so that its id stays its own
        copied.tools = [_checked_tool(tool, self._governor, copied) for tool in copied.tools]
        self.govern_parts(copied)
        return copied

    def govern_parts(self, copied: Any) -> None:
        """Governs what a copy has besides its tools; what is governed stays as it is."""
        copied.mcp_servers = [observed_server(server) for server in copied.mcp_servers]
        copied.handoffs = [self._handoff(handoff) for handoff in copied.handoffs]
        if isinstance(copied.model, Model) and not isinstance(copied.model, GovernedModel):
            copied.model = GovernedModel(copied.model, self._governor, agent=copied.name)

    def _handoff(self, handoff: Any) -> Any:
        if not isinstance(handoff, Handoff):
            return self.of(handoff)
        if getattr(handoff, "lgov_governor", None) is self._governor:
            return handoff
        copied: Any = copy.copy(handoff)
        invoke = handoff.on_invoke_handoff

        async def on_invoke_handoff(context: Any, raw: str) -> Any:
            return self.of(await invoke(context, raw))

        copied.lgov_governor, copied.on_invoke_handoff = self._governor, on_invoke_handoff
        return copied


def _checked_tool(tool: Any, governor: Governor, agent: Any) -> Any:
    """A governed copy of ``tool`` of ``agent``. Raises `UserError` for an agent that is a tool and not governed itself."""
    inner = agent_of(tool)
    if inner is not None and not is_governed_copy(inner):
        raise UserError(
            f"the agent behind the tool {tool.name} is not governed; give it as LgovRunner.govern(agent).as_tool(...)"
        )
    return governed_tool(tool, governor, agent)


#: The methods of ``Runner`` that run an agent.
RUN_METHODS = ("run", "run_sync", "run_streamed")


class LgovRunner:
    """The SDK's ``Runner`` with every run under ``governor``; it patches nothing::

        runner = LgovRunner(governor)
        result = runner.run_sync(agent, "Tidy up.")

    ``run``, ``run_sync`` and ``run_streamed`` take what those of ``Runner`` take. The agent, those it hands over to,
    their tools and models are governed in copies made for the run, so the program's own objects stay as they are and
    may be in many runs at once; ``result.last_agent`` is such a copy, named as its original. An agent that is a tool of
    another has to be given as ``runner.govern(agent).as_tool(...)``; one that is not is refused with `UserError`.

    A decision that says abort raises `lgov_core.PolicyDenied` (from a stream: the SDK's ``UserError`` with it as its
    cause). Serves any number of tasks and threads. Fails closed.
    """

    def __init__(self, governor: Governor) -> None:
        self.governor = governor
        memory = RunMemory()
        self._methods = {
            name: wrap_run_method(getattr(Runner, name), lambda: governor, memory, by_runner=True)
            for name in RUN_METHODS
        }

    async def run(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        """As ``Runner.run``."""
        agent, options, provider = self._prepared(starting_agent, input, kwargs)
        try:
            return await self._methods["run"](Runner, agent, input, **options)
        finally:
            await provider.aclose()

    def run_sync(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        """As ``Runner.run_sync``."""
        agent, options, _ = self._prepared(starting_agent, input, kwargs)
        return self._methods["run_sync"](Runner, agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        """As ``Runner.run_streamed``."""
        agent, options, _ = self._prepared(starting_agent, input, kwargs)
        return self._methods["run_streamed"](Runner, agent, input, **options)

    def govern(self, agent: Agent[Any]) -> Agent[Any]:
        """A governed copy of ``agent`` and of the agents that it can hand over to. Raises `UserError` as the class says."""
        return AgentCopies(self.governor).of(agent)

    def _prepared(
        self, agent: Agent[Any], input: Any, options: dict[str, Any]
    ) -> tuple[Agent[Any], dict[str, Any], GovernedModelProvider]:
        paused = paused_agent(input)
        if paused is not None and not is_governed_copy(paused):
            raise UserError(
                "this RunState belongs to an agent that is not governed; make it with the agent that"
                " LgovRunner.govern(agent) gives, or with the state of a result of this runner"
            )
        config = options.get("run_config")
        config = RunConfig(**config) if isinstance(config, dict) else config if config is not None else RunConfig()
        provider = config.model_provider
        if not isinstance(provider, GovernedModelProvider):
            provider = GovernedModelProvider(self.governor, provider)
        model = config.model
        if isinstance(model, Model) and not isinstance(model, GovernedModel):
            model = GovernedModel(model, self.governor)
        config = dataclasses.replace(config, model_provider=provider, model=model)
        return self.govern(agent), {**options, "run_config": config}, provider


# ---------------------------------------------------------------------- governed runs


def wrap_run_method(
    inner: Callable[..., Any], acting: Callable[[], Governor | None], memory: RunMemory, *, by_runner: bool = False
) -> Callable[..., Any]:
    """A method of ``Runner`` in a run governed by what ``acting`` returns. ``by_runner``: `LgovRunner` calls it.

    The wrapper is a function of a class, with ``inner``'s parameters after ``cls``.
    """
    signature = inspect.signature(inner)

    @contextmanager
    def opened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[_Call]:
        governor = acting()
        if governor is None or (not by_runner and _is_opened(governor)):
            yield _Call(tuple(args), dict(kwargs), None)
            return
        bound = signature.bind(*args, **kwargs)
        agent, first_input, session = (bound.arguments.get(name) for name in ("starting_agent", "input", "session"))
        run = new_run(governor, agent, first_input, memory, getattr(session, "session_id", None))
        run.not_started = by_runner
        hooks, hook_class = bound.arguments.get("hooks"), cast("type", RunHooksBase)
        if hooks is None or isinstance(hooks, hook_class):  # anything else the SDK refuses
            bound.arguments["hooks"] = TrackingHooks(run, hooks)
        with entering(run):
            try:
                yield _Call(bound.args, bound.kwargs, run, first_input)
            except BaseException as error:
                run.end(error)
                cause = error.__cause__
                while cause is not None and not isinstance(cause, PolicyDenied):
                    cause = cause.__cause__
                if cause is not None:  # an abort that the SDK has wrapped into an error of its own
                    raise cause from None
                raise

    def steps(cls: type, *args: Any, **kwargs: Any) -> Flow[Any]:
        with opened(args, kwargs) as call:
            yield from call.settle_flow()
            return call.ended((yield from wait(foreign(inner, *call.args, **call.kwargs))))

    first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    wrapped: Any = flow_method(inner, steps)
    wrapped.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])
    return wrapped


class _Call:
    """The arguments of a call of ``Runner``, the run that it is in, if it is governed, and the run's input."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], run: SdkRun | None, first_input: Any = None
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self._run = run
        self._input = first_input

    def settle_flow(self) -> Flow[None]:
        """Takes the answers to the questions of a paused run across. Raises as `tools.settle_flow`."""
        if self._run is not None and paused_agent(self._input) is not None:
            yield from settle_flow(self._run, self._input)

    def ended(self, result: Any) -> Any:
        """Ends the run: now, or when the task of a streamed run is done. Returns ``result``."""
        task: asyncio.Task[Any] | None = getattr(result, "run_loop_task", None)
        if self._run is not None and task is not None:
            task.add_done_callback(functools.partial(_end_with, self._run))
        elif self._run is not None:
            self._run.end()
        return result


def _end_with(run: SdkRun, task: asyncio.Task[Any]) -> None:
    run.end(asyncio.CancelledError() if task.cancelled() else task.exception())


def _is_opened(governor: Governor) -> bool:
    """Returns whether `LgovRunner` has just opened the run of this call."""
    run = current_run(governor)
    if run is None or not run.not_started:
        return False
    run.not_started = False
    return True
