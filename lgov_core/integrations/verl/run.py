"""Runs a `VerlJob` on Ray. Importing this module loads neither verl nor Ray."""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core._util.files import atomic_write
from lgov_core.audit.lineage import folder_sha256
from lgov_core.errors import TrainError
from lgov_core.integrations.verl.checkpoints import Steps, left_by, sealed_checkpoints, task_rows, weights_folder
from lgov_core.integrations.verl.job import VerlJob, composed, tasks_file
from lgov_core.train.loop.run_files import MetricsLog, train_lines

if TYPE_CHECKING:
    from lgov_core.train.loop.loop import RolloutTask

#: The versions whose seams lgov uses: 0.9.0 renamed what 0.8 had, and 0.10 may do so again.
_LOWEST, _BELOW = (0, 9, 1), (0, 10)
#: verl's own figures, in the folder of the job.
_FIGURES = "verl.jsonl"


@dataclass(frozen=True, slots=True)
class VerlReport:
    """The result of a job.

    ``steps`` are the lines of ``metrics.jsonl`` about updates, ``verl`` verl's own figures (of a replayed step the
    later ones). ``model`` is the transformers folder of the last finished checkpoint, None without.
    """

    steps: tuple[Mapping[str, Any], ...]
    verl: tuple[dict[str, Any], ...]
    model: Path | None


def check_verl() -> None:
    """Raises `TrainError` unless a verl that lgov knows is installed, with what its trainer needs."""
    for name in ("verl", "ray", "TransferQueue", "hydra-core"):
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError as error:
            hint = "pip install 'lgov[verl]' on Python 3.11 or 3.12"
            raise TrainError(f"training on verl needs {name}", hint=hint) from error
    version = importlib.metadata.version("verl")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not _LOWEST <= numbers < _BELOW:
        raise TrainError(f"verl {version} is installed", hint="pip install 'verl>=0.9.1,<0.10'")


def write_tasks(job: VerlJob, tasks: Sequence[RolloutTask]) -> Path:
    """Writes the tasks as verl's dataset reads them. Raises `TrainError` for two tasks of one id, or none."""
    from lgov_core.transitions.rows import write_table

    ids = [task.task_id for task in tasks]
    if not ids or len(set(ids)) < len(ids):
        what = "there are no tasks" if not ids else "two tasks have the same id"
        raise TrainError(what, hint="each task needs an id of its own: it names the group that is compared")
    return write_table(task_rows(tasks), _columns, tasks_file(job.folder))


def run_verl(job: VerlJob, tasks: Sequence[RolloutTask]) -> VerlReport:
    """Trains until the job's last step and returns the result. Blocks; Ray is stopped if this started it.

    Continues what an earlier job left in the folder: from its newest finished checkpoint, with the batches after that,
    then with new rollouts. The job and verl's whole configuration are written to ``verl.yaml``. Raises `TrainError`:
    verl is missing or of another version, settings that do not fit, a folder that cannot be continued (nothing is then
    written), or the error that ended the job.
    """
    check_verl()
    earlier = left_by(job, tasks)
    job.folder.mkdir(parents=True, exist_ok=True)
    if earlier.step:
        steps = Steps(job.folder)
        steps.metrics.repair()
        steps.acknowledge(earlier.step)
        if earlier.step == job.steps:
            return read_report(job.folder)
    else:
        job = replace(job, stated={**job.stated, "start_sha256": folder_sha256(job.model)})
    write_tasks(job, tasks)
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    config = composed(job, len(tasks), earlier.checkpoint)
    from omegaconf import OmegaConf

    atomic_write(job.folder / "verl.yaml", OmegaConf.to_yaml(config).encode())
    if (path := job.folder / _FIGURES).exists():  # every start of verl begins it anew
        os.replace(path, job.folder / f"verl-{len(_earlier(job.folder)) + 1}.jsonl")
    _run(config)
    return read_report(job.folder)


def read_report(folder: Path) -> VerlReport:
    """The report of a job in ``folder``, of what it has written so far."""
    lines = MetricsLog(folder / "metrics.jsonl").lines()
    figures: dict[int, dict[str, Any]] = {}
    for path in (*_earlier(folder), folder / _FIGURES):
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            if line.endswith("}"):
                written = json.loads(line)
                figures[written["step"]] = written
    sealed = sealed_checkpoints(folder)
    return VerlReport(
        tuple(train_lines(lines)),
        tuple(figures[step] for step in sorted(figures)),
        weights_folder(sealed[max(sealed)]) if sealed else None,
    )


def _earlier(folder: Path) -> list[Path]:
    by_number = {int(path.stem.removeprefix("verl-")): path for path in folder.glob("verl-[0-9]*.jsonl")}
    return [by_number[number] for number in sorted(by_number)]


def _run(config: Any) -> None:
    import ray
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    ours = not ray.is_initialized()
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        run_ppo(config, task_runner_class=_OnThisNode(TaskRunnerV1))
    except (AssertionError, ValueError) as error:
        raise TrainError(f"verl does not take these settings: {error}") from error
    except Exception as error:  # Ray raises a plain one when it cannot start
        raise _told(error) from error
    finally:
        if ours:
            ray.shutdown()


class _OnThisNode:
    """verl's task runner where the job was started: policies, store and folder are there, and so is the endpoint."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def remote(self) -> Any:
        """Runs the task as verl calls it, once Ray has been joined."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # 0 CPUs, because a head node may offer none.
        return self._actor.options(scheduling_strategy=here, num_cpus=0).remote()


def _told(error: Exception) -> TrainError:
    """The error that ended the job, in one line, with what to do about it where that is known."""
    cause: BaseException = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    message = lines[-1] if lines else type(cause).__name__
    hint = None
    if "out of memory" in str(cause).lower():
        hint = "lower tokens_per_gpu or gpu_memory, or set offload"
    return TrainError(f"the job on verl ended: {message}", hint=hint)


def _columns(pa: Any) -> list[tuple[str, Any]]:
    text = pa.string()
    return [
        ("data_source", text),
        ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
        ("extra_info", pa.struct([("index", pa.int64()), ("task_id", text), ("payload", text)])),
    ]
