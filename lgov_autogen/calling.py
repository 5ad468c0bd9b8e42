"""What calls of workbenches and calls of single tools have in common."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from lgov_autogen.messages import RAW_ARGUMENTS
from lgov_autogen.runs import end_at_next_step
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.types import Action, Decision, Kind


def note_failure(error: Exception) -> None:
    """Tells the governed call around the running code what its tool raised."""
    call = covered_call()
    if call is not None and call.raised is None:
        call.raised = error


def kind_of(owner: Any, tool: Any = None) -> Kind:
    """What kind of act a call of ``tool`` is; ``owner`` is the workbench, or the tool itself."""
    return _kind_of_class(type(tool)) or _kind_of_class(type(owner)) or "function"


@functools.lru_cache(maxsize=256)
def _kind_of_class(given: type) -> Kind | None:
    for cls in given.__mro__:
        if cls.__name__ == "TaskRunnerTool":
            return "agent"
        if cls.__module__.startswith("autogen_ext.tools.mcp"):
            return "mcp"
    return None


def is_covered(governor: Governor, name: str, arguments: Any, call_id: str | None) -> bool:
    """Whether exactly this call has been judged by ``governor`` already."""
    call = covered_call()
    return call is not None and call.covers(governor, name, as_arguments(arguments), call_id or None)


def as_arguments(arguments: Any) -> Mapping[str, Any]:
    """What a call is judged on; arguments that are no mapping stand under a name of their own."""
    if type(arguments) is dict:  # what is asked below takes longer
        return arguments.copy()
    if arguments is None:
        return {}
    return dict(arguments) if isinstance(arguments, Mapping) else {RAW_ARGUMENTS: arguments}


def as_given(arguments: Any, permitted: Mapping[str, Any]) -> Any:
    """What runs: ``permitted`` in the form in which ``arguments`` came, so that a tool refuses what it would refuse."""
    if type(arguments) is dict or isinstance(arguments, Mapping):
        return permitted
    if permitted == as_arguments(arguments):
        return arguments
    return permitted[RAW_ARGUMENTS] if set(permitted) == {RAW_ARGUMENTS} else permitted


def note_abort(decision: Decision, action: Action) -> None:
    """Has the run ended at its next step where the decision asks for that."""
    if decision.blocks and decision.abort:
        end_at_next_step(decision, action.call_id)


async def events_of(governed: Callable[[Callable[[Any], None]], Awaitable[Any]]) -> AsyncIterator[Any]:
    """What ``governed`` emits while it runs, and what it returns, last.

    It runs in a task of its own, so that no context variable of the call is set while the consumer of an event runs.
    """
    events: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    async def work() -> Any:
        try:
            return await governed(lambda event: events.put_nowait((True, event)))
        finally:
            events.put_nowait((False, None))

    task = asyncio.create_task(work())
    try:
        while True:
            more, event = await events.get()
            if not more:
                break
            yield event
        yield await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
