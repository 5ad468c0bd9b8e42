"""ApprovalPolicy: what somebody approved is what runs, once, and nothing else does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from approval_helpers import Clock, governor, only_pending, pay

from lgov_core.errors import PolicyError
from lgov_core.policies import (
    ApprovalPolicy,
    ApprovalRequest,
    ApprovalRequests,
)
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return None if request.param == "memory" else tmp_path / "approvals.sqlite"


# ---------------------------------------------------------------------- asked for, answered, used


def test_a_call_waits_is_approved_runs_once_and_waits_again(store: Any) -> None:
    policy = ApprovalPolicy(["pay"], store=store)
    first = policy.judge(pay())
    assert first is not None
    assert (first.effect, first.rule) == (Effect.ESCALATE, "approval-pending")
    request = only_pending(policy)
    assert request.request_id in first.reason
    assert (request.name, request.arguments) == ("pay", {"to": "Ann", "amount": 10})
    again = policy.judge(pay())
    assert again is not None
    assert request.request_id in again.reason, "asking again makes no second request"
    assert policy.approve(request.request_id, by="Eve").answered_by == "Eve"
    assert policy.pending() == []
    allowed = policy.judge(pay())
    assert allowed is not None
    assert (allowed.effect, allowed.rule) == (Effect.ALLOW, "approved")
    assert "Eve" in allowed.reason
    once_more = policy.judge(pay())
    assert once_more is not None
    assert once_more.effect is Effect.ESCALATE
    assert only_pending(policy).request_id != request.request_id


@pytest.mark.parametrize(
    "other",
    [
        pay(11),
        pay("10"),
        pay(10.0),
        pay(True),
        pay(None),
        pay(agent="manager"),
        pay(agent=None),
        pay(rollout_id="ro_2"),
        pay(rollout_id=None),
        pay(kind="handoff"),
        pay(name="pay_all"),
        pay(arguments={"to": "Ann", "amount": 10, "again": None}),
        pay(arguments={"to": "Ann"}),
    ],
    ids=repr,
)
def test_any_difference_is_another_request(store: Any, other: Action) -> None:
    policy = ApprovalPolicy(["pay*"], per="rollout", store=store)
    policy.judge(pay())
    policy.approve(only_pending(policy).request_id, by="Eve")
    decision = policy.judge(other)
    assert decision is not None
    assert decision.effect is Effect.ESCALATE
    same = policy.judge(pay(arguments={"amount": 10, "to": "Ann"}, call_id="another", operation_id="op_2", attempt=2))
    assert same is not None
    assert same.effect is Effect.ALLOW, "the order of the arguments and the ids of the call are no difference"


MACHINE = RolloutScope("ro_1", of_process=True)
ANN = {"context": {"user": "ann"}}


@pytest.mark.parametrize(
    ("asked", "scope", "other", "serves"),
    [
        ({"rollout_id": "ro_1"}, None, {"rollout_id": "ro_2"}, False),
        ({"rollout_id": "ro_1"}, None, {"rollout_id": "ro_1", "attempt": 2}, True),
        ({"rollout_id": "ro_1"}, None, {"rollout_id": None}, False),
        ({"rollout_id": None}, None, {"rollout_id": None}, True),
        ({"session_id": "ann"}, None, {"session_id": "ann", "rollout_id": "ro_2"}, True),
        ({"session_id": "ann"}, None, {"session_id": "ben"}, False),
        ({"session_id": "ann"}, None, ANN, False),
        ({"session_id": "ann"}, None, {"rollout_id": "ann"}, False),
        ({"rollout_id": "ro_1"}, RolloutScope("ro_1"), {"rollout_id": None}, False),
        (ANN, None, {**ANN, "session_id": "s", "rollout_id": "ro_2"}, True),
        (ANN, None, {"context": {"user": "ben"}}, False),
        # A program that names nobody is run again: its rollout is the process, which no user has.
        ({"rollout_id": "ro_1"}, MACHINE, {"rollout_id": None}, True),
        ({"rollout_id": "ro_1", "session_id": "ann"}, MACHINE, {"session_id": "ben"}, False),
        ({"rollout_id": "ro_2"}, MACHINE, {"rollout_id": None}, False),
    ],
)
def test_an_approval_serves_the_one_for_whom_it_was_asked(
    store: Any, asked: dict[str, Any], scope: Any, other: dict[str, Any], serves: bool
) -> None:
    policy = ApprovalPolicy(store=store)
    with enter_scope(scope):
        policy.judge(pay(**asked))
    policy.approve(only_pending(policy).request_id, by="Eve")
    decision = policy.judge(pay(**other))
    assert decision is not None
    assert decision.effect is (Effect.ALLOW if serves else Effect.ESCALATE)


def test_only_a_global_rule_lets_one_users_approval_serve_another(store: Any) -> None:
    policy = ApprovalPolicy(store=store, per="global")
    policy.judge(pay(**ANN))
    policy.approve(only_pending(policy).request_id, by="Eve")
    decision = policy.judge(pay(context={"user": "ben"}, session_id="s", rollout_id="ro_2"))
    assert decision is not None
    assert decision.effect is Effect.ALLOW


def test_a_rejection_is_told_with_its_reason_and_holds(store: Any) -> None:
    policy = ApprovalPolicy(store=store)
    policy.judge(pay())
    policy.reject(only_pending(policy).request_id, by="Eve", reason="Ann was paid already")
    for _ in range(2):
        decision = policy.judge(pay())
        assert decision is not None
        assert (decision.effect, decision.rule) == (Effect.DENY, "approval-rejected")
        assert "Ann was paid already" in decision.reason
    assert policy.pending() == []


def test_an_approval_does_not_outlive_a_clock_that_is_put_back(store: Any) -> None:
    clock = Clock()
    policy = ApprovalPolicy(expires_s=60, clock=clock, store=store)
    for back, effect in ((30, Effect.ALLOW), (3600, Effect.ESCALATE)):
        policy.judge(pay())
        policy.approve(only_pending(policy).request_id, by="Eve")
        clock.now -= back
        decision = policy.judge(pay())
        assert decision is not None
        assert decision.effect is effect


@pytest.mark.parametrize(("operators", "holds"), [(None, 60), (3600, 60), (20, 20)])
def test_an_answer_holds_as_long_as_the_policy_says(tmp_path: Path, operators: float | None, holds: float) -> None:
    """The program of the operator knows nothing of the policy file; it can only make an answer hold for less."""
    clock = Clock()
    path = tmp_path / "approvals.db"
    policy = ApprovalPolicy(expires_s=60, clock=clock, store=path)
    operator = ApprovalRequests(path, clock=clock, expires_s=operators)
    for passed, effect in ((holds - 1, Effect.ALLOW), (holds, Effect.ESCALATE)):
        policy.judge(pay())
        answered = operator.approve(only_pending(policy).request_id, by="Eve")
        assert answered.until == clock.now + holds
        clock.now += passed
        decision = policy.judge(pay())
        assert decision is not None
        assert decision.effect is effect


def test_requests_approvals_and_rejections_lapse(store: Any) -> None:
    clock = Clock()
    policy = ApprovalPolicy(expires_s=60, clock=clock, store=store)
    policy.judge(pay())
    request = only_pending(policy)
    clock.now += 60
    assert policy.pending() == []
    with pytest.raises(PolicyError, match="lapsed"):
        policy.approve(request.request_id, by="Eve")
    policy.judge(pay())
    policy.approve(only_pending(policy).request_id, by="Eve")
    clock.now += 60
    late = policy.judge(pay())
    assert late is not None
    assert late.effect is Effect.ESCALATE
    policy.reject(only_pending(policy).request_id, by="Eve")
    clock.now += 60
    fresh = policy.judge(pay())
    assert fresh is not None
    assert fresh.effect is Effect.ESCALATE


def test_answers_have_a_name_and_are_given_once() -> None:
    policy = ApprovalPolicy()
    policy.judge(pay())
    request = only_pending(policy)
    for nobody in ("", "  ", None):
        with pytest.raises(PolicyError, match="no one"):
            policy.approve(request.request_id, by=nobody)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="no approval request"):
        policy.approve("apr_none", by="Eve")
    policy.reject(request.request_id, by="Eve")
    with pytest.raises(PolicyError, match="rejected already"):
        policy.approve(request.request_id, by="Mallory")


def test_what_has_no_canonical_form_cannot_be_approved() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    policy = ApprovalPolicy(approver=lambda _request: True)
    for arguments in (endless, {"a": {1}}, {"a": b"x"}, {"a": float("nan")}, {1: "a"}, {"a": object()}):
        decision = policy.judge(pay(arguments=arguments))
        assert decision is not None
        assert (decision.effect, decision.rule) == (Effect.DENY, "approval-arguments")


def test_other_tools_and_points_need_no_approval() -> None:
    policy = ApprovalPolicy(["pay"])
    assert policy.judge(pay(name="read")) is None
    assert policy.judge(Action(Point.POST_TOOL_CALL, "pay", text="paid")) is None


def test_too_many_requests_are_denied_and_not_kept() -> None:
    policy = ApprovalPolicy(store=ApprovalRequests(max_pending=3))
    rules = [getattr(policy.judge(pay(number)), "rule", None) for number in range(5)]
    assert rules == ["approval-pending"] * 3 + ["approval-full"] * 2
    assert len(policy.pending()) == 3


# ---------------------------------------------------------------------- callbacks


def async_version(answer: Callable[[ApprovalRequest], Any]) -> Any:
    async def approver(request: ApprovalRequest) -> Any:
        await asyncio.sleep(0)
        return answer(request)

    return approver


def raises(_request: ApprovalRequest) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize("wrap", [lambda answer: answer, async_version], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (lambda _request: True, "approved"),
        (lambda _request: False, "approval-rejected"),
        (lambda _request: None, "approval-failed"),
        (lambda _request: 1, "approval-failed"),
        (lambda _request: "yes", "approval-failed"),
        (raises, "approval-failed"),
        (lambda request: request.arguments["amount"] == 10, "approved"),
    ],
)
def test_a_callback_approves_with_true_and_nothing_else(wrap: Any, answer: Any, rule: str) -> None:
    policy = ApprovalPolicy(approver=wrap(answer))
    subject = governor(policy)
    for decision in (subject.decide(pay()), asyncio.run(subject.adecide(pay())), policy.judge(pay())):
        assert decision is not None
        assert decision.rule == rule
        assert decision.blocks is (rule != "approved")
    subject.close()


def test_a_callback_has_its_own_timeout() -> None:
    asked, answer = threading.Event(), threading.Event()

    def thinks(_request: ApprovalRequest) -> bool:
        asked.set()
        return answer.wait(60)

    subject = governor(ApprovalPolicy(approver=thinks, timeout_s=60), timeout_s=0.01)
    decisions: list[Decision] = []
    thread = threading.Thread(target=lambda: decisions.append(subject.decide(pay())))
    thread.start()
    assert asked.wait(60)
    answer.set()
    thread.join()
    assert decisions[0].rule == "approved"
    never = threading.Event()
    late = ApprovalPolicy(approver=lambda _request: never.wait(60), timeout_s=0.05).judge(pay())
    never.set()
    assert late is not None
    assert (late.rule, late.effect) == ("approval-failed", Effect.DENY)


def test_arguments_that_change_during_approval_are_denied() -> None:
    arguments = {"to": "Ann", "amount": 10}

    def greedy(request: ApprovalRequest) -> bool:
        request.arguments["amount"] = 99  # type: ignore[index]
        return True

    decision = ApprovalPolicy(approver=greedy).judge(pay(arguments=arguments))
    assert decision is not None
    assert decision.effect is Effect.ALLOW
    assert arguments == {"to": "Ann", "amount": 10}

    def meanwhile(_request: ApprovalRequest) -> bool:
        arguments["amount"] = 99
        return True

    decision = ApprovalPolicy(approver=meanwhile).judge(pay(arguments=arguments))
    assert decision is not None
    assert (decision.effect, decision.rule) == (Effect.DENY, "approval-changed")
