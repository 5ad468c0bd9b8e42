"""The stores from which a runner's workers take tasks, and through which they share their statistics."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lgov_core.errors import StoreError
from lgov_core.rl_governance.rollouts import GovernedRollout
from lgov_core.rl_governance.violations import violation_as_json
from lgov_core.types import Outcome, Rollout, Span, new_id

if TYPE_CHECKING:
    from lgov_core.store import TraceStore


_SPAN: Final = "lgov.runner.worker"
_ENVELOPE: Final = frozenset({"input", "mode", "rollout_id", "attempt", "task_id"})
_TRACE_STORE: Final = ("rollouts", "attempts", "start_attempt", "finish_attempt", "add_span", "spans", "flush")


@dataclass(frozen=True, slots=True)
class Task:
    """One task to run; ``rollout_id`` is None when the store gave none."""

    input: Any
    mode: Any = "train"
    rollout_id: str | None = None
    attempt: int = 1
    task_id: str | None = None


@dataclass(slots=True)
class WorkerCount:
    """The counts of one worker. ``reporter`` tells apart objects and processes that are the same worker by name."""

    rollouts: int = 0
    violations: int = 0
    reporter: str = field(default_factory=lambda: new_id("worker"))


def task_source(store: Any, *, run_id: str | None = None) -> TaskSource:
    """The tasks and statistics of ``store``, which is one of:

    - a `TraceStore`: the rollouts without an attempt are the tasks, in their order. A worker takes one by opening its
      first attempt, so that several workers and processes never take the same one, and closes it with the outcome, the
      answer, and what policies found. Statistics are spans named ``lgov.runner.worker``.
    - an object with ``get_task()`` (a task, or None when there is none now) and ``submit_rollout(rollout)``, plain or
      coroutine functions. A task is the input itself, or a mapping with ``input`` and any of ``mode``, ``rollout_id``,
      ``attempt`` and ``task_id`` and nothing else. For shared statistics it also has ``report_worker(worker_id, stats)``
      and ``worker_reports()``, which returns what was last reported, by worker.

    Any other object has neither. ``run_id`` limits the tasks and statistics of a `TraceStore` to one run.
    """
    has_tasks = all(callable(getattr(store, name, None)) for name in ("get_task", "submit_rollout"))
    if not has_tasks and all(callable(getattr(store, name, None)) for name in _TRACE_STORE):
        return _TraceStoreTasks(store, run_id)
    return _QueueTasks(store, has_tasks=has_tasks, has_counts=_has_counts(store))


def _has_counts(store: Any) -> bool:
    reports = getattr(store, "worker_reports", None)
    if not callable(reports) or not callable(getattr(store, "report_worker", None)):
        return False
    counts = reports()
    if inspect.iscoroutine(counts):
        counts.close()
    return isinstance(counts, Mapping)


class _TraceStoreTasks:
    """The tasks and statistics of a `TraceStore`."""

    has_tasks = True

    def __init__(self, store: TraceStore, run_id: str | None) -> None:
        self._store, self._run_id = store, run_id
        self._waiting: deque[Rollout] = deque()
        self._where = "runner-statistics" if run_id is None else f"runner-statistics:{run_id}"

    async def next_task(self) -> Task | None:
        """A task that no other worker gets, or None when there is none now."""
        return await asyncio.to_thread(self._next)

    def _next(self) -> Task | None:
        if not self._waiting:
            tried = {attempt.rollout_id for attempt in self._store.attempts()}
            rollouts = self._store.rollouts(run_id=self._run_id)
            self._waiting.extend(rollout for rollout in rollouts if rollout.rollout_id not in tried)
        while self._waiting:
            rollout = self._waiting.popleft()
            try:
                self._store.start_attempt(rollout.rollout_id, 1)
            except StoreError:
                if self._store.attempts([rollout.rollout_id]):
                    continue  # another worker was faster
                raise
            wrapped = "input" in rollout.input and set(rollout.input) <= {"input", "mode"}
            task_input = rollout.input["input"] if wrapped else rollout.input
            mode = rollout.mode or "train"
            return Task(task_input, mode, rollout_id=rollout.rollout_id, task_id=rollout.task_id)
        return None

    async def submit(self, task: Task, rollout: GovernedRollout, worker_id: int | str) -> None:
        result = {
            "output": _as_json(rollout.task_output),
            "violations": [violation_as_json(violation) for violation in rollout.violations],
            "signals": list(rollout.signals_sent),
            "total_penalty": rollout.total_penalty,
            "worker": str(worker_id),
        }
        outcome = rollout.outcome or Outcome.FAILED
        await asyncio.to_thread(
            self._store.finish_attempt,
            cast(str, task.rollout_id),
            task.attempt,
            outcome,
            error=rollout.error,
            result=result,
        )

    async def abandon(self, task: Task, reason: str) -> None:
        # Not in a thread: the caller may be shutting down.
        self._store.finish_attempt(cast(str, task.rollout_id), task.attempt, Outcome.INFRASTRUCTURE, error=reason)

    def report(self, worker_id: int | str, count: WorkerCount) -> None:
        now = time.time()
        reporter = f"{count.reporter}-{os.getpid()}"
        attributes = {
            "worker": str(worker_id),
            "reporter": reporter,
            "rollouts": count.rollouts,
            "violations": count.violations,
        }
        self._store.add_span(Span(_SPAN, new_id("span"), now, now, attributes, rollout_id=self._where, attempt=1))

    def reports(self) -> dict[str, WorkerCount]:
        self._store.flush()
        last: dict[tuple[str, str], WorkerCount] = {}
        for span in self._store.spans([self._where]):
            if span.name == _SPAN and not span.claimed:
                seen = cast("Mapping[str, Any]", span.attributes)
                key = (seen["worker"], seen["reporter"])
                latest = last.setdefault(key, WorkerCount(reporter=key[1]))
                latest.rollouts = max(latest.rollouts, seen["rollouts"])
                latest.violations = max(latest.violations, seen["violations"])
        total: dict[str, WorkerCount] = {}
        for (worker, _), count in last.items():
            summed = total.setdefault(worker, WorkerCount())
            summed.rollouts += count.rollouts
            summed.violations += count.violations
        return total


class _QueueTasks:
    """The tasks and statistics of an object with ``get_task`` or ``report_worker``."""

    def __init__(self, store: Any, *, has_tasks: bool, has_counts: bool) -> None:
        self._store, self.has_tasks, self._has_counts = store, has_tasks, has_counts

    async def next_task(self) -> Task | None:
        raw = await _settled(self._store.get_task())
        if raw is None:
            return None
        if isinstance(raw, Mapping) and "input" in raw and set(raw) <= _ENVELOPE:
            return Task(**{str(key): value for key, value in raw.items()})
        return Task(raw)

    async def submit(self, task: Task, rollout: GovernedRollout, worker_id: int | str) -> None:
        await _settled(self._store.submit_rollout(rollout))

    async def abandon(self, task: Task, reason: str) -> None:
        """Such a store has no method for it."""

    def report(self, worker_id: int | str, count: WorkerCount) -> None:
        if self._has_counts:
            stats = {"total_rollouts": count.rollouts, "total_violations": count.violations}
            self._store.report_worker(worker_id, stats)

    def reports(self) -> dict[str, WorkerCount]:
        if not self._has_counts:
            return {}
        reports: Mapping[Any, Mapping[str, Any]] = self._store.worker_reports()
        return {
            str(worker): WorkerCount(int(stats["total_rollouts"]), int(stats["total_violations"]))
            for worker, stats in reports.items()
        }


TaskSource: TypeAlias = _TraceStoreTasks | _QueueTasks


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _as_json(value: Any) -> Any:
    """``value`` where it is JSON, else its text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return str(value)


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
