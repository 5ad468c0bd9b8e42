"""What a training loop and its worker processes exchange: one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from lgov_core.air.rules import AirRules
from lgov_core.types import Outcome, Reward


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a rollout. ``task`` is what the episode runner needs, as JSON values."""

    rollout_id: str
    task_id: str
    attempt: int
    task: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Episode:
    """How an agent did at one job, as its runner sees it. ``rewards`` without a target go to the attempt."""

    outcome: Outcome
    rewards: tuple[Reward, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: the outcome as stored, the runner's result, and the governor's counts.

    ``counts`` has ``model_calls``, ``tool_calls``, ``denied`` (tool calls denied, in shadow mode would-be) and
    ``violations`` (those of severity high or critical).
    """

    job: Job
    outcome: Outcome
    result: Mapping[str, Any]
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class EpisodeRunner(Protocol):
    """Runs an agent on jobs inside a worker process. Made once per worker by the factory that `WorkerConfig` names."""

    async def run(self, job: Job) -> Episode:
        """Runs one job; called many times at once, in the rollout's scope and governed.

        An exception becomes an outcome: infrastructure when it is about the machines, failed otherwise.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Options of a worker process; sent as the first line of its standard input.

    ``factory`` is ``module:function``, called with ``options``. ``policy`` is a policy file; ``shadow`` judges without
    enforcing. ``air`` are the fields of `AirRules`, for tools without a rule of the program. ``timeout_s`` bounds an
    attempt.
    """

    factory: str
    options: Mapping[str, Any]
    policy: str
    audit: str
    store: str
    endpoint: str
    shadow: bool = False
    air: Mapping[str, Any] = field(default_factory=lambda: asdict(AirRules()))
    timeout_s: float = 120.0
