"""`GovernedWorkbench`: any workbench of AutoGen, governed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Self

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.tools import (
    BaseTool,
    StaticStreamWorkbench,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from lgov_autogen._internals import carry_context, observe_errors, tools_of
from lgov_autogen.current_governor import GovernedComponent
from lgov_autogen.tool_action import note_error
from lgov_autogen.workbench_calls import WorkbenchCall
from lgov_core.instrumentation import Governor


class GovernedWorkbenchConfig(BaseModel):
    """What a `GovernedWorkbench` is made from; its governor is not part of it."""

    workbench: ComponentModel
    agent: str | None = None


class GovernedToolSchema(dict[str, Any]):
    """A tool's schema as a governed workbench offers it: ``governor`` evaluates its calls when they run."""

    def __init__(self, schema: Mapping[str, Any], governor: Governor) -> None:
        super().__init__(schema)
        self.governor = governor


def is_governed_schema(tool: object, governor: Governor) -> bool:
    """Whether ``tool`` is the schema of a tool whose calls ``governor`` evaluates when they run."""
    return isinstance(tool, GovernedToolSchema) and tool.governor is governor


class GovernedWorkbench(GovernedComponent, StaticStreamWorkbench, Component[GovernedWorkbenchConfig]):  # type: ignore[misc]
    """Evaluates every call of the tools of ``workbench``, and its result; records the outcome.

    ``workbench`` is a workbench (MCP included) or a sequence of tools. A denial is an error result that the model reads,
    never an exception, because an exception would leave the agent waiting for ever; for the same reason a decision
    that says abort only ends the run at its next model call, in a governed client. What a tool raised is recorded with
    its own type. Events of a streaming tool (an agent as a tool) come while it runs.

    Without a governor it asks that of the instrumented process and raises `InstrumentationError` where there is
    none: fails closed. ``agent`` is the agent's name for policies in a process that is not instrumented. Calls may run
    at the same time. Serialisable; see `governing` for the governor of a loaded one.
    """

    component_type = "workbench"
    component_config_schema = GovernedWorkbenchConfig
    component_provider_override = "lgov_autogen.GovernedWorkbench"

    def __init__(
        self,
        workbench: Workbench | Sequence[BaseTool[Any, Any]],
        governor: Governor | None = None,
        *,
        agent: str | None = None,
    ) -> None:
        # An assistant streams the events of tools only from workbenches of this class, so this is one. It holds no tools.
        super().__init__([])
        self.workbench = workbench if isinstance(workbench, Workbench) else StaticStreamWorkbench(list(workbench))
        self.agent = agent
        self._use_governor(governor)
        observe_errors(self.workbench, note_error)
        for tool in tools_of(self.workbench):
            carry_context(tool)

    async def list_tools(self) -> list[ToolSchema]:
        """The tools of the workbench behind."""
        governor = self.governor
        schemas: list[Any] = [GovernedToolSchema(schema, governor) for schema in await self.workbench.list_tools()]
        return schemas

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """The governed result of one call."""
        call = WorkbenchCall(self.governor, self.workbench, name, arguments, cancellation_token, call_id, self.agent)
        return await call.result(self.workbench.call_tool)

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        """The tool's events while it runs, then the governed result."""
        call = WorkbenchCall(self.governor, self.workbench, name, arguments, cancellation_token, call_id, self.agent)
        async for event in call.events(getattr(self.workbench, "call_tool_stream", self._whole)):
            yield event

    async def _whole(self, *args: Any) -> AsyncIterator[ToolResult]:
        yield await self.workbench.call_tool(*args)

    async def start(self) -> None:
        """Starts the workbench behind."""
        await self.workbench.start()

    async def stop(self) -> None:
        """Stops the workbench behind."""
        await self.workbench.stop()

    async def reset(self) -> None:
        """Resets the workbench behind."""
        await self.workbench.reset()

    async def save_state(self) -> Mapping[str, Any]:
        """The state of the workbench behind."""
        return await self.workbench.save_state()

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """Gives a state to the workbench behind."""
        await self.workbench.load_state(state)

    def _to_config(self) -> GovernedWorkbenchConfig:  # type: ignore[override]
        return GovernedWorkbenchConfig(workbench=self.workbench.dump_component(), agent=self.agent)

    @classmethod
    def _from_config(cls, config: GovernedWorkbenchConfig) -> Self:  # type: ignore[override]
        return cls(Workbench.load_component(config.workbench), agent=config.agent)
