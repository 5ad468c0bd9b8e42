"""Approvals over HTTP: the only route that writes."""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lgov_core._util.files import os_user
from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.policies import load_policy_file
from lgov_core.policies.approvals.answers import hash_of
from lgov_core.policies.approvals.requests import ApprovalRequests
from lgov_core.types import Action, Point
from lgov_core.views.governance import approval_files
from tests.window.conftest import Browser, Opened
from tests.window.recorded_rollouts import record

POLICY = """\
version: 1
name: desk
rules:
  - {name: wires, use: approval, with: {store: waiting.sqlite}}
  - {name: tools, use: tool, with: {allow: [wire]}}
"""


class Desk:
    """A governor with a policy that asks for approval, and the file of its requests."""

    def __init__(self, folder: Path) -> None:
        self.policy = folder / "policy.yaml"
        self.policy.write_text(POLICY)
        self.file = folder / "waiting.sqlite"
        self.governor = Governor(load_policy_file(self.policy))

    def wire(self, amount: int) -> str:
        """The effect of the decision on a call."""
        action = Action(Point.PRE_TOOL_CALL, "wire", arguments={"amount": amount, "to": "</script>"}, agent="desk")
        return self.governor.decide(action).effect.label


@pytest.fixture
def desk(tmp_path: Path, store: Any) -> Iterator[Desk]:
    record(store)
    desk = Desk(tmp_path)
    yield desk
    desk.governor.close()


def answer(browser: Browser, item: dict[str, Any], how: str, **more: Any) -> httpx.Response:
    body = {"answer": how, "by": "Ada", "digest": item["digest"], **more}
    return browser.client.post(f"api/approvals/{item['id']}", json=body, headers={"origin": browser.url})


def test_the_files_that_a_policy_names_are_found(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert approval_files(tmp_path / "policy.yaml") == [tmp_path / "waiting.sqlite"]


def test_what_waits_shows_exactly_what_the_answer_is_bound_to(opened: Opened, desk: Desk, tmp_path: Path) -> None:
    assert desk.wire(5) == "escalate"
    browser = opened(tmp_path)
    shown = browser.get("approvals")
    (item,) = shown["items"]
    assert shown["may_answer"]
    assert (item["name"], item["agent"], item["arguments"]) == ("wire", "desk", {"amount": 5, "to": "</script>"})
    assert json.loads(item["bound"])["arguments"] == item["arguments"]
    assert hashlib.sha256(item["bound"].encode()).hexdigest() == item["digest"]


def test_an_approval_lets_exactly_that_call_through_once(opened: Opened, desk: Desk, tmp_path: Path) -> None:
    desk.wire(5)
    browser = opened(tmp_path)
    (item,) = browser.get("approvals")["items"]
    answered = answer(browser, item, "approve")
    assert (answered.status_code, answered.json()["state"], answered.json()["answered_by"]) == (200, "approved", "Ada")
    assert [desk.wire(6), desk.wire(5), desk.wire(5)] == ["escalate", "allow", "escalate"]
    assert {one["state"] for one in browser.get("approvals", all=1)["items"]} == {"pending", "used"}


def test_a_rejection_is_read_by_the_model(opened: Opened, desk: Desk, tmp_path: Path) -> None:
    desk.wire(5)
    browser = opened(tmp_path)
    (item,) = browser.get("approvals")["items"]
    assert answer(browser, item, "reject", reason="Too much.").json()["reason"] == "Too much."
    assert desk.wire(5) != "allow"
    assert browser.get("approvals")["items"] == []


def test_of_two_windows_the_first_answer_counts(opened: Opened, desk: Desk, tmp_path: Path) -> None:
    desk.wire(5)
    first, second = opened(tmp_path), opened(tmp_path)
    (item,) = first.get("approvals")["items"]
    assert second.get("approvals")["items"] == [item]
    assert answer(first, item, "reject").status_code == 200
    late = answer(second, item, "approve")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "answered")
    assert (late.json()["item"]["state"], late.json()["item"]["answered_by"]) == ("rejected", "Ada")
    assert desk.wire(5) != "allow"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"digest": "0" * 64}, 409, "changed"),
        ({"digest": ""}, 409, "changed"),
        ({"answer": "yes"}, 400, "query"),
        ({"by": " "}, 400, "policy"),
        ({"by": 5}, 400, "query"),
        ({"reason": "x" * 3000}, 400, "query"),
    ],
)
def test_an_answer_that_does_not_fit_changes_nothing(
    opened: Opened, desk: Desk, tmp_path: Path, change: dict[str, Any], status: int, code: str
) -> None:
    desk.wire(5)
    browser = opened(tmp_path)
    (item,) = browser.get("approvals")["items"]
    refused = answer(browser, item, "approve", **change)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    assert browser.get("approvals")["items"] == [item]
    assert desk.wire(5) == "escalate"


