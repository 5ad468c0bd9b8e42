"""Who has rollouts run while verl trains: worker processes beside the trainer, or whatever a program puts in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from lgov_core.train.workers.jobs import JobResult, WorkerConfig
from lgov_core.types import Rollout

if TYPE_CHECKING:
    from lgov_core.gateway.protocol import Engine
    from lgov_core.store import RolloutQueue
    from lgov_core.train.verl.job import VerlJob

#: The host that `in_workers` names.
WORKERS = "lgov_core.train.verl.hosts:open_workers"


class Host(Protocol):
    """Serves the weights under training to agents, and has rollouts run. For the thread of verl's task runner.

    Made by a function ``open_host(job, engine, store)`` that `VerlJob.host` names, in the process of the task runner. The
    store is open as long as the host is; the host serves ``engine``.
    """

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[JobResult]:
        """See `lgov_core.train.loop.loop.Collector`."""
        ...

    def report(self, figures: Mapping[str, Any]) -> None:
        """The figures of a step whose rollouts are there, ``step`` (from 1) among them.

        Of a step that is made again, after its job was killed, they come again.
        """
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of the worker processes: how the agent is run (``endpoint`` is filled in), and how many there are.

    ``workers`` processes run up to ``concurrency`` rollouts each; a rollout is tried ``max_attempts`` times.
    """

    worker: WorkerConfig
    workers: int = 1
    concurrency: int = 64
    max_attempts: int = 3


def in_workers(options: WorkerOptions) -> Mapping[str, Any]:
    """The fields ``host`` and ``options`` of a `VerlJob` whose rollouts run in worker processes on its node."""
    return {"host": WORKERS, "options": asdict(options)}


def open_workers(job: VerlJob, engine: Engine, store: RolloutQueue) -> Host:
    """An endpoint on this machine, and a `WorkerPool` that talks to it."""
    return _Workers(job, engine, store)


class _Workers:
    def __init__(self, job: VerlJob, engine: Engine, store: RolloutQueue) -> None:
        from lgov_core.gateway.serving.server import EndpointServer
        from lgov_core.train.workers.pool import WorkerPool

        given: dict[str, Any] = {**job.options, "worker": WorkerConfig(**job.options["worker"])}
        options = WorkerOptions(**given)
        self._server = EndpointServer([engine], store).start()
        self._pool = WorkerPool(
            replace(options.worker, endpoint=self._server.base_url),
            store,
            workers=options.workers,
            concurrency=options.concurrency,
            max_attempts=options.max_attempts,
            log_dir=job.folder / "logs",
        )

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[JobResult]:
        return self._pool.collect_rollouts(rollouts, progress)

    def report(self, figures: Mapping[str, Any]) -> None:
        """Nobody asks."""

    def close(self) -> None:
        self._pool.close()
        self._server.stop()
