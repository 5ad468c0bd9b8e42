"""``python -m lgov_core.server``, and the server of ``lgov train --serve``."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from lgov_core.client.client import TrainingBar, TrainResult
from lgov_core.errors import EndpointError, LgovError, SettingsError, counted
from lgov_core.models.load import wait_without_spinning
from lgov_core.settings import load_settings
from lgov_core.train.settings import TrainSettings, load_train_settings

if TYPE_CHECKING:
    from lgov_core.gateway.access import KeyRing
    from lgov_core.gateway.server import MountedApp
    from lgov_core.server.coordinator import Coordinator
    from lgov_core.server.run_state import RunState

_Function = TypeVar("_Function", bound=Callable[..., Any])


#: Seconds between two looks at the run.
_PAUSE_S = 0.5
#: Said at once after Ctrl-C.
ENDING: Final = "ending after the update in progress; once more ends at once"


@contextlib.contextmanager
def shown_progress(coordinator: Coordinator) -> Generator[None]:
    """Shows each run of ``coordinator`` until the block ends, as its clients show it."""
    over = threading.Event()

    def watch() -> None:
        last: RunState | None = None
        while not over.wait(_PAUSE_S):
            run = coordinator.run
            if run is not None and run is not last:
                _show(run, over)
                last = run

    thread = threading.Thread(target=watch, name="lgov-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(run: RunState, over: threading.Event) -> None:
    metrics: list[dict[str, Any]] = []
    with TrainingBar() as display:
        while True:
            ended = run.ended or over.is_set()  # before it is asked: nothing is missed then
            progress = run.progress(len(metrics))
            metrics += progress["metrics"]
            display.show(progress, progress["metrics"])
            if ended:
                break
            over.wait(_PAUSE_S)
        summary = progress["error"] or TrainResult(run.run_id, metrics)
        display.say(f"training {progress['state']}: {summary}")


def interrupted(folder: Path, updates: int | None) -> str:
    """Said at the end: what is kept, and how to continue. ``updates`` is None while the training was getting ready."""
    if updates is None:
        return "interrupted while it was getting ready; nothing has changed, run the same command again"
    kept = counted(updates, "update is kept", "updates are kept")
    return f"interrupted; {kept}, continue with --resume --folder {folder}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens and keeps its run, as its command line says; without ``folder`` in a new one below ``runs/``."""

    host: str
    port: int
    gpus: int | None
    folder: Path | None
    store: str | None
    key_secret_file: Path | None
    show_admin_key: bool
    resume: bool


