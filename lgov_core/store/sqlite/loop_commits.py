"""Writes of an event loop's tasks, committed by the loop itself where that needs no waiting."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lgov_core.store.sqlite.pending_write import PendingWrite, settle

T = TypeVar("T")


class LoopCommits:
    """What the tasks of event loops want written: that of one turn of a loop is committed together, at its end.

    To hand a row to the writer's thread costs several times what writing it does: the thread is woken, and after each of
    its statements it waits for the interpreter, which a busy loop keeps. A commit in WAL mode does not wait for the disk, so
    the loop may as well do it. ``commit`` writes a batch if it need not wait for anybody, and says whether it did;
    what it leaves goes to ``hand_over``, which sees to it that all of it is settled. All methods may be called from any
    thread.
    """

    def __init__(
        self, commit: Callable[[Sequence[PendingWrite]], bool], hand_over: Callable[[Sequence[PendingWrite]], None]
    ) -> None:
        self._commit = commit
        self._hand_over = hand_over
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.AbstractEventLoop, list[PendingWrite]] = {}

    def submit(self, run: Callable[[sqlite3.Connection], T], rows: int) -> asyncio.Future[T]:
        """Queues ``run`` for the running loop; the future is done after its commit. Cancelling it does not stop the write."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        write = PendingWrite(run, rows, future)
        with self._lock:
            waiting = self._waiting.get(loop)
            if waiting is not None:
                waiting.append(write)
                return future
            self._waiting[loop] = [write]
        loop.call_soon(self._end_of_turn, loop)
        return future

    def take(self) -> list[PendingWrite]:
        """What waits in all loops; it is the caller's now."""
        with self._lock:
            left = [write for waiting in self._waiting.values() for write in waiting]
            self._waiting.clear()
        return left

    def _end_of_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            batch = self._waiting.pop(loop, None)
        if not batch:  # somebody took it
            return
        try:
            written = self._commit(batch)
        except BaseException:  # Ctrl-C, in the main thread
            self._hand_over(batch)
            raise
        if written:
            settle(batch)
        else:
            self._hand_over(batch)
