"""Agents that behave as their task says, and what a test needs to have them run: a store, a queue, and workers on it."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lgov_core.air import AirRules, RuleSet
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.tasks import Resource
from lgov_core.client.tasks import Task as Fields
from lgov_core.client.wire import Assignment, Report
from lgov_core.client.workers import ThreadWorkers
from lgov_core.errors import StoreError
from lgov_core.governance import Governance
from lgov_core.server.coordinator import QueueCollector
from lgov_core.store import RolloutConfig, open_store
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.train.loop.loop import RolloutTask
from lgov_core.types import Outcome, Reward

ALLOW_ALL = """
version: 1
name: open
rules:
  - {name: everything, use: allow}
"""

READ_ONLY = """
version: 1
name: desk
default: deny
rules:
  - {name: tools, use: tool, with: {allow: [run_sql, fail, late, nothing]}}
  - {name: sql, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only, argument: query}}
"""


def named(name: str, **fields: Any) -> RolloutTask:
    """A task of the loop as a training server makes them; the agent finds its name in it too."""
    return RolloutTask(name, {"task": {"name": name, **fields}, "mode": "train"})


# ---------------------------------------------------------------------- agents


def lose_connection(resource: Resource, task: Fields) -> Report:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        raise AssertionError("somebody listens there")


def lose_connection_once(resource: Resource, task: Fields) -> float:
    if resource.attempt == 1:
        lose_connection(resource, task)
    return 1.0


def die_once(resource: Resource, task: Fields) -> float:
    """Ends its process, so it is for worker processes."""
    if resource.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


BEHAVIOURS: Mapping[str, Callable[[Resource, Fields], Any]] = {
    function.__name__: function for function in (lose_connection, lose_connection_once, die_once)
}


class Asker:
    """A real LangChain agent that asks once and is paid every second time that it gets a task, whatever it said.

    A task with ``paid`` is always paid that, and every second time ``air`` in addition. A task that names a behaviour
    behaves so instead.
    """

    def __init__(self, max_retries: int = 0) -> None:
        self.max_retries = max_retries
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, resource: Resource, task: Fields) -> Any:
        if "do" in task:
            return BEHAVIOURS[task["do"]](resource, task)
        with self.lock:
            self.counts[json.dumps(dict(task))] += 1
            second = self.counts[json.dumps(dict(task))] % 2
        paid = float(task.get("paid", second))
        # Of the address without the key of one attempt: one agent serves all, and lgov names the attempt in each request.
        url = f"{os.environ['LGOV_ENDPOINT']}/v1"
        agent = _asker(url, resource.model, self.max_retries)
        agent.invoke({"messages": [("user", task["say"])]})
        rewards = [Reward(paid, "task")]
        if "air" in task:
            rewards.append(Reward(task["air"] * second, "air"))
        return Report(Outcome.SUCCEEDED if paid else Outcome.FAILED, tuple(rewards))


@functools.cache
def _asker(url: str, model: str, max_retries: int) -> Any:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    chat: Any = ChatOpenAI(model=model, base_url=url, api_key="none", max_retries=max_retries, timeout=60)
    return create_agent(chat, [], name="asker")


def clerk(resource: Resource, task: Fields) -> Report:
    """A real LangChain agent with tools that do well and badly, on the database that its task names."""
    from langchain.agents import create_agent
    from langchain_core.tools import ToolException, tool
    from langchain_openai import ChatOpenAI

    @tool
    def run_sql(query: str) -> str:
        """Runs SQL."""
        with closing(sqlite3.connect(task["database"])) as connection, connection:
            return str(connection.execute(query).fetchall())

    @tool
    def fail(how: str) -> str:
        """Raises."""
        if how == "to the model":
            raise ToolException("that went wrong")
        raise KeyError("the tool's own mistake")

    @tool
    def late() -> str:
        """Is too late."""
        raise TimeoutError("the warehouse did not answer")

    @tool
    def nothing() -> None:
        """Returns nothing."""

    fail.handle_tool_error = True
    model: Any = ChatOpenAI(model="scripted", base_url=resource.model_api, api_key="none", max_retries=0, timeout=60)
    agent = create_agent(model, [run_sql, fail, late, nothing], name="clerk")
    state = agent.invoke({"messages": [("user", task["say"])]})
    text = str(state["messages"][-1].text)
    return Report(Outcome.SUCCEEDED if text == "done" else Outcome.FAILED, (Reward(float(text == "done"), "task"),))


# ---------------------------------------------------------------------- in the test


class Bench:
    """A store, an audit record and a policy file in one folder, and workers that run what is in the store's queue."""

    def __init__(self, folder: Path, policy: str = ALLOW_ALL) -> None:
        self.folder = folder
        self.policy = folder / "policy.yaml"
        self.policy.write_text(policy)
        self.store: SQLiteStore = open_store(str(folder / "store.sqlite"))  # type: ignore[assignment]

    @contextmanager
    def collecting(
        self, agent: Any, url: str, *, max_attempts: int = 2, retry_delay_s: float = 0.0, **options: Any
    ) -> Generator[QueueCollector]:
        """A collector whose rollouts ``agent`` runs, under the policy, in four threads of this process."""
        config = RolloutConfig(max_attempts=max_attempts, timeout_s=120.0, retry_delay_s=retry_delay_s)
        collector = QueueCollector(self.store, config, lambda: False)
        governance = Governance().under(self.policy, self.folder / "audit.sqlite")
        runner = AgentRunner(agent, endpoint=url, governance=governance, rules=RuleSet(base=AirRules()))

        def done(given: Assignment, report: Report) -> None:
            try:
                self.store.add_spans(report.spans)
                self.store.finish_attempt(
                    given.rollout_id, given.attempt, report.outcome, error=report.error, rewards=report.rewards,
                    result={**report.result, "counts": dict(report.counts)},
                )  # fmt: skip
            except StoreError:  # it was cancelled
                return
            finally:
                collector.wake()

        workers, over = ThreadWorkers(runner, 4, done), threading.Event()

        def work() -> None:
            while not over.is_set():
                claims = self.store.claim("bench", workers.free, lease_s=600.0) if workers.free else []
                for claim in claims:
                    rollout: Any = claim.rollout
                    workers.give(
                        Assignment(
                            rollout.rollout_id, claim.attempt.attempt, rollout.task_id, rollout.input["mode"],
                            rollout.input["task"], f"{url}/v1", "tiny", 120.0,
                        )
                    )  # fmt: skip
                if not claims:
                    time.sleep(0.005)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            over.set()
            thread.join()
            workers.close()
            runner.close()
            for left in self.store.heartbeat("bench", lease_s=1.0):  # as a client's `Coordinator.release` takes it back
                self.store.finish_attempt(left.rollout_id, left.attempt, Outcome.INFRASTRUCTURE, error="ended")

    def outcomes(self, rollout_id: str) -> list[str | None]:
        return [attempt.outcome for attempt in self.store.attempts([rollout_id])]


def payloads(tasks: Sequence[Mapping[str, Any]]) -> list[RolloutTask]:
    """Tasks of the loop for fields of tasks."""
    return [named(f"task-{number}", **fields) for number, fields in enumerate(tasks)]
