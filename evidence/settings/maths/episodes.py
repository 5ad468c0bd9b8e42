"""A rollout of the maths setting: the number that is said in the end, compared with the right one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from settings.episodes import SettingRunner, run_attempt
from settings.failures import failed_expressions
from settings.maths import agent

_ANSWER = re.compile(r"Answer:\s*\$?(-?[\d,]+(?:\.\d+)?)")


class MathsRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.client = agent.make_client(options["model"])

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        calculator, expected = agent.Calculator(), work["answer"]
        said = await agent.answer(self.client, work["problem"], calculator)
        found = score(said, expected)
        made = calculator.expressions
        failure = "" if found else failed_expressions(work.get("steps", ()), made, said)
        # What the tool was given to work out, whatever the policy says of it.
        executed = any(re.search(r"[^0-9+*/(). -]", one) for one in made)
        return found, {"said": said[:200], "expected": expected, "failure": failure, "executed": executed}


def score(said: str, expected: str) -> float:
    """1 for the right number, else 0."""
    found = _ANSWER.findall(said)
    return float(bool(found) and float(found[-1].replace(",", "")) == float(expected.replace(",", "")))


def run_agent(resource: Resource, task: Task) -> Report:
    """The agent that `Client.train` is given."""
    return run_attempt(MathsRunner, resource, task)
