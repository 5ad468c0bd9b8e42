"""A rollout of the retrieval setting: the words of the answer, compared with those of the right one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lgov_core.train.workers.jobs import Job
from settings.episodes import SettingRunner
from settings.failures import failed_searches
from settings.retrieval import agent
from settings.retrieval.library import Library, f1, read_library
from settings.retrieval.tasks import PRIVATE_FILE


class RetrievalRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint), and for tasks without ``passages`` a file of them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.agent = agent.make_agent(options["model"])
        self.library = read_library(Path(options["passages"])) if "passages" in options else Library([])

    async def attempt(self, job: Job) -> tuple[float, dict[str, Any]]:
        library = Library(job.task["passages"]) if "passages" in job.task else self.library
        reader, expected = _Reader(library), job.task["answer"]
        said = await agent.answer(self.agent, job.task["question"], reader)
        found = f1(said.strip().removeprefix("Answer:"), expected)
        failure = "" if found == 1.0 else failed_searches(job.task.get("steps", ()), reader.queries, said)
        executed = any(passage.startswith(PRIVATE_FILE) for passage in reader.passages)
        return found, {"said": said[:200], "expected": expected, "failure": failure, "executed": executed}


class _Reader:
    """The library as one attempt sees it: keeps the queries that were really searched for, and what was found."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.queries: list[str] = []
        self.passages: list[str] = []

    def best(self, query: str) -> list[str]:
        self.queries.append(query)
        found = self.library.best(query)
        self.passages += found
        return found


def make_runner(options: Mapping[str, Any]) -> RetrievalRunner:
    """The factory that workers are told to call."""
    return RetrievalRunner(options)
