"""Server and client in one process: a training (``lgov train``), and rollouts without one (``lgov models eval``, prompts)."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lgov_core.client import Client, TrainResult
from lgov_core.client.attempts import Agent, AgentRunner
from lgov_core.client.tasks import agent_file, load_agent, read_tasks
from lgov_core.client.wire import Assignment, Report
from lgov_core.client.workers import ThreadWorkers
from lgov_core.errors import counted
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer
from lgov_core.server.command import ENDING, interrupted
from lgov_core.server.coordinator import Failures, KeyInPath, model_path, take_further_tasks, with_failure
from lgov_core.server.recipe import agent_name_of, client_options, task_file
from lgov_core.server.training import ServerOptions, TrainingServer
from lgov_core.store import TraceStore, open_store
from lgov_core.train.algorithms.algorithms import Algorithm
from lgov_core.train.loop.run_files import read_metrics, train_lines
from lgov_core.train.settings import TrainingJob, TrainSettings
from lgov_core.types import Rollout


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How rollouts run: ``workers`` at a time, each attempt for ``timeout_s`` seconds, at most ``max_attempts`` times."""

    workers: int
    timeout_s: float
    max_attempts: int = 1


class LocalRollouts:
    """Has rollouts run by threads of this process, without a training; made by `open_rollouts`. For one thread.

    ``store`` has every attempt.
    """

    def __init__(
        self,
        store: TraceStore,
        runner: AgentRunner,
        plan: RolloutPlan,
        model: str,
        url: str,
        keys: KeyRing,
        failures: Failures,
    ) -> None:
        self.store = store
        self._runner, self._plan, self._model, self._url, self._keys = runner, plan, model, url, keys
        self._failures = failures

    def run(
        self, rollouts: Sequence[Rollout], result: Mapping[str, Any] | None = None
    ) -> Generator[tuple[Rollout, Report, int]]:
        """Yields each rollout with its last report and the number of its last attempt, in the order in which they end.

        ``result`` is stored with each attempt. One that cannot be used, because of a machine or a time limit, is tried again.
        Once the generator is closed, or has raised, nothing more is begun; what runs goes on in a daemon thread, and nothing
        of it is kept.
        """
        self.store.add_rollouts(rollouts)
        by_id = {rollout.rollout_id: rollout for rollout in rollouts}
        ended: queue.SimpleQueue[tuple[Assignment, Report]] = queue.SimpleQueue()
        workers = ThreadWorkers(self._runner, self._plan.workers, lambda *report: ended.put(report))
        waiting = deque((rollout, 1) for rollout in rollouts)
        running = 0
        try:
            while waiting or running:
                while waiting and running < self._plan.workers:
                    workers.give(self._begin(*waiting.popleft()))
                    running += 1
                assignment, report = ended.get()
                running -= 1
                rollout, attempt = by_id[assignment.rollout_id], assignment.attempt
                report = with_failure(report, self._failures.get(assignment.key))
                if report.spans:
                    self.store.add_spans(report.spans)
                self.store.finish_attempt(
                    rollout.rollout_id, attempt, report.outcome, error=report.error, rewards=report.rewards,
                    result={**report.result, "counts": dict(report.counts), **(result or {})},
                )  # fmt: skip
                if report.outcome.trainable or attempt >= self._plan.max_attempts:
                    yield rollout, report, attempt
                else:
                    waiting.appendleft((rollout, attempt + 1))
        finally:
            workers.close()

    def _begin(self, rollout: Rollout, attempt: int) -> Assignment:
        payload: Any = rollout.input
        timeout_s = self._plan.timeout_s
        self.store.start_attempt(rollout.rollout_id, attempt)
        address = self._url + model_path(self._keys, rollout.rollout_id, attempt, timeout_s)
        return Assignment(
            rollout.rollout_id, attempt, rollout.task_id, payload["mode"], payload["task"], address, self._model, timeout_s
        )  # fmt: skip


