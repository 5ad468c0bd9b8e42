"""Runners for worker processes, each behaving as its job says; and what a test needs to start such workers."""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import math
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from lgov_core.audit import AuditLog
from lgov_core.errors import AuditError
from lgov_core.store import open_store
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.train.workers.jobs import Episode, Job, WorkerConfig
from lgov_core.train.workers.pool import WorkerPool
from lgov_core.types import Action, Attempt, Decision, Outcome, Point, Reward, Rollout

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


def answer(job: Job, **result: Any) -> Episode:
    reward = Reward(1.0, "task", job.rollout_id, job.attempt)
    return Episode(Outcome.SUCCEEDED, (reward,), {"attempt": job.attempt, **result})


# ---------------------------------------------------------------------- behaviours, run in the worker


async def succeed(job: Job) -> Episode:
    # The later a job was handed out, the sooner it is done: results must be put in order.
    await asyncio.sleep(job.task.get("pause_s", 0.0))
    return answer(job, number=job.task.get("number"))


async def die_once(job: Job) -> Episode:
    if job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(job)


async def die(job: Job) -> Episode:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


async def die_in_mid_line(job: Job) -> Episode:
    """Is killed while it reports: half a line stands in the pipe."""
    if job.attempt == 1:
        for fd in range(3, 64):
            try:
                is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
            except OSError:
                continue
            if is_pipe and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.write(fd, b'{"job": {"rollout_id": "')
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(job)


class _ReadOnce(dict[str, Any]):
    """Can be read once, for the store; who reads it again, for the report, is killed."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.reads = 0

    def keys(self) -> Any:
        self.reads += 1
        if self.reads > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().keys()

    def __iter__(self) -> Any:
        return iter(self.keys())


async def die_before_report(job: Job) -> Episode:
    """Is killed when the attempt is closed in the store, and nobody has been told of it."""
    done = answer(job, number=job.task.get("number"))
    return Episode(done.outcome, done.rewards, _ReadOnce(done.result))


async def lose_connection(job: Job) -> Episode:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        raise AssertionError("somebody listens there")


async def lose_connection_once(job: Job) -> Episode:
    return await lose_connection(job) if job.attempt == 1 else answer(job)


async def raise_value_error(job: Job) -> Episode:
    raise ValueError("the agent cannot count")


async def miss_file(job: Job) -> Episode:
    Path("/no/such/file").read_text()
    raise AssertionError("not reached")


async def be_slow(job: Job) -> Episode:
    await asyncio.sleep(600)
    return answer(job)


async def time_out_itself(job: Job) -> Episode:
    raise TimeoutError("the warehouse did not answer")


async def hang_once(job: Job) -> Episode:
    """Blocks the event loop, so that no deadline within the process can end it."""
    if job.attempt == 1:
        time.sleep(600)
    return answer(job)


async def hang_in_thread(job: Job) -> Episode:
    """Hangs in a thread, holding a lock that is let go when the process ends."""
    with Path(job.task["lock"]).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(job.task["lock"] + ".held").touch()
        await asyncio.to_thread(time.sleep, 600)
    return answer(job)


async def print_much(job: Job) -> Episode:
    print('{"ready": false}')
    print("printed by the agent", file=sys.__stdout__, flush=True)
    os.write(1, b"written by the agent\n")
    subprocess.run([sys.executable, "-c", "print('printed by a child')"], check=True)
    return answer(job)


async def read_input(job: Job) -> Episode:
    child = subprocess.run(
        [sys.executable, "-c", "import sys; print(sys.stdin.read())"], capture_output=True, text=True
    )
    return answer(job, read=sys.stdin.read(), read_by_child=child.stdout.strip())


async def earn_nan(job: Job) -> Episode:
    return Episode(Outcome.SUCCEEDED, (Reward(math.nan, "task", job.rollout_id, job.attempt),))


BEHAVIOURS: Mapping[str, Callable[[Job], Any]] = {
    function.__name__: function
    for function in (
        succeed,
        die_once,
        die,
        die_in_mid_line,
        die_before_report,
        lose_connection,
        lose_connection_once,
        raise_value_error,
        miss_file,
        be_slow,
        time_out_itself,
        hang_once,
        hang_in_thread,
        print_much,
        read_input,
        earn_nan,
    )
}


class Runner:
    async def run(self, job: Job) -> Episode:
        return await BEHAVIOURS[job.task["do"]](job)


def make_runner(options: Mapping[str, Any]) -> Runner:
    return Runner()


class Clerk:
    """A real LangChain agent with tools that do well and badly. ``options``: ``database``, ``max_retries``."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from langchain.agents import create_agent
        from langchain_core.tools import ToolException, tool
        from langchain_openai import ChatOpenAI

        @tool
        def run_sql(query: str) -> str:
            """Runs SQL."""
            with closing(sqlite3.connect(options["database"])) as connection, connection:
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
        model = ChatOpenAI(model="scripted", max_retries=options.get("max_retries", 0), timeout=60)
        self.agent: Any = create_agent(model, [run_sql, fail, late, nothing], name="clerk")

    async def run(self, job: Job) -> Episode:
        state = await self.agent.ainvoke({"messages": [("user", job.task["say"])]})
        said = str(state["messages"][-1].text)
        reward = Reward(float(said == "done"), "task", job.rollout_id, job.attempt)
        return Episode(Outcome.SUCCEEDED if said == "done" else Outcome.FAILED, (reward,), {"said": said})


