"""The part of training that outlives the process: every batch becomes exactly one update, however often the run is
killed.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from lgov_core.errors import TrainError
from lgov_core.gateway.protocol import EngineControl, paused
from lgov_core.train.algorithms.algorithms import MOST_MOVED
from lgov_core.train.layout.rows import TrainRow, make_rows
from lgov_core.train.loop.checkpoint import (
    Checkpoint,
    Seal,
    best_checkpoint,
    complete_checkpoints,
    latest_checkpoint,
    mark_best,
    save_checkpoint,
    save_weights,
)
from lgov_core.train.loop.figures import collapse
from lgov_core.train.loop.lineage import weights_digest
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.run_files import (
    BatchRecord,
    MetricsLog,
    discard_batch,
    read_batch,
    train_lines,
    write_batch,
)
from lgov_core.transitions import CreditRules, Transition, TransitionSet

Progress = Callable[[int, int], None]
#: Updates whose returns are averaged at least, to rate a checkpoint.
_LAST: Final = 5
#: The figure of a batch that says which weights were the newest when its update began.
_VERSION = "learns_from_version"
#: The figure of a batch that says how many updates were planned.
_TOTAL = "updates_planned"


class Learner(Protocol):
    """Makes updates, such as `PolicyUpdate`: the same state and rows give the same weights. ``planned`` is their number."""

    planned: int | None

    def credit(self, data: TransitionSet, rules: CreditRules) -> TransitionSet:
        """`assign_credit` by ``rules``, after a critic, where the learner has one, has valued each turn."""
        ...

    def update(self, rows: Sequence[TrainRow], progress: Progress | None = None, *, version: int | None = None) -> Any:
        """One update of the policy's weights in place; returns its metrics, a dataclass. Raises `TrainError`.

        ``version`` is that of the current weights; calls with an older version are stale.
        """
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """All it needs to continue, besides the policy's weights; tensors and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned."""
        ...


@dataclass(frozen=True, slots=True)
class Resumed:
    """The state that a run resumed from. ``checkpoint`` is the step of the checkpoint (0: none), ``step`` the number of updates
    made.

    ``replayed`` updates were made again from their recorded batches; ``acknowledged`` of these had been reported
    before, and ``differing`` of those gave other weights now (other settings, or another machine).
    """

    checkpoint: int
    step: int
    replayed: int
    acknowledged: int
    differing: int


