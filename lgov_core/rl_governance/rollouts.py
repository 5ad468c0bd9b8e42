"""Rollouts of a runner or an environment: the result of one, a kernel's reports by rollout, and the workers that run them.

A worker takes its tasks from a store, and shares its statistics through it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lgov_core.errors import StoreError
from lgov_core.rl_governance.adapt import AdaptedKernel, has_methods, has_reports, is_trace_store, reported_violation
from lgov_core.rl_governance.reports import violation_as_json
from lgov_core.scope import current_scope
from lgov_core.types import Outcome, PolicyViolation, Rollout, Span, new_id

if TYPE_CHECKING:
    from lgov_core.store import TraceStore


@dataclass
class GovernedRollout:
    """One task that was run. ``total_penalty`` is always the sum of the violations' penalties, at least 0.

    ``success`` means that the task ran to its end and its answer was allowed; a denial of the task, an exception and an
    infrastructure failure are not a success. ``outcome`` says which of them it was (``Outcome.trainable``: whether it is
    training data), ``error`` is the message of what was raised. ``governed`` is False where the kernel has neither a hook
    nor a method that runs acts, or is a test double. A violation that is reported after the end is added.
    """

    task_input: Any
    task_output: Any = None
    success: bool = False
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    signals_sent: list[str] = field(default_factory=lambda: [])
    total_penalty: float = 0.0
    execution_time_ms: float = 0.0
    outcome: Outcome | None = None
    error: str | None = None
    rollout_id: str = ""
    mode: str = "train"
    governed: bool = True

    def __post_init__(self) -> None:
        self.total_penalty = total_penalty(self.violations)
        if self.outcome is None:
            blocked = any(violation.blocks for violation in self.violations)
            self.outcome = Outcome.SUCCEEDED if self.success else Outcome.BLOCKED if blocked else Outcome.FAILED


def total_penalty(violations: list[PolicyViolation]) -> float:
    """The sum of the penalties."""
    return float(sum(violation.penalty for violation in violations))


@dataclass(slots=True)
class Collected:
    """The reports for one rollout so far, in order."""

    rollout_id: str
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    signals: list[str] = field(default_factory=lambda: [])


class RolloutWatch:
    """Registers with a kernel and collects its reports by the rollout that they belong to.

    A report (`reported_violation`) belongs to the ``rollout_id`` that it names (an attribute, a key or a keyword argument),
    else to the rollout of the running code. ``report`` is called with each violation, its rollout's id and whether that
    rollout is being collected here. Raises `ArgumentError` when a hook raises.
    """

    def __init__(self, kernel: AdaptedKernel, *, report: Callable[[PolicyViolation, str | None, bool], None]) -> None:
        self._kernel, self._report = kernel, report
        self._open: dict[str, Collected] = {}
        self._lock = threading.Lock()
        self._removals: list[Callable[[], Any]] | None = None
        self.listen()

    def listen(self) -> None:
        """Registers with the kernel, unless that is done. Raises `ArgumentError` when it does not accept callbacks."""
        if self._removals is not None:
            return
        removals: list[Callable[[], Any]] = []
        try:
            for hook, callback in (("on_policy_violation", self._violation), ("on_signal", self._signal)):
                removal = self._kernel.register(hook, callback)
                if removal is not None:
                    removals.append(removal)
        except BaseException:
            for removal in removals:
                removal()
            raise
        self._removals = removals

    def stop(self) -> None:
        """Takes back what was registered. A kernel whose hooks return no removal goes on reporting."""
        if not self._removals:
            return
        for removal in self._removals:
            removal()
        self._removals = None

    def begin(self, rollout_id: str) -> Collected | None:
        """Starts to collect for a rollout; None when that is being done already."""
        with self._lock:
            if rollout_id in self._open:
                return None
            collected = self._open[rollout_id] = Collected(rollout_id)
            return collected

    def end(self, rollout_id: str) -> None:
        """Stops collecting for a rollout."""
        with self._lock:
            self._open.pop(rollout_id, None)

    def _violation(self, *report: Any, **named: Any) -> None:
        rollout_id = _named_rollout(report, named)
        violation = reported_violation(*report, **{key: value for key, value in named.items() if key != "rollout_id"})
        with self._lock:
            collected = self._open.get(rollout_id) if rollout_id is not None else None
            if collected is not None:
                collected.violations.append(violation)
        self._report(violation, rollout_id, collected is not None)

    def _signal(self, *report: Any, **named: Any) -> None:
        rollout_id = _named_rollout(report, named)
        what = report[0] if report else named.get("signal", "")
        name = what if isinstance(what, str) else getattr(what, "name", what)
        with self._lock:
            collected = self._open.get(rollout_id) if rollout_id is not None else None
            if collected is not None:
                collected.signals.append(str(name))


def _named_rollout(report: tuple[Any, ...], named: Mapping[str, Any]) -> str | None:
    for source in (named, *report):
        rollout_id = source.get("rollout_id") if isinstance(source, Mapping) else getattr(source, "rollout_id", None)
        if isinstance(rollout_id, str):
            return rollout_id
    scope = current_scope()
    return None if scope is None else scope.rollout_id


_WORKER_SPAN: Final = "lgov.runner.worker"
_ENVELOPE: Final = frozenset({"input", "mode", "rollout_id", "attempt", "task_id"})


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """One task to run; ``rollout_id`` is None when the store gave none."""

    input: Any
    mode: Any = "train"
    rollout_id: str | None = None
    attempt: int = 1
    task_id: str | None = None


class TaskQueue:
    """The tasks of an object with ``get_task()`` (a task, or None when there is none now) and ``submit_rollout(rollout)``,
    plain or coroutine functions. A task is the input itself, or a mapping with ``input`` and any of ``mode``,
    ``rollout_id``, ``attempt`` and ``task_id`` and nothing else.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    async def next_task(self) -> QueuedTask | None:
        """The next task, or None when there is none now."""
        task = self._store.get_task()
        if inspect.isawaitable(task):
            task = await task
        if isinstance(task, Mapping) and "input" in task and set(task) <= _ENVELOPE:
            return QueuedTask(**{str(key): value for key, value in task.items()})
        return None if task is None else QueuedTask(task)

    async def submit(self, _task: QueuedTask, rollout: GovernedRollout, _worker_id: int | str) -> None:
        """Hands a rollout back."""
        answer = self._store.submit_rollout(rollout)
        if inspect.isawaitable(answer):
            await answer

    def abandon(self, task: QueuedTask, reason: str) -> None:
        """Such a store has no method for it."""