def make_clerk(options: Mapping[str, Any]) -> Clerk:
    return Clerk(options)


class LateClerk(Runner):
    """Loads LangChain when it is asked for the first time."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    async def run(self, job: Job) -> Episode:
        assert "langchain_core" not in sys.modules
        return await Clerk(self.options).run(job)


def make_late_clerk(options: Mapping[str, Any]) -> LateClerk:
    return LateClerk(options)


class Importer(Runner):
    """Loads, when it is asked, a LangChain that nobody can govern: an empty one, found in the folder that ``options`` names.

    It takes no error for an answer, and with ``silent`` lets nobody say one.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        sys.path.insert(0, options["folder"])
        self.silent = options["silent"]

    async def run(self, job: Job) -> Episode:
        if self.silent:
            sys.stderr.close()
        for _ in range(2):
            with suppress(Exception):
                importlib.import_module("langchain_core")
        return answer(job)


def make_importer(options: Mapping[str, Any]) -> Importer:
    return Importer(options)


def make_clerk_on_a_full_disk(options: Mapping[str, Any]) -> Clerk:
    """In a worker process of its own: the record takes everything but acts."""
    commit = AuditLog.commit

    def full(log: AuditLog, action: Action, decision: Decision) -> str:
        if action.point is Point.PRE_TOOL_CALL:
            raise AuditError("audit record: database or disk is full", hint="make space")
        return commit(log, action, decision)

    AuditLog.commit = full  # type: ignore[method-assign]
    return Clerk(options)


class Asker:
    """A real LangChain agent that asks once and is paid every second time that it gets a task, whatever it said.

    A job with ``paid`` is always paid that, and every second time ``air`` in addition. A job that names a behaviour behaves
    so instead. ``options``: ``max_retries``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        from langchain.agents import create_agent
        from langchain_openai import ChatOpenAI

        self.agent: Any = create_agent(
            ChatOpenAI(model="tiny", max_retries=options.get("max_retries", 0), timeout=60), [], name="asker"
        )
        self.counts: Counter[str] = Counter()

    async def run(self, job: Job) -> Episode:
        if "do" in job.task:
            return await BEHAVIOURS[job.task["do"]](job)
        self.counts[job.task_id] += 1
        second = self.counts[job.task_id] % 2
        paid = float(job.task.get("paid", second))
        await self.agent.ainvoke({"messages": [("user", job.task["say"])]})
        rewards = [Reward(paid, "task", job.rollout_id, job.attempt)]
        if "air" in job.task:
            rewards.append(Reward(job.task["air"] * second, "air", job.rollout_id, job.attempt))
        return Episode(Outcome.SUCCEEDED if paid else Outcome.FAILED, tuple(rewards))


def make_asker(options: Mapping[str, Any]) -> Asker:
    return Asker(options)


def make_runner_late(options: Mapping[str, Any]) -> Runner:
    """Only the process with the number that ``options`` says gets so far; those before it are killed."""
    with open(options["begun"], "a+") as begun:
        begun.write(".")
        begun.seek(0)
        number = len(begun.read())
    if number < options["ready"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return Runner()


def make_runner_never(options: Mapping[str, Any]) -> Runner:
    time.sleep(600)
    return Runner()


# ---------------------------------------------------------------------- in the test


class Bench:
    """A store, an audit record, a policy file and pools on them, in one folder."""

    def __init__(self, folder: Path, policy: str = ALLOW_ALL) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.policy = folder / "policy.yaml"
        self.policy.write_text(policy)
        self.store: SQLiteStore = open_store(str(folder / "store.sqlite"))  # type: ignore[assignment]
        self.count = 0

    def config(self, **changes: Any) -> WorkerConfig:
        given: dict[str, Any] = {
            "factory": "episodes:make_runner",
            "options": {},
            "policy": str(self.policy),
            "audit": str(self.folder / "audit.sqlite"),
            "store": str(self.folder / "store.sqlite"),
            "endpoint": "http://127.0.0.1:9/v1",
        }
        return WorkerConfig(**{**given, **changes})

    def pool(self, *, config: WorkerConfig | None = None, **options: Any) -> WorkerPool:
        options.setdefault("retry_delay_s", 0.0)
        return WorkerPool(config or self.config(), self.store, log_dir=self.logs, **options)

    def jobs(self, *tasks: Mapping[str, Any]) -> list[Job]:
        """Adds a rollout for every task."""
        rollouts: list[Rollout] = []
        for task in tasks:
            self.count += 1
            rollouts.append(Rollout(f"ro-{self.count}", "t", "run", dict(task)))
        self.store.add_rollouts(rollouts)
        return [Job(rollout.rollout_id, rollout.task_id, 1, rollout.input) for rollout in rollouts]

    def attempts(self, job: Job) -> list[Attempt]:
        return self.store.attempts([job.rollout_id])

    def outcomes(self, job: Job) -> list[str | None]:
        return [attempt.outcome for attempt in self.attempts(job)]

    def logged(self) -> str:
        return "".join(path.read_text() for path in sorted(self.logs.iterdir()))
