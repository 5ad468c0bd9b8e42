"""Which rollout the running code belongs to.

The scope is a context variable, so a hundred interleaved rollouts in one event loop stay apart. asyncio tasks and
``asyncio.to_thread`` inherit it by themselves; plain threads and executors do not, so `carry_into_threads` makes
``threading.Thread``, ``ThreadPoolExecutor`` and ``multiprocessing.pool.ThreadPool`` pass it on.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lgov_core.errors import ScopeError


@dataclass(frozen=True, slots=True)
class RolloutScope:
    """The rollout, attempt (from 1) and session that the running code belongs to; ``mode`` is as `Rollout.mode`.

    ``of_process``: the rollout is a process as a whole, begun by what started it and not by the program.
    """

    rollout_id: str
    attempt: int = 1
    session_id: str | None = None
    task_id: str | None = None
    mode: str | None = None
    of_process: bool = False

    def __post_init__(self) -> None:
        if not self.rollout_id or any(c in self.rollout_id for c in "/\r\n\0"):
            raise ScopeError(f"rollout id {self.rollout_id!r} is empty or holds a slash or control character")
        try:
            self.rollout_id.encode()
        except UnicodeEncodeError as error:
            raise ScopeError(f"rollout id {self.rollout_id!r} contains a lone surrogate") from error
        if self.attempt < 1:
            raise ScopeError(f"attempt must be 1 or more, not {self.attempt}")


_CURRENT: contextvars.ContextVar[RolloutScope | None] = contextvars.ContextVar("lgov_rollout", default=None)


#: The scope of the running code, or None outside any rollout. Callable from any thread or task.
current_scope: Callable[[], RolloutScope | None] = _CURRENT.get


class enter_scope(AbstractContextManager["RolloutScope | None", None]):
    """Makes ``scope`` current inside the block, in this thread or task only. Scopes nest; the inner one wins."""

    def __init__(self, scope: RolloutScope | None) -> None:
        self._scope = scope

    def __enter__(self) -> RolloutScope | None:
        self._token = _CURRENT.set(self._scope)
        return self._scope

    def __exit__(self, *exc: object) -> None:
        _CURRENT.reset(self._token)


_T = TypeVar("_T")
#: How many threads deep the code is remembered that started a thread.
_MAX_STARTERS: Final = 8
_STARTED_IN: contextvars.ContextVar[tuple[contextvars.Context, ...]] = contextvars.ContextVar(
    "lgov_started", default=()
)


def inherited(variable: contextvars.ContextVar[_T]) -> _T | None:
    """The value of ``variable``, or else its value where the running thread or job was started (`carry_into_threads`)."""
    value: Any = variable.get(None)
    for context in _STARTED_IN.get():
        value = context.get(variable) if value is None else value
    return value


def _carrying(function: Callable[..., Any], scope: RolloutScope | None) -> Callable[..., Any]:
    here = contextvars.copy_context()
    here.run(_STARTED_IN.set, ())
    starters = (here, *_STARTED_IN.get())[:_MAX_STARTERS]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = _STARTED_IN.set(starters)
        try:
            with enter_scope(scope):
                return function(*args, **kwargs)
        finally:
            _STARTED_IN.reset(before)

    return run


def carry_into_threads() -> None:
    """Makes every thread and executor job started from inside a scope belong to that scope.

    Wraps ``threading.Thread.start``, ``ThreadPoolExecutor.submit`` and what gives work to a ``ThreadPool`` for the whole
    process; only lgov's own variables are carried, user context variables keep their normal behaviour (`inherited` reads
    one where the thread was started). Calling it again changes nothing. Process pools are not covered: a child process is
    attributed by its environment instead.
    """
    if getattr(threading.Thread.start, "_lgov_carries", False):
        return
    start, submit = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit

    @functools.wraps(start)
    def start_in_scope(self: threading.Thread) -> None:
        _carry_into_thread_pools()  # such a pool starts threads before it takes work
        if (scope := _CURRENT.get()) is not None:
            self.run = _carrying(self.run, scope)  # type: ignore[method-assign]
        start(self)

    @functools.wraps(submit)
    def submit_in_scope(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        # A worker thread of the pool may itself have inherited the scope of the job that started it, so the job's
        # own scope (or its absence) is set in any case.
        return submit(self, _carrying(fn, _CURRENT.get()), *args, **kwargs)

    start_in_scope._lgov_carries = True  # type: ignore[attr-defined]
    threading.Thread.start = start_in_scope  # type: ignore[method-assign]
    concurrent.futures.ThreadPoolExecutor.submit = submit_in_scope  # type: ignore[method-assign]
    _carry_into_thread_pools()


def _carry_into_thread_pools() -> None:
    """The same for ``multiprocessing.pool.ThreadPool``, once that is loaded."""
    pool = getattr(sys.modules.get("multiprocessing.pool"), "ThreadPool", None)
    if pool is None or "_lgov_carries" in vars(pool):
        return
    pool._lgov_carries = True

    def in_scope(give: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(give)
        def given(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return give(self, _carrying(func, _CURRENT.get()), *args, **kwargs)

        return given

    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):  # every other method calls one of these
        setattr(pool, name, in_scope(getattr(pool, name)))
