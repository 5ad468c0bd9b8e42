"""A worker process: reads jobs from standard input, runs agents under governance, reports on standard output.

Started by `lgov_core.train.workers.pool.WorkerPool`. Ends with its input, so it does not outlive its parent.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NoReturn

from lgov_core import air
from lgov_core.air import AirPlugin, AirRules, RuleSet
from lgov_core.audit import AuditLog
from lgov_core.errors import InstrumentationError, StoreError
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.policies import load_policy_file
from lgov_core.process.governed import end_process, installed_adapters, say
from lgov_core.process.import_guard import FrameworkGuard
from lgov_core.scope import RolloutScope, carry_into_threads
from lgov_core.store import TraceStore, open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.train.workers.failures import DENIED_BY_FAILURE, outcome_of
from lgov_core.train.workers.jobs import Episode, EpisodeRunner, Job, WorkerConfig
from lgov_core.train.workers.lines import send, take_standard_streams
from lgov_core.types import Outcome, Point, Severity

#: A denial of less severity says that a call could not be read (broken SQL, wrong arguments), not that it was dangerous.
_VIOLATIONS = frozenset({Severity.HIGH, Severity.CRITICAL})


class Tally:
    """Counts per attempt what the governor decided: model calls let through, tool calls, and violations attempted.

    ``faults`` counts what was denied because a policy failed or the decision could not be put on record.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str | None, int | None], Counter[str]] = {}

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Counts one decision. In shadow mode what would have been blocked counts as denied."""
        if not isinstance(event, ObservedDecision):
            return
        action, decision = event.action, event.decision
        with self._lock:
            counts = self._counts.setdefault((action.rollout_id, action.attempt), Counter())
            if decision.blocks and decision.fault:
                counts["faults"] += 1
            elif action.point is Point.PRE_MODEL_CALL and not decision.blocks:
                counts["model_calls"] += 1
            elif action.point is Point.PRE_TOOL_CALL:
                counts["tool_calls"] += 1
                blocking = [part for part in decision.parts or (decision,) if part.blocks and not part.fault]
                counts["denied"] += bool(blocking)
                counts["violations"] += any(part.severity in _VIOLATIONS for part in blocking)

    def take(self, rollout_id: str, attempt: int) -> dict[str, int]:
        """Removes and returns the counts of an attempt."""
        with self._lock:
            return dict(self._counts.pop((rollout_id, attempt), Counter()))


class Worker:
    """One process's share of the rollouts."""

    def __init__(self, config: WorkerConfig, output: int) -> None:
        self.config = config
        self.output = output
        policies = load_policy_file(config.policy)
        if config.shadow:
            policies = policies.in_shadow()
        self.store: TraceStore = open_store(config.store)
        self.audit = AuditLog(config.audit, policy_digest=policies.digest or "")
        self.tally = Tally()
        # The set in use: rules that the agent's program registers when it is imported are added to it.
        rules = air.use(RuleSet(base=AirRules(**config.air)))
        plugins = [AirPlugin(rules), StoreSink(self.store), self.tally]
        self.governor = Governor(policies, plugins=plugins, audit=self.audit)
        os.environ["OPENAI_BASE_URL"] = os.environ["LGOV_ENDPOINT"] = config.endpoint
        os.environ.setdefault("OPENAI_API_KEY", "lgov")
        carry_into_threads()
        govern_imports(self.governor, _refuse)
        module, _, function = config.factory.partition(":")
        self.runner: EpisodeRunner = getattr(importlib.import_module(module), function)(config.options)

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Runs every job that is read, all at once, until the input ends."""
        send(self.output, {"ready": True})
        running: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = asyncio.create_task(self.attempt(Job(**json.loads(line))))
            running.add(task)
            task.add_done_callback(running.discard)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=5)

    async def attempt(self, job: Job) -> None:
        """Runs one job, closes its attempt in the store, and reports it; as infrastructure when the store cannot be
        written.
        """
        try:
            await asyncio.to_thread(self.store.start_attempt, job.rollout_id, job.attempt)
            episode = await self._run(job)
            counts = self.tally.take(job.rollout_id, job.attempt)
            if counts.pop("faults", 0):
                episode = replace(episode, outcome=Outcome.INFRASTRUCTURE, rewards=(), error=DENIED_BY_FAILURE)
            await asyncio.to_thread(
                self.store.finish_attempt,
                job.rollout_id,
                job.attempt,
                episode.outcome,
                error=episode.error,
                result=dict(episode.result),
                rewards=episode.rewards,
            )
        except StoreError as error:
            episode = Episode(Outcome.INFRASTRUCTURE, error=f"StoreError: {error}")
            counts = self.tally.take(job.rollout_id, job.attempt)
            await asyncio.to_thread(self._close_unstored, job, episode)
        said = {"outcome": episode.outcome, "result": dict(episode.result), "error": episode.error, "counts": counts}
        send(self.output, {"job": asdict(job), **said})

    def _close_unstored(self, job: Job, episode: Episode) -> None:
        try:
            self.store.finish_attempt(job.rollout_id, job.attempt, episode.outcome, error=episode.error)
        except StoreError:
            # Still full, or never opened. What stays open is closed when the store is opened for the next run.
            return

    async def _run(self, job: Job) -> Episode:
        scope = RolloutScope(job.rollout_id, job.attempt, task_id=job.task_id)
        deadline = asyncio.timeout(self.config.timeout_s)
        try:
            async with self.governor.arollout(scope), deadline:
                return await self.runner.run(job)
        except Exception as error:  # noqa: BLE001 - whatever an agent raises is an outcome, recorded
            outcome, said = outcome_of(error)
            if outcome is Outcome.TIMEOUT and deadline.expired():
                said = f"not done after {self.config.timeout_s:g} s"
            return Episode(outcome, error=said)


def govern_imports(governor: Governor, refuse: Callable[[str], NoReturn]) -> FrameworkGuard:
    """Governs every framework that the agent imports before the import returns; returns the guard that does it.

    Unused frameworks are not loaded: that takes seconds. One that cannot be governed is reported to ``refuse``, which
    must end the process. Raises `InstrumentationError` when no governable framework is installed: a worker must not run
    ungoverned agents.
    """
    adapters = installed_adapters(governor.manager)
    installed = [adapter for adapter in adapters if adapter.installed()]
    if not any(adapter.surface for adapter in installed):
        names = ", ".join(adapter.name for adapter in installed) or "none"
        raise InstrumentationError(
            f"no framework here can be governed (installed but not governable: {names})",
            hint='pip install "lgov[langchain]"',
        )
    guard = FrameworkGuard(adapters, lambda: governor, refuse)
    guard.install()
    return guard


def _refuse(reason: str) -> NoReturn:
    """Ends the worker, which must not run ungoverned agents. The pool does not replace it."""
    end_process(lambda: say(reason))


async def _main(jobs: int, output: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(jobs, "rb"))
    worker = Worker(WorkerConfig(**json.loads(await reader.readline())), output)
    try:
        await worker.serve(reader)
    finally:
        worker.store.close()
        worker.audit.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # A tool that hangs in a thread must not keep an unneeded process alive: the interpreter's own end would
    # wait for that thread.
    os._exit(0)


def main() -> None:
    """Entry point of ``python -m lgov_core.train.workers.worker``."""
    # Ctrl-C reaches the whole process group; the parent decides when workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_main(*take_standard_streams()))


if __name__ == "__main__":
    main()
