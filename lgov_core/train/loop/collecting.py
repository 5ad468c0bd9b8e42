"""The rollouts of one update: put on record before they run, run by a collector, ahead of their update where that is wanted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from lgov_core._util.files import append_line, atomic_write, drop_torn_line
from lgov_core.errors import TrainError
from lgov_core.train.loop.run_files import file_errors
from lgov_core.types import Attempt, Outcome, Rollout, new_id


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
            return {rollout.rollout_id for rollouts in _rounds(self._lines()) for rollout in rollouts}

    def recover(self, tasks: Sequence[tuple[str, Mapping[str, Any]]]) -> Recovered | None:
        """Returns what a killed run left of the step; None without, or for other tasks (id and payload of each rollout of the
        first round).

        Results that the machines were to blame for are left out. Raises `TrainError` for an unreadable file.
        """
        if not self.path.exists():
            return None
        with self._reading():
            lines = self._lines()
            rounds = _rounds(lines)
            if [(rollout.task_id, rollout.input) for rollout in rounds[0]] != [
                (task, json.loads(json.dumps(payload))) for task, payload in tasks
            ]:
                return None
            rollout_ids = {rollout.rollout_id for rollouts in rounds for rollout in rollouts}
            results: dict[str, Attempt] = {}
            for line in lines:
                if "rollouts" in line:
                    continue
                result = replace(Attempt(**line), outcome=Outcome(line["outcome"]))
                if result.rollout_id not in rollout_ids:
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


def _round(rollouts: Sequence[Rollout]) -> bytes:
    return json.dumps(
        {
            "run_id": rollouts[0].run_id if rollouts else "",
            "rollouts": [[rollout.rollout_id, rollout.task_id, dict(rollout.input)] for rollout in rollouts],
        }
    ).encode()


def _result(result: Attempt) -> bytes:
    return json.dumps(asdict(result)).encode()


def _rounds(lines: Sequence[dict[str, Any]]) -> list[list[Rollout]]:
    return [
        [Rollout(rollout_id, task, line["run_id"], payload) for rollout_id, task, payload in line["rollouts"]]
        for line in lines
        if "rollouts" in line
    ]


Progress = Callable[[int, int], None]

#: Number of consecutive steps without a usable rollout after which a run has failed.
_MOST_USELESS: Final = 2


class RolloutCollector(Protocol):
    """Has rollouts run by agents: by clients that ask for work (`lgov_core.server.coordinator.QueueCollector`)."""

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """Those of the rollouts of a run that was killed that can neither be resumed nor be trained on."""
        ...

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[Attempt], None] | None = None,
    ) -> list[Attempt]:
        """Adds the rollouts to the store, waits until all have ended, and returns a result for each, in their order.

        Rollouts already in the store, from a killed run, are resumed. ``progress(done, total)`` is called as they end,
        ``keep`` with each final result. Raises `TrainError` when they cannot be run.
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """One task: ``task_id`` names the group, ``payload`` is what the episode runner gets (JSON values)."""

    task_id: str
    payload: Mapping[str, Any]


def new_rollouts(run_id: str, tasks: Sequence[RolloutTask], group: int) -> list[Rollout]:
    """``group`` rollouts of every task, in the order of tasks."""
    return [Rollout(new_id("ro"), task.task_id, run_id, dict(task.payload)) for task in tasks for _ in range(group)]


