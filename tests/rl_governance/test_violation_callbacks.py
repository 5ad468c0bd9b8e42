"""Callbacks of a kernel: called inside the rollout, removable, isolated."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_cases import sql

from lgov_core import Action, AuditLog, Effect, KernelSpace, Point, RolloutScope, current_scope
from lgov_core.errors import ArgumentError
from lgov_core.policies import ConstantPolicy, PolicySet
from lgov_core.reward import PolicyViolation
from lgov_core.scope import enter_scope
from lgov_core.types import Severity


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
