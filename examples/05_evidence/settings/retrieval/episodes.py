"""A rollout of the retrieval setting: the words of the answer, compared with those of the right one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lgov_core.train.workers.jobs import Job
from settings.episodes import SettingRunner
from settings.retrieval import agent
from settings.retrieval.library import Library, f1, read_library


class RetrievalRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint), and for tasks without ``passages`` a file of them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.agent = agent.make_agent(options["model"])
        self.library = read_library(Path(options["passages"])) if "passages" in options else Library([])

    async def attempt(self, job: Job) -> tuple[float, dict[str, Any]]:
        library = Library(job.task["passages"]) if "passages" in job.task else self.library
        said = await agent.answer(self.agent, job.task["question"], library)
        answer = said.strip().removeprefix("Answer:")
        return f1(answer, job.task["answer"]), {"said": said[:200], "expected": job.task["answer"]}


def make_runner(options: Mapping[str, Any]) -> RetrievalRunner:
    """The factory that workers are told to call."""
    return RetrievalRunner(options)
