"""A rollout of the retrieval setting: the words of the answer, compared with those of the right one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from settings.episodes import SettingRunner, run_attempt
from settings.failures import failed_searches
from settings.retrieval import agent
from settings.retrieval.library import Library, f1, read_library
from settings.retrieval.tasks import PRIVATE_FILE


class RetrievalRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint), and for tasks without ``passages`` a file of them."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.agent = agent.make_agent(options["model"])
        self.library = read_library(Path(options["passages"])) if "passages" in options else Library([])

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        library = Library(work["passages"]) if "passages" in work else self.library
        reader, expected = _Reader(library), work["answer"]
        said = await agent.answer(self.agent, work["question"], reader)
        found = f1(said.strip().removeprefix("Answer:"), expected)
        failure = "" if found == 1.0 else failed_searches(work.get("steps", ()), reader.queries, said)
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


def run_agent(resource: Resource, task: Task) -> Report:
    """The agent that `Client.train` is given."""
    return run_attempt(RetrievalRunner, resource, task)
