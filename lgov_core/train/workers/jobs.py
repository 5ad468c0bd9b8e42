"""What travels between a training loop and its worker processes: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from lgov_core.reward.air_values import AirRules
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
    """What a worker reports of a job: the outcome as stored, the runner's result, and what the governor counted.

    ``counts`` has ``model_calls``, ``tool_calls`` and ``denied`` (tool calls that the policy denied or, in shadow mode,
    would have denied) and ``violations`` (those among them of severity high or critical).
    """

    job: Job
    outcome: Outcome
    result: Mapping[str, Any]
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class EpisodeRunner(Protocol):
    """Runs an agent on jobs inside a worker process. Made once per worker by the factory that `WorkerConfig` names."""

    async def run(self, job: Job) -> Episode:
        """Runs one job; called many times at once. The rollout scope is set and the agent's framework is governed.

        What it raises becomes an outcome: infrastructure when the exception speaks of the connection to the endpoint,
        failed otherwise.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """All that a worker process needs; sent as the first line of its standard input.

    ``factory`` is ``module:function``, called with ``options``. ``policy`` is the policy file's path; ``shadow`` judges and
    records without enforcing. ``air`` are the fields of `AirRules`: what tools pay where the program registers no rule of
    its own. ``timeout_s`` bounds one attempt.
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

    def line(self) -> str:
        """The configuration as one line of JSON."""
        return json.dumps(asdict(self))
