"""`LgovRunner`: the SDK's ``Runner`` under a governor, which patches nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from agents import Agent, Model, RunConfig, Runner, UserError

from lgov_core.instrumentation import Governor
from lgov_openai_agents._internals import paused_agent
from lgov_openai_agents.agent_copies import AgentCopies, is_governed_copy
from lgov_openai_agents.models import GovernedModel, GovernedModelProvider
from lgov_openai_agents.run_memory import RunMemory
from lgov_openai_agents.run_methods import RUN_METHODS, wrap_run_method


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
        self, agent: Agent[Any], given: Any, options: dict[str, Any]
    ) -> tuple[Agent[Any], dict[str, Any], GovernedModelProvider]:
        paused = paused_agent(given)
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
