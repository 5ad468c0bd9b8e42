"""Reads what an earlier job left in its folder, and checks that this one can continue it. Needs no verl."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.files import HeldByAnother, hold
from lgov_core.errors import TrainError
from lgov_core.integrations.verl.checkpoints import Steps, sealed_checkpoints
from lgov_core.integrations.verl.job import VerlJob

if TYPE_CHECKING:
    from lgov_core.train.loop.loop import Task


#: What must be as it was: with others verl would take other tasks, or the updates behind a checkpoint would not be the same.
_SAME: Final = (
    "algorithm", "run_id", "model", "seed", "tasks_per_step", "group", "agents", "credit", "update", "mini_batches",
    "max_ratio_weight", "recompute", "temperature", "context_tokens", "reply_tokens", "tool_format",
)  # fmt: skip
_LOCK: Final = "verl.lock"
#: Seconds that the processes of a job have to end after the one that started it was killed.
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Left:
    """The state that a job left: the newest finished ``checkpoint`` (None: none) and its ``step`` (0: none), and the number of
    ``replayed`` steps after it, whose batches are on record.
    """

    checkpoint: Path | None
    step: int
    replayed: int

    @property
    def begun(self) -> bool:
        """True where there is anything to continue with."""
        return bool(self.step or self.replayed)


def tasks_file(folder: Path) -> Path:
    """Where the tasks are, as verl's dataset reads them."""
    return folder / "tasks.parquet"


def task_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """The tasks as rows of verl's dataset."""
    return [
        {
            "data_source": "lgov",
            "prompt": [{"role": "user", "content": task.task_id}],
            "extra_info": {"index": index, "task_id": task.task_id, "payload": json.dumps(dict(task.payload))},
        }
        for index, task in enumerate(tasks)
    ]


@contextlib.contextmanager
def only_job(folder: Path, *, patience_s: float = 0.0) -> Generator[None]:
    """Within the block no other process makes steps in ``folder``. Raises `TrainError` after ``patience_s`` seconds.

    Ray's processes outlive the one that started them by a moment.
    """
    until = time.monotonic() + patience_s
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(hold(folder / _LOCK))
                break
            except HeldByAnother as error:
                if time.monotonic() >= until:
                    raise TrainError(
                        f"process {error.holder or '?'} still trains in {folder}",
                        hint="wait until it has ended, or stop it",
                    ) from error
            except OSError as error:
                raise TrainError(f"{folder} cannot be written: {error.strerror or error}") from error
            time.sleep(0.5)
        yield


def left_by(job: VerlJob, tasks: Sequence[Task]) -> Left:
    """The state of the job's folder, once no process of an earlier job works there. Only reads.

    Raises `TrainError` when the job cannot continue it: other settings or tasks, a missing batch, or an unreadable
    file.
    """
    folder, steps = job.folder, Steps(job.folder)
    if (folder / _LOCK).exists():
        with only_job(folder, patience_s=_PATIENCE_S):
            pass
    sealed = sealed_checkpoints(folder)
    step = max(sealed, default=0)
    earlier = Left(sealed.get(step), step, steps.waiting(step))
    lost = sorted(number for number in steps.acknowledged() if number > step + earlier.replayed)
    if lost:
        raise TrainError(
            f"{folder} says that update {lost[0]} was made, and holds neither a finished checkpoint nor the batch of it",
            hint="choose another --folder",
        )
    if earlier.begun:
        _same_job(job, _job_of(folder), earlier)
        _same_tasks(folder, tasks)
    return earlier


def _job_of(folder: Path) -> VerlJob:
    import yaml

    path = folder / "verl.yaml"
    try:
        return VerlJob.from_dict(yaml.safe_load(path.read_text(encoding="utf-8"))["lgov"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
        raise TrainError(
            f"{path} does not say with which settings the run began: {type(error).__name__}: {error}",
            hint="choose another --folder",
        ) from error


def _same_job(job: VerlJob, before: VerlJob, earlier: Left) -> None:
    now, then = _plain(job), _plain(before)
    for name in _SAME:
        if now[name] != then[name]:
            what, new, old = _first_difference(name, now[name], then[name])
            raise TrainError(
                f"the run in {job.folder} was begun with {what} {old!r}, and is to continue with {new!r}",
                hint="give the settings that it was begun with, or choose another --folder",
            )
    gpus, wrote = (values["nodes"] * values["gpus"] for values in (now, then))
    if earlier.step and gpus != wrote:
        raise TrainError(
            f"the checkpoints in {job.folder} were written by {wrote} GPUs, and {gpus} are to resume from them",
            hint="verl reads a checkpoint on as many GPUs as wrote it",
        )
    rules = [(values["stated"].get("policy") or {}).get("sha256") for values in (now, then)]
    if earlier.replayed and rules[0] != rules[1]:
        raise TrainError(
            f"the batches in {job.folder} were collected under another policy",
            hint="give the policy file that they were collected under, or choose another --folder",
        )
    if job.steps < earlier.step:
        raise TrainError(f"{earlier.step} steps are done, and {job.steps} are asked for", hint="raise epochs or steps")


def _first_difference(name: str, new: Any, old: Any) -> tuple[str, Any, Any]:
    if isinstance(new, Mapping) and isinstance(old, Mapping):
        for key in (*new, *old):
            if new.get(key) != old.get(key):
                return f"{name}.{key}", new.get(key), old.get(key)
    return name, new, old


def _plain(job: VerlJob) -> dict[str, Any]:
    """The job and its section ``verl`` as JSON values, with the name that people know its credit and update by."""
    values = json.loads(json.dumps(job.as_dict()))
    return {**values, **values["verl"], "algorithm": job.options.get("algorithm")}


def _same_tasks(folder: Path, tasks: Sequence[Task]) -> None:
    import pyarrow.parquet as parquet

    path = tasks_file(folder)
    try:
        there: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise TrainError(f"{path} cannot be read: {error}", hint="choose another --folder") from error
    if there != task_rows(tasks):
        raise TrainError(
            f"the run in {folder} was begun with other tasks",
            hint="give the tasks that it was begun with, or choose another --folder",
        )
