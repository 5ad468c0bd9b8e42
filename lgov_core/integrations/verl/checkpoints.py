"""verl's checkpoints: the statement of each, which of them count, and whether a job can continue from them.

verl writes ``checkpoints/global_step_N``: in ``actor`` its state, in ``actor/huggingface`` the weights. Then it calls
`Sealed.on_save`, which merges adapters into them, so that it is a transformers folder, and states there what they were
made of (`lgov_core.train.loop.lineage`). A checkpoint without a statement was not finished, and does not count. Importing
this module loads neither verl nor torch.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.files import HeldByAnother, hold, sync_file
from lgov_core.audit import default_signer
from lgov_core.audit.lineage import LINEAGE_FILE, read_lineage
from lgov_core.errors import TrainError
from lgov_core.integrations.verl.job import VerlJob, tasks_file
from lgov_core.train.loop.run_files import MetricsLog, read_record

if TYPE_CHECKING:
    from lgov_core.train.loop.lineage import Lineage
    from lgov_core.train.loop.loop import RolloutTask


#: The folder beside the merged weights with the adapters alone, as PEFT loads them.
ADAPTER: Final = "adapter"


def merge_adapters(folder: Path, model: str, rank: int) -> None:
    """Replaces the weights of a PEFT model in ``folder`` by those of ``model`` with its adapters merged, in float32.

    The adapters alone are written to ``folder/adapter``. Needs the memory of the whole model. Raises `TrainError` for
    weights without exactly one adapter of that rank on every linear layer of ``model``, `ModelError` for a model that
    cannot be loaded, and `OSError`. Not atomic: a folder that is left half written must not count as a checkpoint.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from lgov_core.models import load_model
    from lgov_core.train.loop.policy_model import PolicyModel, with_adapters

    files = sorted(folder.glob("*.safetensors"))
    module = with_adapters(load_model(model).module, rank)
    try:
        weights = {name: value for file in files for name, value in load_file(file).items() if ".lora_" in name}
        PolicyModel(module, module.state_dict).load(weights)
    except (RuntimeError, SafetensorError) as error:
        raise TrainError(f"the adapters in {folder} do not fit {model}: {error}") from error
    for file in (*files, *folder.glob("*.safetensors.index.json")):
        file.unlink()
    module.save_pretrained(folder / ADAPTER)
    module.merge_and_unload().save_pretrained(folder)


_WEIGHTS: Final = ("actor", "huggingface")
_NAME = re.compile(r"global_step_(\d+)")
#: What lgov knows of a model beyond transformers: verl does not copy it.
_DETAILS = "lgov_model.json"


def weights_folder(checkpoint: Path) -> Path:
    """The transformers folder in a checkpoint of verl's."""
    return checkpoint.joinpath(*_WEIGHTS)


def sealed_checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of the job in ``folder`` that count, by their steps, oldest first."""
    by_step = {
        int(match.group(1)): path
        for path in (folder / "checkpoints").glob("global_step_*")
        if (match := _NAME.fullmatch(path.name)) and (weights_folder(path) / LINEAGE_FILE).is_file()
    }
    return dict(sorted(by_step.items()))


def find_sealed(path: Path) -> Path | None:
    """The absolute transformers folder of verl's checkpoint that ``path`` names, if it counts.

    ``path`` is a checkpoint's folder or its transformers folder; for a job's folder, its ``checkpoints``, or ``last``
    in either, the newest one.
    """
    path = path.absolute()
    for folder in (path, weights_folder(path)):
        if folder.parts[-2:] == _WEIGHTS and (folder / LINEAGE_FILE).is_file():
            return folder
    base = path.parent if path.name == "last" else path
    sealed = sealed_checkpoints(base.parent if base.name == "checkpoints" else base)
    return weights_folder(sealed[max(sealed)]) if sealed else None


class Steps:
    """The steps of the job in ``folder``: the batch of each before its update, and that the update was made.

    The batch (``transitions/step-NNNNNN.parquet`` and ``.json``) becomes durable first, then verl makes the update, and its
    line in ``metrics.jsonl`` acknowledges it: when verl asks for the next rollouts, or has written a checkpoint. A job that
    is killed in between resumes from verl's newest checkpoint and replays the batches after it. For one thread:
    of verl's task runner, or of `run_verl` before that starts.
    """

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
        figures = {
            "run_id": run_id,
            "checkpoint": checkpoint,
            "replayed": replayed,
            "acknowledged": len(self.acknowledged() & set(again)),
        }
        self.metrics.add("resume", checkpoint + replayed, figures)


class Sealed:
    """Called by verl after each checkpoint; made by verl, with its configuration, in its task runner's process."""

    def __init__(self, config: Any = None) -> None:
        from omegaconf import OmegaConf

        values: Any = OmegaConf.to_container(config.lgov, resolve=True)
        self.job = VerlJob.from_dict(values)

    def on_save(self, *, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        """States what the checkpoint was made of, and acknowledges its update.

        Raises `TrainError` when that cannot be: the job then ends, and resumes from the checkpoint before.
        """
        if async_save:
            raise TrainError("verl writes checkpoints while it trains on", hint="leave checkpoint.async_save out")
        seal(self.job, global_step, Path(checkpoint_dir))
        Steps(self.job.folder).acknowledge(global_step)


def seal(job: VerlJob, step: int, checkpoint: Path) -> None:
    """Merges adapters, and writes the statement of a checkpoint whose files are all there.

    Raises `TrainError`, `AuditError`, and `ModelError` where adapters were trained on a model that cannot be loaded.
    """
    folder = weights_folder(checkpoint)
    if not any(folder.glob("*.safetensors")):
        raise TrainError(f"verl wrote no weights to {folder}", hint="leave actor.checkpoint.save_contents as it is")
    try:
        if job.update.lora_rank:
            merge_adapters(folder, job.model, job.update.lora_rank)
        details = Path(job.model) / _DETAILS
        if details.is_file():
            shutil.copyfile(details, folder / _DETAILS)
        for path in checkpoint.rglob("*"):
            if path.is_file():
                sync_file(path)
        earlier = [path for number, path in sealed_checkpoints(job.folder).items() if number < step]
        before = read_lineage(weights_folder(earlier[-1])) if earlier else []
        weights = sorted(path.name for path in folder.glob("*.safetensors"))
        _lineage(job).state(folder, step, weights, before)
    except OSError as error:
        raise TrainError(f"{folder} could not be sealed: {error}", hint="free some space") from error


def _lineage(job: VerlJob) -> Lineage:
    from lgov_core.train.loop.lineage import Facts, Lineage

    stated: Mapping[str, Any] = job.stated
    facts = Facts(
        run_id=job.run_id,
        model=str(stated.get("model", job.model)),
        start_sha256=stated.get("start_sha256"),
        seed=job.seed,
        settings=stated.get("settings") or {name: value for name, value in job.as_dict().items() if name != "stated"},
        policy=stated.get("policy"),
    )
    key = stated.get("key")
    # Only the job's own key is used: a key found on the node may belong to another user.
    signer = None if key is None else default_signer(Path(key))
    return Lineage(facts, folder=job.folder, signer=signer)


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


def task_rows(tasks: Sequence[RolloutTask]) -> list[dict[str, Any]]:
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


def left_by(job: VerlJob, tasks: Sequence[RolloutTask]) -> Left:
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


def _same_tasks(folder: Path, tasks: Sequence[RolloutTask]) -> None:
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