def run_server(
    settings: TrainSettings,
    listening: Listening,
    *,
    say: Callable[[str], None],
    mount: Callable[[Path, str | None], MountedApp | None] | None = None,
) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status. Raises `LgovError`.

    The first signal lets the update in progress end and writes a checkpoint; the second ends at once.
    SIGINT becomes a KeyboardInterrupt that says what is kept and how to continue. ``mount`` makes, of the folder and the
    store, what is served beside the endpoint.
    """
    folder, store, resume = listening.folder, listening.store, listening.resume
    if resume and folder is None:
        raise SettingsError("--resume needs the folder of the run", hint="give --folder")
    target = folder or Path("runs") / time.strftime("server-%Y%m%d-%H%M%S")
    wait_without_spinning()
    say(f"loading {settings.model.name or 'the model'}")
    server: TrainingServer | None = None
    try:
        from lgov_core.gateway.operation import logging_by
        from lgov_core.server.training import ServerOptions, TrainingServer

        keys = None if listening.key_secret_file is None else _keys(listening.key_secret_file)
        if listening.show_admin_key and keys is None:
            raise SettingsError("there is no admin key without keys", hint="give --key-secret-file")
        mounted = None if mount is None else mount(target, store)
        own = load_settings()
        options = ServerOptions(listening.host, listening.port, store, keys, listening.gpus, mounted, own.allowed_hosts)
        with logging_by(own), TrainingServer(settings, folder=target, options=options, resume=resume) as server:
            stop, sigint = _on_signals(say)
            say(f"training server on {server.url}, everything goes to {target}")
            if listening.show_admin_key and keys is not None:
                say(f"admin key {keys.admin}")
            with shown_progress(server.coordinator):
                server.serve(stop)
        if not sigint.is_set():
            return 0
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise KeyboardInterrupt(interrupted(target, None if server is None else server.updates)) from None


def _on_signals(say: Callable[[str], None]) -> tuple[threading.Event, threading.Event]:
    stop, sigint = threading.Event(), threading.Event()

    def handle(number: int, _frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            sigint.set()
        stop.set()
        say(ENDING)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return stop, sigint


def _keys(secret_file: Path) -> KeyRing:
    from lgov_core.gateway.access import KeyRing, read_secrets

    try:
        return KeyRing(read_secrets(secret_file))
    except EndpointError as error:
        raise SettingsError(error.message, hint=error.hint) from error


dtype_option: Final = click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="What the model computes in; auto is bfloat16 where that is faster. [model.dtype]",
)


def engine_options(function: _Function) -> _Function:
    """``--engine``, ``--engine-url`` and ``--vllm-python``; `engine_flags` makes settings of them."""
    for option in (
        click.option(
            "--vllm-python", type=click.Path(path_type=Path), help="Python with vLLM. [.venv-vllm/bin/python]"
        ),
        click.option("--engine-url", help="Base URL of a vLLM that runs already. [model.engine_url]"),
        click.option(
            "--engine",
            type=click.Choice(["embedded", "vllm"]),
            help="Engine that generates replies: embedded (default), or vllm in its own process. [model.engine]",
        ),
    ):
        function = option(function)
    return function


def engine_flags(values: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The settings of `engine_options`, which are taken out of ``values``. A URL means vLLM."""
    engine, url, python = (values.pop(name) for name in ("engine", "engine_url", "vllm_python"))
    if engine == "embedded" and url is not None:
        raise SettingsError("--engine-url is the address of a vLLM", hint="--engine vllm, or leave it out")
    return {
        ("model", "engine"): "vllm" if engine is None and url is not None else engine,
        ("model", "engine_url"): url,
        ("vllm", "python"): None if python is None else python.absolute(),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="Settings file (config.yaml).")
@click.option("--model", help="tiny, smollm2, a transformers folder, or a hub name. [LIGHTNING_MODEL_PATH]")
@click.option("--algorithm", help="grpo, ppo, ... [LIGHTNING_RL_ALGORITHM]")
@engine_options
@dtype_option
@click.option("--gpus", type=click.IntRange(0), help="Number of GPUs; 0 trains on the CPU. [default: 1 if available]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 picks a free port.",
)
@click.option("--epochs", type=int, help="Passes over the tasks. [training.epochs]")
@click.option("--steps", type=int, help="Maximum number of updates. [training.steps]")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Output folder of the run.")
@click.option("--store", help="Trace store. [default: store.sqlite in the folder]")
@click.option(
    "--key-secret-file", type=click.Path(path_type=Path), help="File with the secret that keys are derived from."
)
@click.option("--show-admin-key", is_flag=True, help="Print the key that clients need.")
@click.option("--resume", is_flag=True, help="Resume the training in --folder.")
def server_command(
    config: Path | None,
    model: str | None,
    dtype: str | None,
    algorithm: str | None,
    epochs: int | None,
    steps: int | None,
    **more: Any,
) -> None:
    """Train a model from what agents elsewhere do with it (lgov_core.Client).

    Exit status: 0 ended by SIGTERM; 1 something failed (the message says what); 2 wrong usage or settings; 130 interrupted.
    """
    flags = {
        ("model", "name"): model, ("model", "dtype"): dtype, ("training", "algorithm"): algorithm,
        ("training", "epochs"): epochs, ("training", "steps"): steps, **engine_flags(more),
    }  # fmt: skip
    try:
        settings = load_train_settings(config, flags=flags)
        status = run_server(settings, Listening(**more), say=lambda line: click.echo(line, err=True))
    except LgovError as error:
        click.echo(f"error: {error}", err=True)
        status = 2 if isinstance(error, SettingsError) else 1
    except KeyboardInterrupt as error:
        click.echo(str(error) or "interrupted", err=True)
        status = 130
    raise SystemExit(status)
