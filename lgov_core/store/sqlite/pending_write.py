"""A write that someone waits for."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class PendingWrite:
    """A write, as many ``rows`` as it is, and the future of whoever waits for it: a thread, or a task of an event loop."""

    run: Callable[[sqlite3.Connection], Any]
    rows: int
    future: Future[Any] | asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


def settle(writes: Iterable[PendingWrite]) -> None:
    """Tells those who wait what became of their writes. Each event loop is woken once, for all of its own."""
    of_loops: dict[asyncio.AbstractEventLoop, list[PendingWrite]] = {}
    for write in writes:
        if isinstance(write.future, Future):
            _tell(write)
        else:
            of_loops.setdefault(write.future.get_loop(), []).append(write)
    for loop, own in of_loops.items():
        if loop is _running():
            _tell_tasks(own)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and everybody in it
                loop.call_soon_threadsafe(_tell_tasks, own)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _tell_tasks(writes: Iterable[PendingWrite]) -> None:
    for write in writes:
        if not write.future.done():  # a task that was cancelled no longer waits
            _tell(write)


def _tell(write: PendingWrite) -> None:
    if write.error is not None:
        write.future.set_exception(write.error)
    else:
        write.future.set_result(write.result)
