"""Calls interceptors and resolvers so that one that hangs can be abandoned."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

from agent_hooks import ApprovalResolver, Interceptor

T = TypeVar("T")
Call: TypeAlias = Callable[[Any], Any]


class GuardedInterceptor:
    """An interceptor that can be abandoned: one that may block is called in a thread."""

    def __init__(self, inner: Interceptor, pool: ThreadPoolExecutor) -> None:
        asynchronous = inspect.iscoroutinefunction(inner.intercept)
        self.bounded = getattr(inner, "bounded", False) is True and not asynchronous
        self.intercept: Call = inner.intercept if self.bounded else _guarded(inner.intercept, pool)


def guarded_resolver(inner: ApprovalResolver, pool: ThreadPoolExecutor) -> Any:
    """As `GuardedInterceptor`, for an approval resolver."""
    return SimpleNamespace(resolve=_guarded(inner.resolve, pool))


def _guarded(function: Call, pool: ThreadPoolExecutor) -> Call:
    """``function``, which is called in a thread of ``pool`` unless it is a coroutine function."""
    if inspect.iscoroutinefunction(function):
        return function

    async def in_thread(argument: Any) -> Any:
        carried = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(pool, lambda: carried.run(function, argument))
        return await answer if inspect.isawaitable(answer) else answer

    return in_thread


def run_without_waiting(judging: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits. Raises `RuntimeError` for one that does: the caller then denies."""
    try:
        judging.send(None)
    except StopIteration as end:
        return end.value
    judging.close()
    raise RuntimeError("an interceptor with bounded=True waited for something")
