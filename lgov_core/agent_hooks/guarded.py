"""Calls interceptors and resolvers so that one that hangs can be abandoned."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from agent_hooks import ApprovalRequest, ApprovalResolution, ApprovalResolver, Interceptor

T = TypeVar("T")


class GuardedInterceptor:
    """An interceptor that can be abandoned: one that may block is called in a thread."""

    def __init__(self, inner: Interceptor, pool: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._pool = pool
        asynchronous = inspect.iscoroutinefunction(inner.intercept)
        self.bounded = getattr(inner, "bounded", False) is True and not asynchronous
        self._direct = self.bounded or asynchronous

    def intercept(self, context: dict[str, Any]) -> Any:
        """The inner one's answer, or an awaitable of it."""
        if self._direct:
            return self._inner.intercept(context)
        return _in_thread(self._pool, self._inner.intercept, context)


class GuardedResolver:
    """As `GuardedInterceptor`, for an approval resolver."""

    def __init__(self, inner: ApprovalResolver, pool: ThreadPoolExecutor) -> None:
        self._inner = inner
        self._pool = pool
        self._direct = inspect.iscoroutinefunction(inner.resolve)

    def resolve(self, request: ApprovalRequest, /) -> Any:
        """The inner one's answer, or an awaitable of it."""
        if self._direct:
            return self._inner.resolve(request)
        answer: Awaitable[ApprovalResolution] = _in_thread(self._pool, self._inner.resolve, request)
        return answer


async def _in_thread(pool: ThreadPoolExecutor, function: Callable[[Any], Any], argument: Any) -> Any:
    carried = contextvars.copy_context()
    answer = await asyncio.get_running_loop().run_in_executor(pool, lambda: carried.run(function, argument))
    return await answer if inspect.isawaitable(answer) else answer


def run_without_waiting(judging: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits. Raises `RuntimeError` for one that does: the caller then denies."""
    try:
        judging.send(None)
    except StopIteration as end:
        return end.value
    judging.close()
    raise RuntimeError("an interceptor with bounded=True waited for something")
