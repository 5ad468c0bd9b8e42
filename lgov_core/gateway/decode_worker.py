"""The thread that runs the model: takes what waits, decodes it in batches, lets weights change only in between.

Imports torch and transformers; import it only where they are needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from lgov_core.errors import EndpointError
from lgov_core.gateway.generation import Batch, Decoder, Row

logger = logging.getLogger(__name__)

#: Steps between two looks at the queue while a batch runs: reading prompts holds up those who are being answered.
_STEPS_BETWEEN_ADMISSIONS = 4


@dataclass(slots=True, eq=False)
class Job:
    """A row and who waits for it: the future becomes the version of the weights used, or an `EndpointError`."""

    row: Row
    future: asyncio.Future[int]
    loop: asyncio.AbstractEventLoop


@dataclass(slots=True, eq=False)
class _Order:
    act: Callable[[], Any]
    answer: Future[Any]


class DecodeWorker:
    """One thread around one `Decoder`. All public methods may be called from any thread.

    An exception while decoding fails the jobs of that batch with an `EndpointError` (500); the worker goes on.
    ``weights_version`` may be set only in `between_batches`: so all tokens of a job come from the version it is told.
    """

    def __init__(self, decoder: Decoder, *, max_batch: int, max_wait_s: float, threads: int | None) -> None:
        self.weights_version = 0
        self._decoder = decoder
        self._max_batch = max_batch
        self._max_wait_s = max_wait_s
        self._threads = threads
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._orders: deque[_Order] = deque()
        self._pauses = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread. Raises `EndpointError` when it was closed; does nothing when it already runs."""
        with self._changed:
            if self._closing:
                raise _closed()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lgov-decode", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Fails the jobs that run and wait with an `EndpointError` (503) and ends the thread. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def submit(self, job: Job) -> None:
        """Puts a job into the queue. Raises `EndpointError` (503) when the thread does not run."""
        with self._changed:
            if self._closing:
                raise _closed()
            if self._thread is None:
                raise EndpointError("the engine was not started", status=503, hint="await engine.start() first")
            self._waiting.append(job)
            self._changed.notify_all()

    def between_batches(self, act: Callable[[], Any]) -> Any:
        """Runs ``act`` in the worker's thread when nothing is being decoded; returns or raises what it does.

        Blocks until then. What runs is finished first, what waits goes on waiting. Before the start it runs at once.
        """
        with self._changed:
            if self._closing:
                raise _closed()
            if self._thread is None:
                return act()
            order = _Order(act, Future())
            self._orders.append(order)
            self._changed.notify_all()
        return order.answer.result()

    def pause(self) -> None:
        """Returns once nothing is being decoded; nothing will be until as many calls of `resume`."""

        def count() -> None:
            self._pauses += 1

        self.between_batches(count)

    def resume(self) -> None:
        """Takes back one `pause`. The module's weights may have been changed in the meantime."""
        with self._changed:
            self._decoder.forget()
            self._pauses = max(0, self._pauses - 1)
            self._changed.notify_all()

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        batch: Batch | None = None
        jobs: dict[Row, Job] = {}
        steps = 0
        try:
            while True:
                orders, admitted = self._next(len(batch.rows) if batch else 0, steps)
                if orders is None:
                    return
                for order in orders:
                    _carry_out(order)
                if admitted:
                    steps = 0
                    batch = self._admit(batch, admitted, jobs)
                elif batch is not None:
                    steps += 1
                    batch = self._step(batch, jobs)
        finally:
            self._end(jobs)

    def _next(self, running: int, steps: int) -> tuple[list[_Order] | None, list[Job]]:
        """What to do now, waiting for it when nothing runs: orders, jobs to begin with. None for orders: end."""
        with self._changed:
            if not running:
                self._changed.wait_for(
                    lambda: self._closing or self._orders or (self._waiting and not self._pauses),
                )
                if not self._closing and not self._orders:
                    # Whoever comes within this moment is answered in the same batch.
                    self._changed.wait_for(
                        lambda: self._closing or self._orders or len(self._waiting) >= self._max_batch,
                        timeout=self._max_wait_s,
                    )
            if self._closing:
                return None, []
            if self._orders:
                # As long as something is decoded, orders wait for it to end, and nothing new is begun.
                orders = [] if running else list(self._orders)
                if orders:
                    self._orders.clear()
                return orders, []
            if self._pauses or (running and steps < _STEPS_BETWEEN_ADMISSIONS):
                return [], []
            room = self._max_batch - running
            return [], [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]

    def _admit(self, batch: Batch | None, admitted: list[Job], jobs: dict[Row, Job]) -> Batch | None:
        fresh = {job.row: job for job in admitted if not job.row.abandoned}
        if not fresh:
            return batch
        try:
            more = self._decoder.begin(list(fresh))
        except Exception as error:  # noqa: BLE001  logged, and told to whoever waits
            self._fail(fresh, error)
            return batch
        jobs.update(fresh)
        self._deliver(jobs, more.rows)
        try:
            return self._decoder.join(batch, more)
        except Exception as error:  # noqa: BLE001  logged, and told to whoever waits
            self._fail(jobs, error)
            return None

    def _step(self, batch: Batch, jobs: dict[Row, Job]) -> Batch | None:
        try:
            self._decoder.step(batch)
            self._deliver(jobs, batch.rows)
            return self._decoder.thin(batch)
        except Exception as error:  # noqa: BLE001  logged, and told to whoever waits
            self._fail(jobs, error)
            return None

    def _deliver(self, jobs: dict[Row, Job], rows: Sequence[Row]) -> None:
        """Tells those whose rows are done; one wake-up for each event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for row in rows:
            if row.done and (job := jobs.pop(row, None)) is not None:
                by_loop.setdefault(job.loop, []).append(job)
        for loop, done in by_loop.items():
            _settle(loop, done, self.weights_version)

    def _fail(self, jobs: dict[Row, Job], error: Exception) -> None:
        logger.error("decoding a batch of %d calls failed", len(jobs), exc_info=error)
        self._decoder.forget()
        for job in jobs.values():
            what = f"the model failed: {type(error).__name__}: {error}"
            _settle(job.loop, [job], EndpointError(what, status=500, hint="the calls of this batch may be sent again"))
        jobs.clear()

    def _end(self, jobs: dict[Row, Job]) -> None:
        """Nobody is left waiting, however the thread ended."""
        with self._changed:
            self._closing = True
            left = [*jobs.values(), *self._waiting]
            orders = list(self._orders)
            self._waiting.clear()
            self._orders.clear()
        for job in left:
            _settle(job.loop, [job], _closed())
        for order in orders:
            order.answer.set_exception(_closed())


def _closed() -> EndpointError:
    return EndpointError("the engine is closed", status=503, hint="the call was not answered; nothing of it was kept")


def _carry_out(order: _Order) -> None:
    try:
        order.answer.set_result(order.act())
    except BaseException as error:  # noqa: BLE001  whoever waits for the order gets it
        order.answer.set_exception(error)


def _settle(loop: asyncio.AbstractEventLoop, jobs: list[Job], outcome: int | EndpointError) -> None:
    def settle() -> None:
        for job in jobs:
            if job.future.done():
                continue
            if isinstance(outcome, int):
                job.future.set_result(outcome)
            else:
                job.future.set_exception(outcome)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        logger.warning("the event loop of %d calls was closed before they were answered", len(jobs))
