"""Approvers with keys: who answers is known by the key, and the rule says who may."""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from approval_helpers import governor, only_pending, pay
from click.testing import CliRunner

from lgov_core.audit import AuditLog, load_key, make_key
from lgov_core.commands import cli
from lgov_core.errors import PolicyError
from lgov_core.policies import ApprovalPolicy, ApprovalRequests, load_policy_file
from lgov_core.policies.approvals.answers import NotAllowedToAnswer
from lgov_core.types import Effect


def four_eyes(path: Path, **options: Any) -> tuple[ApprovalPolicy, dict[str, str]]:
    """A rule that two of finance or Eve have to approve, and everyone's key."""
    teams = {"finance": ["ada", "bob"]}
    policy = ApprovalPolicy(store=path, approvers=2, by=["finance", "eve"], teams=teams, **options)
    return policy, {name: policy.requests.add_approver(name) for name in ("ada", "bob", "eve", "tom")}


def test_two_different_people_approve_and_the_record_says_who_when_and_what(tmp_path: Path) -> None:
    policy, keys = four_eyes(tmp_path / "approvals.db")
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        subject = governor(policy, audit=log)
        assert subject.decide(pay()).effect is Effect.ESCALATE
        request = only_pending(policy)
        assert policy.approve(request.request_id, by=keys["ada"]).state == "pending"
        assert subject.decide(pay()).effect is Effect.ESCALATE
        assert policy.approve(request.request_id, by=keys["bob"]).state == "approved"
        assert subject.decide(pay()).effect is Effect.ALLOW
        reason = log.entries()[-1].verdict["reason"]
        subject.close()
    first, second = policy.requests.all()[0].answers
    assert reason.startswith(
        f"ada (key {first.key}) and bob (key {second.key}) approved it (request {request.request_id}, "
    )
    assert time.strftime("%Y-%m-%dT%H:", time.gmtime(second.at)) in reason
    assert not any(key in reason for key in keys.values())


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("ada", "ada has approved this already"),
        ("tom", "names who may answer: ada, bob, eve"),
        ("the name ada", "is answered with an approver's key"),
        ("a key of another file", "not the key of an approver"),
    ],
)
def test_nobody_else_is_the_second_person(tmp_path: Path, who: str, why: str) -> None:
    policy, keys = four_eyes(tmp_path / "approvals.db")
    keys |= {"the name ada": "ada", "a key of another file": ApprovalRequests().add_approver("bob")}
    policy.judge(pay())
    request_id = only_pending(policy).request_id
    policy.approve(request_id, by=keys["ada"])
    with pytest.raises(NotAllowedToAnswer, match=why):
        policy.approve(request_id, by=keys[who])
    assert [one.by for one in only_pending(policy).answers] == ["ada"]


@pytest.mark.parametrize(
    "requester",
    [
        {"context": {"user": "Ada"}},
        {"session_id": "ada"},
        {"session_id": "ada/refunds"},  # a conversation named after its user
        {"rollout_id": "ada", "framework": "endpoint"},  # the owner of the key
    ],
)
def test_the_requester_cannot_approve(tmp_path: Path, requester: dict[str, object]) -> None:
    policy, keys = four_eyes(tmp_path / "approvals.db", per="global")
    policy.judge(pay())
    policy.judge(pay(**requester))  # the same call, now also for Ada
    request = only_pending(policy)
    with pytest.raises(NotAllowedToAnswer, match="ada asks for this call"):
        policy.approve(request.request_id, by=keys["ada"])
    me = policy.requests.add_approver(getpass.getuser())
    with pytest.raises(NotAllowedToAnswer, match="asks for this call"):
        policy.approve(request.request_id, by=me)


def test_once_there_is_a_key_a_name_alone_answers_nothing_and_a_new_key_ends_the_old(tmp_path: Path) -> None:
    policy = ApprovalPolicy(store=tmp_path / "approvals.db")
    policy.judge(pay())
    request_id = only_pending(policy).request_id
    old, new = (policy.requests.add_approver("ada") for _ in range(2))
    stranger = f"{old[:-4]}AAAA"
    for by, why in (
        ("ada", "is answered with an approver's key"),
        (old, r"this key of ada ended at 20\d\d-.*Z, when another was made"),
        (stranger, "this is not the key of an approver of this file"),
    ):
        with pytest.raises(NotAllowedToAnswer, match=why):
            policy.reject(request_id, by=by)
    assert policy.reject(request_id, by=new).answered_by == "ada"