class StepRollouts:
    """The rollouts of a step and their results. A round is written to ``step`` before it is run.

    After a kill, with the same tasks, the rounds on record are resumed: only what is missing is run; ``recovered``
    counts the rest. For one thread at a time; nothing else may use ``pool`` meanwhile. Raises `TrainError`.
    """

    def __init__(
        self, step: OpenStep, pool: RolloutCollector, run_id: str, tasks: Sequence[RolloutTask], group: int
    ) -> None:
        self._step, self._pool, self._run_id, self._group = step, pool, run_id, group
        self._run = 0
        self._results: dict[str, Attempt] = {}
        recovered = step.recover([(task.task_id, task.payload) for task in tasks for _ in range(group)])
        if recovered is None:
            self._rounds = [new_rollouts(run_id, tasks, group)]
            step.begin(self._rounds)
        else:
            self._rounds, self._results = recovered.rounds, recovered.results
            self._replace_gone()
        self.recovered = len(self._results)

    @property
    def pending(self) -> bool:
        """True while a round is on record that was not run since this was made."""
        return self._run < len(self._rounds)

    @property
    def task_ids(self) -> set[str]:
        """The tasks of all rounds on record."""
        return {rollout.task_id for rollouts in self._rounds for rollout in rollouts}

    def run_next(self, progress: Progress) -> list[Attempt]:
        """Runs the next round on record; results in the order of its tasks. ``progress(done, total)`` counts that round."""
        rollouts = self._rounds[self._run]
        missing = [rollout for rollout in rollouts if rollout.rollout_id not in self._results]
        recorded = len(rollouts) - len(missing)
        collected = (
            self._pool.collect_rollouts(
                missing, lambda done, _: progress(recorded + done, len(rollouts)), self._step.add
            )
            if missing or not recorded
            else ()
        )
        self._results |= {result.rollout_id: result for result in collected}
        self._run += 1
        return [self._results[rollout.rollout_id] for rollout in rollouts]

    def add_round(self, tasks: Sequence[RolloutTask]) -> None:
        """Puts a round of further tasks on record, to be run next."""
        rollouts = new_rollouts(self._run_id, tasks, self._group)
        self._step.extend(rollouts)
        self._rounds.append(rollouts)

    def _replace_gone(self) -> None:
        """New rollouts for those that can neither be resumed nor be trained on."""
        ids = [rollout.rollout_id for rollouts in self._rounds for rollout in rollouts]
        gone = self._pool.gone([rollout_id for rollout_id in ids if rollout_id not in self._results])
        if gone:
            self._rounds = [
                [
                    replace(rollout, rollout_id=new_id("ro")) if rollout.rollout_id in gone else rollout
                    for rollout in rollouts
                ]
                for rollouts in self._rounds
            ]
            self._step.begin(self._rounds, self._results.values())


class UsableSteps:
    """Looks at one step after the other: raises when several steps in a row have nothing to train on."""

    def __init__(self) -> None:
        self._useless = 0

    def check(self, results: Sequence[Attempt], used: int) -> None:
        """Raises `TrainError`, with what most rollouts ended with, once none of two steps in a row could be ``used``."""
        self._useless = 0 if used else self._useless + 1
        if self._useless >= _MOST_USELESS:
            silent = "no model call was made through resource.model_api"
            errors = Counter(
                result.error or (silent if result.trainable else str(result.outcome)) for result in results
            )
            common, count = next(iter(errors.most_common(1)), ("there were none", 0))
            raise TrainError(f"none of the last {len(results)} rollouts could be used; {count} times: {common}")


Found = TypeVar("Found")

#: Seconds between progress reports.
_REPORT_S = 0.2


class CollectedAhead(Generic[Found]):
    """Collections in daemon threads, each after the one before it, each known by its step.

    ``collecting`` is held while one runs: anything else that uses the same workers takes it too. `begin` and `take` are
    called from one thread.
    """

    def __init__(self) -> None:
        self.collecting = threading.Lock()
        self._known: dict[int, _Collection[Found]] = {}
        self._last: threading.Event | None = None

    def begin(self, step: int, of: Any, collect: Callable[[Progress], Found]) -> None:
        """Has ``collect`` called in a thread, after all that was begun before; does nothing for a step that was begun.

        ``of`` says what is collected: `take` must name the same. ``collect`` gets a function that takes its progress.
        """
        if step not in self._known:
            collection = self._known[step] = _Collection(of, collect)
            args = (collection, self._last)
            self._last = collection.ended
            threading.Thread(target=self._run, args=args, name="lgov-collect", daemon=True).start()

    def take(self, step: int, of: Any, progress: Progress) -> Found | None:
        """The result of a step, once it is there; collections of steps before it are dropped.

        None when it was not begun, was begun for something else, or failed: the caller then collects it itself, and meets
        the error itself. ``progress`` is called in this thread while it waits.
        """
        for earlier in [number for number in self._known if number < step]:
            self._known.pop(earlier).wanted = False
        collection = self._known.pop(step, None)
        if collection is None or collection.of != of:
            if collection is not None:
                collection.wanted = False
            return None
        while not collection.ended.wait(_REPORT_S):
            progress(*collection.progress)
        if collection.result is not None:
            progress(*collection.progress)
        return collection.result

    @property
    def steps(self) -> list[int]:
        """The steps that were begun and not taken."""
        return sorted(self._known)

    def _run(self, collection: _Collection[Found], before: threading.Event | None) -> None:
        if before is not None:
            before.wait()
        try:
            with self.collecting:
                if collection.wanted:
                    collection.result = collection.collect(collection.report)
        except BaseException:  # noqa: BLE001 - the caller of take meets it again when it collects
            pass
        finally:
            collection.ended.set()


class _Collection(Generic[Found]):
    def __init__(self, of: Any, collect: Callable[[Progress], Found]) -> None:
        self.of, self.collect = of, collect
        self.result: Found | None = None
        self.wanted = True
        self.ended = threading.Event()
        self.progress = (0, 0)

    def report(self, done: int, total: int) -> None:
        self.progress = (done, total)
