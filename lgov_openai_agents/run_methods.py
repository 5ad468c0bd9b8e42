"""``Runner.run``, ``run_sync`` and ``run_streamed`` with a governed run around each call."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from agents.lifecycle import RunHooksBase

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_openai_agents.run_memory import RunMemory
from lgov_openai_agents.runs import AgentRun, TrackingHooks, current_run, entering, new_run

#: The methods of ``Runner`` that run an agent.
RUN_METHODS = ("run", "run_sync", "run_streamed")


def wrap_run_method(
    inner: Callable[..., Any], acting: Callable[[], Governor | None], memory: RunMemory, *, by_runner: bool = False
) -> Callable[..., Any]:
    """A method of ``Runner`` in a run governed by what ``acting`` returns. ``by_runner``: `LgovRunner` calls it.

    The wrapper is a function of a class, with ``inner``'s parameters after ``cls``.
    """
    signature = inspect.signature(inner)

    @contextmanager
    def opened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[_Call]:
        governor = acting()
        if governor is None or (not by_runner and _is_opened(governor)):
            yield _Call(tuple(args), dict(kwargs), None)
            return
        bound = signature.bind(*args, **kwargs)
        run = new_run(governor, bound.arguments["starting_agent"], bound.arguments["input"], memory)
        run.not_started = by_runner
        hooks, hook_class = bound.arguments.get("hooks"), cast("type", RunHooksBase)
        if hooks is None or isinstance(hooks, hook_class):  # anything else the SDK refuses
            bound.arguments["hooks"] = TrackingHooks(run, hooks)
        with entering(run):
            try:
                yield _Call(bound.args, bound.kwargs, run)
            except BaseException as error:
                run.end(error)
                if (abort := _abort_in(error)) is not None:
                    raise abort from None
                raise

    async def run(cls: type, *args: Any, **kwargs: Any) -> Any:
        with opened(args, kwargs) as call:
            return call.ended(await inner(*call.args, **call.kwargs))

    def run_sync(cls: type, *args: Any, **kwargs: Any) -> Any:
        with opened(args, kwargs) as call:
            return call.ended(inner(*call.args, **call.kwargs))

    first = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)
    wrapped: Any = functools.wraps(inner)(run if inspect.iscoroutinefunction(inner) else run_sync)
    wrapped.__signature__ = signature.replace(parameters=[first, *signature.parameters.values()])
    return wrapped


class _Call:
    """The arguments of a call of ``Runner``, and the run that it is in, if it is governed."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], run: AgentRun | None) -> None:
        self.args = args
        self.kwargs = kwargs
        self._run = run

    def ended(self, result: Any) -> Any:
        """Ends the run: now, or when the task of a streamed run is done. Returns ``result``."""
        task: asyncio.Task[Any] | None = getattr(result, "run_loop_task", None)
        if self._run is not None and task is not None:
            task.add_done_callback(functools.partial(_end_with, self._run))
        elif self._run is not None:
            self._run.end()
        return result


def _end_with(run: AgentRun, task: asyncio.Task[Any]) -> None:
    run.end(asyncio.CancelledError() if task.cancelled() else task.exception())


def _is_opened(governor: Governor) -> bool:
    """Whether `LgovRunner` has just opened the run of this call."""
    run = current_run(governor)
    if run is None or not run.not_started:
        return False
    run.not_started = False
    return True


def _abort_in(error: BaseException) -> PolicyDenied | None:
    """The abort that the SDK has wrapped into an error of its own."""
    cause = error.__cause__
    while cause is not None and not isinstance(cause, PolicyDenied):
        cause = cause.__cause__
    return cause
