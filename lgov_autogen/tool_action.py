"""The action of a tool call, and what is known about the call that is running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autogen_agentchat.tools import AgentTool, TeamTool

from lgov_autogen.messages import FRAMEWORK, RAW_ARGUMENTS
from lgov_autogen.runs import current_run, end_at_next_step
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.types import Action, Decision, Kind, Point


def tool_action(
    name: str, kind: Kind, arguments: Any, native: Any, *, call_id: str | None = None, agent: str | None = None
) -> Action:
    """A tool call before it runs; without ``agent``, that of the current run."""
    run = current_run()
    return Action(
        Point.PRE_TOOL_CALL,
        name=name,
        kind=kind,
        arguments=as_arguments(arguments),
        agent=agent if agent is not None or run is None else run.agent,
        framework=FRAMEWORK,
        call_id=call_id or None,
        native=native,
    )


def kind_of(*owners: Any) -> Kind:
    """The kind of a call of the first of ``owners`` (a tool, its workbench) that tells it."""
    for owner in owners:
        if isinstance(owner, AgentTool | TeamTool):
            return "agent"
        if any(cls.__module__.startswith("autogen_ext.tools.mcp") for cls in type(owner).__mro__):
            return "mcp"
    return "function"


def is_evaluated(governor: Governor, name: str, arguments: Any, call_id: str | None) -> bool:
    """Whether ``governor`` has already evaluated exactly this call, which is running now."""
    call = covered_call()
    return call is not None and call.covers(governor, name, as_arguments(arguments), call_id or None)


def as_arguments(arguments: Any) -> dict[str, Any]:
    """The arguments that policies see; anything but a mapping is the argument `RAW_ARGUMENTS`."""
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {RAW_ARGUMENTS: arguments}


def as_given(arguments: Any, permitted: Mapping[str, Any]) -> Any:
    """``permitted`` in the form of ``arguments``, so that a tool still refuses what it would refuse."""
    if isinstance(arguments, Mapping):
        return permitted
    if permitted == as_arguments(arguments):
        return arguments
    return permitted[RAW_ARGUMENTS] if set(permitted) == {RAW_ARGUMENTS} else permitted


def note_error(error: Exception) -> None:
    """Tells the governed call around the running code what its tool raised."""
    call = covered_call()
    if call is not None and call.raised is None:
        call.raised = error


def note_abort(decision: Decision, call_id: str | None) -> None:
    """Ends the run at its next step where the decision says abort."""
    if decision.blocks and decision.abort:
        end_at_next_step(decision, call_id)
