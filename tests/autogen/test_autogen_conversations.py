"""A team of AutoGen is a conversation."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import instrument, uninstrument
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, call


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


def team(base_url):
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    }
    client = OpenAIChatCompletionClient(model="m", base_url=base_url, api_key="k", model_info=info)
    agent = AssistantAgent("worker", client, tools=[work])
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