def test_an_approver_answers_by_http_with_a_key_and_no_session(served: Opened, desk: Desk, tmp_path: Path) -> None:
    desk.wire(5)
    requests = ApprovalRequests(desk.file)
    keys = {name: requests.add_approver(name) for name in ("ada", "mallory")}
    browser = served(tmp_path, session=False)
    url, body = f"{browser.url}/view/api/approvals", {"answer": "approve", "by": "Zoe"}
    ada = {"authorization": f"Bearer {keys['ada']}"}
    assert httpx.get(url).status_code == 401
    (item,) = httpx.get(url, headers=ada).json()["items"]
    assert (item["rule"], item["question"], item["requester"]) == ("wires", "desk asks to run wire.", getpass.getuser())
    body["digest"] = item["digest"]
    assert httpx.post(f"{url}/{item['id']}", json=body).status_code == 401
    mallory = {"authorization": f"Bearer {keys['mallory']}"}
    requests.add_approver("mallory")  # the key that leaked ends
    assert httpx.post(f"{url}/{item['id']}", json=body, headers=mallory).status_code == 401
    in_body = httpx.post(f"{url}/{item['id']}", json={**body, "by": keys["ada"]}, headers=ada)
    assert in_body.status_code == 200
    assert in_body.json()["answered_by"] == "ada"
    assert desk.wire(5) == "allow"


def test_a_session_without_a_key_answers_nothing_once_there_are_approvers(
    opened: Opened, desk: Desk, tmp_path: Path
) -> None:
    desk.wire(5)
    ApprovalRequests(desk.file).add_approver("ada")
    browser = opened(tmp_path)
    (item,) = browser.get("approvals")["items"]
    refused = answer(browser, item, "approve", by="ada")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert desk.wire(5) == "escalate"


def test_the_log_says_which_answers_were_refused_and_whose(
    served: Opened, desk: Desk, tmp_path: Path, caplog: Any
) -> None:
    desk.wire(5)
    requests = ApprovalRequests(desk.file)
    keys = {name: requests.add_approver(name) for name in ("ada", os_user())}
    ended = requests.add_approver("bob")
    requests.add_approver("bob")
    browser = served(tmp_path)
    (item,) = browser.get("approvals")["items"]
    url, body = f"{browser.url}/view/api/approvals/{item['id']}", {"answer": "approve", "digest": item["digest"]}
    bearer = {name: {"authorization": f"Bearer {key}"} for name, key in (keys | {"bob": ended}).items()}
    refusals = [
        (
            answer(browser, item, "approve", by="Zoe"),
            f"{item['id']} is answered with an approver's key, not by the name 'Zoe'",
        ),
        (
            httpx.post(url, json=body, headers=bearer["bob"]),
            f"{item['id']}: the key {hash_of(ended)[:8]} opens nothing here",
        ),
        (httpx.post(url, json=body, headers=bearer[os_user()]), f"{item['id']}: {os_user()} asks for this call"),
    ]
    told = str([vars(entry) for entry in caplog.records])
    for refused, why in refusals:
        assert refused.status_code in (401, 403)
        assert why in told.replace("\\", "")
    assert not any(key in told for key in (*keys.values(), ended))


def test_a_request_of_another_window_or_none_is_not_answered(served: Opened, desk: Desk, tmp_path: Path) -> None:
    desk.wire(5)
    browser = served(tmp_path)
    (item,) = browser.get("approvals")["items"]
    assert answer(browser, item | {"id": "apr_none"}, "approve").status_code == 404
    body = {"answer": "approve", "by": "Eve", "digest": item["digest"]}
    stranger = httpx.post(f"{browser.url}/view/api/approvals/{item['id']}", json=body, headers={"origin": browser.url})
    assert stranger.status_code == 401
    assert [one.state for one in ApprovalRequests(desk.file).all()] == ["pending"]


@pytest.mark.parametrize("how", ["approve", "reject"])
def test_an_answer_is_on_the_record_of_the_settings(
    opened: Opened, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "lgov.toml").write_text('policy = "policy.yaml"\naudit = "audit.db"\n')
    monkeypatch.chdir(tmp_path)
    AuditLog(tmp_path / "audit.db", signer=None).close()
    desk.wire(5)
    browser = opened(tmp_path)
    (item,) = browser.get("approvals")["items"]
    assert answer(browser, item, how).status_code == 200
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        assert [(entry.body["request"], entry.body["by"]) for entry in log.entries()] == [(item["id"], "Ada")]
