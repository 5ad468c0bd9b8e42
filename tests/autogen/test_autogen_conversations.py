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
from lgov_core._util.files import os_user
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


@pytest.mark.parametrize(
    ("named", "per", "paid"), [("nobody", "requester", ""), ("user", "requester", "1\n"), ("nobody", "global", "0\n")]
)
def test_what_a_team_was_allowed_no_team_of_another_process_may_do_unless_told_whose_it_is(
    tmp_path: Path, named: str, per: str, paid: str
) -> None:
    """The id that AutoGen gives a team names nobody, and is another one in each process: the next run, or worker."""
    rule = f"{{name: person, tools: [work], use: approval, with: {{store: approvals.db, per: {per}}}}}"
    (tmp_path / "policy.yaml").write_text(f"version: 1\nrules:\n- {{name: tools, use: allow}}\n- {rule}\n")
    (tmp_path / "program.py").write_text(PAYING)
    with ScriptedModelServer(_replies) as server:
        governed = [sys.executable, "-m", "lgov_core", "run", "--policy", "policy.yaml", "--", sys.executable]

        def run() -> str:
            command = [*governed, "program.py", server.base_url, named]
            done = subprocess.run(
                command, cwd=tmp_path, check=True, timeout=120, env=ENVIRONMENT, capture_output=True, text=True
            )
            return done.stderr

        report = run()
        requests = ApprovalRequests(tmp_path / "approvals.db")
        asked = sorted(requests.pending(), key=lambda request: request.asked_at)
        assert len(asked) == (1 if per == "global" else 2)
        for number, request in enumerate(asked):
            names = (f"user {number}",) if named == "user" else ()
            assert request.inquiry.requesters[: len(names)] == names
            assert request.inquiry.requesters[-1] == os_user()
            assert request.requester == (f"conversation user {number}" if names else request.inquiry.requesters[0])
            assert len(request.inquiry.requesters) == (3 if names else 1), "and the rollout that the program entered"
        assert ("a team has another id in the next run" in report) is (not paid)
        requests.approve(asked[-1].request_id, by="Eve")
        run()
    done = tmp_path / "done.txt"
    assert (done.read_text() if done.exists() else "") == paid
