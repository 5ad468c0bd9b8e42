"""Judges a tool call again that was changed between its judgement and the tool.

The middleware and the governed ``ToolNode`` judge a call where it leaves the agent. Middleware inside of them may change it
on the way: a person edits its arguments, a router takes another tool. Where the tool begins, LangChain tells its callback
handlers what it is really run with; there the two are compared, and a call that is no longer the one that was judged is
judged as what it has become. In an instrumented process that is done where every tool passes (see `backstop`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.tool_call import own_arguments
from lgov_langchain import actions
from lgov_langchain.enforcing import as_obeyed, refuse

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


def runs_here(config: Mapping[str, Any]) -> None:
    """Notes under which run the judged call, inside of which the running code is, is going to begin."""
    if (call := covered_call()) is not None:
        call.place = getattr(config.get("callbacks"), "parent_run_id", None)


def judge_if_changed(
    beside: Governor | None, parent_run_id: UUID | None, name: str, arguments: Mapping[str, Any], call_id: str | None
) -> None:
    """Judges what is about to run if it is a judged call that was changed. ``beside`` judges all tools by itself.

    A tool that a tool calls stands under that tool's run, not under the one that was noted, and is no changed call.
    Raises `DeniedToolError` if it must not run, `PolicyDenied` if the decision says abort.
    """
    call = covered_call()
    if call is None or call.place != parent_run_id or call.action is None or call.governor is beside:
        return
    if call.covers(call.governor, name, arguments, call_id):
        return
    action = replace(
        call.action,
        name=name,
        kind=actions.kind_of(name),
        arguments=own_arguments(arguments),
        call_id=call_id,
    )
    decision = as_obeyed(call.governor.decide(action), what="arguments")
    call.changed_to(action, decision if decision.blocks else None)
    if decision.blocks:
        refuse(decision, name)
