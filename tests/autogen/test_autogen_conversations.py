"""A team of AutoGen is a conversation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import instrument, uninstrument
from lgov_core.governor import Governor
from lgov_core.policies import ApprovalRequests
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, call

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


class Sessions(BoundedPolicy):
    name = "sessions"

    def __init__(self):
        self.seen = []

    def judge(self, action):
        self.seen.append((action.point.value, action.session_id))
        return self.allow()


def _replies(body):
    return call("work", what="a") if body["messages"][-1]["role"] == "user" else "bye"


async def work(what: str) -> str:
    """Works."""
    return what


def team(base_url, tool=work):
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    }
    client = OpenAIChatCompletionClient(model="m", base_url=base_url, api_key="k", model_info=info)
    agent = AssistantAgent("worker", client, tools=[tool])
    return RoundRobinGroupChat([agent], termination_condition=MaxMessageTermination(4))


async def test_what_the_members_of_a_team_do_is_one_conversation_from_run_to_run():
    policy, sessions = Sessions(), []
    instrument(Governor([policy]))
    try:
        with ScriptedModelServer(_replies) as server:
            for group in (team(server.base_url), team(server.base_url)):
                for _ in range(2):
                    await group.run(task="hi")
                    sessions.append({session for _, session in policy.seen})
                    policy.seen.clear()
    finally:
        uninstrument()
    assert [len(names) for names in sessions] == [1] * 4
    assert sessions[0] == sessions[1] != sessions[2] == sessions[3]
    assert None not in sessions[0] | sessions[2]


PAYING = """
import asyncio, contextlib, sys
from pathlib import Path
from lgov_core.scope import RolloutScope, current_scope, enter_scope
from tests.autogen.test_autogen_conversations import team

async def work(what: str) -> str:
    "Works."
    with Path("done.txt").open("a") as done:
        print(number, file=done)
    return what

for number in range(2):
    scope = contextlib.nullcontext()
    if (named := sys.argv[2]) != "nobody":
        scope = enter_scope(RolloutScope(current_scope().rollout_id, session_id=f"{named} {number}"))
    with scope:
        asyncio.run(team(sys.argv[1], work).run(task="hi"))
"""


@pytest.mark.parametrize("named", ["nobody", "user"])
def test_what_a_team_was_allowed_the_team_of_the_next_run_may_do(tmp_path: Path, named: str) -> None:
    """The id that AutoGen gives a team names nobody, and is another one in each process; teams of a process stay apart."""
    rule = "{name: person, tools: [work], use: approval, with: {store: approvals.db}}"
    (tmp_path / "policy.yaml").write_text(f"version: 1\nrules:\n- {{name: tools, use: allow}}\n- {rule}\n")
    (tmp_path / "program.py").write_text(PAYING)
    with ScriptedModelServer(_replies) as server:
        command = [
            sys.executable,
            "-m",
            "lgov_core",
            "run",
            "--policy",
            "policy.yaml",
            "--",
            sys.executable,
            "program.py",
        ]

        def run() -> None:
            subprocess.run([*command, server.base_url, named], cwd=tmp_path, check=True, timeout=120, env=ENVIRONMENT)

        run()
        requests = ApprovalRequests(tmp_path / "approvals.db")
        first, second = sorted(requests.pending(), key=lambda request: request.asked_at)
        names = [request.inquiry.requesters[0] == f"user {n}" for n, request in enumerate((first, second))]
        assert names == [named == "user"] * 2
        assert len(first.inquiry.requesters) == (2 if named == "user" else 1)
        requests.approve(second.request_id, by="Eve")
        run()
    assert (tmp_path / "done.txt").read_text() == "1\n", "the first team did not get the approval of the second"
