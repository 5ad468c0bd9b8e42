"""``lgov train``: a training server and its client in one process, for one run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from lgov_core.client import Client
from lgov_core.client.agent_name import load_agent
from lgov_core.client.tasks import read_tasks
from lgov_core.errors import SettingsError
from lgov_core.server.training import TrainingServer
from lgov_core.train.registry import TrainingJob
from lgov_core.train.settings import TrainSettings


def run_local(job: TrainingJob) -> Mapping[str, Any]:
    """Trains with the agent of ``job`` and returns the result's figures. Raises `LgovError`."""
    settings = job.settings
    if job.agent is None:
        raise SettingsError("no agent is named", hint="--agent module:function, or --agent file.py:function")
    train = settings.data.train
    if train is None and not job.resume:
        raise SettingsError("there are no tasks", hint="--tasks train.jsonl, or data.train in the config file")
    if train is not None:
        read_tasks(train)  # before anything heavy is loaded: a broken line is told at once
    agent = load_agent(job.agent)
    job.say(f"loading {settings.model.name or 'the model'}; everything goes to {job.folder}")
    with serving(settings, job.folder, resume=job.resume) as server:
        client = Client(server.url)
        if train is not None and not job.resume:
            client.upload_data(train, settings.data.test)
        runtime = settings.runtime
        result = client.train(
            agent,
            nworkers=runtime.nworkers,
            workers="threads" if runtime.workers == "threads" else "processes",
            policy=runtime.policy,
            audit=job.folder / "audit.db" if runtime.policy else None,
            air_enabled=runtime.air_enabled,
            auto_instrumentation=runtime.auto_instrumentation,
        )
    return {
        "folder": str(job.folder),
        "updates": result.updates,
        "reward": result.curves.get("reward", []),
        "held_out_reward": result.test_curves.get("reward", []),
        "counts": dict(result.counts),
    }


@contextlib.contextmanager
def serving(
    settings: TrainSettings, folder: Path, *, store: str | None = None, resume: bool = False
) -> Generator[TrainingServer]:
    """A training server of this process that trains in a thread of its own; ended, with a checkpoint, after the block."""
    stop = threading.Event()
    with TrainingServer(settings, folder=folder, store=store, resume=resume) as server:
        thread = threading.Thread(target=server.serve, args=(stop,), name="lgov-train", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            thread.join()
