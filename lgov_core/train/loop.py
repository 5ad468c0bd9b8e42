"""The loop: collect rollouts, make transitions, assign credit, update, publish, checkpoint; and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from lgov_core.store.protocol import TraceStore
from lgov_core.train.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint, save_weights
from lgov_core.train.jobs import JobResult
from lgov_core.train.policy_model import PolicyModel
from lgov_core.train.rows import make_rows
from lgov_core.train.update import PolicyUpdate, UpdateMetrics
from lgov_core.transitions import (
    CreditRules,
    Selection,
    assign_credit,
    build_transitions,
    rollout_returns,
    write_parquet,
)
from lgov_core.types import Rollout, new_id


class Publisher(Protocol):
    """Serves weights: the embedded engine, or whatever stands for it."""

    @property
    def weights_version(self) -> int:
        """How many times weights were published."""
        ...

    def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Swaps weights in without dropping a call; returns the version now served."""
        ...


class Collector(Protocol):
    """Has rollouts run by agents: worker processes here (`WorkerPool`), or workers elsewhere that ask for work."""

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[JobResult]:
        """Adds the rollouts to the store, waits until all have ended, and returns a result for each, in their order.

        ``progress(done, total)`` is called as they end. Raises `TrainError` when they cannot be run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One task: ``task_id`` names the group, ``payload`` is what the episode runner gets (JSON values)."""

    task_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One turn of the loop. Durations in seconds; ``mean_return`` after the AIR bound, over usable rollouts."""

    step: int
    results: Sequence[JobResult]
    mean_return: float
    update: UpdateMetrics
    diagnostics: Mapping[str, int]
    collect_s: float
    update_s: float

    def metrics(self) -> dict[str, Any]:
        """All numbers of this iteration as plain JSON values."""
        return {
            "step": self.step,
            "rollouts": len(self.results),
            "mean_return": self.mean_return,
            "collect_s": round(self.collect_s, 3),
            "update_s": round(self.update_s, 3),
            "diagnostics": dict(self.diagnostics),
            **asdict(self.update),
        }


class TrainingLoop:
    """Owns the order of things; every stage is a value or a function that can be used without it.

    ``folder`` gets ``checkpoints/``, ``transitions/step-NNNNNN.parquet`` and, with ``keep_weights``, every version of the
    trained weights in ``weights/``. ``selection`` says whose calls are trained on: those of some agents, say, while others
    stay as they are (everything, unless given). Call from one thread.
    """

    def __init__(
        self,
        *,
        run_id: str,
        policy: PolicyModel,
        learner: PolicyUpdate,
        engine: Publisher,
        store: TraceStore,
        pool: Collector,
        folder: Path,
        credit: CreditRules | None = None,
        selection: Selection | None = None,
        checkpoint_every: int = 5,
        keep_weights: bool = False,
    ) -> None:
        self.run_id = run_id
        self.policy = policy
        self.learner = learner
        self.engine = engine
        self.store = store
        self.pool = pool
        self.folder = folder
        self.credit = credit or CreditRules()
        self.selection = selection or Selection()
        self.checkpoint_every = checkpoint_every
        self.keep_weights = keep_weights
        self.done = 0

    def resume(self) -> int:
        """Goes on from the newest checkpoint, if there is one; returns how many updates are done."""
        found = latest_checkpoint(self.folder / "checkpoints")
        if found is not None:
            self.policy.load(found.weights)
            self.learner.load_state_dict(found.optimizer)
            self.done = found.step
            # Calls of the interrupted run may carry later versions; a number never stands for two sets of weights.
            used = max((call.weights_version or 0 for call in self.store.calls()), default=0)
            self._publish(max(used, self.engine.weights_version) + 1)
        return self.done

    def collect(
        self, tasks: Sequence[Task], group: int, progress: Callable[[int, int], None] | None = None
    ) -> list[JobResult]:
        """Runs ``group`` rollouts of every task; results in the order of tasks."""
        rollouts = [
            Rollout(new_id("ro"), task.task_id, self.run_id, dict(task.payload)) for task in tasks for _ in range(group)
        ]
        return self.pool.collect_rollouts(rollouts, progress)

    def iterate(
        self, tasks: Sequence[Task], group: int, progress: Callable[[str, int, int], None] | None = None
    ) -> Iteration:
        """Collects, updates, publishes. A checkpoint is written every ``checkpoint_every`` steps.

        ``progress(stage, done, total)`` is called as the stages go on.
        """
        report = progress or (lambda stage, done, total: None)
        began = time.monotonic()
        results = self.collect(tasks, group, lambda done, total: report("rollouts", done, total))
        collected = time.monotonic()
        data = build_transitions(self.store, [result.job.rollout_id for result in results], self.selection)
        data = assign_credit(data, self.credit)
        returns = rollout_returns(data.transitions, self.credit)
        update = self.learner.update(make_rows(data.transitions), lambda done, total: report("update", done, total))
        self.done += 1
        self._publish(None)
        write_parquet(data.transitions, self.folder / "transitions" / f"step-{self.done:06d}.parquet")
        if self.done % self.checkpoint_every == 0:
            self.checkpoint()
        return Iteration(
            step=self.done,
            results=results,
            mean_return=sum(returns.values()) / len(returns) if returns else 0.0,
            update=update,
            diagnostics=data.counts(),
            collect_s=collected - began,
            update_s=time.monotonic() - collected,
        )

    def _publish(self, version: int | None) -> None:
        served = self.engine.publish(self.policy.served(), version)
        if self.keep_weights:
            save_weights(self.folder / "weights", served, self.policy.weights())

    def checkpoint(self) -> Path:
        """Writes the state as it is now."""
        state = Checkpoint(self.done, self.policy.weights(), self.learner.state_dict(), {"run_id": self.run_id})
        return save_checkpoint(self.folder / "checkpoints", state)
