"""The training server's other half on verl: clients run the agents, verl trains.

`CoordinatorHost` is a `lgov_core.integrations.verl.Host`: it runs in the process of verl's task runner and serves what a
`lgov_core.server.training.TrainingServer` serves, so that the same `lgov_core.Client` works with either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from lgov_core.errors import LgovError, TrainError
from lgov_core.gateway.app import create_app
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.integrations.verl.job import VerlJob
from lgov_core.server.collect import QueueCollector, Stopped
from lgov_core.server.coordinator import Coordinator, Tasks
from lgov_core.server.key_path import KeyInPath
from lgov_core.server.routes import train_routes
from lgov_core.server.run_state import RunState
from lgov_core.store import RolloutConfig, RolloutQueue
from lgov_core.train.loop.run_files import MetricsLog
from lgov_core.types import Attempt, Rollout

COORDINATOR_HOST: Final = "lgov_core.integrations.verl.serving:CoordinatorHost"


def coordinator_options(
    *, host: str, port: int, algorithm: str, timeout_s: float, max_attempts: int, key_secret_file: Path | None = None
) -> Mapping[str, Any]:
    """The fields ``host`` and ``options`` of a `VerlJob` whose rollouts are run by clients.

    The server listens on ``host`` and ``port``; with ``key_secret_file`` clients need an admin key made from it.
    """
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "algorithm": algorithm,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "key_secret_file": None if key_secret_file is None else str(key_secret_file),
    }
    return {"host": COORDINATOR_HOST, "options": options}


def keep_tasks(folder: Path, tasks: Sequence[Mapping[str, Any]]) -> None:
    """Writes the tasks to the server's folder, so that a client that starts a run learns whether there are any."""
    kept = Tasks(folder)
    kept.add_part("verl", "train", [dict(task) for task in tasks])
    kept.commit("verl", {"train": len(tasks), "test": 0})


class CoordinatorHost:
    """An endpoint, a queue of rollouts, and the routes by which clients take from it. See `Host`.

    The run is done, as clients see it, once the rollouts of the last step are in: what is left is the trainer's. Raises
    `EndpointError` for an address that cannot be used.
    """

    def __init__(self, job: VerlJob, engine: Engine, store: RolloutQueue) -> None:
        options = job.options
        secret = options["key_secret_file"]
        keys = KeyRing(required=False) if secret is None else KeyRing(Path(secret).read_bytes().strip())
        lines = MetricsLog(job.folder / "metrics.jsonl").lines()
        self._known = {int(line["step"]) for line in lines if line.get("phase") == "train"}
        before = RunState.unfinished(job.folder)
        # The run that was killed is resumed: who waited for it finds it again.
        self._run = before if before is not None and before.steps == job.steps else RunState(job.folder, 0, job.steps)
        self._run.lines(lines)
        self._run.at(max(self._known, default=0))
        config = RolloutConfig(max_attempts=options["max_attempts"], timeout_s=options["timeout_s"], retry_delay_s=0.5)
        self._collector = QueueCollector(store, config, self._run.stop_asked.is_set)
        self._collector.cancel_left(job.run_id)
        about = {"model": engine.models[0], "algorithm": options["algorithm"], "folder": str(job.folder)}
        coordinator = Coordinator(
            job.folder, store, keys, self._collector, loop_id=job.run_id, about=about, timeout_s=options["timeout_s"]
        )
        coordinator.begin(self._run)
        app = create_app([engine], store, keys=keys, more=train_routes(coordinator))
        self._server = EndpointServer(cast(Any, KeyInPath(app)), host=options["host"], port=options["port"]).start()
        self._steps = job.steps

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._server.url

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[Attempt]:
        """Waits for clients to run them. Raises `TrainError` when a client asked for the run to stop."""

        def report_stage(done: int, total: int) -> None:
            self._run.stage("rollouts", done, total)
            if progress is not None:
                progress(done, total)

        try:
            results = self._collector.collect_rollouts(rollouts, report_stage)
        except Stopped as stopped:
            self._run.end("stopped")
            raise TrainError("a client asked for the training to stop") from stopped
        except LgovError as error:
            self._run.end("failed", error)
            raise
        self._run.stage("update")
        return results

    def report(self, figures: Mapping[str, Any]) -> None:
        """See `Host`. A repeated step has already reported its metrics."""
        step = int(figures["step"])
        if step not in self._known:
            self._known.add(step)
            self._run.add(figures)
        self._run.at(step)
        if step >= self._steps:
            self._run.end("done")

    def close(self) -> None:
        """Ends the server."""
        self._server.stop()
