"""Jobs of the real verl on Ray, on the CPU: the folder that a job begins with, and the command that users write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import drawers
import yaml

from lgov_core.audit import make_key

HERE = Path(__file__).parent

#: What replaces a GPU: see verl_on_cpu.py.
ON_CPU = (
    "trainer.device=cpu",
    "actor_rollout_ref.model.external_lib=verl_on_cpu_servers",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "+actor_rollout_ref.rollout.enable_sleep_mode=false",
    "actor_rollout_ref.rollout.enforce_eager=true",
    "actor_rollout_ref.rollout.max_num_seqs=16",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=32",
    # Ray believes in more CPUs than there are, and in a GPU: verl counts them.
    "ray_kwargs.ray_init.num_cpus=12",
    "+ray_kwargs.ray_init.num_gpus=1",
    "+ray_kwargs.ray_init.object_store_memory=200000000",
    "+ray_kwargs.ray_init.include_dashboard=false",
    "+ray_kwargs.ray_init.log_to_driver=false",
)


def write_job(
    folder: Path, *, tasks: int, training: Mapping[str, Any], server: str = "transformers", **model: Any
) -> None:
    """Writes model, policy, tasks, key and ``config.yaml`` of a job in which agents fetch reports."""
    make_key(folder / "config" / "lgov" / "audit.key")
    drawers.taught_model(folder / "model")
    (folder / "policy.yaml").write_text(drawers.POLICY)
    lines = [{"say": drawers.say(number), "opened": str(folder / "opened.txt")} for number in range(tasks)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_config(folder, training=training, server=server, **model)


def write_config(folder: Path, *, training: Mapping[str, Any], server: str, **model: Any) -> None:
    settings = {
        "model": {"name": str(folder / "model"), "max_new_tokens": 24, **model},
        "training": dict(training),
        "runtime": {"nworkers": 4, "policy": str(folder / "policy.yaml")},
        "verl": {
            "server": server,
            "gpu_memory": 0.05,
            "context_tokens": 512,
            "tokens_per_gpu": 4096,
            "overrides": list(ON_CPU),
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))


def command(folder: Path, *more: str, run: str = "run") -> list[str]:
    """What users write."""
    return [
        *(sys.executable, "-m", "lgov_core", "train", str(folder / "config.yaml"), "--backend", "verl"),
        *("--agent", f"{HERE / 'drawers.py'}:fetch", "--tasks", str(folder / "tasks.jsonl")),
        *("--folder", str(folder / run), "--json", *more),
    ]


def start(folder: Path, log: Path, *more: str, run: str = "run") -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "verl_on_cpu",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Ray gives itself 30 s to start, and ends jobs where memory is short: a machine may have other work.
        "RAY_raylet_start_wait_time_s": "600",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            command(folder, *more, run=run), env=environment, stdout=output, stderr=subprocess.STDOUT
        )


def lgov(folder: Path, *arguments: str) -> str:
    """What a command of lgov's prints, run in ``folder``."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
    done = subprocess.run(
        [sys.executable, "-m", "lgov_core", *arguments],
        check=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.stdout


def until(there: Callable[[], bool], job: subprocess.Popen[bytes]) -> bool:
    """Whether it came to that before the job ended."""
    while job.poll() is None:
        if there():
            return True
        time.sleep(0.05)
    return there()
