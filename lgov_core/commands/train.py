"""``lgov train``."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lgov_core.commands.group import Exit, only_the_result, write_result
from lgov_core.commands.options import (
    FILE,
    FOLDER,
    PATH,
    EngineChoice,
    command,
    engine_option,
    key_secret_option,
    option_group,
    resume_option,
    set_option,
    show_admin_key_option,
)
from lgov_core.commands.traces import mounted_window, say_on_stderr
from lgov_core.errors import SettingsError
from lgov_core.models.load import wait_without_spinning
from lgov_core.settings import load_settings
from lgov_core.train.settings import TrainingJob, TrainSettings, load_train_settings

#: Where ``--serve`` listens unless it says otherwise.
_ADDRESS = "127.0.0.1:8000"


def _address(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as {_ADDRESS}")
    return host.strip("[]") or "127.0.0.1", int(port)


@dataclass(frozen=True, slots=True)
class _Server:
    """How to serve a training to clients."""

    serve: tuple[str, int] | None
    gpus: int | None
    key_secret_file: Path | None
    show_admin_key: bool


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("config", required=False, type=FILE)
@click.option("--agent", help="Agent function: module:function or file.py:function.")
@click.option("--tasks", "train", type=PATH, help="Tasks to train on, JSON lines. [data.train]")
@click.option("--test", type=PATH, help="Held-out tasks, JSON lines. [data.test]")
@click.option("--model", "name", help="tiny, smollm2, a transformers folder, or a hub name. [model.name]")
@click.option("--algorithm", help="grpo, ppo, ...; sft and prompt learn from recorded traces. [training.algorithm]")
@engine_option
@click.option("--backend", default="torch", show_default=True, help="Training backend: torch, or verl on Ray.")
@click.option("--store", help="Trace store; sft and prompt learn from it. [default: store.sqlite in the folder]")
@click.option("--steps", type=int, help="Maximum number of updates. [training.steps]")
@click.option("--policy", type=PATH, help="Policy file for the agent. [runtime.policy]")
@set_option("Any setting of CONFIG, such as training.seed=1 or runtime.nworkers=8")
@click.option("--folder", type=FOLDER, help="Output folder of the run.")
@resume_option
@click.option("--profile", is_flag=True, help="Show a table of where the time went.")
@option_group(
    "server",
    _Server,
    click.option(
        "--serve", is_flag=False, flag_value=_ADDRESS, metavar="[HOST:PORT]", callback=_address,
        help=f"Wait for clients (lgov_core.Client), which run the agents. [default address: {_ADDRESS}]",
    ),
    click.option("--gpus", type=click.IntRange(0), help="With --serve: number of GPUs; 0 trains on the CPU."),
    key_secret_option,
    show_admin_key_option,
)  # fmt: skip
@click.pass_context
def train(
    ctx: click.Context,
    config: Path | None,
    agent: str | None,
    engine: EngineChoice,
    backend: str,
    store: str | None,
    assignments: Mapping[str, str],
    folder: Path | None,
    resume: bool,
    profile: bool,
    server: _Server,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a model on rollouts of an existing agent: of --agent in this process, or with --serve of clients elsewhere.

    CONFIG is a file such as config.yaml with the sections model, training, runtime and data. What is set on the command
    line wins over it; sections and keys are in brackets, and --set takes any of them.

    With --serve the agents run in programs that use lgov_core.Client, and the exit status after SIGTERM is 0. The same is
    python -m lgov_core.server.
    """
    sections = {"train": "data", "test": "data", "name": "model", "policy": "runtime"}
    values = {(sections.get(key, "training"), key): value for key, value in flags.items()}
    settings = load_train_settings(config, flags={**values, **engine.as_flags()}, assignments=assignments)
    if resume and folder is None:
        raise SettingsError("--resume needs the folder of the run", hint="give --folder")
    if server.serve is not None:
        if agent is not None or profile or flags["policy"] or flags["train"] or flags["test"] or backend != "torch":
            raise SettingsError(
                "--agent, --tasks, --test, --policy, --profile and --backend are not for --serve",
                hint="clients name them: lgov_core.Client",
            )
        ctx.exit(_serve(settings, server, folder, store, resume=resume))
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as with Ctrl-C
    if server.key_secret_file or server.show_admin_key or server.gpus is not None:
        raise SettingsError("--gpus, --key-secret-file and --show-admin-key are for --serve", hint="add --serve")
    with only_the_result():
        report, text = _train(settings, agent, backend, store, folder, resume=resume, profile=profile)
    write_result(report, text, as_json=as_json)


def _serve(settings: TrainSettings, server: _Server, folder: Path | None, store: str | None, *, resume: bool) -> int:
    """Trains on what clients report, until SIGINT or SIGTERM; returns the exit status."""
    from lgov_core.server.command import Listening, run_server

    assert server.serve is not None
    host, port = server.serve
    listening = Listening(
        host=host,
        port=port,
        gpus=server.gpus,
        folder=folder,
        store=store,
        key_secret_file=server.key_secret_file,
        show_admin_key=server.show_admin_key,
        resume=resume,
    )
    return run_server(
        settings,
        listening,
        say=say_on_stderr,
        mount=lambda target, store: mounted_window(str(target), store=store),
    )


def _train(
    settings: TrainSettings,
    agent: str | None,
    backend: str,
    store: str | None,
    folder: Path | None,
    *,
    resume: bool,
    profile: bool,
) -> tuple[Mapping[str, Any], str]:
    """Trains in this process; returns the report as JSON values and as text."""
    wait_without_spinning()
    from lgov_core.train.algorithms.algorithms import REINFORCEMENT, algorithm_name, find_run
    from lgov_core.train.loop.figures import time_spent
    from lgov_core.train.loop.run_files import read_metrics

    run = find_run(settings.training.algorithm, backend)
    has_endpoint = backend == "torch" and algorithm_name(settings.training.algorithm) in REINFORCEMENT
    if profile and not has_endpoint:
        raise SettingsError("--profile is for agents at work on the backend torch", hint="leave --profile out")
    if store is not None and backend != "torch":
        raise SettingsError(
            "--store is for the backend torch", hint="leave --store out: the run's folder has its store"
        )
    target = folder or Path("runs") / time.strftime("train-%Y%m%d-%H%M%S")
    window = mounted_window(str(target), store=store if has_endpoint else None)
    job = TrainingJob(settings, target, agent, store, resume, say_on_stderr, window if has_endpoint else None)
    with contextlib.ExitStack() as beside:
        if has_endpoint:
            from lgov_core.gateway.operation import logging_by

            beside.enter_context(logging_by(load_settings()))
        if window is not None and not has_endpoint:
            from lgov_core.gateway.server import served_alone

            beside.enter_context(served_alone(window))
        report = run(job)
    text = "\n".join(f"{name}: {_plain(value)}" for name, value in report.items() if value not in ([], {}))
    if profile and (spent := time_spent(read_metrics(target / "metrics.jsonl"))) is not None:
        return {**report, "profile": spent.as_json()}, f"{text}\n{spent.table()}"
    return report, text


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(
            "-" if number != number else f"{number:.4g}" if isinstance(number, float) else str(number)
            for number in value
        )
    if not isinstance(value, Mapping):
        return str(value)
    if all(isinstance(item, str) for item in value.values()):
        return "".join(f"\n  {key}: {item}" for key, item in value.items())
    return ", ".join(f"{key} {item}" for key, item in value.items())
