"""What has rollouts run while verl trains: the protocol of `VerlJob.host`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lgov_core.types import Attempt, Rollout


class Host(Protocol):
    """Serves the weights under training to agents, and has rollouts run. For the thread of verl's task runner.

    Made by a function ``open_host(job, engine, store)`` that `VerlJob.host` names, in the process of the task runner. The
    store is open as long as the host is; the host serves ``engine``.
    """

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[Attempt]:
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
