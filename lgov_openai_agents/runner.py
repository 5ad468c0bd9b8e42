"""Opens and closes runs: for the whole process when it is instrumented, or for those that `LgovRunner` is asked for."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from agents import Agent, Handoff, Model, RunConfig, Runner, RunState, UserError
from agents.lifecycle import RunHooksBase

from lgov_core.errors import PolicyDenied
from lgov_openai_agents.invokers import governed_tool
from lgov_openai_agents.message_decisions import Heard
from lgov_openai_agents.models import GovernedModel, GovernedModelProvider
from lgov_openai_agents.runs import AgentRun, TrackingHooks, current_run, entering, new_run
from lgov_openai_agents.servers import hearing

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


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
        self._heard = Heard()

    async def run(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        """As ``Runner.run``."""
        agent, options, provider = self._prepared(starting_agent, input, kwargs)
        try:
            run = governed_run(Runner.run, self._acting, self._heard, waiting=True)
            return await run(Runner, agent, input, **options)
        finally:
            await provider.aclose()

    def run_sync(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        """As ``Runner.run_sync``."""
        agent, options, _ = self._prepared(starting_agent, input, kwargs)
        run = governed_run_sync(Runner.run_sync, self._acting, self._heard, waiting=True)
        return run(Runner, agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **kwargs: Any) -> Any:
        """As ``Runner.run_streamed``."""
        agent, options, _ = self._prepared(starting_agent, input, kwargs)
        run = governed_run_streamed(Runner.run_streamed, self._acting, self._heard, waiting=True)
        return run(Runner, agent, input, **options)

    def govern(self, agent: Agent[Any]) -> Agent[Any]:
        """A governed copy of ``agent`` and of the agents that it can hand over to. Raises `UserError` as the class says."""
        return _Copies(self.governor).of(agent)

    def _acting(self) -> Governor:
        return self.governor

    def _prepared(
        self, agent: Agent[Any], given: Any, options: dict[str, Any]
    ) -> tuple[Agent[Any], dict[str, Any], GovernedModelProvider]:
        if isinstance(given, RunState) and not isinstance(given._current_agent, _GovernedAgent):
            raise UserError(
                "this RunState belongs to an agent that is not governed; make it with the agent that"
                " LgovRunner.govern(agent) gives, or with the state of a result of this runner"
            )
        config = options.get("run_config")
        if isinstance(config, dict):
            config = RunConfig(**config)
        config = config if config is not None else RunConfig()
        provider = config.model_provider
        if not isinstance(provider, GovernedModelProvider):
            provider = GovernedModelProvider(self.governor, provider)
        model = config.model
        if isinstance(model, Model) and not isinstance(model, GovernedModel):
            model = GovernedModel(model, self.governor)
        config = dataclasses.replace(config, model_provider=provider, model=model)
        return self.govern(agent), {**options, "run_config": config}, provider


# ---------------------------------------------------------------------- governed copies of agents


class _GovernedAgent:
    """What a governed copy of an agent does differently: what it has by then is governed at the start of each turn.

    The SDK asks for the tools first of all. The tools of MCP servers are there only then, and the program may have given
    the copy other hand-offs or another model since it was made.
    """

    lgov_governor: Governor | None = None  # None in what `dataclasses.replace` makes of a copy

    async def get_all_tools(self, run_context: Any) -> list[Any]:
        """All tools, governed."""
        governor = self.lgov_governor
        if governor is None:
            raise UserError("this is a copy of a governed agent that nobody governs; make copies with agent.clone(...)")
        _Copies(governor).renew(self)
        parent: Any = super()
        return [checked_tool(tool, governor) for tool in await parent.get_all_tools(run_context)]

    def clone(self, **kwargs: Any) -> Any:
        """As the SDK's; the clone is governed too."""
        parent: Any = super()
        twin = parent.clone(**kwargs)
        twin.lgov_governor = self.lgov_governor
        return twin


