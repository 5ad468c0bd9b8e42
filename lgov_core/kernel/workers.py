"""The workers of a runner: which of them the running code is, where each takes its tasks, and what each has counted."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from lgov_core.kernel.task_source import TaskSource, WorkerCount


@dataclass(frozen=True, slots=True)
class _Worker:
    source: TaskSource | None
    count: WorkerCount


class Workers:
    """Any number of workers, each of the thread or task that began it. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._all = WorkerCount()
        self._workers: dict[int | str, _Worker] = {}
        self._current: ContextVar[int | str | None] = ContextVar("lgov_worker", default=None)
        self._last: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def ids(self) -> tuple[int | str, ...]:
        """The ids of the open workers."""
        return tuple(self._workers)

    def begin(self, worker_id: int | str, source: TaskSource | None) -> None:
        """Makes the calling thread or task the worker ``worker_id``."""
        with self._lock:
            self._workers[worker_id] = _Worker(source, WorkerCount())
            self._last = None
        self._current.set(worker_id)

    def end(self, worker_id: int | str) -> None:
        """Reports the last counts of a worker and closes it; nothing for one that is not open."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        self.report(worker_id)
        last = self.stats()
        with self._lock:
            self._workers.pop(worker_id, None)
            if not self._workers and worker.source is not None:
                self._last = last

    def current(self) -> int | str | None:
        """The worker of this thread or task, else the only one there is, else None."""
        current = self._current.get()
        if current in self._workers:
            return current
        return next(iter(self._workers)) if len(self._workers) == 1 else None

    def source(self, worker_id: int | str | None) -> TaskSource | None:
        """Where a worker takes its tasks."""
        worker = None if worker_id is None else self._workers.get(worker_id)
        return None if worker is None else worker.source

    def count(self, worker_id: int | str | None, *, rollouts: int = 0, violations: int = 0) -> None:
        """Adds to the counts of a worker, and of all together."""
        worker = None if worker_id is None else self._workers.get(worker_id)
        with self._lock:
            if rollouts:
                self._last = None
            for count in (self._all,) if worker is None else (self._all, worker.count):
                count.rollouts += rollouts
                count.violations += violations

    def report(self, worker_id: int | str | None) -> None:
        """Shares the counts of a worker through its store."""
        worker = None if worker_id is None else self._workers.get(worker_id)
        if worker_id is not None and worker is not None and worker.source is not None:
            with self._lock:
                count = replace(worker.count)
            worker.source.report(worker_id, count)

    def stats(self) -> dict[str, Any]:
        """See `GovernedRunner.get_stats`."""
        shared = self.worker_stats()
        if shared:
            rollouts = sum(stats["total_rollouts"] for stats in shared.values())
            return _stats(WorkerCount(rollouts, sum(stats["total_violations"] for stats in shared.values())))
        with self._lock:
            return self._last or _stats(self._all)

    def worker_stats(self) -> dict[str, dict[str, Any]]:
        """See `GovernedRunner.get_worker_stats`."""
        source = self.source(self.current())
        return {} if source is None else {worker: _stats(count) for worker, count in source.reports().items()}


def _stats(count: WorkerCount) -> dict[str, Any]:
    return {
        "total_rollouts": count.rollouts,
        "total_violations": count.violations,
        "violation_rate": count.violations / count.rollouts if count.rollouts else 0.0,
    }
