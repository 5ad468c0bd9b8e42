"""ApprovalPolicy beside other policies, across processes, and from a policy file."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from approval_helpers import Clock, governor, only_pending, pay
from click.testing import CliRunner

from lgov_core.audit import AuditLog
from lgov_core.commands import cli
from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.policies import (
    ApprovalPolicy,
    ApprovalRequest,
    ApprovalRequests,
    PolicySet,
    RateLimitPolicy,
    Rule,
    ToolPolicy,
    dry_run,
    load_policies,
    load_policy_file,
)
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return None if request.param == "memory" else tmp_path / "approvals.sqlite"


# ---------------------------------------------------------------------- with other policies


class Rounds:
    """Rounds amounts down to tens."""

    name = "rounds"
    bounded = True

    def judge(self, action: Action) -> Decision | None:
        amount = action.arguments.get("amount", 0)
        if action.point is not Point.PRE_TOOL_CALL or amount % 10 == 0:
            return None
        return Decision(Effect.TRANSFORM, self.name, arguments={**action.arguments, "amount": amount - amount % 10})


@pytest.mark.parametrize("order", ["approval first", "approval last"])
@pytest.mark.parametrize("how", ["set", "governor", "plugin"])
def test_what_is_shown_and_approved_is_what_runs(store: Any, order: str, how: str) -> None:
    policy = ApprovalPolicy(store=store)
    policies = [policy, Rounds()] if order == "approval first" else [Rounds(), policy]
    if how == "governor":
        subject = governor(*policies)
    elif how == "set":
        subject = governor(PolicySet.of(*policies))
    else:
        subject = governor(plugins=[PolicySet.of(*policies)])
    waits = subject.decide(pay(17))
    assert waits.effect is Effect.ESCALATE
    assert only_pending(policy).arguments["amount"] == 10
    policy.approve(only_pending(policy).request_id, by="Eve")
    runs = subject.decide(pay(17))
    assert runs.effect is Effect.TRANSFORM
    assert runs.arguments == {"to": "Ann", "amount": 10}
    assert subject.decide(pay(17)).effect is Effect.ESCALATE, "it was used once, not once a round"
    subject.close()


def test_what_is_approved_is_the_outcome_of_transforms(store: Any) -> None:
    policy = ApprovalPolicy(store=store)
    alone = governor(policy)
    rounding = governor(PolicySet.of(policy), plugins=[PolicySet([Rule(Rounds())], default="allow", name="later")])
    alone.decide(pay(17))
    policy.approve(only_pending(policy).request_id, by="Eve")
    changed = rounding.decide(pay(17))
    assert changed.effect is Effect.ESCALATE, "17 is approved, but 10 would run"
    assert only_pending(policy).arguments["amount"] == 10
    policy.approve(only_pending(policy).request_id, by="Eve")
    runs = rounding.decide(pay(17))
    assert runs.arguments == {"to": "Ann", "amount": 10}
    assert any("Eve" in part.reason for part in runs.parts), "the record says who approved it"
    assert rounding.decide(pay(17)).blocks, "it is used up"
    assert not alone.decide(pay(17)).blocks, "what was approved and never ran may still run"
    for subject in (alone, rounding):
        subject.close()


def test_one_answer_is_enough_for_a_transformed_call(store: Any) -> None:
    policy = ApprovalPolicy(store=store)
    subject = governor(PolicySet.of(policy), plugins=[PolicySet([Rule(Rounds())], default="allow", name="later")])
    assert subject.decide(pay(17)).effect is Effect.ESCALATE
    assert only_pending(policy).arguments["amount"] == 10, "nobody is asked about 17, which would never run"
    policy.approve(only_pending(policy).request_id, by="Eve")
    runs = subject.decide(pay(17))
    assert not runs.blocks
    assert runs.arguments == {"to": "Ann", "amount": 10}
    assert policy.pending() == []
    subject.close()


def test_an_unsettled_form_stays_escalated() -> None:
    class Grows:
        name = "grows"
        bounded = True

        def judge(self, action: Action) -> Decision | None:
            return Decision(Effect.TRANSFORM, self.name, arguments={"amount": action.arguments["amount"] + 1})

    policy = ApprovalPolicy(approver=lambda request: request.arguments["amount"] > 2)
    subject = governor(policy, plugins=[PolicySet([Rule(Grows(), on=(Point.PRE_TOOL_CALL,))], default="allow")])
    assert subject.decide(pay(arguments={"amount": 1})).blocks
    subject.close()


@pytest.mark.parametrize("in_a_set", [True, False])
def test_nobody_is_asked_about_what_is_denied_anyway(in_a_set: bool) -> None:
    asked: list[ApprovalRequest] = []
    policy = ApprovalPolicy(approver=lambda request: bool(asked.append(request)) or True)
    policies = [policy, ToolPolicy(allow=["read"])]
    subject = governor(PolicySet.of(*policies)) if in_a_set else governor(*policies)
    assert subject.decide(pay()).rule == "tool-unknown"
    assert asked == []
    subject.close()


def test_a_denial_by_somebody_else_gives_the_approval_back(store: Any) -> None:
    clock = Clock()
    policy, rate = ApprovalPolicy(store=store), RateLimitPolicy(1, 60, clock=clock)
    # As plugins the limit is asked after the approval.
    subject = governor(policy, plugins=[PolicySet([Rule(rate)], default="allow")])
    assert subject.decide(pay()).effect is Effect.ESCALATE
    request = only_pending(policy)
    assert subject.decide(pay()).rule == "rate-limit"
    assert only_pending(policy).request_id == request.request_id, "somebody may be about to answer it"
    policy.approve(request.request_id, by="Eve")
    assert subject.decide(pay()).rule == "rate-limit"
    clock.now += 60
    assert not subject.decide(pay()).blocks
    clock.now += 60
    assert subject.decide(pay()).effect is Effect.ESCALATE
    subject.close()


def test_only_a_call_that_was_made_uses_an_approval_up(store: Any) -> None:
    policy = ApprovalPolicy(store=store)
    subject = governor(policy)

    def approved() -> Decision:
        subject.decide(pay(operation_id="op_1"))
        for request in policy.pending():
            policy.approve(request.request_id, by="Eve")
        decision = subject.decide(pay(operation_id="op_2"))
        assert not decision.blocks
        return decision

    subject.record(ToolOutcome(pay(operation_id="op_2"), "denied", decision=approved()))
    decision = subject.decide(pay(operation_id="op_3"))
    assert not decision.blocks, "it was only looked at, so the approval holds"
    subject.record(ToolOutcome(pay(operation_id="op_3"), "error", decision=decision))
    assert subject.decide(pay(operation_id="op_4")).effect is Effect.ESCALATE
    subject.close()


def test_the_record_says_who_approved(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.sqlite") as audit:
        policy = ApprovalPolicy()
        subject = governor(policy, audit=audit)
        told = subject.decide(pay()).denial_message()
        assert told.startswith("NOT RUN YET")
        assert "a person has to approve" in told
        assert only_pending(policy).request_id in told
        assert "DENIED" not in told
        assert "do not repeat" not in told
        policy.approve(only_pending(policy).request_id, by="Eve")
        subject.decide(pay())
        entries = audit.entries()
        subject.close()
    assert [entry.effect for entry in entries] == ["escalate", "allow"]
    assert "Eve" in (entries[1].reason or "")


def test_an_approval_is_what_the_record_shows(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.sqlite") as audit:
        policy = ApprovalPolicy()
        subject = governor(PolicySet.of(ToolPolicy(allow=["pay"]), policy), audit=audit)
        subject.decide(pay())
        policy.approve(only_pending(policy).request_id, by="Eve")
        subject.decide(pay())
        _, allowed = audit.entries()
        subject.close()
    assert (allowed.effect, allowed.rule, (allowed.reason or "").split()[0]) == ("allow", "approved", "Eve")
    assert [part["policy"] for part in allowed.body["parts"]] == ["ApprovalPolicy", "tool"]


def test_other_settings_or_another_name_void_an_approval() -> None:
    shared = ApprovalRequests()

    def waits(policy: ApprovalPolicy) -> bool:
        decision = policy.judge(pay())
        assert decision is not None
        return decision.blocks

    first = ApprovalPolicy(["pay"], store=shared)
    assert waits(first)
    first.approve(only_pending(first).request_id, by="Eve")
    assert waits(ApprovalPolicy(["pay*"], store=shared))
    assert waits(ApprovalPolicy(["pay"], store=shared, name="another"))
    assert waits(ApprovalPolicy(["pay"], store=shared, per="agent"))
    assert not waits(ApprovalPolicy(["pay"], store=shared))


def test_it_goes_on_with_the_requests_of_the_one_before_it() -> None:
    old, new = ApprovalPolicy(), ApprovalPolicy()
    old.judge(pay())
    old.approve(only_pending(old).request_id, by="Eve")
    new.continue_from(old)
    decision = new.judge(pay())
    assert decision is not None
    assert decision.effect is Effect.ALLOW


# ---------------------------------------------------------------------- the file


def _use(path: str, results: Any) -> None:
    decision = ApprovalPolicy(store=path).judge(pay())
    results.put("" if decision is None else decision.effect.label)


def test_one_approval_serves_one_of_several_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "approvals.sqlite")
    ApprovalPolicy(store=path).judge(pay())
    operator = ApprovalRequests(path)
    (request,) = operator.pending()
    operator.approve(request.request_id, by="Eve")
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    workers = [spawn.Process(target=_use, args=(path, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    effects = sorted(results.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    assert effects == ["allow", "escalate", "escalate", "escalate"]
    assert len(operator.pending()) == 1


def test_a_rewritten_request_is_not_approved(tmp_path: Path) -> None:
    path = tmp_path / "approvals.sqlite"
    policy = ApprovalPolicy(store=path)
    policy.judge(pay(1_000_000))
    request_id = only_pending(policy).request_id
    connection = sqlite3.connect(path)
    connection.execute("UPDATE requests SET content = replace(content, '1000000', '10')")
    connection.commit()
    connection.close()
    for attempt in (policy.pending, lambda: policy.approve(request_id, by="Eve")):
        with pytest.raises(PolicyError, match="was changed"):
            attempt()
    decision = policy.judge(pay(1_000_000))
    assert decision is not None
    assert (decision.effect, decision.rule) == (Effect.DENY, "approval-store")


def test_a_file_that_is_gone_denies_and_only_the_log_says_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "approvals.sqlite"
    policy = ApprovalPolicy(store=path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    path.unlink()
    decision = policy.judge(pay())
    assert decision is not None
    assert (decision.effect, decision.rule, decision.fault) == (Effect.DENY, "approval-store", True)
    assert path.name not in decision.denial_message(), "the model learns nothing of the file"
    assert str(path) in caplog.text


@pytest.mark.parametrize("use", ["approval", "flow", "pinned"])
def test_what_is_kept_in_a_file_takes_no_address_of_a_database(use: str, tmp_path: Path) -> None:
    options = {"store": "postgresql://lgov:hunter2@db/x", **({"argument": "to"} if use == "flow" else {})}
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps({"version": 1, "rules": [{"name": "kept", "use": use, "with": options}]}))
    checked = CliRunner().invoke(cli, ["policy", "check", str(file)])
    assert checked.exit_code != 0
    assert "store is 'postgresql://lgov:...@db/x'" in checked.output
    assert "write the path of a file, not an address" in checked.output
    with pytest.raises(PolicyFileError, match="not an address"):
        load_policy_file(file)


def test_from_a_policy_file(tmp_path: Path) -> None:
    path = str(tmp_path / "approvals.sqlite")

    def document(**options: Any) -> dict[str, Any]:
        asks = {"name": "four-eyes", "use": "approval", "with": options}
        return {"version": 1, "rules": [asks, {"use": "allow"}]}

    subject = load_policies(document(tools=["pay"], store=path, expires_s=60))
    assert not subject.bounded
    waits = subject.judge(pay())
    assert (waits.effect, waits.policy, waits.rule) == (Effect.ESCALATE, "four-eyes", "approval-pending")
    assert subject.judge(pay(name="read")).effect is Effect.ALLOW
    operator = ApprovalRequests(path, expires_s=60)
    operator.approve(operator.pending()[0].request_id, by="Eve")
    with dry_run():
        assert load_policies(document(tools=["pay"], store=path)).judge(pay()).blocks
    assert subject.judge(pay()).effect is Effect.ALLOW, "a dry_run uses nothing up"
    for wrong in ({"tools": "pay"}, {"expires_s": 0}, {"per": "week"}, {"approver": "eve"}, {"store": 5}, {"tols": []}):
        with pytest.raises(PolicyFileError):
            load_policies(document(**wrong))
