"""What the episode runners of all settings share: an attempt's score becomes its reward, an exception its outcome."""

from __future__ import annotations

from typing import Any

from lgov_core.train.workers.failures import is_infrastructure
from lgov_core.train.workers.jobs import Episode, Job
from lgov_core.types import Outcome, Reward


class SettingRunner:
    """Runs an agent on jobs. A setting says in `attempt` how, and what the answer is worth."""

    async def attempt(self, job: Job) -> tuple[float, dict[str, Any]]:
        """The score, 0 to 1, and what is to be kept of the attempt."""
        raise NotImplementedError

    async def run(self, job: Job) -> Episode:
        """One attempt. An agent that raises has failed; a machine that fails is not the agent's doing."""
        score, kept, error = 0.0, dict[str, Any](), None
        try:
            score, kept = await self.attempt(job)
        except Exception as raised:  # noqa: BLE001 - it becomes the episode's outcome
            error = raised
        outcome = Outcome.SUCCEEDED if score == 1.0 else Outcome.FAILED
        if error is not None and is_infrastructure(error):
            outcome = Outcome.INFRASTRUCTURE
        elif isinstance(error, TimeoutError):
            outcome = Outcome.TIMEOUT
        rewards = (Reward(score, "task", job.rollout_id, job.attempt, source="evidence"),)
        return Episode(
            outcome,
            rewards if outcome.trainable else (),
            {"score": score, **kept},
            f"{type(error).__name__}: {error}"[:500] if error else None,
        )