@functools.cache
def _governed_class(cls: type) -> type:
    return type(cls.__name__, (_GovernedAgent, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class _Copies:
    """Governed copies of agents, one each: agents may hand over to one another in circles."""

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, agent: Any) -> Any:
        if isinstance(agent, _GovernedAgent):
            owner = agent.lgov_governor
            if owner is not None and owner is not self._governor:
                raise UserError("this agent is governed by another governor already; give the agent it was made of")
            cast("Any", agent).lgov_governor = self._governor
            return cast("Any", agent)
        if id(agent) in self._made:
            return self._made[id(agent)][1]
        twin: Any = object.__new__(_governed_class(type(agent)))
        twin.__dict__.update(vars(agent), lgov_governor=self._governor)
        self._made[id(agent)] = (agent, twin)  # the original is kept, so that its id stays its own
        twin.tools = [checked_tool(tool, self._governor) for tool in twin.tools]
        self.renew(twin)
        return twin

    def renew(self, twin: Any) -> None:
        """Governs what a copy has besides its tools; what is governed stays as it is."""
        twin.mcp_servers = [hearing(server) for server in twin.mcp_servers]
        twin.handoffs = [self._handoff(one) for one in twin.handoffs]
        if isinstance(twin.model, Model) and not isinstance(twin.model, GovernedModel):
            twin.model = GovernedModel(twin.model, self._governor, agent=twin.name)

    def _handoff(self, given: Any) -> Any:
        if not isinstance(given, Handoff):
            return self.of(given)
        if vars(given).get("lgov_governor") is self._governor:
            return given
        twin, invoke = copy.copy(given), given.on_invoke_handoff
        twin.__dict__["lgov_governor"] = self._governor

        async def on_invoke_handoff(context: Any, raw: str) -> Any:
            return self.of(await invoke(context, raw))

        twin.on_invoke_handoff = on_invoke_handoff
        return twin


def checked_tool(tool: Any, governor: Governor) -> Any:
    """A governed copy of ``tool``. Raises `UserError` for an agent that is a tool and not governed itself."""
    inner = getattr(tool, "_agent_instance", None)
    if getattr(tool, "_is_agent_tool", False) and not isinstance(inner, _GovernedAgent):
        raise UserError(
            f"the agent behind the tool {tool.name} is not governed; give it as LgovRunner.govern(agent).as_tool(...)"
        )
    return governed_tool(tool, governor)


# ---------------------------------------------------------------------- the three ways of running

Acting = Callable[[], "Governor | None"]


@contextmanager
def _opened(
    governor: Governor, signature: inspect.Signature, args: Any, kwargs: Any, heard: Heard, waiting: bool
) -> Generator[tuple[AgentRun, Any]]:
    """Opens the run that a call of ``Runner`` begins; yields it and the call's arguments, and ends it with what is raised."""
    bound = signature.bind(*args, **kwargs)
    run = new_run(governor, bound.arguments["starting_agent"], bound.arguments["input"], heard)
    run.waiting = waiting
    hooks, hook_class = bound.arguments.get("hooks"), cast("type", RunHooksBase)
    if hooks is None or isinstance(hooks, hook_class):  # anything else the SDK refuses by itself
        bound.arguments["hooks"] = TrackingHooks(run, hooks)
    with entering(run):
        try:
            yield run, bound
        except BaseException as error:
            run.end(error)
            if (abort := _abort_in(error)) is not None:
                raise abort from None
            raise


def _stands_aside(governor: Governor) -> bool:
    """Whether the call is not to open a run, because `LgovRunner` has just opened it."""
    run = current_run(governor)
    if run is None or not run.waiting:
        return False
    run.waiting = False
    return True


def governed_run(
    inner: Callable[..., Any], acting: Acting, heard: Heard, *, waiting: bool = False
) -> Callable[..., Any]:
    """``Runner.run`` in a run that is governed by whoever ``acting`` answers."""
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    async def run(cls: type, *args: Any, **kwargs: Any) -> Any:
        governor = acting()
        if governor is None or (not waiting and _stands_aside(governor)):
            return await inner(*args, **kwargs)
        with _opened(governor, signature, args, kwargs, heard, waiting) as (agent_run, bound):
            result = await inner(*bound.args, **bound.kwargs)
            agent_run.end()
            return result

    return _with_signature(run, signature)


def governed_run_sync(
    inner: Callable[..., Any], acting: Acting, heard: Heard, *, waiting: bool = False
) -> Callable[..., Any]:
    """``Runner.run_sync`` in a run that is governed by whoever ``acting`` answers."""
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def run_sync(cls: type, *args: Any, **kwargs: Any) -> Any:
        governor = acting()
        if governor is None or (not waiting and _stands_aside(governor)):
            return inner(*args, **kwargs)
        with _opened(governor, signature, args, kwargs, heard, waiting) as (agent_run, bound):
            result = inner(*bound.args, **bound.kwargs)
            agent_run.end()
            return result

    return _with_signature(run_sync, signature)


def governed_run_streamed(
    inner: Callable[..., Any], acting: Acting, heard: Heard, *, waiting: bool = False
) -> Callable[..., Any]:
    """``Runner.run_streamed`` in a run that is governed by whoever ``acting`` answers."""
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def run_streamed(cls: type, *args: Any, **kwargs: Any) -> Any:
        governor = acting()
        if governor is None or (not waiting and _stands_aside(governor)):
            return inner(*args, **kwargs)
        with _opened(governor, signature, args, kwargs, heard, waiting) as (agent_run, bound):
            result = inner(*bound.args, **bound.kwargs)
            task: asyncio.Task[Any] | None = result.run_loop_task
            if task is None:
                agent_run.end()
            else:
                task.add_done_callback(lambda done: agent_run.end(_error_of(done)))
            return result

    return _with_signature(run_streamed, signature)


def _with_signature(method: Callable[..., Any], own: inspect.Signature) -> Callable[..., Any]:
    """``method`` of a class with the parameters of a bound one: else they would be read one short."""
    first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    shown: Any = method
    shown.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
    return method


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _abort_in(error: BaseException) -> PolicyDenied | None:
    """The abort that the SDK has wrapped into an error of its own."""
    seen: BaseException | None = error.__cause__
    while seen is not None:
        if isinstance(seen, PolicyDenied):
            return seen
        seen = seen.__cause__
    return None
