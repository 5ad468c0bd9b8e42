"""What was collected for an update that has no batch yet, so that a run that was killed goes on collecting it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgov_core.errors import TrainError
from lgov_core.train.durable import append_line, drop_torn_line, write_whole
from lgov_core.train.jobs import Job, JobResult
from lgov_core.types import Outcome, Rollout


class OpenStep:
    """The file of one step: its rollouts, then a line for each result. Not safe to call from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, rollouts: Sequence[Rollout]) -> None:
        """Writes down which rollouts the step is made of; what the file held before is gone. Raises `TrainError`."""
        first = {
            "run_id": rollouts[0].run_id if rollouts else "",
            "rollouts": [[one.rollout_id, one.task_id, dict(one.input)] for one in rollouts],
        }
        self._tried(lambda: write_whole(self.path, json.dumps(first).encode() + b"\n"))

    def add(self, result: JobResult) -> None:
        """Writes down a result. Raises `TrainError`."""
        job = result.job
        line = {
            "rollout_id": job.rollout_id,
            "attempt": job.attempt,
            "outcome": result.outcome.value,
            "result": dict(result.result),
            "error": result.error,
            "counts": dict(result.counts),
        }
        self._tried(lambda: append_line(self.path, json.dumps(line).encode()))

    def end(self) -> None:
        """Removes the file: the step has its batch."""
        self._tried(lambda: self.path.unlink(missing_ok=True))

    def rollout_ids(self) -> set[str]:
        """The rollouts that are written down; none when there is no file. Raises `TrainError` when it cannot be read."""
        try:
            with self.path.open(encoding="utf-8") as file:
                return {one for one, _, _ in json.loads(file.readline())["rollouts"]}
        except FileNotFoundError:
            return set()
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._unreadable(error) from error

    def recover(
        self, tasks: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> tuple[list[Rollout], dict[str, JobResult]] | None:
        """The rollouts of a step that a killed run began, and the results it had, by rollout id.

        None when there was none, or one of other tasks than these (id and payload, one for each rollout, in order).
        Results that the machines were to blame for are left out. Raises `TrainError` when the file cannot be read.
        """
        if not self.path.exists():
            return None
        try:
            drop_torn_line(self.path)
            first, *lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
            rollouts = [Rollout(one, task, first["run_id"], given) for one, task, given in first["rollouts"]]
            if [(one.task_id, one.input) for one in rollouts] != [(task, _as_json(given)) for task, given in tasks]:
                return None
            by_id = {one.rollout_id: one for one in rollouts}
            results: dict[str, JobResult] = {}
            for line in lines:
                rollout, outcome = by_id[line["rollout_id"]], Outcome(line["outcome"])
                job = Job(rollout.rollout_id, rollout.task_id, line["attempt"], rollout.input)
                if outcome.trainable:
                    results[rollout.rollout_id] = JobResult(job, outcome, line["result"], line["error"], line["counts"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._unreadable(error) from error
        return rollouts, results

    def _unreadable(self, error: Exception) -> TrainError:
        return TrainError(f"{self.path} cannot be read: {error}", hint="remove it: the step begins anew")

    def _tried(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise TrainError(f"{self.path} could not be written: {error}", hint="free some space") from error


def _as_json(value: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(value))