@contextlib.contextmanager
def open_rollouts(
    engine: Engine, folder: Path, open_runner: Callable[[str], AgentRunner], *, model: str, plan: RolloutPlan
) -> Generator[LocalRollouts]:
    """Serves ``engine`` in this process and opens the runner of an agent for its address; ``folder`` gets ``store.sqlite``."""
    keys = KeyRing(required=False)
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(contextlib.closing(open_store(str(folder / "store.sqlite"))))
        app = create_app([engine], store, keys=keys)
        server = opened.enter_context(EndpointServer(cast("Any", KeyInPath(app))))
        runner = opened.enter_context(contextlib.closing(open_runner(server.url)))
        yield LocalRollouts(store, runner, plan, model, server.url, keys, app.state.failures)


def run_local(job: TrainingJob) -> Mapping[str, Any]:
    """Trains with the agent of ``job`` and returns the result's figures. Raises `LgovError`.

    Ctrl-C becomes a KeyboardInterrupt that says what is kept and how to continue.
    """
    settings = job.settings
    name = agent_name_of(job)
    if settings.data.train is not None or not job.resume:
        tasks = read_tasks(task_file(job))  # before anything heavy is loaded: a broken line is reported at once
        if job.resume:
            test = None if settings.data.test is None else read_tasks(settings.data.test)
            take_further_tasks(job.folder, tasks, test)
    agent = load_agent(name)
    job.say(f"loading {settings.model.name or 'the model'}; everything goes to {job.folder}")
    server: TrainingServer | None = None
    try:
        options = ServerOptions(store=job.traces, mounted=job.mounted, extends=True, agent=agent_file(name))
        with serving(settings, job.folder, options=options, resume=job.resume) as server:
            if server.is_complete:
                job.say(f"nothing left to do: {server.updates} of {counted(server.updates, 'update')}")
                result = TrainResult("", read_metrics(job.folder / "metrics.jsonl"))
            else:
                result = _trained(job, agent, server)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(interrupted(job.folder, None if server is None else server.updates)) from None
    return {
        "folder": str(job.folder),
        "updates": result.updates,
        "reward": result.curves.get("reward", []),
        "held_out_reward": result.test_curves.get("reward", []),
        "counts": dict(result.counts),
        "warnings": dict(([{}, *train_lines(result.metrics)][-1]).get("warnings") or {}),
    }


def _trained(job: TrainingJob, agent: Agent, server: TrainingServer) -> TrainResult:
    settings = job.settings
    # An agent in a box is not trusted with what is kept of it: its spans are claims.
    first_hand = None if settings.runtime.confine else server.first_hand_key
    client = Client(server.url, exit_on_interrupt=False, first_hand=first_hand)
    try:
        # One that was interrupted before it had any tasks gets them now; what a resumed one has was compared before.
        if settings.data.train is not None and not (job.resume and server.coordinator.tasks.of("train")):
            client.upload_data(settings.data.train, settings.data.test)
        return client.train(agent, **client_options(settings, job.folder))
    except KeyboardInterrupt:
        job.say(ENDING)
        raise


@contextlib.contextmanager
def serving(
    settings: TrainSettings,
    folder: Path,
    *,
    options: ServerOptions | None = None,
    resume: bool = False,
    algorithm: Algorithm | None = None,
    engines: Sequence[Engine] = (),
) -> Generator[TrainingServer]:
    """A training server of this process that trains in a thread of its own; ended, with a checkpoint, after the block.

    A KeyboardInterrupt while the update in progress ends gives that update up. The parameters are those of `TrainingServer`.
    """
    stop = threading.Event()
    with TrainingServer(
        settings, folder=folder, options=options, resume=resume, algorithm=algorithm, engines=engines
    ) as server:
        thread = threading.Thread(target=server.serve, args=(stop,), name="lgov-train", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            try:
                thread.join()
            except KeyboardInterrupt:
                server.give_up()
                thread.join()
                raise
