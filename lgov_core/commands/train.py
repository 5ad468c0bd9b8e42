"""``lgov train``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lgov_core._util.threads import wait_without_spinning
from lgov_core.commands.group import Exit
from lgov_core.commands.mounted_window import mounted_window, say_on_stderr
from lgov_core.commands.options import FILE, FOLDER, PATH, command
from lgov_core.commands.output import write_result
from lgov_core.errors import SettingsError
from lgov_core.server.command import dtype_option, engine_flags, engine_options


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("config", required=False, type=FILE)
@click.option("--agent", help="Agent function: module:function or file.py:function.")
@click.option("--tasks", "train", type=PATH, help="Tasks to train on, JSON lines. [data.train]")
@click.option("--test", type=PATH, help="Held-out tasks, JSON lines. [data.test]")
@click.option("--model", "name", help="tiny, smollm2, a transformers folder, or a hub name. [model.name]")
@click.option("--algorithm", help="grpo, ppo, ...; sft and prompt learn from recorded traces. [training.algorithm]")
@engine_options
@dtype_option
@click.option("--backend", default="torch", show_default=True, help="Training backend: torch, or verl on Ray.")
@click.option("--traces", help="Store of recorded rollouts, for sft and prompt.")
@click.option("--epochs", type=int, help="Passes over the tasks. [training.epochs]")
@click.option("--steps", type=int, help="Maximum number of updates. [training.steps]")
@click.option("--nworkers", type=int, help="Concurrent rollouts. [runtime.nworkers]")
@click.option("--policy", type=PATH, help="Policy file for the agent. [runtime.policy]")
@click.option("--seed", type=int, help="Random seed. [training.seed]")
@click.option(
    "--include-held-out",
    is_flag=True,
    default=None,
    help="Let sft learn from held-out rollouts. [sft.include_held_out]",
)
@click.option("--folder", type=FOLDER, help="Output folder of the run.")
@click.option("--resume", is_flag=True, help="Resume the run in --folder.")
@click.option("--profile", is_flag=True, help="Show a table of where the time went.")
def train(
    config: Path | None,
    agent: str | None,
    backend: str,
    traces: str | None,
    folder: Path | None,
    resume: bool,
    profile: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a model on rollouts of an existing agent.

    CONFIG is a file such as config.yaml with the sections model, training, runtime and data. What is set on the command
    line wins over it; sections and keys are in brackets.
    """
    wait_without_spinning()
    from lgov_core.train.algorithms.registry import REINFORCEMENT, TrainingJob, algorithm_name, find_run
    from lgov_core.train.loop.metrics_log import read_metrics
    from lgov_core.train.loop.time_spent import time_spent
    from lgov_core.train.settings import load_train_settings

    sections = {"train": "data", "test": "data", "name": "model", "nworkers": "runtime", "policy": "runtime"}
    sections |= {"include_held_out": "sft", "dtype": "model"}
    engine = engine_flags(flags)
    values = {(sections.get(key, "training"), key): value for key, value in flags.items()}
    settings = load_train_settings(config, flags={**values, **engine})
    if resume and folder is None:
        raise SettingsError("--resume needs the folder of the run", hint="give --folder")
    if flags["include_held_out"] and algorithm_name(settings.training.algorithm) != "sft":
        raise SettingsError(
            "--include-held-out is for --algorithm sft", hint="leave it out: nothing else would take them"
        )
    run = find_run(settings.training.algorithm, backend)
    has_endpoint = backend == "torch" and algorithm_name(settings.training.algorithm) in REINFORCEMENT
    if profile and not has_endpoint:
        raise SettingsError("--profile is for agents at work on the backend torch", hint="leave --profile out")
    target = folder or Path("runs") / time.strftime("train-%Y%m%d-%H%M%S")
    mounted = mounted_window(str(target))
    job = TrainingJob(settings, target, agent, traces, resume, say_on_stderr, mounted if has_endpoint else None)
    with contextlib.ExitStack() as beside:
        if mounted is not None and not has_endpoint:
            from lgov_core.gateway.server import served_alone

            beside.enter_context(served_alone(mounted))
        report = run(job)
    text = "\n".join(f"{name}: {_shown(value)}" for name, value in report.items() if value not in ([], {}))
    if profile and (spent := time_spent(read_metrics(target / "metrics.jsonl"))) is not None:
        report, text = {**report, "profile": spent.as_json()}, f"{text}\n{spent.table()}"
    write_result(report, text, as_json=as_json)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in value)
    return ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)
