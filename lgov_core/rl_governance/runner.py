"""GovernedRunner: runs tasks through a kernel and records on each rollout what the policies found."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from lgov_core.errors import ArgumentError, KernelError, LgovError, PolicyDenied, PolicyViolationError
from lgov_core.rl_governance.adapt import adapt_kernel
from lgov_core.rl_governance.execution import KernelExecution, awaited, function_of
from lgov_core.rl_governance.kernel import KernelSpace
from lgov_core.rl_governance.reports import require_callback, require_done
from lgov_core.rl_governance.rollouts import (
    Collected,
    GovernedRollout,
    QueuedTask,
    RolloutWatch,
    Workers,
    total_penalty,
)
from lgov_core.scope import RolloutScope, carry_into_threads, current_scope, enter_scope
from lgov_core.types import Outcome, PolicyViolation, new_id
from lgov_core.types import PolicyViolationType as PolicyViolationType

#: How many violations that name no rollout are remembered.
UNATTRIBUTED: Final = 1000

_LOG = logging.getLogger(__name__)


class GovernedRunner:
    """Runs tasks through ``kernel``, one rollout a task.

    ``kernel`` is a `KernelSpace` or any other object, a test double too. Its ``execute_async`` or else ``execute`` runs
    the task; without both the agent itself does. ``on_policy_violation`` and ``on_signal`` are used where they are
    there. A kernel with none of these is warned about once, and ``governed`` is False on its rollouts.

    With ``fail_on_violation`` a step whose rollout had an act blocked raises
    `PolicyViolationError`; a lgov kernel also asks that rollout to end at its next point. ``log_violations`` writes a
    warning for each violation. ``violation_callback`` gets each `PolicyViolation`; what it raises is logged and counted
    in ``callback_errors``.

    Each violation is attributed to the rollout whose code caused it, also from threads, executors and child tasks. One
    that names no rollout is counted and kept in ``unattributed``. Steps may overlap, in tasks and in
    threads. ``worker_id`` and ``store`` are those of the last `init_worker`.
    """

    def __init__(
        self,
        kernel: Any,
        fail_on_violation: bool = False,
        log_violations: bool = True,
        violation_callback: Callable[[PolicyViolation], Any] | None = None,
    ) -> None:
        if violation_callback is not None:
            require_callback(violation_callback)
        for option, value in (("fail_on_violation", fail_on_violation), ("log_violations", log_violations)):
            if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentError(f"{option} must be True or False, not {value!r}")
        self.kernel = kernel
        self.fail_on_violation = fail_on_violation
        self.log_violations = log_violations
        self.violation_callback = violation_callback
        self.agent: Any = None
        self.worker_id: int | str | None = None
        self.store: Any = None
        self.unattributed: deque[PolicyViolation] = deque(maxlen=UNATTRIBUTED)
        self.callback_errors = 0
        self._workers = Workers()
        self._of_rollout: dict[str, int | str | None] = {}
        self._finished: WeakValueDictionary[str, GovernedRollout] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._kernel = adapt_kernel(kernel)
        self._watch = RolloutWatch(self._kernel, report=self._reported)
        self._space = kernel if isinstance(kernel, KernelSpace) else None
        carry_into_threads()

    # ------------------------------------------------------------------ life

    def init(self, agent: Any, **_options: Any) -> None:
        """Sets the agent that steps run. Without it a step gives the task to the kernel alone.

        Raises `KernelError` for an agent that cannot be called.
        """
        if self._space is not None and agent is not None:
            function_of(agent)
        self.agent = agent
        self._watch.listen()

    def init_worker(
        self, worker_id: int | str, store: Any = None, *, run_id: str | None = None, **_options: Any
    ) -> None:
        """Makes the calling thread or task the worker ``worker_id`` of ``store``, from which `iter` takes tasks.

        One object may hold several workers: each belongs to the thread or task that called this. Through the store the
        workers share their statistics, with ``run_id`` those of one run. ``store`` is a `TraceStore` (see `StoredTasks`), or
        an object with ``get_task`` and ``submit_rollout`` (see `TaskQueue`) or with ``report_worker(worker_id, stats)`` and
        ``worker_reports()``. Any other object has neither tasks nor statistics.
        """
        self.worker_id, self.store = worker_id, store
        self._workers.begin(worker_id, store, run_id)

    def teardown_worker(self, worker_id: int | str) -> None:
        """Hands the last statistics of a worker to its store. Does nothing for one that is not open."""
        self._workers.end(worker_id)

    def teardown(self) -> None:
        """Logs the totals, stops listening to the kernel and lets go of the agent. Statistics stay; `init` begins again."""
        stats = self.get_stats()
        _LOG.info("%d rollouts, %d policy violations", stats["total_rollouts"], stats["total_violations"])
        for worker_id in self._workers.ids:
            self.teardown_worker(worker_id)
        self._watch.stop()
        self.agent = None

    # ------------------------------------------------------------------ running

    async def step(
        self, input: Any, *, resources: Any = None, mode: str | None = None, event: Any = None, **_options: Any
    ) -> GovernedRollout:
        """Runs one task and returns its rollout. ``resources``, ``event`` and keywords of other trainers are ignored.

        ``mode`` (None: ``"train"``) is kept on the rollout. The rollout is the current
        one (`current_scope`), unless that is already being run here; then, and outside any, it is a new one. What the
        agent or the kernel raises becomes a rollout without success. Raises `PolicyViolationError` under
        ``fail_on_violation``.
        """
        here = current_scope()
        collected = None if here is None else self._watch.begin(here.rollout_id)
        if here is not None and collected is not None:
            return await self._step(input, replace(here, mode=mode or here.mode), collected, own=False)
        fresh = RolloutScope(new_id("rollout"), session_id=None if here is None else here.session_id, mode=mode)
        return await self._step(input, fresh, self._begun(fresh), own=True)

    def _begun(self, scope: RolloutScope) -> Collected:
        collected = self._watch.begin(scope.rollout_id)
        if collected is None:
            raise ArgumentError(f"rollout {scope.rollout_id} is being run already", hint="give each run its own id")
        return collected

    async def _step(self, task_input: Any, scope: RolloutScope, collected: Collected, *, own: bool) -> GovernedRollout:
        worker_id = self._workers.current()
        try:
            self._watch.listen()
            call = self._call(task_input, scope if own else None)
            self._of_rollout[scope.rollout_id] = worker_id
            began = time.perf_counter()
            with enter_scope(scope):
                output, outcome, error = await _ended(call)
            if isinstance(output, KernelExecution):
                output, outcome = output.output, output.outcome
            elif outcome is Outcome.SUCCEEDED and any(violation.blocks for violation in collected.violations):
                outcome = Outcome.BLOCKED  # whether another kernel ran the rest is unknown
            if isinstance(error, PolicyViolationError):
                violation = error.violation
                if not any(other is violation for other in collected.violations):
                    collected.violations.append(violation)
                    self._note(violation, collected.rollout_id)
            rollout = GovernedRollout(
                task_input=task_input,
                task_output=output,
                success=outcome is Outcome.SUCCEEDED,
                violations=collected.violations,
                signals_sent=collected.signals,
                execution_time_ms=(time.perf_counter() - began) * 1000,
                outcome=outcome,
                error=None if error is None else f"{type(error).__name__}: {error}",
                rollout_id=scope.rollout_id,
                mode=scope.mode or "train",
                governed=self._kernel.governed,
            )
            with self._lock:  # before collecting ends, so that a report in between finds one or the other
                self._finished[scope.rollout_id] = rollout
        finally:
            self._watch.end(scope.rollout_id)
            self._of_rollout.pop(scope.rollout_id, None)
            if self._space is not None:
                self._space.forget_signals(scope.rollout_id, automatic_only=not own)
        with self._lock:
            rollout.total_penalty = total_penalty(rollout.violations)
        self._workers.count(worker_id, rollouts=1)
        self._workers.report(worker_id)
        if error is not None and outcome is not Outcome.BLOCKED:
            _LOG.warning("rollout %s failed: %s", scope.rollout_id, rollout.error)
        if self.fail_on_violation:
            for violation in rollout.violations:
                if violation.blocks:
                    refused = PolicyViolationError(violation)
                    refused.rollout = rollout  # type: ignore[attr-defined]
                    raise refused
        return rollout

    def _call(self, task_input: Any, own: RolloutScope | None) -> Callable[[], Any]:
        """How the kernel is called for one task: with the agent when there is one."""
        if (space := self._space) is not None:
            return lambda: space.run_async(self.agent, task_input, scope=own)
        execute = self._kernel.method("execute_async") or self._kernel.method("execute")
        if execute is None:

            def run_agent() -> Any:
                if self.agent is None:
                    what = "there is neither a kernel that runs tasks nor an agent"
                    raise KernelError(what, hint="call init(agent) first")
                return awaited(function_of(self.agent, prefer_async=True)(task_input))

            return run_agent
        if self.agent is not None:
            return lambda: execute(self.agent, task_input)
        try:
            inspect.signature(execute).bind(task_input)
        except TypeError:
            return lambda: execute(None, task_input)
        except ValueError:  # a built-in without a signature
            pass
        return lambda: execute(task_input)

    async def iter(self, *, event: Any = None) -> None:
        """Takes tasks from the worker's store, runs them and hands their rollouts back.

        Ends when ``event`` (an ``asyncio.Event`` or ``threading.Event``) is set, or no task is left. A task that raises
        under ``fail_on_violation`` is handed back as blocked, and the next is taken. Without a store that has tasks it
        warns and ends.
        """
        worker_id, tasks = self._workers.current(), self._workers.tasks()
        if worker_id is None or tasks is None:
            _LOG.warning("there is no store to take tasks from: call init_worker(worker_id, store) first")
            return
        while event is None or not event.is_set():
            task = await tasks.next_task()
            if task is None:
                return
            try:
                rollout = await self._run_task(task)
            except BaseException as error:
                tasks.abandon(task, f"{type(error).__name__}: {error}")
                raise
            await tasks.submit(task, rollout, worker_id)
            await asyncio.sleep(0)  # lets the code that sets the event run

    async def _run_task(self, task: QueuedTask) -> GovernedRollout:
        scope = RolloutScope(task.rollout_id or new_id("rollout"), task.attempt, task_id=task.task_id, mode=task.mode)
        try:
            return await self._step(task.input, scope, self._begun(scope), own=True)
        except PolicyViolationError as error:
            rollout = getattr(error, "rollout", None)
            if not isinstance(rollout, GovernedRollout):
                raise
            return rollout

    # ------------------------------------------------------------------ violations

    def _reported(self, violation: PolicyViolation, rollout_id: str | None, collected: bool) -> None:
        """Records a violation; ``collected``: it is on the list of a running rollout already."""
        with self._lock:
            late = None if collected or rollout_id is None else self._finished.get(rollout_id)
            if rollout_id is None:
                self.unattributed.append(violation)
            elif late is not None:
                late.violations.append(violation)
                late.total_penalty = total_penalty(late.violations)
            elif not collected:
                return  # of another user of the same kernel
        self._note(violation, rollout_id)
        if collected and self.fail_on_violation and violation.blocks and self._space is not None:
            self._space.signal(rollout_id, "SIGTERM", automatic=True)

    def _note(self, violation: PolicyViolation, rollout_id: str | None) -> None:
        self._workers.count(self._of_rollout.get(rollout_id or ""), violations=1)
        if self.log_violations:
            _LOG.warning(
                "policy violation: %s: %s (severity %s, %s)",
                violation.policy_name,
                violation.description,
                violation.severity,
                "blocked" if violation.blocks else "not blocked",
            )
        if self.violation_callback is not None:
            try:
                require_done(self.violation_callback(violation))
            except Exception:  # noqa: BLE001 - the violation is recorded all the same
                with self._lock:
                    self.callback_errors += 1
                _LOG.exception("the violation callback failed")

    # ------------------------------------------------------------------ statistics

    def get_stats(self) -> dict[str, Any]:
        """``total_rollouts``, ``total_violations`` and ``violation_rate`` (violations a rollout; may exceed 1).

        With a store that keeps statistics these are those of all its workers, in all processes; `get_worker_stats` has
        them apart. Otherwise, those of this object.
        """
        return self._workers.stats()

    def get_worker_stats(self) -> dict[str, dict[str, Any]]:
        """The statistics of every worker that shares this one's store, by worker id; empty without such a store."""
        return self._workers.worker_stats()

    def get_violation_rate(self) -> float:
        """Violations a rollout; 0.0 before the first."""
        return self.get_stats()["violation_rate"]


#: The name that the integration contributed to agent-lightning used.
AgentOSRunner = GovernedRunner


async def _ended(call: Callable[[], Any]) -> tuple[Any, Outcome, Exception | None]:
    """Output, outcome and error of one call of a kernel."""
    try:
        result = call()
        if inspect.isawaitable(result):
            result = await result
    except (PolicyViolationError, PolicyDenied) as error:
        return None, Outcome.BLOCKED, error
    except TimeoutError as error:
        return None, Outcome.TIMEOUT, error
    except (ConnectionError, MemoryError, LgovError) as error:
        return None, Outcome.INFRASTRUCTURE, error
    except Exception as error:  # noqa: BLE001 - a rollout that failed is a result; a cancellation goes on
        return None, Outcome.FAILED, error
    return result, Outcome.SUCCEEDED, None
