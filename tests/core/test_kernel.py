"""KernelSpace: what is denied is never run, what ran is on record, and signals stop what they say."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lgov_core import Action, AuditLog, Effect, KernelSpace, Outcome, Point, RolloutScope, SQLPolicy, current_scope
from lgov_core.errors import ArgumentError, AuditError, KernelError, PolicyError
from lgov_core.kernel.space import Judged
from lgov_core.policies import BoundedPolicy, ConstantPolicy, PolicySet, Rule
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.reward.violation import PolicyViolation, PolicyViolationType
from lgov_core.scope import enter_scope
from lgov_core.types import Decision, Severity

ACTS = (Point.PRE_TOOL_CALL,)


def allowing() -> ConstantPolicy:
    return ConstantPolicy(Effect.ALLOW, name="allowing")


def sql() -> SQLPolicy:
    return SQLPolicy(dialect="sqlite", argument="input", deny=["DROP", "DELETE"])


@pytest.fixture
def record(tmp_path: Path) -> Iterator[AuditLog]:
    with AuditLog(tmp_path / "audit.db") as log:
        yield log


@pytest.fixture
def users() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE users (id INTEGER, name TEXT); INSERT INTO users VALUES (42, 'Ada')")
    yield connection
    connection.close()


@pytest.fixture
def kernel(record: AuditLog, users: sqlite3.Connection) -> Iterator[KernelSpace]:
    made = KernelSpace(policy=sql(), recorder=record, executor=lambda text: users.execute(text).fetchall())
    yield made
    made.close()


def bodies(record: AuditLog) -> list[dict[str, Any]]:
    return [dict(entry.body) for entry in record.entries()]


# ---------------------------------------------------------------------- running and refusing


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


def test_the_end_of_a_rollout_is_judged_also_when_the_agent_raised(record: AuditLog) -> None:
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

    def judge(self, action: Action) -> Decision | None:
        if action.arguments.get("input") == "fail":
            raise RuntimeError("no")
        return self.allow()


def test_a_policy_that_raises_denies_and_is_not_held_against_the_agent(record: AuditLog) -> None:
    ran: list[Any] = []
    kernel = KernelSpace(Broken(), recorder=record, executor=ran.append)
    heard: list[Any] = []
    kernel.on_signal(heard.append)
    kernel.on_policy_violation(heard.append)
    execution = kernel.run("fail")
    assert (ran, execution.outcome, execution.output, heard) == ([], Outcome.INFRASTRUCTURE, None, [])


def test_a_failure_inside_an_agent_marks_its_rollout_and_no_other(record: AuditLog) -> None:
    kernel = KernelSpace(Broken(), recorder=record)

    def agent(given: str) -> str:
        kernel.execute(given)
        return "done"

    assert kernel.run(agent, "fine").outcome is Outcome.SUCCEEDED
    outer = kernel.run(lambda _: [kernel.run(agent, "fine").outcome, kernel.execute("fail")][0], "x")
    assert (outer.outcome, outer.output) == (Outcome.INFRASTRUCTURE, Outcome.SUCCEEDED)


def test_without_agent_and_executor_the_act_is_judged_and_nothing_is_run(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), recorder=record)
    judged = kernel.execute("SELECT 1")
    assert isinstance(judged, Judged)
    assert (judged.accuracy, judged.decision.effect) == (1.0, Effect.ALLOW)
    assert kernel.execute("DROP TABLE users") is None
    assert [entry["status"] for entry in bodies(record) if entry["kind"] == "outcome"] == ["denied"]


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


async def coroutine(given: Any) -> Any:
    await asyncio.sleep(0)
    return f"awaited {given}"


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
def test_what_is_no_agent_is_refused(record: AuditLog, agent: Any) -> None:
    with pytest.raises(KernelError):
        KernelSpace(allowing(), record).execute(agent, "x")


def test_an_agent_without_input_is_refused(record: AuditLog) -> None:
    with pytest.raises(KernelError, match="no input"):
        KernelSpace(allowing(), record).execute(lambda given: given)


async def test_a_coroutine_agent_inside_a_running_loop_is_refused_before_anything_is_judged(record: AuditLog) -> None:
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


def test_what_was_judged_is_what_runs_even_when_somebody_changes_it_meanwhile(record: AuditLog) -> None:
    given = {"input": ["harmless"]}

    class Swaps(BoundedPolicy):
        name = "swaps"

        def judge(self, action: Action) -> Decision | None:
            given["input"][0] = "harmful"
            return self.allow()

    assert KernelSpace(Swaps(), record, executor=lambda arguments: arguments["input"]).execute(given) == ["harmless"]


def test_a_text_that_reads_differently_the_second_time_is_run_as_it_was_judged(kernel: KernelSpace) -> None:
    class Shifty(str):
        def __str__(self) -> str:
            return "DROP TABLE users"

    execution = kernel.run(Shifty("SELECT name FROM users"))
    assert execution.output == [("Ada",)]


class Redacting(BoundedPolicy):
    """Changes the input of acts and the text of answers."""

    name = "redacting"
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


# ---------------------------------------------------------------------- judging only, and construction


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
def test_what_records_nothing_is_no_recorder(recorder: Any) -> None:
    with pytest.raises(ArgumentError, match="cannot record decisions"):
        KernelSpace(sql(), recorder=recorder)


def test_policies_are_named_as_violations_name_them(record: AuditLog) -> None:
    kernel = KernelSpace([sql(), ConstantPolicy(Effect.ALLOW, name="mine")], record)
    assert kernel.get_policies() == ["SQLPolicy", "mine"]
    assert [type(policy) for policy in kernel.policies] == [SQLPolicy, ConstantPolicy]


# ---------------------------------------------------------------------- what is heard


def test_callbacks_hear_inside_the_rollout_and_can_be_taken_back(kernel: KernelSpace) -> None:
    heard: list[tuple[PolicyViolation, RolloutScope | None]] = []
    wide: list[tuple[Any, ...]] = []

    def four(policy_name: str, description: str, severity: str, blocked: bool) -> None:
        wide.append((policy_name, severity, blocked))

    remove = kernel.on_policy_violation(lambda violation: heard.append((violation, current_scope())))
    kernel.on_policy_violation(four)
    with enter_scope(RolloutScope("mine")):
        kernel.execute("DROP TABLE users")
    remove()
    kernel.execute("DROP TABLE users")
    assert [scope.rollout_id for _, scope in heard if scope] == ["mine"]
    assert wide == [("SQLPolicy", "critical", True)] * 2


def test_a_callback_that_raises_changes_nothing_and_is_counted(kernel: KernelSpace) -> None:
    heard: list[Any] = []

    def broken(violation: PolicyViolation) -> None:
        raise RuntimeError("no")

    kernel.on_policy_violation(broken)
    kernel.on_policy_violation(heard.append)
    assert kernel.execute("DROP TABLE users") is None
    assert len(heard) == 1
    assert sum(kernel.governor.failures.values()) == 1


def test_an_action_that_names_its_rollout_is_heard_there(kernel: KernelSpace) -> None:
    scopes: list[RolloutScope | None] = []
    kernel.on_policy_violation(lambda _: scopes.append(current_scope()))
    action = Action(Point.PRE_TOOL_CALL, "execute", arguments={"input": "DROP TABLE users"}, rollout_id="named")
    with enter_scope(RolloutScope("other")):
        kernel.governor.decide(action)
    assert [scope.rollout_id for scope in scopes if scope] == ["named"]


def test_one_act_is_one_violation_and_of_equals_the_most_severe_is_named(record: AuditLog) -> None:
    low = ConstantPolicy(Effect.DENY, name="low", severity=Severity.LOW)
    high = ConstantPolicy(Effect.DENY, name="high", severity=Severity.HIGH)
    warning = ConstantPolicy(Effect.WARN, name="warning")
    kernel = KernelSpace([warning, low, high], record)
    kernel.execute("x")
    assert [violation.policy_name for violation in kernel.get_recent_violations()] == ["high"]
    kernel.reset()
    assert kernel.get_recent_violations() == []


def test_a_shadow_set_blocks_nothing_and_reports_nothing(record: AuditLog) -> None:
    kernel = KernelSpace(PolicySet([sql()]).in_shadow(), record, executor=lambda text: text)
    assert kernel.execute("DROP TABLE users") == "DROP TABLE users"
    assert kernel.get_recent_violations() == []


# ---------------------------------------------------------------------- signals


def started(target: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


class StoppedRollout:
    """An agent in a thread of its own that is stopped between its first and its second act."""

    def __init__(self, kernel: KernelSpace, agent: str | None = None) -> None:
        self.kernel, self.ran = kernel, list[str]()
        self.reached, self.go_on, self.waiting = threading.Event(), threading.Event(), threading.Event()
        holding = kernel.signals._holding

        def holding_seen(*args: Any) -> Any:
            box = holding(*args)
            if box is not None:
                self.waiting.set()
            return box

        kernel.signals._holding = holding_seen  # type: ignore[method-assign]
        self.thread = started(self.work)
        assert self.reached.wait(10)

    def act(self, given: str) -> str:
        self.ran.append(given)
        return given

    def work(self) -> None:
        with enter_scope(RolloutScope("stopped")):
            self.kernel.execute(self.act, "first")
            self.reached.set()
            self.go_on.wait(10)
            self.kernel.execute(self.act, "second")
            self.kernel.execute(self.act, "third")

    def finish(self) -> list[str]:
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.ran


@pytest.mark.parametrize("target", ["stopped", RolloutScope("stopped"), "act"])
def test_sigstop_holds_the_next_point_until_sigcont(record: AuditLog, target: Any) -> None:
    kernel = KernelSpace(allowing(), record)
    rollout = StoppedRollout(kernel)
    kernel.signal(target, "SIGSTOP")
    rollout.go_on.set()
    assert rollout.waiting.wait(10)
    assert rollout.ran == ["first"]
    kernel.signal(target, "SIGCONT")
    assert rollout.finish() == ["first", "second", "third"]
    assert kernel.get_recent_violations() == []


def test_a_stopped_rollout_that_nobody_resumes_is_denied(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=0.05)
    rollout = StoppedRollout(kernel)
    kernel.signal("stopped", "SIGSTOP")
    rollout.go_on.set()
    assert rollout.finish() == ["first"]
    violations = kernel.get_recent_violations()
    assert {violation.violation_type for violation in violations} == {PolicyViolationType.SIGNAL_SENT}
    assert len(violations) == 2, "the third act is denied at once"


def test_sigkill_releases_who_waits_with_a_denial(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=600)
    rollout = StoppedRollout(kernel)
    kernel.signal("stopped", "SIGSTOP")
    rollout.go_on.set()
    assert rollout.waiting.wait(10)
    kernel.signal("stopped", "SIGKILL")
    assert rollout.finish() == ["first"]


def test_sigcont_takes_back_neither_sigterm_nor_sigkill(record: AuditLog) -> None:
    for signal in ("SIGTERM", "SIGKILL"):
        kernel = KernelSpace(allowing(), record)
        kernel.signal("r", signal)
        kernel.signal("r", "SIGCONT")
        with enter_scope(RolloutScope("r")):
            decision = kernel.run(lambda given: given, "x").decision
        assert (decision.blocks, decision.abort, decision.rule) == (True, True, signal.lower())


def test_after_sigterm_an_output_may_still_go_and_after_sigkill_not(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record)
    output = Action(Point.OUTPUT, "agent", text="done", rollout_id="r")
    kernel.signal("r", "SIGTERM")
    assert not kernel.governor.decide(output).blocks
    kernel.signal("r", "SIGKILL")
    assert kernel.governor.decide(output).blocks


async def test_tasks_wait_without_holding_up_the_loop(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=600)
    kernel.signal("r", "SIGSTOP")
    ran: list[str] = []

    async def agent(name: str) -> str:
        ran.append(name)
        return name

    async def rollout(name: str) -> Any:
        with enter_scope(RolloutScope(name)):
            return await kernel.execute_async(agent, name)

    stopped = asyncio.create_task(rollout("r"))
    for number in range(5):
        await asyncio.create_task(rollout(f"other{number}"))
    assert ran == [f"other{number}" for number in range(5)]
    kernel.signal("r", "SIGCONT")
    assert await stopped == "r"


async def test_a_stopped_task_that_nobody_resumes_is_denied(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=0.01)
    kernel.signal("coroutine", "SIGSTOP")
    execution = await kernel.run_async(coroutine, "x")
    assert (execution.ran, execution.decision.rule) == (False, "sigstop")


async def test_a_task_that_waits_can_be_cancelled(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record, stop_timeout_s=600)
    kernel.signal("coroutine", "SIGSTOP")
    task = asyncio.create_task(kernel.execute_async(coroutine, "x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kernel.signals._boxes["coroutine"].waiting == []
    assert bodies(record)[-1]["point"] == "agent_shutdown"


def test_a_critical_violation_ends_its_own_rollout_at_the_next_act(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text)
    signals: list[tuple[str, str]] = []
    kernel.on_signal(lambda signal, target: signals.append((signal, target)))
    with enter_scope(RolloutScope("bad")):
        kernel.execute("DROP TABLE users")
        assert kernel.run("SELECT 1").decision.rule == "sigterm"
    with enter_scope(RolloutScope("good")):
        assert kernel.execute("SELECT 1") == "SELECT 1"
    assert signals == [("SIGTERM", "bad")]
    kernel.reset()
    with enter_scope(RolloutScope("bad")):
        assert kernel.execute("SELECT 1") == "SELECT 1"


def test_the_signal_on_critical_violations_can_be_left_out(record: AuditLog) -> None:
    kernel = KernelSpace(sql(), record, executor=lambda text: text, critical_signal=None)
    with enter_scope(RolloutScope("bad")):
        kernel.execute("DROP TABLE users")
        assert kernel.execute("SELECT 1") == "SELECT 1"


def test_what_a_person_sent_survives_a_reset(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record)
    kernel.signal("agent", "SIGKILL")
    kernel.reset()

    def agent(given: str) -> str:
        return given

    assert not kernel.run(agent, "x").ran


def test_the_governor_of_a_kernel_obeys_its_signals(record: AuditLog) -> None:
    kernel = KernelSpace(allowing(), record)
    kernel.signal("r", "SIGKILL")
    with enter_scope(RolloutScope("r")):
        assert kernel.governor.decide(Action(Point.PRE_MODEL_CALL, "model")).blocks


class SignalLog(AuditLog):
    """A record that keeps signals too, until its disk is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.kept: list[tuple[Any, ...]] = []
        self.full = False

    def log_signal(self, agent_id: str, signal: str, *, reason: str = "", rollout_id: str | None = None) -> str:
        if self.full:
            raise AuditError("full")
        self.kept.append((agent_id, signal, rollout_id))
        return "sig_1"


