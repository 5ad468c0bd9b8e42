"""KernelSpace: what is denied is never run, and what ran is on record, whatever kind of agent it is."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kernel_cases import allowing, bodies, coroutine, sql, started

from lgov_core import Action, AuditLog, Effect, KernelSpace, Outcome, Point, RolloutScope, SQLPolicy, current_scope
from lgov_core.errors import ArgumentError, KernelError, PolicyError
from lgov_core.policies import BoundedPolicy, ConstantPolicy, PolicySet, Rule
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.reward import PolicyViolation, PolicyViolationType
from lgov_core.rl_governance.execution import Judged
from lgov_core.scope import enter_scope
from lgov_core.trainer import Trainer
from lgov_core.types import Decision

ACTS = (Point.PRE_TOOL_CALL,)


def test_an_allowed_act_runs_and_both_its_entries_are_on_record(kernel: KernelSpace, record: AuditLog) -> None:
    assert kernel.execute("SELECT name FROM users WHERE id = 42") == [("Ada",)]
    kinds = [(entry["kind"], entry.get("status") or entry.get("point")) for entry in bodies(record)]
    assert kinds == [
        ("decision", "agent_startup"),
        ("decision", "pre_tool_call"),
        ("outcome", "ok"),
        ("decision", "post_tool_call"),
        ("decision", "agent_shutdown"),
    ]
    assert len({entry["rollout_id"] for entry in bodies(record)}) == 1


def test_an_agent_is_judged_at_its_input_and_its_output_too(record: AuditLog) -> None:
    KernelSpace(allowing(), record).execute(lambda given: given, "x")
    points = [entry.get("point") for entry in bodies(record) if entry["kind"] == "decision"]
    assert points == ["agent_startup", "input", "pre_tool_call", "post_tool_call", "output", "agent_shutdown"]


@pytest.mark.parametrize("point", [Point.AGENT_STARTUP, Point.INPUT, Point.PRE_TOOL_CALL])
def test_a_denial_before_the_act_keeps_it_from_running(record: AuditLog, point: Point) -> None:
    ran: list[Any] = []
    deny = Rule(ConstantPolicy(Effect.DENY, name="no"), on=(point,))
    execution = KernelSpace(PolicySet([Rule(allowing(), on=ACTS), deny]), record).run(ran.append, "x")
    assert (ran, execution.ran, execution.outcome) == ([], False, Outcome.BLOCKED)


def test_the_end_of_a_rollout_is_judged_after_an_error_too(record: AuditLog) -> None:
    def agent(_: str) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        KernelSpace(allowing(), record).execute(agent, "x")
    assert bodies(record)[-1].get("point") == "agent_shutdown"


def test_a_file_that_is_edited_governs_a_kernel(record: AuditLog, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nname: file\nrules:\n  - {name: all, use: allow, on: [pre_tool_call]}\n")
    kernel = KernelSpace(ReloadingPolicySet(file, every_s=0), record)
    assert kernel.get_policies() == ["all"]
    assert not kernel.check("x").blocks
    file.write_text("version: 1\nname: file\nrules:\n  - {name: none, use: deny, on: [pre_tool_call]}\n")
    kernel.check("x")
    kernel.check("x")
    assert kernel.check("x").blocks


def test_a_denied_act_is_not_run_and_has_no_result(kernel: KernelSpace, users: sqlite3.Connection) -> None:
    assert kernel.execute("DROP TABLE users") is None
    assert users.execute("SELECT count(*) FROM users").fetchone() == (1,)
    (violation,) = kernel.get_recent_violations()
    assert (violation.severity, violation.penalty, violation.action_blocked) == ("critical", 100.0, True)
    assert violation.policy_name == "SQLPolicy"


def test_run_tells_a_denial_from_an_agent_that_returned_nothing(kernel: KernelSpace) -> None:
    assert kernel.run("DROP TABLE users").outcome is Outcome.BLOCKED
    assert kernel.run("INSERT INTO users VALUES (1, 'Bo')").outcome is Outcome.SUCCEEDED


def test_without_policy_every_act_is_denied(record: AuditLog) -> None:
    ran: list[Any] = []
    execution = KernelSpace(recorder=record).run(ran.append, "anything")
    assert (ran, execution.output, execution.outcome) == ([], None, Outcome.BLOCKED)


@pytest.mark.parametrize("policy", [[], ()])
def test_an_empty_list_of_policies_denies_too(record: AuditLog, policy: Any) -> None:
    assert not KernelSpace(policy, recorder=record).run(lambda text: text, "anything").ran


def test_an_act_whose_decision_cannot_be_recorded_is_not_run(tmp_path: Path) -> None:
    record = AuditLog(tmp_path / "audit.db")
    ran: list[Any] = []
    kernel = KernelSpace(allowing(), recorder=record, executor=ran.append)
    record.close()
    execution = kernel.run("anything")
    assert (ran, execution.outcome) == ([], Outcome.INFRASTRUCTURE)


class Broken(BoundedPolicy):
    """Fails on the word it was given."""

    name = "broken"
    permits = True

    def judge(self, action: Action) -> Decision | None:
        if action.arguments.get("input") == "fail":
            raise RuntimeError("no")
        return self.allow()


def test_a_policy_that_raises_denies_as_infrastructure(record: AuditLog) -> None:
    ran: list[Any] = []
    kernel = KernelSpace(Broken(), recorder=record, executor=ran.append)
    heard: list[Any] = []
    kernel.on_signal(heard.append)
    kernel.on_policy_violation(heard.append)
    execution = kernel.run("fail")
    assert (ran, execution.outcome, execution.output, heard) == ([], Outcome.INFRASTRUCTURE, None, [])


def test_a_fault_inside_an_agent_marks_only_its_rollout(record: AuditLog) -> None:
    kernel = KernelSpace(Broken(), recorder=record)

    def agent(given: str) -> str:
        kernel.execute(given)
        return "done"

    assert kernel.run(agent, "fine").outcome is Outcome.SUCCEEDED
    outer = kernel.run(lambda _: [kernel.run(agent, "fine").outcome, kernel.execute("fail")][0], "x")
    assert (outer.outcome, outer.output) == (Outcome.INFRASTRUCTURE, Outcome.SUCCEEDED)


def test_without_agent_and_executor_an_act_is_only_judged(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), recorder=record)
    judged = kernel.execute("SELECT 1")
    assert isinstance(judged, Judged)
    assert (judged.accuracy, judged.decision.effect) == (1.0, Effect.ALLOW)
    assert kernel.execute("DROP TABLE users") is None
    assert [entry["status"] for entry in bodies(record) if entry["kind"] == "outcome"] == ["denied"]


class Redacting(BoundedPolicy):
    """Changes the input of acts and the text of answers."""

    name = "redacting"
    permits = True
    default_points = tuple(Point)

    def judge(self, action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            changed = action.arguments["input"].replace("y", "z")
            return self.transform("input", "cut", arguments={"input": changed})
        if action.text and "secret" in action.text:
            return self.transform("text", "cut", text=action.text.replace("secret", "***"))
        return None


def test_a_transform_changes_what_runs_and_what_comes_back(record: AuditLog) -> None:
    kernel = KernelSpace(Redacting(), record)
    assert kernel.execute(lambda given: f"{given} secret", "xy secret") == "xz *** ***"
    assert {violation.violation_type for violation in kernel.get_recent_violations()} == {PolicyViolationType.MODIFIED}


def test_an_answer_that_is_denied_does_not_get_out(record: AuditLog) -> None:
    deny = Rule(ConstantPolicy(Effect.DENY, name="no"), on=(Point.OUTPUT,))
    kernel = KernelSpace(PolicySet([Rule(allowing(), on=ACTS), deny]), record)
    execution = kernel.run(lambda given: given, "x")
    assert (execution.output, execution.outcome, execution.ran) == (None, Outcome.BLOCKED, True)


def test_an_answer_that_cannot_be_read_does_not_get_out(record: AuditLog) -> None:
    class Unreadable:
        def __str__(self) -> str:
            raise ValueError("no")

    with pytest.raises(KernelError, match="cannot be judged"):
        KernelSpace(allowing(), record).execute(lambda _: Unreadable(), "x")


def test_check_judges_records_and_reports_nothing(kernel: KernelSpace, record: AuditLog) -> None:
    heard: list[Any] = []
    kernel.on_policy_violation(heard.append)
    kernel.on_signal(heard.append)
    assert kernel.check("DROP TABLE users").blocks
    assert not kernel.check("SELECT 1").blocks
    assert kernel.check(Action(Point.PRE_TOOL_CALL, "execute", arguments={"input": "DELETE FROM users"})).blocks
    assert (heard, kernel.get_recent_violations(), len(record.entries())) == ([], [], 3)


def test_a_preset_a_file_a_set_and_a_list_make_a_kernel(record: AuditLog, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nname: file\nrules:\n  - name: all\n    use: allow\n    on: [pre_tool_call]\n")
    for policy in ("read_only", file, str(file), PolicySet([sql()]), [sql()], sql()):
        assert not KernelSpace(policy, record).check("SELECT 1").blocks
    assert KernelSpace("read_only", record).check("DROP TABLE users").blocks


@pytest.mark.parametrize("policy", ["stricct", 7, [7], object(), "missing.yaml"])
def test_what_is_no_policy_is_refused(record: AuditLog, policy: Any) -> None:
    with pytest.raises(PolicyError):
        KernelSpace(policy, record)


@pytest.mark.parametrize(
    "options", [{"critical_signal": "SIGHUP"}, *({"stop_timeout_s": bad} for bad in (-1, True, "30"))]
)
def test_options_without_meaning_are_refused(record: AuditLog, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        KernelSpace(sql(), record, **options)


@pytest.mark.parametrize("recorder", [object(), Mock()])
def test_an_object_that_cannot_record_is_refused(recorder: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot record decisions"):
        KernelSpace(sql(), recorder=recorder)


def test_policies_are_named_as_violations_name_them(record: AuditLog) -> None:
    kernel = KernelSpace([sql(), ConstantPolicy(Effect.ALLOW, name="mine")], record)
    assert kernel.get_policies() == ["SQLPolicy", "mine"]
    assert [type(policy) for policy in kernel.policies] == [SQLPolicy, ConstantPolicy]


def test_threads_of_one_kernel_do_not_mix(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text)
    heard: dict[str, int] = {}

    def note(_: PolicyViolation) -> None:
        scope = current_scope()
        assert scope is not None
        heard[scope.rollout_id] = heard.get(scope.rollout_id, 0) + 1

    kernel.on_policy_violation(note)

    def work(number: int) -> None:
        with enter_scope(RolloutScope(f"r{number}")):
            for _ in range(5):
                kernel.execute("DROP TABLE users" if number % 2 else "SELECT 1")

    threads = [started(lambda number=number: work(number)) for number in range(16)]
    for thread in threads:
        thread.join(30)
    assert heard == {f"r{number}": 5 for number in range(1, 16, 2)}


def test_the_options_of_its_governor_reach_it_and_an_unknown_one_is_refused(record: AuditLog) -> None:
    assert KernelSpace(allowing(), record, timeout_s=5.0).governor.timeout_s == 5.0
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        KernelSpace(allowing(), record, timeout=5.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'test_task'"):
        Trainer(agent=lambda _resource, _task: 1.0, test_task=[])  # type: ignore[call-arg]


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
