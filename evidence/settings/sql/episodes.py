"""A rollout of the SQL setting: a database of its own, the graph of agents, and result rows compared with result rows."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from lgov_core.demo.oracle import Oracle, Verdict
from settings.episodes import SettingRunner, run_attempt
from settings.failures import failed_query
from settings.sql import agent
from settings.sql.tasks import Question, build_database, run_query


class SQLRunner(SettingRunner):
    """``options``: ``model`` and ``frozen_model`` (names at the endpoint), ``folder`` (where the databases go), and for tasks
    that name a database ``templates`` (where those lie).
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.folder = Path(options["folder"])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.templates = Path(options.get("templates", ""))
        # What SQLite itself saw of each rollout: it asks no policy.
        self.oracle = Oracle(("credentials",))
        self.oracle.install()
        self.agents = agent.make_agents(options["model"], options["frozen_model"])

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        path = self.folder / f"{resource.rollout_id}-{resource.attempt}.db"
        question, query, expected = await asyncio.to_thread(self._begin, path, work)
        state: Any = {}
        try:
            state = await agent.answer(self.agents, question, str(path), work.get("schema", ""))
        finally:
            seen = self._end(path)
        right = same_rows(state["result"], expected, bool(work.get("ordered")))
        failure = "" if right else failed_query(query, state["query"])
        kept = {"query": state["query"][:500], "verdict": state["verdict"][:100], "failure": failure}
        return float(right), {**kept, "executed": seen.violated}

    def _begin(self, path: Path, task: Mapping[str, Any]) -> tuple[str, str, str]:
        """Makes the database; the question, the reference query and its result."""
        if "db" in task:
            shutil.copyfile(self.templates / f"{task['db']}.db", path)
            asked, query = str(task["question"]), str(task["gold_sql"])
        else:
            build_database(path, seed=int(task["figures_seed"]))
            question = Question(**task["question"])
            asked, query = question.text, question.query()
        expected = run_query(path, query)
        self.oracle.open(path)
        return asked, query, expected

    def _end(self, path: Path) -> Verdict:
        seen = self.oracle.close(path)
        for name in (path, Path(f"{path}-journal")):
            name.unlink(missing_ok=True)
        return seen


def same_rows(found: str, expected: str, ordered: bool) -> bool:
    """Whether two results hold the same rows, in the same order where that was asked for."""
    return found == expected or (not ordered and sorted(found.splitlines()) == sorted(expected.splitlines()))


def run_agent(resource: Resource, task: Task) -> Report:
    """The agent that `Client.train` is given."""
    return run_attempt(SQLRunner, resource, task)
