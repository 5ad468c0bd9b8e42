"""Every kind of agent runs with the input that was judged."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from kernel_cases import allowing, bodies, coroutine

from lgov_core import Action, AuditLog, KernelSpace, SQLPolicy, current_scope
from lgov_core.errors import KernelError
from lgov_core.policies import BoundedPolicy
from lgov_core.types import Decision


class Runs:
    def run(self, given: Any) -> Any:
        return f"run {given}"


class Invokes:
    def invoke(self, given: Any) -> Any:
        return f"invoke {given}"

    async def ainvoke(self, given: Any) -> Any:
        return f"ainvoke {given}"


class Acts:
    def get_action(self, given: Any) -> Any:
        return f"act {given}"

    def update(self, *_: Any) -> None: ...


class TakesATask:
    async def run(self, *, task: str) -> str:
        return f"task {task}"


class Called:
    def __call__(self, given: Any) -> Any:
        return f"called {given}"


AGENTS: list[tuple[Any, str, str]] = [
    (lambda given: f"function {given}", "function x", "function x"),
    (Runs(), "run x", "run x"),
    (Invokes(), "invoke x", "ainvoke x"),
    (Acts(), "act x", "act x"),
    (Called(), "called x", "called x"),
    (TakesATask(), "task x", "task x"),
    (coroutine, "awaited x", "awaited x"),
]


@pytest.mark.parametrize(("agent", "expected", "_"), AGENTS)
def test_every_kind_of_agent_runs_from_synchronous_code(record: AuditLog, agent: Any, expected: str, _: str) -> None:
    assert KernelSpace(allowing(), record).execute(agent, "x") == expected


@pytest.mark.parametrize(("agent", "_", "expected"), AGENTS)
async def test_every_kind_of_agent_runs_from_asynchronous_code(
    record: AuditLog, agent: Any, _: str, expected: str
) -> None:
    assert await KernelSpace(allowing(), record).execute_async(agent, "x") == expected


@pytest.mark.parametrize("agent", [Runs, 7, object()])
def test_an_object_that_is_not_an_agent_is_refused(record: AuditLog, agent: Any) -> None:
    with pytest.raises(KernelError):
        KernelSpace(allowing(), record).execute(agent, "x")


def test_an_agent_without_input_is_refused(record: AuditLog) -> None:
    with pytest.raises(KernelError, match="no input"):
        KernelSpace(allowing(), record).execute(lambda given: given)


async def test_a_coroutine_agent_inside_a_running_loop_is_refused(record: AuditLog) -> None:
    with pytest.raises(KernelError, match="execute_async"):
        KernelSpace(allowing(), record).execute(coroutine, "x")
    assert record.entries() == []


def test_what_an_agent_raises_is_recorded_and_raised(kernel: KernelSpace, record: AuditLog) -> None:
    with pytest.raises(sqlite3.OperationalError):
        kernel.execute("SELECT * FROM nowhere")
    (outcome,) = [entry for entry in bodies(record) if entry["kind"] == "outcome"]
    assert (outcome["status"], outcome["error_type"]) == ("error", "OperationalError")
    assert kernel.get_recent_violations() == []


def test_a_generator_is_run_to_its_end_inside_its_rollout(record: AuditLog) -> None:
    seen: list[Any] = []

    def agent(given: str) -> Iterator[str]:
        seen.append(current_scope())
        yield given

    assert KernelSpace(allowing(), record).execute(agent, "x") == ["x"]
    assert seen[0] is not None


async def test_an_asynchronous_generator_too(record: AuditLog) -> None:
    async def agent(given: str) -> AsyncIterator[str]:
        yield given
        yield given

    assert await KernelSpace(allowing(), record).execute_async(agent, "x") == ["x", "x"]


def test_a_mapping_is_judged_as_the_arguments(record: AuditLog) -> None:
    policy = SQLPolicy(dialect="sqlite", argument="statement")
    kernel = KernelSpace(policy, record, executor=lambda arguments: arguments["statement"])
    assert kernel.execute({"statement": "SELECT 1"}) == "SELECT 1"
    assert kernel.execute({"statement": "DROP TABLE users"}) is None
    assert kernel.execute({"other": "SELECT 1"}) is None


@pytest.mark.parametrize("given", [None, 7, b"SELECT 1", ["SELECT 1"], object()])
def test_an_input_that_is_no_text_is_no_sql(kernel: KernelSpace, given: Any) -> None:
    assert not kernel.run(given).ran


def test_an_input_changed_while_judged_runs_as_judged(record: AuditLog) -> None:
    given = {"input": ["harmless"]}

    class Swaps(BoundedPolicy):
        name = "swaps"
        permits = True

        def judge(self, action: Action) -> Decision | None:
            given["input"][0] = "harmful"
            return self.allow()

    assert KernelSpace(Swaps(), record, executor=lambda arguments: arguments["input"]).execute(given) == ["harmless"]


def test_a_text_that_changes_its_value_runs_as_judged(kernel: KernelSpace) -> None:
    class Shifty(str):
        def __str__(self) -> str:
            return "DROP TABLE users"

    execution = kernel.run(Shifty("SELECT name FROM users"))
    assert execution.output == [("Ada",)]


def test_an_input_that_cannot_be_copied_is_not_run() -> None:
    kernel, ran = KernelSpace(allowing()), list[Any]()
    endless: list[Any] = []
    endless.append(endless)
    for given in (endless, {"query": endless}):
        for run in (lambda given=given: kernel.execute(ran.append, given), lambda given=given: kernel.check(given)):
            with pytest.raises(KernelError, match="holds itself"):
                run()
    assert ran == []