def test_the_command_that_answers_asks_for_a_key_where_only_a_key_answers(
    tmp_path: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = ApprovalPolicy(store=tmp_path / "plain.db")
    first = plain.judge(pay())
    assert first is not None
    assert first.approval.endswith(" --by NAME")
    made = CliRunner().invoke(cli, ["approvals", "plain.db", "--key", "ada"])
    assert "holds until another key is made for ada" in made.stderr
    again = plain.judge(pay())
    assert again is not None
    assert again.approval.endswith(" --by -")
    four_eyes(tmp_path / "keys.db")[0].judge(pay())
    assert [message.rsplit(" ", 1)[1] for message in caplog.messages] == ["NAME", "-"]


@pytest.mark.parametrize("approved_by", [["bob"], ["ada", "bob"]])
def test_what_was_approved_with_a_key_that_has_ended_counts_no_more(tmp_path: Path, approved_by: list[str]) -> None:
    policy, keys = four_eyes(tmp_path / "approvals.db")
    policy.judge(pay())
    before = only_pending(policy).request_id
    for name in approved_by:
        policy.approve(before, by=keys[name])
    keys["bob"] = policy.requests.add_approver("bob")
    assert governor(policy).decide(pay()).effect is Effect.ESCALATE
    anew = only_pending(policy).request_id
    assert anew != before
    for name in ("ada", "bob"):
        policy.approve(anew, by=keys[name])
    assert governor(policy).decide(pay()).effect is Effect.ALLOW


def test_a_rejection_takes_back_an_approval_that_is_not_used(tmp_path: Path) -> None:
    policy, keys = four_eyes(tmp_path / "approvals.db")
    subject = governor(policy)
    subject.decide(pay())
    request_id = only_pending(policy).request_id
    for name in ("ada", "bob"):
        policy.approve(request_id, by=keys[name])
    with pytest.raises(NotAllowedToAnswer, match="not tom"):
        policy.reject(request_id, by=keys["tom"])
    rejected = policy.reject(request_id, by=keys["ada"], reason="not her")  # who approved it, too
    assert (rejected.state, rejected.answered_by) == ("rejected", "ada")
    decision = subject.decide(pay())
    assert (decision.effect, decision.rule) == (Effect.DENY, "approval-rejected")
    with pytest.raises(PolicyError, match="is rejected already"):
        policy.approve(request_id, by=keys["eve"])


def test_an_approval_that_was_used_cannot_be_taken_back(tmp_path: Path) -> None:
    policy = ApprovalPolicy(store=tmp_path / "approvals.db")
    subject = governor(policy)
    subject.decide(pay())
    request_id = only_pending(policy).request_id
    policy.approve(request_id, by="Eve")
    assert subject.decide(pay()).effect is Effect.ALLOW
    with pytest.raises(PolicyError, match="is used already"):
        policy.reject(request_id, by="Eve")


def test_a_rule_that_nobody_can_fulfil_is_refused() -> None:
    with pytest.raises(PolicyError, match="by names fewer people"):
        ApprovalPolicy(approvers=2, by=["ada"])


def test_a_policy_file_without_a_store_asks_in_the_usual_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n  - {name: asks, tools: [pay], use: approval}\n")
    (tmp_path / "lgov.toml").write_text('policy = "policy.yaml"\n')
    monkeypatch.chdir(tmp_path)
    key = CliRunner().invoke(cli, ["approvals", "--key", "ada"]).stdout.strip()
    governor(load_policy_file(tmp_path / "policy.yaml")).decide(pay())
    (request,) = json.loads(CliRunner().invoke(cli, ["approvals", "--json"]).stdout)
    assert (tmp_path / ".lgov" / "approvals.db").is_file()
    done = CliRunner().invoke(cli, ["approvals", "--approve", request["request_id"], "--by", "-"], input=f"{key}\n")
    assert "approved by ada" in done.stdout
    assert key not in done.output


@pytest.mark.parametrize(("settings", "record"), [("", ".lgov/audit.db"), ('audit = "logs/a.db"\n', "logs/a.db")])
def test_a_key_is_handed_out_once_it_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, record: str
) -> None:
    make_key(tmp_path / "audit.key")
    (tmp_path / "lgov.toml").write_text(f'audit_key = "audit.key"\n{settings}')
    monkeypatch.chdir(tmp_path)
    for name in ("ada", "ada", "bob"):
        assert CliRunner().invoke(cli, ["approvals", "--key", name]).exit_code == 0
    with AuditLog(record, signer=load_key(tmp_path / "audit.key")) as log:
        told = [(entry.kind, entry.name, (entry.reason or "").partition(" made by ")[0]) for entry in log.entries()]
    assert told == [
        ("policy", "approver ada", "a key"),
        ("policy", "approver ada", "a new key, which ends the older one,"),
        ("policy", "approver bob", "a key"),
    ]
    verified = CliRunner().invoke(cli, ["audit", "verify", record, "--key", "audit.key.pub"])
    assert verified.exit_code == 0, verified.output


def test_a_key_that_cannot_go_on_record_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = CliRunner().invoke(cli, ["approvals", "--key", "ada"]).stdout.strip()
    (tmp_path / ".lgov" / "audit.db").write_text("no record")
    refused = CliRunner().invoke(cli, ["approvals", "--key", "ada"])
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert ApprovalRequests(tmp_path / ".lgov" / "approvals.db").approver(key) == "ada", "the older key still holds"


def test_a_call_that_waits_is_answered_after_a_restart_of_its_program(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    program = (
        "import sys; from lgov_core import Action, Governor, Point; from lgov_core.policies import ApprovalPolicy\n"
        "call = Action(Point.PRE_TOOL_CALL, 'pay', arguments={'to': 'Ann'})\n"
        "print(Governor([ApprovalPolicy(store=sys.argv[1], wait_s=60)]).decide(call).reason)"
    )
    command = [sys.executable, "-c", program, str(path)]
    requests = ApprovalRequests(path)
    killed = subprocess.Popen(command, stdout=subprocess.PIPE)
    while not (waiting := requests.pending()) or not waiting[0].waits_until:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while (requests.pending()[0].wait_ends or 0.0) <= (waiting[0].wait_ends or 0.0):
        time.sleep(0.05)
    requests.approve(waiting[0].request_id, by="Eve")
    out, err = again.communicate(timeout=60)
    assert out.startswith("Eve approved it")
    assert "pay waits up to 60 s for approval" in err