class StoredTasks:
    """The tasks of a `TraceStore`: the rollouts without an attempt, in their order.

    A worker takes one by opening its first attempt, so that several workers and processes never take the same one, and
    closes it with the outcome, the answer, and what policies found.
    """

    def __init__(self, store: TraceStore, run_id: str | None) -> None:
        self._store, self._run_id = store, run_id
        self._waiting: deque[Rollout] = deque()

    async def next_task(self) -> QueuedTask | None:
        """A task that no other worker gets, or None when there is none now."""
        return await asyncio.to_thread(self._next)

    def _next(self) -> QueuedTask | None:
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
            is_wrapped = "input" in rollout.input and set(rollout.input) <= {"input", "mode"}
            task_input = rollout.input["input"] if is_wrapped else rollout.input
            return QueuedTask(task_input, rollout.mode or "train", rollout.rollout_id, task_id=rollout.task_id)
        return None

    async def submit(self, task: QueuedTask, rollout: GovernedRollout, worker_id: int | str) -> None:
        """Closes the attempt of a task."""
        try:
            output = json.loads(json.dumps(rollout.task_output, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            output = str(rollout.task_output)
        result = {
            "output": output,
            "violations": [violation_as_json(violation) for violation in rollout.violations],
            "signals": list(rollout.signals_sent),
            "total_penalty": rollout.total_penalty,
            "worker": str(worker_id),
        }
        finish = partial(self._store.finish_attempt, cast(str, task.rollout_id), task.attempt)
        await asyncio.to_thread(finish, rollout.outcome or Outcome.FAILED, error=rollout.error, result=result)

    def abandon(self, task: QueuedTask, reason: str) -> None:
        """Closes the attempt of a task that is not run to its end; at once, as the caller may be shutting down."""
        self._store.finish_attempt(cast(str, task.rollout_id), task.attempt, Outcome.INFRASTRUCTURE, error=reason)


Tasks: TypeAlias = TaskQueue | StoredTasks


@dataclass(slots=True)
class WorkerCount:
    """The counts of one worker. ``reporter`` tells apart objects and processes that are the same worker by name."""

    rollouts: int = 0
    violations: int = 0
    reporter: str = field(default_factory=lambda: new_id("worker"))

    def as_stats(self) -> dict[str, Any]:
        """The counts in the documented names."""
        return {
            "total_rollouts": self.rollouts,
            "total_violations": self.violations,
            "violation_rate": self.violations / self.rollouts if self.rollouts else 0.0,
        }


class _CountsInTraceStore:
    """Statistics in a `TraceStore`, as spans named ``lgov.runner.worker``; those of one run where ``run_id`` names it."""

    def __init__(self, store: TraceStore, run_id: str | None) -> None:
        self._store = store
        self._where = "runner-statistics" if run_id is None else f"runner-statistics:{run_id}"

    def report(self, worker_id: int | str, count: WorkerCount) -> None:
        now = time.time()
        attributes = {
            "worker": str(worker_id),
            "reporter": f"{count.reporter}-{os.getpid()}",
            "rollouts": count.rollouts,
            "violations": count.violations,
        }
        self._store.add_span(
            Span(_WORKER_SPAN, new_id("span"), now, now, attributes, rollout_id=self._where, attempt=1)
        )

    def reports(self) -> dict[str, WorkerCount]:
        self._store.flush()
        last: dict[tuple[str, str], WorkerCount] = {}
        for span in self._store.spans([self._where]):
            if span.name == _WORKER_SPAN and not span.claimed:
                seen = cast("Mapping[str, Any]", span.attributes)
                latest = last.setdefault((seen["worker"], seen["reporter"]), WorkerCount())
                latest.rollouts = max(latest.rollouts, seen["rollouts"])
                latest.violations = max(latest.violations, seen["violations"])
        total: dict[str, WorkerCount] = {}
        for (worker, _), count in last.items():
            summed = total.setdefault(worker, WorkerCount())
            summed.rollouts += count.rollouts
            summed.violations += count.violations
        return total


class _ReportedCounts:
    """Statistics of an object with ``report_worker(worker_id, stats)`` and ``worker_reports()``, the last ones by worker."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def report(self, worker_id: int | str, count: WorkerCount) -> None:
        stats = {"total_rollouts": count.rollouts, "total_violations": count.violations}
        self._store.report_worker(worker_id, stats)

    def reports(self) -> dict[str, WorkerCount]:
        reports: Mapping[Any, Mapping[str, Any]] = self._store.worker_reports()
        return {
            str(worker): WorkerCount(int(stats["total_rollouts"]), int(stats["total_violations"]))
            for worker, stats in reports.items()
        }


SharedCounts: TypeAlias = _CountsInTraceStore | _ReportedCounts


@dataclass(frozen=True, slots=True)
class _Worker:
    tasks: Tasks | None
    shared: SharedCounts | None
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

    def begin(self, worker_id: int | str, store: Any, run_id: str | None) -> None:
        """Makes the calling thread or task the worker ``worker_id`` of ``store``, with its tasks and statistics, if any."""
        tasks: Tasks | None = None
        shared: SharedCounts | None = None
        if has_methods(store, "get_task", "submit_rollout"):
            tasks = TaskQueue(store)
        elif is_trace_store(store):
            tasks = StoredTasks(store, run_id)
        if has_reports(store):
            shared = _ReportedCounts(store)
        elif is_trace_store(store):
            shared = _CountsInTraceStore(store, run_id)
        with self._lock:
            self._workers[worker_id] = _Worker(tasks, shared, WorkerCount())
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
            if not self._workers and worker.shared is not None:
                self._last = last

    def current(self) -> int | str | None:
        """The worker of this thread or task, else the only one there is, else None."""
        current = self._current.get()
        if current in self._workers:
            return current
        return next(iter(self._workers)) if len(self._workers) == 1 else None

    def tasks(self) -> Tasks | None:
        """Where the worker of this thread or task takes its tasks."""
        current = self.current()
        return None if current is None else self._workers[current].tasks

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
        if worker_id is not None and worker is not None and worker.shared is not None:
            with self._lock:
                count = replace(worker.count)
            worker.shared.report(worker_id, count)

    def stats(self) -> dict[str, Any]:
        """See `GovernedRunner.get_stats`."""
        shared = self.worker_stats()
        if shared:
            rollouts = sum(stats["total_rollouts"] for stats in shared.values())
            violations = sum(stats["total_violations"] for stats in shared.values())
            return WorkerCount(rollouts, violations).as_stats()
        with self._lock:
            return self._last or self._all.as_stats()

    def worker_stats(self) -> dict[str, dict[str, Any]]:
        """See `GovernedRunner.get_worker_stats`."""
        current = self.current()
        shared = None if current is None else self._workers[current].shared
        return {} if shared is None else {worker: count.as_stats() for worker, count in shared.reports().items()}
