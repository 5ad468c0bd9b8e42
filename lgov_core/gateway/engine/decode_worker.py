"""The thread that runs the model: admits waiting calls to the running batch, and changes weights only when unused.

Imports torch and transformers; import it only where they are needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from lgov_core.errors import EndpointError, ModelError
from lgov_core.gateway.engine.generation import Decoder, Row
from lgov_core.gateway.engine.kv_cache import Interrupted

logger = logging.getLogger(__name__)

#: Steps between two looks at the queue while a batch runs: reading prompts holds up those who are being answered.
_STEPS_BETWEEN_ADMISSIONS = 2


@dataclass(slots=True, eq=False)
class Job:
    """A row and who waits for it: the future becomes the version of the weights used, or an `EndpointError`."""

    row: Row
    future: asyncio.Future[int]


@dataclass(slots=True, eq=False)
class _Order:
    """Something to do when no row of ``policy`` is being decoded (None: no row at all)."""

    act: Callable[[], Any]
    policy: str | None
    answer: Future[Any]

    def holds(self, policy: str) -> bool:
        return self.policy in (None, policy)


class DecodeWorker:
    """One thread around one `Decoder`. All public methods may be called from any thread.

    An exception while decoding fails the jobs of that batch with an `EndpointError` (500); the worker goes on.
    ``versions`` are those of the weights by policy ("" is the model itself). They are set only by `swap`: so all
    tokens of a job come from one version.
    """

    def __init__(self, decoder: Decoder, *, max_batch: int, threads: int | None) -> None:
        self.versions: dict[str, int] = {"": 0}
        self._decoder = decoder
        self._max_batch = max_batch
        #: Seconds that a call which finds nothing running waits for others.
        self.wait_s = 0.003
        self._threads = threads
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._orders: deque[_Order] = deque()
        #: How often each policy is paused; None: all of them.
        self._pauses: Counter[str | None] = Counter()
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
        """Fails the jobs that run and wait with an `EndpointError` (503) and ends the thread. May be called again.

        A prompt that is being read is given up at the model's next layer.
        """
        with self._changed:
            self._closing = self._decoder.ending = True
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

    def between(self, act: Callable[[], Any], policy: str | None = None) -> Any:
        """Runs ``act`` in the worker's thread when no call of ``policy`` is being decoded; returns or raises what it does.

        Blocks until then. Its calls that run are finished first, those that wait go on waiting; the calls of other
        policies go on (None: of none). Before the start it runs at once.
        """
        with self._changed:
            if self._closing:
                raise _closed()
            if self._thread is None:
                return act()
            order = _Order(act, policy, Future())
            self._orders.append(order)
            self._changed.notify_all()
        return order.answer.result()

    def pause(self, policy: str | None = None) -> None:
        """Holds the calls of ``policy`` (None: all calls); returns when none is being decoded. Each needs its `resume`."""
        self.between(lambda: self._pauses.update([policy]), policy)

    def resume(self, policy: str | None = None) -> None:
        """Ends one pause; what is kept of weights that may have been changed meanwhile is dropped. Raises `ModelError`."""
        with self._changed:
            if not self._pauses[policy]:
                raise ModelError("the engine is not paused", hint="each resume ends one pause")
            self._pauses[policy] -= 1
            # What is kept belongs to the worker's thread.
            self._orders.append(_Order(lambda: self._decoder.forget(policy), policy, Future()))
            self._changed.notify_all()

    def swap(self, policy: str, version: int | None, load: Callable[[], None]) -> int:
        """Calls ``load`` between two calls of a policy; returns the version that its weights are now (None: the next one).

        Raises `ModelError` for a version that does not rise, and what ``load`` raises: the version is then as before.
        """

        def act() -> int:
            present = self.versions[policy]
            new_version = present + 1 if version is None else version
            if new_version <= present:
                raise ModelError(f"weights version {new_version} cannot follow {present}")
            load()
            self._decoder.forget(policy)
            self.versions[policy] = new_version
            return new_version

        return self.between(act, policy)

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        jobs: dict[Row, Job] = {}
        steps = 0
        try:
            while True:
                orders, admitted = self._next(steps)
                if orders is None:
                    return
                for order in orders:
                    _carry_out(order)
                if admitted:
                    steps = 0
                    self._admit(admitted, jobs)
                elif self._decoder.rows:
                    steps += 1
                    self._step(jobs)
        finally:
            self._end(jobs)

    def _next(self, steps: int) -> tuple[list[_Order] | None, list[Job]]:
        """Returns the orders to carry out and the jobs to begin, waiting for them when nothing runs. None for orders: end."""
        running = self._decoder.rows
        with self._changed:
            if not running:
                self._changed.wait_for(lambda: self._closing or self._orders or self._admissible(1))
                if not self._closing and not self._orders:
                    # Calls that arrive within this moment are answered in the same batch.
                    self._changed.wait_for(
                        lambda: self._closing or self._orders or len(self._waiting) >= self._max_batch,
                        timeout=self.wait_s,
                    )
            if self._closing:
                return None, []
            orders = [order for order in self._orders if not any(order.holds(row.policy) for row in running)]
            if orders:
                for order in orders:
                    self._orders.remove(order)
                return orders, []
            if running and steps < _STEPS_BETWEEN_ADMISSIONS:
                return [], []
            admitted = self._admissible(self._max_batch - len(running))
            for job in admitted:
                self._waiting.remove(job)
            return [], admitted

    def _admissible(self, room: int) -> list[Job]:
        """The first that wait and that no order and no pause holds back."""
        if not self._waiting or room < 1 or self._pauses[None] > 0:
            return []
        admissible: list[Job] = []
        for job in self._waiting:
            policy = job.row.policy
            if self._pauses[policy] == 0 and not any(order.holds(policy) for order in self._orders):
                admissible.append(job)
                if len(admissible) == room:
                    break
        return admissible

    def _admit(self, admitted: list[Job], jobs: dict[Row, Job]) -> None:
        fresh = {job.row: job for job in admitted if not job.row.abandoned}
        if not fresh:
            return
        try:
            self._decoder.admit(list(fresh))
        except Interrupted:
            for job in fresh.values():
                _settle(job, _closed())
            return
        except Exception as error:  # noqa: BLE001  logged, and raised in the waiting calls
            self._decoder.forget()
            _fail(fresh, error)
            return
        jobs.update(fresh)
        self._deliver(jobs)

    def _step(self, jobs: dict[Row, Job]) -> None:
        try:
            self._decoder.step()
            self._deliver(jobs)
        except Exception as error:  # noqa: BLE001  logged, and raised in the waiting calls
            self._decoder.drop_all()
            _fail(jobs, error)

    def _deliver(self, jobs: dict[Row, Job]) -> None:
        """Tells those whose rows are done."""
        done = [jobs.pop(row) for row in self._decoder.rows if row.done and row in jobs]
        self._decoder.drop_finished()
        for job in done:
            _settle(job, self.versions[job.row.policy])

    def _end(self, jobs: dict[Row, Job]) -> None:
        """Fails everything that waits, however the thread ended."""
        with self._changed:
            self._closing = True
            unfinished = [*jobs.values(), *self._waiting]
            orders = list(self._orders)
            self._waiting.clear()
            self._orders.clear()
        for job in unfinished:
            _settle(job, _closed())
        for order in orders:
            order.answer.set_exception(_closed())


def _closed() -> EndpointError:
    return EndpointError("the engine is closed", status=503, hint="the call was not answered; nothing of it was kept")


def _carry_out(order: _Order) -> None:
    try:
        order.answer.set_result(order.act())
    except BaseException as error:  # noqa: BLE001  raised where the order was given
        order.answer.set_exception(error)


def _fail(jobs: dict[Row, Job], error: Exception) -> None:
    logger.error("decoding a batch of %d calls failed", len(jobs), exc_info=error)
    for job in jobs.values():
        what = f"the model failed: {type(error).__name__}: {error}"
        failure = EndpointError(what, status=500, hint="the calls of this batch may be sent again")
        _settle(job, failure)
    jobs.clear()


def _settle(job: Job, outcome: int | EndpointError) -> None:
    def settle() -> None:
        if job.future.done():
            return
        if isinstance(outcome, int):
            job.future.set_result(outcome)
        else:
            job.future.set_exception(outcome)

    try:
        job.future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        logger.warning("the event loop of a call was closed before it was answered")
