"""Governed calls of a workbench's tools, and `GovernedWorkbench`.

A denial is a result, never an exception: an exception out of a tool call leaves an agent waiting for ever. The same holds
for a decision that says abort; the run then ends at its next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self

from autogen_core import CancellationToken, Component, ComponentModel
from autogen_core.tools import (
    BaseTool,
    ImageResultContent,
    StaticStreamWorkbench,
    TextResultContent,
    ToolResult,
    ToolSchema,
    Workbench,
)
from pydantic import BaseModel

from lgov_autogen._internals import carry_context, observe_errors, tool_in, tools_of
from lgov_autogen.current_governor import GovernedComponent, behind
from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_autogen.runs import end_at_next_step
from lgov_autogen.tools import Emit, GovernedCall, Run, kind_of, note_abort, tool_action
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.live_span import covered_call, note_error
from lgov_core.instrumentation.tool_call import ToolReading, failure_status, tool_flow

#: The text for an image in a result.
IMAGE = "[image]"


class WorkbenchCall(GovernedCall):
    """One call of a workbench's tool, with the arguments of ``Workbench.call_tool``."""

    __slots__ = ()

    def parameters(self, arguments: Any) -> tuple[Any, ...]:
        """Those of ``Workbench.call_tool``."""
        return self.name, arguments, self.token, self.call_id

    async def last_of(self, events: AsyncIterator[Any], emit: Emit) -> ToolResult:
        """The last `ToolResult`."""
        result: ToolResult | None = None
        async for event in events:
            if isinstance(event, ToolResult):
                result = event
            else:
                emit(event)
        if result is None:
            raise RuntimeError(f"the workbench's stream of {self.name} ended without a result")
        return result

    async def govern(self, governor: Governor, run: Run) -> ToolResult:
        """Raises only when cancelled from outside."""
        kind = kind_of(tool_in(self.owner, self.name), self.owner)
        action = tool_action(self.name, kind, self.arguments, self.owner, call_id=self.call_id, agent=self.agent)
        try:
            governed = await arun_flow(tool_flow(governor, action, run, _reading, raise_abort=False))
        except asyncio.CancelledError:
            if not _only_by_token(self.token):
                raise
            return error_result(self.name, "The call was cancelled.")  # recorded; the agent must not wait for it
        if (denial := governed.denial) is not None:
            note_abort(governed.decision, action.call_id)
            return error_result(self.name, denial)
        result: ToolResult | None = governed.result
        assert result is not None
        if governed.text is None:
            return result
        return ToolResult(name=self.name, result=[TextResultContent(content=governed.text)], is_error=result.is_error)


def _only_by_token(token: Any) -> bool:
    """Returns whether AutoGen's token alone was cancelled, and this task is to go on."""
    task = asyncio.current_task()
    return token is not None and token.is_cancelled() and (task is None or task.cancelling() == 0)


def error_result(name: str, text: str) -> ToolResult:
    """A result that says that the call failed."""
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=True)


def _reading(result: ToolResult) -> ToolReading:
    text = "\n".join(IMAGE if isinstance(content, ImageResultContent) else content.content for content in result.result)
    if not result.is_error:
        return ToolReading(text)
    call = covered_call()
    raised = call.raised if call is not None else None
    if call is not None and isinstance(raised, PolicyDenied) and raised.decision.abort:
        end_at_next_step(raised.decision, call.call_id)  # the run inside the tool was ended; so must this one
    return ToolReading(text, "error" if raised is None else failure_status(raised))


async def call_tool(
    workbench: Any,
    own: Callable[..., Any],
    name: str,
    arguments: Any = None,
    cancellation_token: Any = None,
    call_id: str | None = None,
) -> ToolResult:
    """``Workbench.call_tool`` in an instrumented process; ``own`` is the workbench's own method."""
    return await WorkbenchCall(INSTRUMENTOR.governor, workbench, name, arguments, cancellation_token, call_id).result(
        own
    )


def call_tool_stream(
    workbench: Any,
    own: Callable[..., Any],
    name: str,
    arguments: Any = None,
    cancellation_token: Any = None,
    call_id: str | None = None,
) -> AsyncGenerator[Any]:
    """``StreamWorkbench.call_tool_stream`` in an instrumented process."""
    return WorkbenchCall(INSTRUMENTOR.governor, workbench, name, arguments, cancellation_token, call_id).events(own)


class GovernedWorkbenchConfig(BaseModel):
    """The configuration of a `GovernedWorkbench`, without its governor."""

    workbench: ComponentModel
    agent: str | None = None


class GovernedToolSchema(dict[str, Any]):
    """A tool's schema as a governed workbench offers it: ``governor`` evaluates its calls when they run."""

    def __init__(self, schema: Mapping[str, Any], governor: Governor) -> None:
        super().__init__(schema)
        self.governor = governor


def is_governed_schema(tool: object, governor: Governor) -> bool:
    """Returns whether ``tool`` is the schema of a tool whose calls ``governor`` evaluates when they run."""
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

    start: Any = behind("workbench.start")
    stop: Any = behind("workbench.stop")
    reset: Any = behind("workbench.reset")
    save_state: Any = behind("workbench.save_state")
    load_state: Any = behind("workbench.load_state")

    def _to_config(self) -> GovernedWorkbenchConfig:  # type: ignore[override]
        return GovernedWorkbenchConfig(workbench=self.workbench.dump_component(), agent=self.agent)

    @classmethod
    def _from_config(cls, config: GovernedWorkbenchConfig) -> Self:  # type: ignore[override]
        return cls(Workbench.load_component(config.workbench), agent=config.agent)
