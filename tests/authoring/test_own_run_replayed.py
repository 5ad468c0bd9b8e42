"""The policy of a run, replayed on what that run recorded, changes nothing: approvals and the user's words are on record."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands.cli_runner import LGOV, lgov

POLICY = """
version: 1
name: desk
default: deny
rules:
  - {{name: tools, tools: [refund, mail], use: allow}}
  - name: refunds
    tools: [refund]
    use: approval
    with: {{store: approvals.db, wait_s: 60, command: [{python}, approve.py]}}
  - {{name: from-user, tools: [mail], use: provenance, with: {{arguments: [to]}}}}
"""
APPROVE = """
import json, sys
from lgov_core.policies.approvals.requests import ApprovalRequests

asked = json.load(sys.stdin)
ApprovalRequests("approvals.db").approve(asked["request_id"], by="ada")
"""
AGENT = """
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply


@tool
def refund(order: int) -> str:
    "Refund an order."
    return "refunded"


@tool
def mail(to: str) -> str:
    "Write a mail."
    return "sent"


calls = [ScriptedCall("refund", {"order": 7}, "c1"), ScriptedCall("mail", {"to": "eve@example.com"}, "c2")]
with ScriptedModelServer([*(ScriptedReply("", [call]) for call in calls), "Done."]) as model:
    agent = create_agent(ChatOpenAI(model="m", base_url=model.base_url, api_key="x"), [refund, mail])
    said = agent.invoke({"messages": [{"role": "user", "content": "Refund order 7, mail eve@example.com"}]})
    print([message.content for message in said["messages"]])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / ".git").mkdir()
    (folder / "policy.yaml").write_text(POLICY.format(python=sys.executable))
    (folder / "approve.py").write_text(APPROVE)
    (folder / "agent.py").write_text(AGENT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LGOV_")}
    command = [*LGOV, "run", "--policy", "policy.yaml", "--store", "runs.db", "--", "python", "agent.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert "'refunded', '', 'sent', 'Done.'" in done.stdout, done.stderr
    return folder


@pytest.mark.parametrize("source", ["runs.db", ".lgov/audit.db"])
def test_the_same_policy_changes_nothing_and_waits_for_nobody(
    run: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    began = time.monotonic()
    done = lgov("policy", "eval", "policy.yaml", source)
    assert done.exit_code == 0, done.output
    assert "0 changed" in done.stdout
    assert time.monotonic() - began < 50, "an approval is not waited for"


def test_a_refund_without_an_approval_on_record_would_be_stopped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    policy = (run / "policy.yaml").read_text().replace("tools: [refund]\n", "tools: [refund, mail]\n")
    (run / "stricter.yaml").write_text(policy)
    done = lgov("policy", "eval", "stricter.yaml", "runs.db")
    assert done.exit_code == 1
    assert "1 changed" in done.stdout, "the refund was approved, the mail was not"
