"""The steps of a job on disk: the batch of each before its update, and that the update was made.

The batch (``transitions/step-NNNNNN.parquet`` and ``.json``) becomes durable first, then verl makes the update, and its
line in ``metrics.jsonl`` acknowledges it: when verl asks for the next rollouts, or has written a checkpoint. A job that
is killed in between resumes from verl's newest checkpoint and replays the batches after it.
"""

from __future__ import annotations

from pathlib import Path

from lgov_core.errors import TrainError
from lgov_core.train.loop.batch_record import read_record
from lgov_core.train.loop.metrics_log import MetricsLog


class Steps:
    """The steps of the job in ``folder``. For one thread: of verl's task runner, or of `run_verl` before that starts."""

    def __init__(self, folder: Path) -> None:
        self.batches = folder / "transitions"
        self.metrics = MetricsLog(folder / "metrics.jsonl")

    def acknowledge(self, step: int) -> None:
        """Says that the update of a step is made, once: a line in ``metrics.jsonl``. Raises `TrainError`."""
        if step in self.acknowledged():
            return
        record = read_record(self.batches, step)
        if record is None:
            raise TrainError(f"update {step} was made, and its batch is not on record in {self.batches}")
        self.metrics.add("train", step, record.figures)

    def acknowledged(self) -> set[int]:
        """The steps whose updates were made."""
        return {int(line["step"]) for line in self.metrics.lines() if line.get("phase") == "train"}

    def waiting(self, done: int) -> int:
        """Number of consecutive steps after ``done`` that have a batch."""
        count = 0
        while read_record(self.batches, done + count + 1) is not None:
            count += 1
        return count

    def resumed(self, run_id: str, checkpoint: int) -> None:
        """Records in ``metrics.jsonl`` what the job continues with (phase ``resume``), as other runs do."""
        replayed = self.waiting(checkpoint)
        again = range(checkpoint + 1, checkpoint + replayed + 1)
        known = {
            "run_id": run_id,
            "checkpoint": checkpoint,
            "replayed": replayed,
            "acknowledged": len(self.acknowledged() & set(again)),
        }
        self.metrics.add("resume", checkpoint + replayed, known)