def test_signals_are_on_record_and_what_resumes_must_be(tmp_path: Path) -> None:
    with SignalLog(tmp_path / "audit.db") as log:
        kernel = KernelSpace(sql(), log, executor=lambda text: text, stop_timeout_s=0)
        with enter_scope(RolloutScope("bad")):
            kernel.execute("DROP TABLE users")
        kernel.signal("agent", "SIGSTOP")
        assert log.kept == [("bad", "SIGTERM", "bad"), ("agent", "SIGSTOP", None)]
        log.full = True
        with pytest.raises(AuditError):
            kernel.signal("agent", "SIGCONT")
        with pytest.raises(AuditError):
            kernel.signal("other", "SIGKILL")
        for agent in ("agent", "other"):
            assert kernel.governor.decide(Action(Point.PRE_MODEL_CALL, "model", agent=agent)).blocks


@pytest.mark.parametrize("target", [None, ""])
def test_a_signal_needs_a_target(kernel: KernelSpace, target: Any) -> None:
    with pytest.raises(ArgumentError):
        kernel.signal(target, "SIGSTOP")


def test_signals_of_rollouts_that_are_over_are_not_kept(kernel: KernelSpace) -> None:
    for _ in range(20):
        kernel.execute("DROP TABLE users")
    assert kernel.signals._boxes == {}


