"""Lets a synchronous tool function know whose call it is: AutoGen runs it in a thread without its caller's context.

Without this the spans that the function opens would hang in the air, and tool calls inside it would belong to no
rollout and no agent.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from autogen_core.tools import FunctionTool

from lgov_core.instrumentation.evaluated_call import covered_call


def wrap_function_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``FunctionTool.run`` with the caller's context variables in the thread of a synchronous function."""

    @functools.wraps(run)
    async def run_in_context(self: Any, args: Any, cancellation_token: Any) -> Any:
        function: Any = getattr(self, "_func", None)
        if covered_call() is None or function is None or _is_asynchronous(function):
            return await run(self, args, cancellation_token)
        # A twin for this call alone: the tool itself may be running for others at the same time.
        twin = _twin(self)
        run_inside = contextvars.copy_context().run

        def function_inside(*given: Any, **named: Any) -> Any:  # a partial would be asked at length what it is
            return run_inside(function, *given, **named)

        twin._func = function_inside
        return await run(twin, args, cancellation_token)

    return run_in_context


def _twin(tool: Any) -> Any:
    if type(tool) is not FunctionTool:
        return copy.copy(tool)
    twin = object.__new__(FunctionTool)  # the same, in a fifth of the time: this class holds nothing elsewhere
    vars(twin).update(vars(tool))
    return twin


def _is_asynchronous(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or hasattr(function, "_is_coroutine")


def carry_context(tool: Any) -> None:
    """Does the same for one function tool, in a process that is not instrumented. Calling it again changes nothing."""
    if isinstance(tool, FunctionTool) and "run" not in vars(tool):
        carried = wrap_function_run(type(tool).run)
        tool.run = carried.__get__(tool)  # type: ignore[method-assign]
