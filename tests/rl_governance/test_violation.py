"""Violations: what they cost, which one a decision is, and who hears of it: inside the rollout, removable, isolated."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from kernel_cases import sql

from lgov_core import AuditLog, KernelSpace, LgovError, RolloutScope, current_scope
from lgov_core.errors import ArgumentError, RewardError
from lgov_core.governor.judging import fault
from lgov_core.policies import ConstantPolicy, PolicySet, combine
from lgov_core.reward import PolicyViolation, PolicyViolationError, PolicyViolationType, violation_of
from lgov_core.scope import enter_scope
from lgov_core.types import ALLOW, Action, Decision, Effect, Point, Severity

ACTION = Action(Point.PRE_TOOL_CALL, "run_sql")


def violation(severity: str = "high", **fields: Any) -> PolicyViolation:
    return PolicyViolation(PolicyViolationType.BLOCKED, "SQLPolicy", "no", severity, **fields)


@pytest.mark.parametrize(
    ("severity", "price"),
    [("critical", 100.0), ("high", 50.0), ("medium", 10.0), ("low", 1.0), ("CRITICAL", 100.0), (Severity.LOW, 1.0)],
)
def test_the_penalty_is_that_of_the_severity_in_any_case(severity: str, price: float) -> None:
    found = violation(severity)
    assert (found.penalty, found.severity) == (price, str(severity).lower())


@pytest.mark.parametrize("price", [0.0, 0, 7.5, 1e6])
def test_an_explicit_penalty_is_kept(price: float) -> None:
    assert violation("critical", penalty=price).penalty == price


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf, "5", True])
def test_a_penalty_that_would_pay_or_is_no_number_is_refused(price: Any) -> None:
    with pytest.raises(RewardError, match="penalty"):
        violation(penalty=price)


@pytest.mark.parametrize("severity", ["fatal", "", None, 3, Effect.DENY])
def test_an_unknown_severity_costs_as_much_as_medium(severity: Any) -> None:
    assert violation(severity).penalty == 10.0


def test_an_unknown_type_is_refused_and_a_written_one_is_understood() -> None:
    assert PolicyViolation("warned", "p", "d", "low").violation_type is PolicyViolationType.WARNED  # type: ignore[arg-type]
    with pytest.raises(RewardError, match="forgiven"):
        PolicyViolation("forgiven", "p", "d", "low")  # type: ignore[arg-type]


def test_fields_come_in_the_documented_order() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    found = PolicyViolation(PolicyViolationType.MODIFIED, "PII", "redacted", "medium", when, False, 3.0)
    assert (found.timestamp, found.action_blocked, found.penalty) == (when, False, 3.0)


def test_an_act_was_blocked_by_the_type_or_the_field() -> None:
    assert (violation().action_blocked, violation().blocks) == (False, True)
    warned = PolicyViolation(PolicyViolationType.WARNED, "p", "d", "low")
    assert (warned.blocks, replace(warned, action_blocked=True).blocks) == (False, True)
    assert violation().timestamp.tzinfo is not None


def test_the_error_is_in_the_tree_and_carries_the_violation() -> None:
    found = violation()
    error = PolicyViolationError(found)
    assert isinstance(error, LgovError)
    assert error.violation is found
    assert str(error) == f"Policy violation: {found.description}"
    assert isinstance(RewardError("x"), ValueError)


@pytest.mark.parametrize(
    ("effect", "kind", "blocked"),
    [
        (Effect.DENY, PolicyViolationType.BLOCKED, True),
        (Effect.TRANSFORM, PolicyViolationType.MODIFIED, False),
        (Effect.WARN, PolicyViolationType.WARNED, False),
    ],
)
def test_a_decision_is_the_violation_of_its_effect(effect: Effect, kind: PolicyViolationType, blocked: bool) -> None:
    found = violation_of(Decision(effect, "sql", "no-drop", "it destroys", Severity.CRITICAL))
    assert found == PolicyViolation(kind, "sql", "it destroys", "critical", action_blocked=blocked)


def test_an_allow_a_fault_and_a_set_that_only_watches_are_no_violations() -> None:
    assert violation_of(ALLOW) is None
    assert violation_of(Decision(Effect.ESCALATE, "approval", "approval-pending", "a person has to approve")) is None
    assert violation_of(fault("sql", "policy-error", "it failed")) is None
    watched = PolicySet([ConstantPolicy(Effect.DENY, name="no")], mode="shadow").judge(ACTION)
    assert watched is not None
    assert violation_of(watched) is None


def test_of_several_that_blocked_the_most_severe_is_named_and_never_a_fault_or_a_milder_effect() -> None:
    decisions = [
        Decision(Effect.DENY, "low", "r", "low", Severity.LOW),
        Decision(Effect.DENY, "high", "r", "high", Severity.HIGH),
        Decision(Effect.ESCALATE, "asks", "r", "asks", Severity.CRITICAL),
        Decision(Effect.WARN, "warns", "r", "warns", Severity.CRITICAL),
        fault("broken", "policy-error", "broken"),
        replace(Decision(Effect.DENY, "watcher", "r", "watcher", Severity.CRITICAL), shadowed=True),
    ]
    found = violation_of(combine(decisions, original=ACTION, folded=ACTION), {"high": "HighPolicy"})
    assert found is not None
    assert (found.policy_name, found.severity, found.penalty) == ("HighPolicy", "high", 50.0)


def test_callbacks_run_inside_the_rollout_and_can_be_removed(kernel: KernelSpace) -> None:
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


def test_one_act_is_one_violation_named_after_the_most_severe(record: AuditLog) -> None:
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


async def _asynchronous(_event: Any) -> None: ...


@pytest.mark.parametrize("callback", [None, 5, _asynchronous, lambda: None, lambda one, two, three: None])
def test_a_callback_that_cannot_be_called_is_refused(callback: Any) -> None:
    kernel = KernelSpace(policy="strict")
    for register in (kernel.on_policy_violation, kernel.on_signal):
        with pytest.raises(ArgumentError):
            register(callback)


def test_a_callback_whose_answer_nobody_awaits_is_a_failure() -> None:
    kernel = KernelSpace(policy="strict", critical_signal=None)
    kernel.on_policy_violation(lambda violation: _asynchronous(violation))
    kernel.execute(lambda query: query, "DROP TABLE users")
    assert sum(kernel.governor.failures.values()) == 1