@dataclass(eq=False, kw_only=True)
class TrainingRun:
    """Owns a run's folder and the order in which things become durable.

    Of each update: the batch (``transitions/step-NNNNNN.parquet`` and ``.json``), the update, the publication of its
    weights, every ``checkpoint_every`` updates a checkpoint, and last its line in ``metrics.jsonl``, which acknowledges
    it. A run that is killed loses no batch and repeats no update: `resume` loads the newest checkpoint and replays the
    batches after it.

    With ``pause_updates`` the engine is paused during every update, which then has the machine to itself.

    ``keep`` checkpoints stay beside the best one; ``keep_weights`` keeps every served version in ``weights/``. ``rows``
    lays transitions out for the learner. ``seal`` is called with each checkpoint and its folder before it counts
    (`Lineage.seal`). Call from one thread at a time.
    """

    run_id: str
    policy: PolicyModel
    learner: Learner
    engine: EngineControl
    folder: Path
    rows: Callable[[Sequence[Transition]], list[TrainRow]] = make_rows
    checkpoint_every: int = 5
    keep: int = 2
    keep_weights: bool = False
    seal: Seal | None = None
    pause_updates: bool = False
    #: How many updates are planned, where a schedule needs that: it is in the record of each batch.
    total: int | None = None

    def __post_init__(self) -> None:
        self.batches, self.checkpoints = self.folder / "transitions", self.folder / "checkpoints"
        self.metrics = MetricsLog(self.folder / "metrics.jsonl")
        self.done = 0
        self._begun = False
        self._saved = -1
        self._updating = False
        self._line: dict[str, Any] = {}
        self._returns: deque[float] = deque(maxlen=max(self.checkpoint_every, _LAST))

    @property
    def line(self) -> dict[str, Any]:
        """The line of the last update, as in ``metrics.jsonl``."""
        return {"phase": "train", "step": self.done, **self._line}

    def resume(self, *, used_version: int = 0, progress: Progress | None = None) -> Resumed:
        """Continues where the run ended; call it before anything else.

        ``used_version`` is the highest version of weights on record: weights not known to be those of a version get a
        higher one, because a version number never names two sets of weights. ``progress(done, total)`` counts the
        passes of replayed updates. Adds a line with the phase ``resume`` if there was anything to continue. Raises
        `TrainError` for a damaged checkpoint or batch.
        """
        self._begun = True
        self.metrics.repair()
        lines = {line["step"]: line for line in self.metrics.lines() if line.get("phase") == "train"}
        checkpoint = latest_checkpoint(self.checkpoints)
        if checkpoint is not None:
            self.policy.load(checkpoint.weights)
            self.learner.load_state_dict(checkpoint.state)
            self.done = self._saved = checkpoint.step
            line = checkpoint.extra.get("metrics")
            if line and checkpoint.step not in lines:
                self.metrics.add("train", checkpoint.step, line)
        start, acknowledged, differing = self.done, 0, 0
        while (batch := read_batch(self.batches, self.done + 1)) is not None:
            record, transitions = batch
            reported = lines.get(record.step)
            self._update(record, transitions, progress)
            if reported is None:
                self.metrics.add("train", record.step, self._line)
            else:
                acknowledged += 1
                differing += reported.get("weights_sha256") not in (None, self._line["weights_sha256"])
        resumed = Resumed(start, self.done, self.done - start, acknowledged, differing)
        if self.done:
            last = lines.get(self.done, {})
            version = last.get("weights_version") if last.get("weights_sha256") == self._digest() else None
            if not isinstance(version, int) or version <= self.engine.weights_version:
                served = [line.get("weights_version") or 0 for line in lines.values()]
                version = max([used_version, self.engine.weights_version, *served]) + 1
            self._publish(version)
            self.metrics.add("resume", self.done, {"run_id": self.run_id, **asdict(resumed)})
        return resumed

    def begin(self) -> None:
        """Raises `TrainError` when the folder holds batches or checkpoints of another run; does nothing the second
        time, or after `resume`.
        """
        if self._begun:
            return
        if complete_checkpoints(self.checkpoints) or any(self.batches.glob("step-*.json")):
            raise TrainError(f"{self.folder} holds a run already", hint="resume it, or choose another folder")
        self._begun = True

    def learn(
        self,
        transitions: Sequence[Transition],
        figures: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Makes one update of transitions with credit, publishes the weights and acknowledges the update.

        Returns the learner's metrics.

        ``figures`` (JSON values) go into the update's line of ``metrics.jsonl``; ``mean_return`` among them rates the
        policy. ``progress(done, total)`` is called after every pass. When the learner raises `TrainError`, the batch is
        discarded, a line with the phase ``failed_update`` says so, and the weights are as the learner left them. When they
        cannot be published, the batch is kept, and nothing more is learned before a resume, which makes the update again.
        """
        self.begin()
        step = self.done + 1
        if self._updating:
            raise TrainError(
                f"update {step} was interrupted: its weights may be half-changed, and are not served",
                hint="start the program again and resume: the update is made again from its batch",
            )
        # An update that is made again after a kill takes the same calls for those of older weights.
        all_figures = {**(figures or {}), _VERSION: self.engine.weights_version}
        if self.total is not None:
            all_figures[_TOTAL] = self.total
        record = write_batch(self.batches, step, transitions, all_figures)
        try:
            metrics = self._update(record, transitions, progress)
        except TrainError as error:
            self._updating = False
            discard_batch(self.batches, step)
            self.metrics.add("failed_update", step, {"error": str(error)})
            raise
        if isinstance(value := record.figures.get("mean_return"), int | float):
            self._returns.append(float(value))
        began = time.monotonic()
        try:
            self._publish(None)
        except BaseException:
            self.done, self._updating = step - 1, True
            raise
        if step % self.checkpoint_every == 0:
            self.checkpoint()
        self._line["publish_s"] = round(time.monotonic() - began, 3)
        self.metrics.add("train", step, self._line)
        return metrics

    def checkpoint(self) -> Path | None:
        """Writes the state after the last whole update; None when there was none, or one was interrupted.

        The best checkpoint is kept too: by `score`, or if that was never called by the mean of the last ``mean_return``s,
        five or as many as there are updates between two checkpoints.
        """
        if self.done == 0 or self._updating:
            return None
        target = self.checkpoints / f"step-{self.done:06d}"
        if self._saved != self.done:
            extra = {"run_id": self.run_id, "metrics": self._line}
            state = Checkpoint(self.done, self.policy.weights(), dict(self.learner.state_dict()), extra)
            target = save_checkpoint(self.checkpoints, state, keep=self.keep, seal=self.seal)
            self._saved = self.done
            if self._returns:
                mark_best(self.checkpoints, self.done, "mean_return", sum(self._returns) / len(self._returns))
        return target

    def score(self, what: str, value: float) -> bool:
        """Rates the weights of the last checkpoint (written first if missing), higher is better; returns whether they
        are the best.

        ``what`` names the measure, such as ``held_out_accuracy``; it replaces ``mean_return``.
        """
        if self.checkpoint() is None:
            return False
        mark_best(self.checkpoints, self.done, what, value)
        best = best_checkpoint(self.checkpoints)
        return best is not None and best.step == self.done

    def _update(self, record: BatchRecord, transitions: Sequence[Transition], progress: Progress | None) -> Any:
        began = time.monotonic()
        # What ends the update in the middle, such as Ctrl-C, leaves weights that belong to no step.
        self._updating = True
        version = record.figures.get(_VERSION)
        known_version = version if isinstance(version, int) else None
        self.learner.planned = record.figures.get(_TOTAL)
        rows = self.rows(transitions)
        with paused(self.engine) if self.pause_updates else contextlib.nullcontext():
            metrics = self.learner.update(rows, progress, version=known_version)
        took = {"update_s": round(time.monotonic() - began, 3), "weights_sha256": self._digest()}
        before, self._line = self._line, {**record.figures, **asdict(metrics), **took}
        warnings = dict(self._line.get("warnings", {}))
        if self._line.get("grad_norm") and before.get("weights_sha256") == took["weights_sha256"]:
            warnings["weights-frozen"] = (
                "the update had a gradient and changed no weight: look at what the optimiser has, and at the learning rate"
            )
        if (moved := self._line.get("moved", 0.0)) > MOST_MOVED:
            warnings["updates-too-large"] = (
                f"the policy moved by {moved:.2g} nats a token, so the learning rate is halved from now on"
            )
        earlier = [line for line in train_lines(self.metrics.lines()) if line["step"] < record.step]
        if found := collapse([*earlier, {**self._line, "step": record.step}]):
            warnings["policy-collapsed"] = (
                "the policy has collapsed: in the last {updates} updates it earned {return:.3g}, surely less than the"
                " {best_return:.3g} by update {best_step}".format(**found)
            )
        if warnings:
            self._line["warnings"] = warnings
        self.done, self._updating = record.step, False
        return metrics

    def _digest(self) -> str:
        return weights_digest(self.policy.trained())

    def _publish(self, version: int | None) -> None:
        served = self.engine.publish(self.policy.served(), version)
        if self.keep_weights:
            save_weights(self.folder / "weights", served, self.policy.weights())
        self._line["weights_version"] = served
