"""Governs the calls of the SDK's local tools, each at the callable that acts.

The SDK's own guardrails cannot rewrite arguments and do not see what a tool raised; the callable of a tool is its
public field, it gets the raw arguments, and its return value is what the model reads. So a call is evaluated, run and
recorded there, whatever calls it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agents import FunctionTool

from lgov_core.instrumentation import Governor, arun_steps
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.tool_call import ToolReading, failure_status, tool_steps
from lgov_core.types import Kind, ToolStatus
from lgov_openai_agents._internals import Invoke, forget_prepared_arguments, kind_of
from lgov_openai_agents.items import arguments_of, arguments_text, result_text
from lgov_openai_agents.runs import current_run, parent_in, tool_action

#: The part of its timeout that a cancelled tool must have used: the SDK's clock started a little earlier.
_NEARLY = 0.95


class ToolTimedOut(TimeoutError):
    """A tool that the SDK cancelled because its time was up."""


@dataclass(frozen=True, slots=True)
class Act:
    """One call of a tool. ``context`` is the SDK's.

    ``run`` gets the permitted arguments and returns the result, or an awaitable of it; ``read`` reads that; ``denied``
    makes what the SDK expects from the denial's text; ``rewritten`` puts a new text into a result.
    """

    name: str
    kind: Kind
    arguments: Mapping[str, Any]
    call_id: str | None
    context: Any
    run: Callable[[Mapping[str, Any]], Any]
    read: Callable[[Any], ToolReading]
    denied: Callable[[str], Any] = str
    rewritten: Callable[[Any, str], Any] = lambda result, text: text


async def govern_act(governor: Governor, act: Act) -> Any:
    """Evaluates the call, runs it if it may run, records the outcome, evaluates the result; returns what the SDK gets.

    Raises what the tool raised, and `lgov_core.PolicyDenied` where a decision says abort. A call that was evaluated on
    its way here is not evaluated again. Fails closed.
    """
    around = covered_call()
    if around is not None and around.covers(governor, act.name, act.arguments, act.call_id):
        return await awaited(act.run(act.arguments))
    agent = getattr(act.context, "agent", None)
    action = tool_action(governor, act.name, act.kind, act.arguments, act.context, call_id=act.call_id, agent=agent)

    async def call(permitted: Mapping[str, Any]) -> Any:
        return await awaited(act.run(permitted))

    governed = await arun_steps(tool_steps(governor, action, call, act.read, parent=parent_in(current_run(governor))))
    if governed.denial is not None:
        return act.denied(governed.denial)
    return governed.result if governed.text is None else act.rewritten(governed.result, governed.text)


async def awaited(result: Any) -> Any:
    """``result``, or what it is an awaitable of."""
    return await result if inspect.isawaitable(result) else result


# ---------------------------------------------------------------------- function tools


async def govern_function(governor: Governor, tool: FunctionTool, invoke: Invoke, context: Any, raw: str) -> Any:
    """As `govern_act`, for a call of ``tool`` with the arguments text ``raw``. ``invoke`` notes what the tool raises."""
    began = time.monotonic()  # the SDK's clock for the tool is running
    arguments = arguments_of(raw)

    def run(permitted: Mapping[str, Any]) -> Awaitable[Any]:
        text = raw
        if permitted is not arguments:
            text = arguments_text(permitted, raw)
            forget_prepared_arguments(context)
        return _within_timeout(tool, invoke(context, text), began)

    call_id = getattr(context, "tool_call_id", None)
    act = Act(tool.qualified_name, kind_of(tool), arguments, call_id, context, run, _read_value)
    try:
        return await govern_act(governor, act)
    except ToolTimedOut as late:
        raise asyncio.CancelledError from late  # the SDK waits for the task it cancelled to be cancelled


async def _within_timeout(tool: FunctionTool, result: Awaitable[Any], began: float) -> Any:
    """The tool's result. Raises `ToolTimedOut` where the SDK cancels the tool because its time is up."""
    try:
        return await result
    except asyncio.CancelledError as error:
        limit = tool.timeout_seconds
        if limit is not None and time.monotonic() - began >= limit * _NEARLY:
            raise ToolTimedOut(f"{tool.name} did not finish within {limit:g} s") from error
        raise


def _read_value(value: Any) -> ToolReading:
    text, call = result_text(value), covered_call()
    error = call.raised if call is not None else None
    if error is None:
        return ToolReading(text)
    if type(error).__module__.startswith("agents."):  # the SDK's words for what went wrong
        error = error.__cause__ or error
    return ToolReading(text, failure_status_of(error), type(error).__name__, str(error))


def failure_status_of(error: BaseException) -> ToolStatus:
    """As `failure_status`, with the SDK's errors for arguments that do not fit."""
    if type(error).__name__ in ("ModelBehaviorError", "JSONDecodeError"):
        return "invalid_args"
    return failure_status(error)
