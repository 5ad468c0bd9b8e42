"""What the agents of all settings share: an attempt's score becomes its reward, an exception its outcome."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lgov_core import air
from lgov_core.air import AirRules, RuleSet
from lgov_core.client.attempts import outcome_of
from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from lgov_core.types import Outcome, Reward

#: Set to 1 where AIR is taken back at the end of an attempt (`Plan.shaped`); worker processes read it.
SHAPED = "EVIDENCE_AIR_SHAPED"
air.use(RuleSet(base=AirRules(shaped=os.environ.get(SHAPED) == "1")))

_OPENING = threading.Lock()


class SettingRunner:
    """Runs an agent on tasks. A setting says in `attempt` how, and what the answer is worth."""

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """The score, 0 to 1, and what is to be kept of the attempt."""
        raise NotImplementedError


def run_attempt(make: Callable[[Mapping[str, Any]], SettingRunner], resource: Resource, task: Task) -> Report:
    """One attempt at a task of `settings.run`, by the runner of this process.

    An agent that raises has failed; a machine that fails is not the agent's doing. The agents are asynchronous and share
    their clients, so the attempts of all threads run in one event loop.
    """
    with _OPENING:
        runner = _runner(make, json.dumps({**task["options"], "model": resource.model}))
        loop = _event_loop()
    score, kept, error = 0.0, dict[str, Any](), None
    try:
        score, kept = asyncio.run_coroutine_threadsafe(runner.attempt(resource, task["work"]), loop).result()
    except Exception as raised:  # noqa: BLE001 - it becomes the attempt's outcome
        error = raised
    outcome = Outcome.SUCCEEDED if score == 1.0 else Outcome.FAILED
    if error is not None and not (raised_outcome := outcome_of(error)[0]).trainable:
        outcome = raised_outcome
    return Report(
        outcome,
        (Reward(score, "task", source="evidence"),) if outcome.trainable else (),
        error=f"{type(error).__name__}: {error}"[:500] if error else None,
        result={"score": score, **kept},
    )


@functools.cache
def _runner(make: Callable[[Mapping[str, Any]], SettingRunner], options: str) -> SettingRunner:
    return make(json.loads(options))


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="evidence-agents", daemon=True).start()
    return loop
