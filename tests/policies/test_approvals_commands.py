"""`lgov approvals`: a person answers, and the program's next call goes by that answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lgov_core import Action, Governor, Point
from lgov_core.commands import cli
from lgov_core.policies import load_policy_file

Run = Callable[..., Result]
PAY = {"to": "DE89370400440532013000", "amount": 12}
POLICY = """
version: 1
rules:
  - {name: by-a-person, tools: [pay], use: approval, with: {expires_s: 600, store: approvals.db}}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(cli, ["approvals", *(str(arg) for arg in args)])


@pytest.fixture
def governor(tmp_path: Path) -> Governor:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return Governor(load_policy_file(tmp_path / "policy.yaml"))


def pay(governor: Governor, **changed: object) -> str:
    """What becomes of the call: its rule, and the reason."""
    arguments = {**PAY, **changed}
    decision = governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments=arguments, rollout_id="r1", agent="clerk"))
    return f"{decision.effect.label} {decision.rule}: {decision.reason}"


def waiting(run: Run, *options: str) -> list[dict[str, object]]:
    found = run("approvals.db", "--json", *options)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_an_approved_call_is_made_once(run: Run, governor: Governor) -> None:
    assert pay(governor).startswith("escalate approval-pending")
    shown = run("approvals.db")
    assert shown.exit_code == 0
    assert all(part in shown.stdout for part in ("clerk", "pay", "DE89370400440532013000", "10 min", "r1"))
    (request,) = waiting(run)
    assert request["content"]["arguments"] == PAY  # type: ignore[index]
    approved = run("approvals.db", "--approve", request["request_id"], "--by", "Eve")
    assert (approved.exit_code, "approved by Eve" in approved.stdout) == (0, True)
    assert waiting(run) == []
    assert pay(governor, amount=13).startswith("escalate")  # another call
    assert re.fullmatch(r"allow .*: .*", pay(governor))
    assert pay(governor).startswith("escalate")  # used up
    assert sorted(str(one["state"]) for one in waiting(run, "--all")) == ["pending", "pending", "used"]


def test_a_rejected_call_is_denied_with_the_reason(run: Run, governor: Governor) -> None:
    pay(governor)
    (request,) = waiting(run)
    done = run("approvals.db", "--reject", request["request_id"], "--by", "Eve", "--reason", "not today", "--json")
    assert (done.exit_code, json.loads(done.stdout)[0]["state"]) == (0, "rejected")
    assert pay(governor) == "deny approval-rejected: Eve rejected this call: not today"


def test_what_is_answered_already_is_an_error_and_what_came_before_it_is_told(run: Run, governor: Governor) -> None:
    pay(governor)
    pay(governor, amount=13)
    first, second = (str(one["request_id"]) for one in waiting(run))
    run("approvals.db", "--approve", second, "--by", "Eve")
    done = run("approvals.db", "--approve", first, "--approve", second, "--by", "Ann", "--json")
    assert done.exit_code == 1
    assert [one["answered_by"] for one in json.loads(done.stdout)] == ["Ann"]
    assert f"{second} is approved already" in json.loads(done.stderr)["error"]["message"]
    unknown = run("approvals.db", "--reject", "apr_none", "--by", "Ann")
    assert (unknown.exit_code, "there is no approval request apr_none" in unknown.stderr) == (1, True)


def test_a_file_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    assert run("approvals.db").exit_code == 2
    assert run("approvals.db", "--approve", "apr_1", "--by", "Eve").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_refused_and_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused = run("notes.txt")
    assert (refused.exit_code, "approvals file" in refused.stderr) == (1, True)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_key_is_read_from_standard_input_where_no_person_is_at_it(run: Run, governor: Governor) -> None:
    key = run("approvals.db", "--key", "ada").stdout.strip()
    pay(governor)
    (request,) = waiting(run)
    answer = ["approvals", "approvals.db", "--approve", str(request["request_id"]), "--by", "-"]
    assert "approved by ada" in CliRunner().invoke(cli, answer, input=f"{key}\n").stdout


def test_the_first_key_makes_the_file(run: Run, tmp_path: Path) -> None:
    assert run("new/approvals.db", "--key", "ada").stdout.startswith("lgov_approver_")
    assert (tmp_path / "new" / "approvals.db").is_file()


def test_what_is_asked_stands_beside_the_call(run: Run, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        POLICY.replace("expires_s: 600", "question: Is it the right bill, per: session")
    )
    governor = Governor(load_policy_file(tmp_path / "policy.yaml"))
    scope = {"rollout_id": "r1", "session_id": "s1"}
    governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments=PAY, context={"user_text": ["Pay the bill"]}, **scope))
    assert ": Is it the right bill | for s1 | the user: Pay the bill\n" in run("approvals.db").stdout


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"context": {"user": "ada"}, "session_id": "x"}, "user ada"),
        ({"session_id": "ada/x"}, "conversation ada/x"),
        ({"framework": "endpoint"}, "rollout ada"),
    ],
)
def test_the_list_says_for_whom_a_call_is_made(run: Run, tmp_path: Path, of: dict[str, Any], words: str) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    governor = Governor(load_policy_file(tmp_path / "policy.yaml"))
    governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments=PAY, rollout_id="ada", **of))
    assert f"asks to run pay. | for {words}\n" in run("approvals.db").stdout


def test_nobody_answers_anonymously(run: Run, governor: Governor) -> None:
    pay(governor)
    (request,) = waiting(run)
    assert run("approvals.db", "--approve", request["request_id"]).exit_code == 2
    assert run("approvals.db", "--approve", request["request_id"], "--by", " ").exit_code == 1
    assert len(waiting(run)) == 1


def test_what_a_model_wrote_does_not_act_on_the_terminal(run: Run, governor: Governor) -> None:
    pay(governor, to="\x1b[2J\u202eevil")
    shown = run("approvals.db").stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_an_empty_list_says_so(run: Run, governor: Governor) -> None:
    found = run("approvals.db")
    assert (found.exit_code, found.stdout, found.stderr) == (0, "", "nothing waits\n")
    assert waiting(run) == []


def test_the_file_is_the_one_of_the_policy_that_the_settings_name(run: Run, governor: Governor, tmp_path: Path) -> None:
    pay(governor)
    (tmp_path / "policy.yaml").rename(tmp_path / "pays.yaml")
    assert "name the file" in run().stderr
    (tmp_path / "lgov.toml").write_text('policy = "pays.yaml"\n')
    (request,) = json.loads(run("--json").stdout)
    assert run("--approve", request["request_id"], "--by", "Eve").exit_code == 0
    assert run("--by", "Eve").exit_code == 2, "an answer to nothing"
    assert waiting(run) == []
