"""`GovernedWorkbench`: any workbench of AutoGen, under policy."""

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

from lgov_autogen.calling import as_given, is_covered, note_failure
from lgov_autogen.component import chosen_governor, governor_of
from lgov_autogen.threads import carry_context
from lgov_autogen.workbench_calls import govern_workbench_call, govern_workbench_stream, tool_in, workbench_action
from lgov_core.instrumentation import Governor


class GovernedWorkbenchConfig(BaseModel):
    """What a `GovernedWorkbench` is made from; its governor is not part of it."""

    workbench: ComponentModel
    agent: str | None = None


class GovernedToolSchema(dict[str, Any]):
    """A tool's schema as a governed workbench offers it: ``governor`` judges its calls when they are run."""

    def __init__(self, schema: Mapping[str, Any], governor: Governor) -> None:
        super().__init__(schema)
        self.governor = governor


def is_governed_schema(tool: object, governor: Governor) -> bool:
    """Whether ``tool`` is the schema of a tool whose calls ``governor`` judges when they are run."""
    return isinstance(tool, GovernedToolSchema) and tool.governor is governor


class GovernedWorkbench(StaticStreamWorkbench, Component[GovernedWorkbenchConfig]):  # type: ignore[misc]
    """Judges every call of the tools of ``workbench``, and its result; records what came of it.

    ``workbench`` is a workbench (MCP included) or a sequence of tools. A denial is an error result that the model reads,
    never an exception, because an exception would leave the agent waiting for ever; for the same reason a decision
    that says abort only ends the run at its next model call, in a governed client. What a tool raised is recorded with
    its own type. Events of a streaming tool (an agent as a tool) come while it runs.

    Without a governor it asks that of the instrumented process and raises `InstrumentationError` where there is
    none: fails closed.
    ``agent`` is the agent's name for policies, where nothing else tells it. Calls may run at the same time. Serialisable;
    see `governing` for the governor of a loaded one.
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
        self._governor = chosen_governor(governor)
        _note_errors_of(self.workbench)
        for tool in getattr(self.workbench, "_tools", ()):
            carry_context(tool)

    @property
    def governor(self) -> Governor:
        """The governor that is asked. Raises `InstrumentationError` where there is none."""
        return governor_of(self._governor, self)

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
        governor = self.governor

        async def run(permitted: Mapping[str, Any]) -> ToolResult:
            return await self.workbench.call_tool(name, as_given(arguments, permitted), cancellation_token, call_id)

        if is_covered(governor, name, arguments, call_id):
            return await run(arguments or {})
        action = workbench_action(self.workbench, tool_in(self.workbench, name), name, arguments, call_id, self.agent)
        return await govern_workbench_call(governor, action, run, cancellation_token)

    async def call_tool_stream(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> AsyncGenerator[Any | ToolResult, None]:
        """What the tool shows while it runs, then the governed result."""
        governor = self.governor

        async def run(permitted: Mapping[str, Any]) -> AsyncIterator[Any]:
            given, stream = as_given(arguments, permitted), getattr(self.workbench, "call_tool_stream", None)
            if stream is None:
                yield await self.workbench.call_tool(name, given, cancellation_token, call_id)
                return
            async for event in stream(name, given, cancellation_token, call_id):
                yield event

        if is_covered(governor, name, arguments, call_id):
            async for event in run(arguments or {}):
                yield event
            return
        tool = tool_in(self.workbench, name)
        action = workbench_action(self.workbench, tool, name, arguments, call_id, self.agent)
        async for event in govern_workbench_stream(governor, action, tool, run, cancellation_token):
            yield event

    # ------------------------------------------------------------------ passed on

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


def _note_errors_of(workbench: Any) -> None:
    """Has the workbench tell what its tools raise before it makes text of it; where it cannot, types are lost."""
    format_errors = getattr(workbench, "_format_errors", None)
    if format_errors is None or hasattr(format_errors, "_lgov_notes"):
        return

    def noting(error: Exception) -> Any:
        note_failure(error)
        return format_errors(error)

    noting._lgov_notes = True  # type: ignore[attr-defined]
    workbench._format_errors = noting
