"""A session of the SDK is a conversation."""

from __future__ import annotations

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, SQLiteSession, function_tool
from openai import AsyncOpenAI

from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, call
from lgov_openai_agents import LgovRunner


class Sessions(BoundedPolicy):
    name = "sessions"

    def __init__(self):
        self.seen = set()

    def judge(self, action):
        self.seen.add((action.point.value, action.session_id))
        return self.allow()


@function_tool
def work(what: str) -> str:
    """Works."""
    return what


async def test_what_is_judged_in_a_run_with_a_session_has_its_id():
    policy = Sessions()
    with ScriptedModelServer([call("work", what="a"), "bye"]) as server:
        model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=server.base_url, api_key="k"))
        agent = Agent("worker", tools=[work], model=model)
        await LgovRunner(Governor([policy])).run(
            agent, "hi", session=SQLiteSession("ada-1"), run_config=RunConfig(tracing_disabled=True)
        )
    points = ("input", "pre_model_call", "post_model_call", "pre_tool_call", "post_tool_call", "output")
    assert policy.seen == {(point, "ada-1") for point in points}
