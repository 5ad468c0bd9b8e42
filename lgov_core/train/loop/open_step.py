"""What was collected for an update that has no batch yet, so that a killed run continues collecting it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lgov_core._util.atomic_file import atomic_write
from lgov_core._util.durable import append_line, drop_torn_line
from lgov_core.train.file_errors import file_errors
from lgov_core.types import Attempt, Outcome, Rollout


@dataclass(frozen=True, slots=True)
class Recovered:
    """A killed run's rollouts of a step, round by round (the first: of the tasks asked for), and its results by rollout
    id.
    """

    rounds: list[list[Rollout]]
    results: dict[str, Attempt]


class OpenStep:
    """The file of one step: its rollouts, then a line for each result and for each further round of rollouts.

    Not safe to call from several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, rounds: Sequence[Sequence[Rollout]], results: Iterable[Attempt] = ()) -> None:
        """Records the rollouts of the step and the results so far, replacing the file atomically. Raises `TrainError`."""
        lines = [*map(_round, rounds), *map(_result, results)]
        with self._writing():
            atomic_write(self.path, b"".join(line + b"\n" for line in lines))

    def extend(self, rollouts: Sequence[Rollout]) -> None:
        """Records further rollouts of the step before they run. Raises `TrainError`."""
        with self._writing():
            append_line(self.path, _round(rollouts))

    def add(self, result: Attempt) -> None:
        """Records a result. Raises `TrainError`."""
        with self._writing():
            append_line(self.path, _result(result))

    def end(self) -> None:
        """Removes the file: the step has its batch."""
        with self._writing():
            self.path.unlink(missing_ok=True)

    def rollout_ids(self) -> set[str]:
        """The recorded rollouts; none when there is no file. Raises `TrainError` when it cannot be read."""
        if not self.path.exists():
            return set()
        with self._reading():
            return {one.rollout_id for rollouts in _rounds(self._lines()) for one in rollouts}

    def recover(self, tasks: Sequence[tuple[str, Mapping[str, Any]]]) -> Recovered | None:
        """What a killed run left of the step; None without, or for other tasks (id and payload of each rollout of the
        first round).

        Results that the machines were to blame for are left out. Raises `TrainError` for an unreadable file.
        """
        if not self.path.exists():
            return None
        with self._reading():
            lines = self._lines()
            rounds = _rounds(lines)
            if [(one.task_id, one.input) for one in rounds[0]] != [(task, _as_json(given)) for task, given in tasks]:
                return None
            known = {rollout.rollout_id for rollouts in rounds for rollout in rollouts}
            results: dict[str, Attempt] = {}
            for line in lines:
                if "rollouts" in line:
                    continue
                result = replace(Attempt(**line), outcome=Outcome(line["outcome"]))
                if result.rollout_id not in known:
                    raise ValueError(f"a result of {result.rollout_id!r}, which is not among the rollouts")
                if result.trainable:
                    results[result.rollout_id] = result
            return Recovered(rounds, results)

    def _lines(self) -> list[dict[str, Any]]:
        """All lines but one that a killed run left half-written, which is cut off."""
        drop_torn_line(self.path)
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def _reading(self) -> AbstractContextManager[None]:
        return file_errors(f"{self.path} cannot be read", "remove it: the step begins anew")

    def _writing(self) -> AbstractContextManager[None]:
        return file_errors(f"{self.path} could not be written", "free some space")


def _as_json(value: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(value))


def _round(rollouts: Sequence[Rollout]) -> bytes:
    return json.dumps(
        {
            "run_id": rollouts[0].run_id if rollouts else "",
            "rollouts": [[one.rollout_id, one.task_id, dict(one.input)] for one in rollouts],
        }
    ).encode()


def _result(result: Attempt) -> bytes:
    return json.dumps(asdict(result)).encode()


def _rounds(lines: Sequence[dict[str, Any]]) -> list[list[Rollout]]:
    return [
        [Rollout(one, task, line["run_id"], given) for one, task, given in line["rollouts"]]
        for line in lines
        if "rollouts" in line
    ]
