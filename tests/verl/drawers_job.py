"""The job that test_on_ray.py runs, as a program: ``python drawers_job.py FOLDER``, with the model in FOLDER/model."""

from __future__ import annotations

import sys
from pathlib import Path

import drawers

from lgov_core.train.jobs import WorkerConfig
from lgov_core.train.loop import Task
from lgov_core.train.verl import VerlCluster, VerlJob, VerlUpdate, WorkerOptions, in_workers, run_verl

STEPS, TASKS, GROUP = 5, 8, 8

#: What stands for GPUs and vLLM: see verl_on_cpu.py.
ON_CPU = (
    "trainer.device=cpu",
    "actor_rollout_ref.model.external_lib=verl_on_cpu_servers",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    # Ray believes in more CPUs than there are, and in a GPU: verl counts them.
    "ray_kwargs.ray_init.num_cpus=12",
    "+ray_kwargs.ray_init.num_gpus=1",
    "+ray_kwargs.ray_init.object_store_memory=200000000",
    "+ray_kwargs.ray_init.include_dashboard=false",
    "+ray_kwargs.ray_init.log_to_driver=false",
)


def job(folder: Path) -> VerlJob:
    (folder / "policy.yaml").write_text(drawers.POLICY)
    worker = WorkerConfig(
        factory="drawers:make_runner",
        options={"model": "tiny", "opened": str(folder / "opened.txt")},
        policy=str(folder / "policy.yaml"),
        audit=str(folder / "audit.sqlite"),
        store=str(folder / "store.sqlite"),
        endpoint="",
    )
    return VerlJob(
        run_id="drawers",
        folder=folder,
        model=str(folder / "model"),
        store=worker.store,
        **in_workers(WorkerOptions(worker)),
        steps=STEPS,
        tasks_per_step=TASKS,
        group=GROUP,
        update=VerlUpdate(learning_rate=1e-3, epochs=3),
        cluster=VerlCluster(server="transformers", tokens_per_gpu=4096),
        context_tokens=512,
        reply_tokens=24,
        checkpoint_every=0,
        overrides=ON_CPU,
    )


if __name__ == "__main__":
    run_verl(
        job(Path(sys.argv[1])), [Task(f"report-{number}", {"say": drawers.say(number)}) for number in range(2 * TASKS)]
    )
