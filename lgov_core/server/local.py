"""``lgov train``: a training server and its client in one process, for one run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgov_core.client import Client, TrainResult
from lgov_core.client.attempts import Agent
from lgov_core.client.tasks import load_agent, read_tasks
from lgov_core.gateway.protocol import Engine
from lgov_core.server.command import ENDING, interrupted
from lgov_core.server.recipe import agent_name_of, client_options, task_file
from lgov_core.server.training import ServerOptions, TrainingServer
from lgov_core.train.algorithms.algorithms import Algorithm, TrainingJob
from lgov_core.train.settings import TrainSettings


def run_local(job: TrainingJob) -> Mapping[str, Any]:
    """Trains with the agent of ``job`` and returns the result's figures. Raises `LgovError`.

    Ctrl-C becomes a KeyboardInterrupt that says what is kept and how to continue.
    """
    settings = job.settings
    name = agent_name_of(job)
    if settings.data.train is not None or not job.resume:
        read_tasks(task_file(job))  # before anything heavy is loaded: a broken line is reported at once
    agent = load_agent(name)
    job.say(f"loading {settings.model.name or 'the model'}; everything goes to {job.folder}")
    server: TrainingServer | None = None
    try:
        options = ServerOptions(store=job.traces, mounted=job.mounted)
        with serving(settings, job.folder, options=options, resume=job.resume) as server:
            result = _trained(job, agent, server)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(interrupted(job.folder, None if server is None else server.updates)) from None
    return {
        "folder": str(job.folder),
        "updates": result.updates,
        "reward": result.curves.get("reward", []),
        "held_out_reward": result.test_curves.get("reward", []),
        "counts": dict(result.counts),
    }


def _trained(job: TrainingJob, agent: Agent, server: TrainingServer) -> TrainResult:
    settings = job.settings
    # An agent in a box is not trusted with what is kept of it: its spans are claims.
    first_hand = None if settings.runtime.confine else server.first_hand_key
    client = Client(server.url, exit_on_interrupt=False, first_hand=first_hand)
    try:
        # One that was interrupted before it had any tasks gets them now.
        if settings.data.train is not None and not (job.resume and server.coordinator.tasks.of("train")):
            client.upload_data(settings.data.train, settings.data.test)
        return client.train(agent, **client_options(settings, job.folder))
    except KeyboardInterrupt:
        job.say(ENDING)
        raise


@contextlib.contextmanager
def serving(
    settings: TrainSettings,
    folder: Path,
    *,
    options: ServerOptions | None = None,
    resume: bool = False,
    algorithm: Algorithm | None = None,
    engines: Sequence[Engine] = (),
) -> Generator[TrainingServer]:
    """A training server of this process that trains in a thread of its own; ended, with a checkpoint, after the block.

    A KeyboardInterrupt while the update in progress ends gives that update up. The parameters are those of `TrainingServer`.
    """
    stop = threading.Event()
    with TrainingServer(
        settings, folder=folder, options=options, resume=resume, algorithm=algorithm, engines=engines
    ) as server:
        thread = threading.Thread(target=server.serve, args=(stop,), name="lgov-train", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            stop.set()
            try:
                thread.join()
            except KeyboardInterrupt:
                server.give_up()
                thread.join()
                raise
