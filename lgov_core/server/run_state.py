"""The state of a training server's run, in memory and in its folder, and the lock that keeps a second trainer off its store."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from lgov_core._util.files import HeldByAnother, atomic_write, hold
from lgov_core._util.json_text import finite
from lgov_core.client.wire import ENDED
from lgov_core.errors import LgovError, TrainError, counted
from lgov_core.settings import without_password
from lgov_core.train.loop.loop import RolloutTask
from lgov_core.transitions.transition_set import INTERMEDIATE
from lgov_core.types import Attempt, Reward, new_id


@dataclass(frozen=True, slots=True)
class RunStart:
    """``id`` names the run's rollouts in the store, so that a later process finds them. The others are None until `begin`.

    ``model`` is the model's name (``NAME@VERSION`` for a promoted one), ``dtype`` what it is computed in,
    ``weights_sha256`` the `weights_digest` of its weights, ``learns`` the settings that say how the model learns, ``store`` the
    place of the store, where that is not the folder (`lgov_core.store.store_of`).
    """

    id: str
    model: str | None = None
    dtype: str | None = None
    weights_sha256: str | None = None
    learns: Mapping[str, Any] | None = None
    store: str | None = None


def read_start(folder: Path) -> RunStart:
    """Reads ``server.json``; where there is none, returns a new id. Raises `TrainError` for a file that cannot be read."""
    path = _start_file(folder)
    if not path.exists():
        return RunStart(new_id("train"))
    try:
        document: Any = json.loads(path.read_text("utf-8"))
        return RunStart(**document)
    except (OSError, ValueError, TypeError) as error:
        raise TrainError(f"{path} cannot be read: {error}", hint="restore it, or begin in another folder") from error


def begin(folder: Path, start: RunStart, now: RunStart, *, resume: bool) -> None:
    """Writes ``server.json``. Raises `TrainError` when a run is resumed with other weights than it began with, or would learn
    in another way.
    """
    if resume and start.weights_sha256 not in (None, now.weights_sha256):
        raise TrainError(
            f"the run in {folder} began with {start.model} in {start.dtype}, and {now.model} in {now.dtype} has other weights",
            hint=f"continue with --model {start.model} --dtype {start.dtype}",
        )
    for key, before in (start.learns or {}).items() if resume else ():
        if (value := (now.learns or {}).get(key)) != before:
            what = f"training.{key} is {value!r}, and the run in {folder} began with {before!r}"
            if key in ("agent", "plugins"):
                what = f"{', '.join(before)} ({key}) is not as it was when the run in {folder.name} began"
            raise TrainError(what, hint="continue with what it began with, or choose another --folder")
    atomic_write(_start_file(folder), json.dumps(asdict(now)).encode())


def _start_file(folder: Path) -> Path:
    return folder / "server.json"


#: Names lgov's lock among the advisory locks of a PostgreSQL database.
_POSTGRES_LOCK = 0x6C676F76


@contextlib.contextmanager
def only_trainer(store: str) -> Generator[None]:
    """Within the block no other trainer works on the store at the address ``store``, in whatever process. Raises `TrainError`.

    The lock ends with the process, however that ends.
    """
    if store.startswith("memory://"):
        yield
        return
    with _postgres(store) if store.startswith(("postgresql://", "postgres://")) else _file(store):
        yield


@contextlib.contextmanager
def _file(store: str) -> Generator[None]:
    path = Path(f"{store.removeprefix('sqlite:///')}.trainer")
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold(path))
        except HeldByAnother as error:
            raise _refused(store, f"process {error.holder}" if error.holder else "another process") from error
        except OSError as error:
            raise TrainError(f"{path} cannot be written: {error.strerror or error}") from error
        yield


@contextlib.contextmanager
def _postgres(store: str) -> Generator[None]:
    import psycopg

    try:
        connection = psycopg.connect(store, autocommit=True)
    except psycopg.Error as error:
        raise TrainError(f"the store {without_password(store)} cannot be reached: {error}") from error
    with connection:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_POSTGRES_LOCK,)).fetchone()
        if row is None or not row[0]:
            raise _refused(without_password(store), "another process")
        yield


def _refused(store: str, holder: str) -> TrainError:
    return TrainError(
        f"{holder} trains on the store {store} already", hint="stop it, or give this one a folder of its own"
    )


class RunState:
    """One run of ``steps`` updates. ``first`` is how many the server had made before it, ``skip`` how many lines of figures.
    ``note`` is a sentence about it, for display.

    It is in ``run.json`` of ``folder``, so that a server that was killed finds it again; `lines` gives it back its figures.
    """

    def __init__(
        self, folder: Path, first: int, steps: int, *, skip: int = 0, run_id: str | None = None, note: str = ""
    ) -> None:
        self.folder = folder
        self.skip = skip
        self.run_id = run_id or new_id("run")
        self.first, self.steps, self.note = first, steps, note
        self.stop_asked = threading.Event()
        self._lock = threading.Lock()
        self._state = "starting"
        self._step = self._done = self._total = 0
        self._metrics: list[dict[str, Any]] = []
        self._error: tuple[str, str | None] | None = None
        self._durations: list[float] = []
        self._stage_began = time.monotonic()
        self._keep(ended=False)

    @classmethod
    def unfinished(cls, folder: Path, steps: int | None = None) -> RunState | None:
        """The run in ``folder`` that was begun and has not ended, or None.

        With ``steps`` it makes so many, and one that has ended goes on if it has made fewer. Raises `TrainError` if the run
        cannot be so short.
        """
        try:
            facts = json.loads((folder / "run.json").read_text())
            first, before, skip = int(facts["first"]), int(facts["steps"]), int(facts.get("skip", 0))
            run_id, ended = str(facts["run"]), bool(facts["ended"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if ended and steps is not None and steps < before:
            raise TrainError(
                f"{counted(before, 'update')} are made, and the settings ask for {steps}",
                hint="give --steps or training.epochs for as many or more, or choose another --folder",
            )
        if ended and (steps is None or steps == before):
            return None
        return cls(folder, first, before if steps is None else steps, skip=skip, run_id=run_id)

    @property
    def ended(self) -> bool:
        """True once nothing comes any more."""
        with self._lock:
            return self._state in ENDED

    @property
    def stopped(self) -> bool:
        """True where it was stopped on request before it was complete."""
        with self._lock:
            return self._state == "stopped"

    def stage(self, state: str, done: int = 0, total: int = 0) -> None:
        """Notes what is being done, and how much of it is done."""
        with self._lock:
            self._state, self._done, self._total = state, done, total

    def goes_on(self, step: int) -> None:
        """``step`` updates of this run were done before it was taken up here, in a time that says nothing."""
        with self._lock:
            self._step, self._stage_began = step, time.monotonic()

    def at(self, step: int) -> None:
        """``step`` updates of this run are done."""
        now = time.monotonic()
        with self._lock:
            if step > self._step:
                self._durations = [*self._durations[-9:], (now - self._stage_began) / (step - self._step)]
            self._step, self._stage_began = step, now

    def lines(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """All metrics lines on record, earlier runs included; clients get those of this run at their original positions."""
        with self._lock:
            self._metrics = [dict(line) for line in lines[self.skip :]]

    def tested(self, updates: int) -> bool:
        """Returns whether the held-out tasks were run after that many updates of the server."""
        with self._lock:
            return any(line.get("phase") == "test" and line.get("step") == updates for line in self._metrics)

    def add(self, line: Mapping[str, Any]) -> None:
        """Figures of an update or an evaluation."""
        with self._lock:
            self._metrics.append(finite(line))

    def end(self, state: str, error: LgovError | None = None) -> None:
        """The run has ended: ``done``, ``failed`` or ``stopped``. A stopped one is resumed by the next client."""
        with self._lock:
            self._state, self._done, self._total = state, 0, 0
            self._error = None if error is None else (error.message, error.hint)
        self._keep(ended=state == "done")

    def progress(self, after: int) -> dict[str, Any]:
        """The state, with the metrics lines from position ``after`` on."""
        with self._lock:
            rewards = [line["reward"] for line in self._metrics if line.get("reward") is not None]
            mean = sum(self._durations) / len(self._durations) if self._durations else None
            seconds_left = None
            if mean is not None:
                seconds_left = max(0.0, mean * (self.steps - self._step) - (time.monotonic() - self._stage_began))
            return {
                "run": self.run_id,
                "state": self._state,
                "step": self._step,
                "steps": self.steps,
                "note": self.note,
                "done": self._done,
                "total": self._total,
                "seconds_left": seconds_left,
                "reward": rewards[-1] if rewards else None,
                "error": self._error[0] if self._error else None,
                "hint": self._error[1] if self._error else None,
                "folder": str(self.folder),
                "metrics": self._metrics[max(after, 0) :],
            }

    def _keep(self, *, ended: bool) -> None:
        facts = {"run": self.run_id, "first": self.first, "steps": self.steps, "skip": self.skip, "ended": ended}
        atomic_write(self.folder / "run.json", json.dumps(facts).encode())


Tasks = Sequence[Mapping[str, Any]]

#: A task is settled when all its rollouts earned the same this many times in a row.
_TIMES: Final = 2
#: Decimals to which rewards are compared: sums of the same values in another order are alike.
_DECIMALS: Final = 9
#: The share of its turns that a settled task keeps.
_KEPT: Final = 0.25


def numbered(split: str, number: int, task: Mapping[str, Any]) -> RolloutTask:
    """A task of a file under the name of its group."""
    return RolloutTask(f"{split}-{number:06d}", {"task": task, "mode": split})


def updates_of(tasks: Tasks, size: int) -> int:
    """How many updates one pass over the tasks makes."""
    return math.ceil(len(tasks) / size)


@dataclass(frozen=True, slots=True)
class NextUpdate:
    """The update for which a sampler chooses from ``tasks``: it returns the numbers of 1 to ``size`` of them, none twice.

    ``step`` (from 0) counts the run's updates, ``seed`` is the run's. ``results`` are of the updates before, oldest first:
    for each task by its number what each of its rollouts earned, by channel. With ``max_staleness`` N the last N updates are
    not known yet. The same update must get the same tasks: a resumed run asks again.
    """

    tasks: Tasks
    size: int
    step: int
    seed: str
    results: Sequence[Mapping[int, Sequence[Mapping[str, float]]]] = ()


def in_turn(update: NextUpdate) -> list[int]:
    """Each pass goes over all tasks in an order of its own."""
    per_epoch = updates_of(update.tasks, update.size)
    order = list(range(len(update.tasks)))
    random.Random(f"{update.seed}/{update.step // per_epoch}").shuffle(order)
    start = update.step % per_epoch * update.size
    return order[start : start + update.size]


def curriculum(update: NextUpdate) -> list[int]:
    """As `in_turn`, but a settled task keeps one turn in four, and gives the others to tasks that are not, if there are any."""
    batch, settled = in_turn(update), settled_tasks(update.results)
    others = [number for number in range(len(update.tasks)) if number not in settled]
    chance = random.Random(f"{update.seed}/{update.step}/settled")
    for at, number in enumerate(batch):
        if number in settled and chance.random() >= _KEPT:
            drawn = chance.sample(others, min(len(others), update.size))  # one of so many is not in the batch, if any
            batch[at] = next((other for other in drawn if other not in batch), number)
    return batch


#: lgov's own samplers by name.
SAMPLERS: Final = MappingProxyType({"in_turn": in_turn, "curriculum": curriculum})


def batch_of(update: NextUpdate, sampler: Callable[[NextUpdate], Sequence[Any]] = in_turn) -> list[RolloutTask]:
    """The tasks that ``sampler`` chooses. Raises `TrainError` for what it must not choose."""
    chosen, count = list(sampler(update)), len(update.tasks)
    if not (0 < len({*range(count)} & {*chosen}) == len(chosen) <= update.size):
        what = f"1 to {update.size} different numbers below {count}"
        raise TrainError(f"{sampler.__name__} chose {chosen!r:.200} for update {update.step + 1}, not {what}")
    return [numbered("train", number, update.tasks[number]) for number in chosen]


def further_of(tasks: Tasks, batch: Sequence[RolloutTask], step: int, seed: str, most: int) -> list[RolloutTask]:
    """``most`` tasks, or as many as there are, none of which is in ``batch``, that of update ``step``.

    Drawn from all others in an order of the update's own: none loses its turn, and those whose turn comes next are drawn
    no more often than others.
    """
    if most == 0:
        return []
    taken = {task.task_id for task in batch}
    drawn = random.Random(f"{seed}/{step}/further").sample(range(len(tasks)), min(len(tasks), len(taken) + most))
    candidates = [numbered("train", number, tasks[number]) for number in drawn]
    return [task for task in candidates if task.task_id not in taken][:most]


def task_rewards(results: Iterable[Attempt], rewards: Iterable[Reward]) -> dict[str, list[dict[str, float]]]:
    """Of each task what each rollout earned, by channel, without AIR; only of attempts that can be trained on."""
    earned: defaultdict[tuple[str | None, int | None], defaultdict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for reward in rewards:
        if reward.dimension != INTERMEDIATE:
            earned[reward.rollout_id, reward.attempt][reward.dimension] += reward.value
    groups: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for result in results:
        if result.trainable:
            mine = earned[result.rollout_id, result.attempt]
            groups[result.task_id].append({name: round(value, _DECIMALS) for name, value in sorted(mine.items())})
    return dict(groups)


def earlier_results(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[int, Sequence[Mapping[str, float]]]]:
    """The results of `NextUpdate`, from lines of ``metrics.jsonl`` with what `task_rewards` gave."""
    merged = ({**(line.get("further") or {}).get("task_rewards", {}), **line.get("task_rewards", {})} for line in lines)
    return [{int(task.removeprefix("train-")): earned for task, earned in update.items()} for update in merged]


def settled_tasks(results: Iterable[Mapping[int, Sequence[Mapping[str, float]]]]) -> frozenset[int]:
    """The tasks whose rollouts all earned the same the last two times that they were drawn, two rollouts or more each time."""
    times: defaultdict[int, list[Any]] = defaultdict(list)
    for update in results:
        for task, earned in update.items():
            if len(earned) > 1:
                times[task].append(earned[0] if all(each == earned[0] for each in earned) else None)
    return frozenset(
        task for task, last in times.items() if last[-1] is not None and last[-_TIMES:] == [last[-1]] * _TIMES
    )
