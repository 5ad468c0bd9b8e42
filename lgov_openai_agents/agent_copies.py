"""Governed copies of agents, for runs of `LgovRunner`."""

from __future__ import annotations

import copy
import functools
from typing import Any

from agents import Handoff, Model, UserError

from lgov_core.instrumentation import Governor
from lgov_openai_agents._internals import agent_of
from lgov_openai_agents.invokers import governed_tool
from lgov_openai_agents.models import GovernedModel
from lgov_openai_agents.servers import observed_server


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
        return [_checked_tool(tool, governor) for tool in await parent.get_all_tools(run_context)]

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
    """Whether ``agent`` is a copy made here."""
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
        copied.tools = [_checked_tool(tool, self._governor) for tool in copied.tools]
        self.govern_parts(copied)
        return copied

    def govern_parts(self, copied: Any) -> None:
        """Governs what a copy has besides its tools; what is governed stays as it is."""
        copied.mcp_servers = [observed_server(server) for server in copied.mcp_servers]
        copied.handoffs = [self._handoff(one) for one in copied.handoffs]
        if isinstance(copied.model, Model) and not isinstance(copied.model, GovernedModel):
            copied.model = GovernedModel(copied.model, self._governor, agent=copied.name)

    def _handoff(self, given: Any) -> Any:
        if not isinstance(given, Handoff):
            return self.of(given)
        if getattr(given, "lgov_governor", None) is self._governor:
            return given
        copied: Any = copy.copy(given)
        invoke = given.on_invoke_handoff

        async def on_invoke_handoff(context: Any, raw: str) -> Any:
            return self.of(await invoke(context, raw))

        copied.lgov_governor, copied.on_invoke_handoff = self._governor, on_invoke_handoff
        return copied


def _checked_tool(tool: Any, governor: Governor) -> Any:
    """A governed copy of ``tool``. Raises `UserError` for an agent that is a tool and not governed itself."""
    inner = agent_of(tool)
    if inner is not None and not is_governed_copy(inner):
        raise UserError(
            f"the agent behind the tool {tool.name} is not governed; give it as LgovRunner.govern(agent).as_tool(...)"
        )
    return governed_tool(tool, governor)
