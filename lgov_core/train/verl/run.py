"""Runs a `VerlJob` on Ray. Importing this module loads neither verl nor Ray."""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core.errors import TrainError
from lgov_core.train.verl.hydra_config import composed, tasks_file
from lgov_core.train.verl.job import VerlJob

if TYPE_CHECKING:
    from lgov_core.train.loop import Task

#: The versions whose seams lgov uses: 0.9.0 renamed what 0.8 had, and 0.10 may do so again.
_LOWEST, _BELOW = (0, 9, 1), (0, 10)


@dataclass(frozen=True, slots=True)
class VerlReport:
    """What a job left behind.

    ``steps`` are the lines of ``metrics.jsonl`` (one a step: returns, rewards by channel, outcomes, versions of the weights),
    ``verl`` those of verl's own figures. ``model`` is the transformers folder of the last checkpoint, None where there is
    none.
    """

    steps: tuple[dict[str, Any], ...]
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


def write_tasks(job: VerlJob, tasks: Sequence[Task]) -> Path:
    """Writes the tasks as verl's dataset reads them. Raises `TrainError` for two tasks of one id, or none."""
    from lgov_core.transitions.export import write_table

    ids = [task.task_id for task in tasks]
    if not ids or len(set(ids)) < len(ids):
        what = "there are no tasks" if not ids else "two tasks have the same id"
        raise TrainError(what, hint="each task needs an id of its own: it names the group that is compared")
    rows = [
        {
            "data_source": "lgov",
            "prompt": [{"role": "user", "content": task.task_id}],
            "extra_info": {"index": index, "task_id": task.task_id, "payload": json.dumps(dict(task.payload))},
        }
        for index, task in enumerate(tasks)
    ]
    return write_table(rows, _columns, tasks_file(job))


def run_verl(job: VerlJob, tasks: Sequence[Task]) -> VerlReport:
    """Trains until the job's last step and returns what came of it. Blocks; Ray is stopped when this started it.

    Goes on from the newest checkpoint in the job's folder, if there is one. The job and the whole configuration of verl are
    written to ``verl.yaml``. Raises `TrainError`: verl is missing or of another version, settings that do not fit, or
    what ended the job.
    """
    check_verl()
    job.folder.mkdir(parents=True, exist_ok=True)
    write_tasks(job, tasks)
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    config = composed(job, len(tasks))
    from omegaconf import OmegaConf

    OmegaConf.save(config, job.folder / "verl.yaml")
    _run(config)
    return read_report(job.folder, job.model)


def read_report(folder: Path, model: str) -> VerlReport:
    """What a job in ``folder`` has written so far; ``model`` is the one that it began with."""
    return VerlReport(
        _lines(folder / "metrics.jsonl"), _lines(folder / "verl.jsonl"), _newest_model(folder / "checkpoints", model)
    )


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
        """What verl calls, once Ray has been joined."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # 0 CPUs, because a head node may offer none.
        return self._actor.options(scheduling_strategy=here, num_cpus=0).remote()


def _told(error: Exception) -> TrainError:
    """What ended the job, in one line, with what to do about it where that is known."""
    cause: BaseException = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    message = lines[-1] if lines else type(cause).__name__
    hint = None
    if "out of memory" in str(cause).lower():
        hint = "lower tokens_per_gpu or gpu_memory, or set offload"
    return TrainError(f"the job on verl ended: {message}", hint=hint)


def _newest_model(checkpoints: Path, first: str) -> Path | None:
    """The transformers folder of the newest checkpoint, completed with what verl does not copy."""
    try:
        newest = int((checkpoints / "latest_checkpointed_iteration.txt").read_text())
    except (OSError, ValueError):
        return None
    model = checkpoints / f"global_step_{newest}" / "actor" / "huggingface"
    if not any(model.glob("*.safetensors")):
        return None
    details = Path(first) / "lgov_model.json"
    if details.is_file() and not (model / details.name).exists():
        shutil.copyfile(details, model / details.name)
    return model


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.exists():
        return ()
    return tuple(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}"))


def _columns(pa: Any) -> list[tuple[str, Any]]:
    text = pa.string()
    return [
        ("data_source", text),
        ("prompt", pa.list_(pa.struct([("role", text), ("content", text)]))),
        ("extra_info", pa.struct([("index", pa.int64()), ("task_id", text), ("payload", text)])),
    ]