# ---------------------------------------------------------------------- many at once


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


async def _asynchronous(_event: Any) -> None: ...


@pytest.mark.parametrize("callback", [None, 5, _asynchronous, lambda: None, lambda one, two, three: None])
def test_a_callback_that_would_never_hear_of_anything_is_refused(callback: Any) -> None:
    kernel = KernelSpace(policy="strict")
    for register in (kernel.on_policy_violation, kernel.on_signal):
        with pytest.raises(ArgumentError):
            register(callback)


def test_a_callback_whose_answer_nobody_awaits_is_a_failure() -> None:
    kernel = KernelSpace(policy="strict", critical_signal=None)
    kernel.on_policy_violation(lambda violation: _asynchronous(violation))
    kernel.execute(lambda query: query, "DROP TABLE users")
    assert sum(kernel.governor.failures.values()) == 1


def test_an_input_that_cannot_be_copied_is_not_run() -> None:
    kernel, ran = KernelSpace(allowing()), list[Any]()
    endless: list[Any] = []
    endless.append(endless)
    for given in (endless, {"query": endless}):
        for run in (lambda given=given: kernel.execute(ran.append, given), lambda given=given: kernel.check(given)):
            with pytest.raises(KernelError, match="holds itself"):
                run()
    assert ran == []


@pytest.mark.parametrize("target", [None, "", 5, [], b"ro_1", object()])
def test_a_signal_to_nobody_is_an_error(target: Any) -> None:
    with pytest.raises(ArgumentError, match="neither a rollout nor an agent"):
        KernelSpace(policy="strict").signal(target, "SIGKILL")
