"""A rollout of the maths setting: the number that is said in the end, compared with the right one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lgov_core.train.workers.jobs import Job
from settings.episodes import SettingRunner
from settings.maths import agent

_ANSWER = re.compile(r"Answer:\s*\$?(-?[\d,]+(?:\.\d+)?)")


class MathsRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.client = agent.make_client(options["model"])

    async def attempt(self, job: Job) -> tuple[float, dict[str, Any]]:
        said = await agent.answer(self.client, job.task["problem"])
        return score(said, job.task["answer"]), {"said": said[:200], "expected": job.task["answer"]}


def score(said: str, expected: str) -> float:
    """1 for the right number, else 0."""
    found = _ANSWER.findall(said)
    return float(bool(found) and float(found[-1].replace(",", "")) == float(expected.replace(",", "")))


def make_runner(options: Mapping[str, Any]) -> MathsRunner:
    """The factory that workers are told to call."""
    return MathsRunner(options)
