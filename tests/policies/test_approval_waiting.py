"""A call that waits for its answer, the notice of it, and what a person types."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from approval_helpers import governor, pay
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.errors import PolicyError
from lgov_core.governor.options import CARRIED, open_question
from lgov_core.policies import ApprovalPolicy, ApprovalRequest, ApprovalRequests, PolicySet
from lgov_core.policies.approvals import notices
from lgov_core.reward import AirPlugin
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Effect, ToolOutcome


def when_asked(path: Path, answer: Callable[[ApprovalRequests, ApprovalRequest], Any]) -> threading.Thread:
    """A person who answers the first request as soon as there is one."""

    def person() -> None:
        requests = ApprovalRequests(path)
        while not (waiting := requests.pending()):
            time.sleep(0.02)
        answer(requests, waiting[0])

    thread = threading.Thread(target=person)
    thread.start()
    return thread


@pytest.mark.parametrize("waits_in", ["thread", "task"])
def test_a_call_goes_on_when_it_is_approved(tmp_path: Path, waits_in: str) -> None:
    path = tmp_path / "approvals.db"
    subject = governor(ApprovalPolicy(store=path, wait_s=60))
    person = when_asked(path, lambda requests, one: requests.approve(one.request_id, by="Eve"))
    decision = subject.decide(pay()) if waits_in == "thread" else asyncio.run(subject.adecide(pay()))
    person.join()
    assert (decision.effect, decision.rule) == (Effect.ALLOW, "approved")
    assert "Eve" in decision.reason
    subject.close()


@pytest.mark.parametrize("carried", [False, True])
def test_only_a_framework_that_carries_the_question_takes_the_place_of_the_wait(tmp_path: Path, carried: bool) -> None:
    path = tmp_path / "approvals.db"
    subject = governor(ApprovalPolicy(store=path, wait_s=5 if carried else 60, via="framework"))
    began = time.monotonic()
    if carried:
        decision = subject.decide(pay(context={CARRIED: "thread task call"}))
        assert open_question(decision).as_json()["waits_until"] is None
        assert time.monotonic() - began < 5
    else:
        person = when_asked(path, lambda requests, one: requests.approve(one.request_id, by="Eve"))
        decision = subject.decide(pay())
        person.join()
        assert decision.rule == "approved"
        assert open_question(decision) is None
    subject.close()


def test_a_waiting_call_reads_why_it_was_rejected(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    subject = governor(ApprovalPolicy(store=path, wait_s=60))
    person = when_asked(path, lambda requests, one: requests.reject(one.request_id, by="Eve", reason="not today"))
    decision = subject.decide(pay())
    person.join()
    assert (decision.effect, decision.reason) == (Effect.DENY, "Eve rejected this call: not today")
    subject.close()


def test_without_an_answer_the_call_is_not_run(tmp_path: Path) -> None:
    subject = governor(ApprovalPolicy(store=tmp_path / "approvals.db", wait_s=0.3), timeout_s=0.1)
    decision = subject.decide(pay())
    assert (decision.effect, decision.rule) == (Effect.ESCALATE, "approval-pending")
    assert "no answer within 0.3 s" in decision.reason
    subject.close()


def test_a_cancelled_call_stops_waiting_and_uses_no_approval(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    policy = ApprovalPolicy(store=path, wait_s=60)
    subject = governor(policy)

    async def cancelled() -> None:
        call = asyncio.create_task(subject.adecide(pay()))
        while not policy.pending():
            await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(cancelled())
    time.sleep(0.6)  # longer than the time between two looks
    policy.approve(policy.pending()[0].request_id, by="Eve")
    time.sleep(0.6)
    assert [one.state for one in policy.requests.all()] == ["approved"]
    subject.close()


def test_the_list_shows_who_asked_when_and_who_waits(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    shown: list[str] = []

    def person(requests: ApprovalRequests, one: ApprovalRequest) -> None:
        shown.append(CliRunner().invoke(cli, ["approvals", str(path)]).stdout)
        short = one.request_id.removeprefix("apr_")[:6]
        shown.append(CliRunner().invoke(cli, ["approvals", str(path), "--approve", short, "--by", "Eve"]).stdout)

    subject = governor(ApprovalPolicy(store=path, wait_s=60))
    thread = when_asked(path, person)
    assert not subject.decide(pay(rollout_id="ro_7")).blocks
    thread.join()
    waiting = " ".join(shown[0].split())
    assert all(part in waiting for part in ("pending, call waits", " s ago", "ro_7", "clerk", "pay"))
    assert "approved by Eve" in " ".join(shown[1].split())
    subject.close()


def test_the_beginning_of_an_id_is_enough_when_it_is_unique(tmp_path: Path) -> None:
    requests = ApprovalRequests(tmp_path / "approvals.db")
    policy = ApprovalPolicy(store=requests)
    policy.judge(pay(1))
    policy.judge(pay(2))
    first = requests.pending()[0].request_id
    with pytest.raises(PolicyError, match="several approval requests begin with 'apr_'"):
        requests.approve("apr_", by="Eve")
    with pytest.raises(PolicyError, match="there is no approval request"):
        requests.approve("", by="Eve")
    assert requests.approve(first[:14], by="Eve").request_id == first


OF_3 = ("wait_ends", "inquiry", "answers")


@pytest.mark.parametrize(("version", "added"), [(1, (*OF_3, "rollout_id", "waits_until")), (2, OF_3), (3, ()), (4, ())])
def test_a_file_of_a_format_before_is_brought_up_to_date(tmp_path: Path, version: int, added: tuple[str, ...]) -> None:
    path = tmp_path / "approvals.db"
    ApprovalPolicy(store=path).judge(pay())
    with sqlite3.connect(path) as connection:
        for column in added:
            connection.execute(f"ALTER TABLE requests DROP COLUMN {column}")
        for table in ("unrecorded", "ended_keys", "approvers")[: 3 if added else 5 - version]:
            connection.execute(f"DROP TABLE {table}")
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    requests = ApprovalRequests(path)
    (request,) = requests.pending()
    assert (request.name, request.inquiry.approvers) == ("pay", 1)
    assert requests.approve(request.request_id, by="Eve").answerers == "Eve"


def test_what_one_run_asked_for_the_next_run_may_do(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    with enter_scope(RolloutScope("ro_1", of_process=True)):
        ApprovalPolicy(store=path).judge(pay(rollout_id="ro_1"))
    requests = ApprovalRequests(path)
    requests.approve(requests.pending()[0].request_id, by="Eve")
    with enter_scope(RolloutScope("ro_2", of_process=True)):
        decision = ApprovalPolicy(store=path).judge(pay(rollout_id="ro_2"))
    assert decision is not None
    assert decision.effect is Effect.ALLOW


def test_a_call_that_awaits_approval_costs_nothing() -> None:
    policy = ApprovalPolicy()
    subject = governor(policy, plugins=[AirPlugin()])
    action = pay(call_id="c1")
    asked = subject.decide(action)
    assert subject.record(ToolOutcome(action, "denied", decision=asked)) == []
    policy.reject(policy.pending()[0].request_id, by="Eve")
    rejected = subject.decide(action)
    assert [one.dimension for one in subject.record(ToolOutcome(action, "denied", decision=rejected))] == ["compliance"]


# ---------------------------------------------------------------------- notices


def test_a_new_request_is_logged_once_with_the_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "approvals.db"
    policy = ApprovalPolicy(store=path)
    with caplog.at_level(logging.WARNING, "lgov.approvals"):
        policy.judge(pay())
        policy.judge(pay())
    (line,) = caplog.messages
    short = policy.pending()[0].request_id[:12]
    assert line == f"lgov: pay needs approval: lgov approvals {path} --approve {short} --by NAME"


def test_the_command_of_the_operator_gets_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_CHILD", "{}")  # as in a governed program; its command is not one of its processes
    program = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    policy = ApprovalPolicy(command=[sys.executable, "-c", program, str(tmp_path / "asked.json")])
    policy.judge(pay())
    _join_notices()
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert (asked["name"], asked["arguments"], asked["agent"]) == ("pay", {"to": "Ann", "amount": 10}, "clerk")


@contextmanager
def receiver(*statuses: int) -> Iterator[tuple[str, list[tuple[Any, bytes]]]]:
    """A server that answers with these statuses, one after the other: its address, and what it got."""
    posted: list[tuple[Any, bytes]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.headers, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(statuses[len(posted) - 1])
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.timeout = 10
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in statuses])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/ask", posted
        thread.join()


def test_a_webhook_gets_the_request_and_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    with receiver(204) as (address, posted):
        policy = ApprovalPolicy(store=path, webhook=address, question="Pay $amount to $to?", name="payments")
        policy.judge(pay(rollout_id="ro_9", context={"user_text": ["Pay Ann, please."]}))
        _join_notices()
    ((_, body),) = posted
    asked = json.loads(body)
    assert (asked["rollout_id"], asked["rule"], asked["question"]) == ("ro_9", "payments", "Pay 10 to Ann?")
    assert asked["user_text"] == "Pay Ann, please."
    assert asked["approve"] == f"lgov approvals {path} --approve {asked['request_id'][:12]} --by NAME"


def test_a_webhook_is_signed_with_the_key_beside_the_store(tmp_path: Path) -> None:
    path = tmp_path / "approvals.db"
    with receiver(204) as (address, posted):
        ApprovalPolicy(store=path, webhook=address).judge(pay())
        _join_notices()
    ((headers, body),) = posted
    key_file = tmp_path / "approvals.db.webhook-key"
    assert key_file.stat().st_mode & 0o777 == 0o600
    at = headers["x-lgov-timestamp"]
    assert abs(time.time() - int(at)) < 60
    signed = hmac.new(key_file.read_text().strip().encode(), at.encode() + b"." + body, "sha256").hexdigest()
    assert headers["x-lgov-signature"] == signed


def test_a_webhook_that_fails_is_tried_again_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notices, "_TRIES_AGAIN_AFTER_S", (0.0, 0.0, 0.0))
    with receiver(503, 500, 204) as (address, posted):
        ApprovalPolicy(store=tmp_path / "approvals.db", webhook=address).judge(pay())
        _join_notices()
    assert len({body for _, body in posted}) == 1
    assert len(posted) == 3
    assert caplog.text.count("the notice of an approval request failed") == 2


@pytest.mark.parametrize("webhook", ["http://example.org/x", "http://localhost:8@example.org/", "ftp://localhost/"])
def test_a_webhook_of_another_machine_is_https(tmp_path: Path, webhook: str) -> None:
    with pytest.raises(PolicyError, match="webhook"):
        ApprovalPolicy(store=tmp_path / "approvals.db", webhook=webhook)


def test_every_wait_is_announced_also_the_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with receiver(204, 204) as (address, posted):
        for rollout in ("ro_1", "ro_2"):
            policy = ApprovalPolicy(store=tmp_path / "approvals.db", wait_s=0.6, webhook=address)
            policy.judge(pay(rollout_id=rollout))
            _join_notices()
    assert [line.partition(":")[2].split(":")[0] for line in caplog.messages] == [
        " pay waits up to 1 s for approval"
    ] * 2
    asked = [json.loads(body) for _, body in posted]
    assert [one["rollout_id"] for one in asked] == ["ro_1", "ro_2"]
    assert all(0 < one["waits_until"] - time.time() + 5 < 6 for one in asked)


def test_in_shadow_mode_nobody_is_asked_and_nothing_waits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[ApprovalRequest] = []
    path = tmp_path / "approvals.db"
    for policy in (ApprovalPolicy(store=path, wait_s=60), ApprovalPolicy(approver=lambda one: bool(asked.append(one)))):
        began = time.monotonic()
        subject = governor(PolicySet([policy], mode="shadow"))
        decision = subject.decide(pay())
        assert time.monotonic() - began < 5
        assert not decision.blocks
        assert [(one.effect.label, one.reason) for one in decision.parts] == [
            ("escalate", "A person would have been asked to approve this call.")
        ]
        subject.close()
    assert (asked, ApprovalRequests(path).all(), caplog.messages) == ([], [], [])


def test_a_notice_that_fails_changes_no_decision(caplog: pytest.LogCaptureFixture) -> None:
    policy = ApprovalPolicy(command=["/no/such/program"])
    decision = policy.judge(pay())
    _join_notices()
    assert decision is not None
    assert decision.rule == "approval-pending"
    assert "the notice of an approval request failed" in caplog.text


@pytest.mark.parametrize(
    "options", [{"wait_s": -1}, {"wait_s": "long"}, {"command": "mail"}, {"webhook": "file:///etc"}, {"webhook": 7}]
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=next(iter(options))):
        ApprovalPolicy(**options)


def _join_notices() -> None:
    for thread in threading.enumerate():
        if thread.name == "lgov-notice":
            thread.join()
