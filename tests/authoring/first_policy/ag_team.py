"""A swarm with hand-offs, a tool with a cancellation token, an agent that is a tool, and a team that ends."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_core.testing import ScriptedModelServer, call


async def flight(number: str, cancellation_token: CancellationToken, cabin: str = "economy") -> str:
    """Finds a flight."""
    print("RAN flight")
    return f"{number} {cabin}"


def hotel(nights: int) -> str:
    """Finds a hotel."""
    print("RAN hotel")
    return f"{nights} nights"


REPLIES: list[Any] = [
    call("flight_lookup", number="LH 1"),
    "Found.",
    call("ask_the_desk"),
    call("hotel", nights=2),
    "Found.",
    call("poet", task="a line"),
    "Roses",
    "Roses. DONE",
    "DONE",
    "DONE",
]


async def main(base_url: str) -> None:
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "family": "unknown",
        "structured_output": True,
    }
    client = OpenAIChatCompletionClient(
        model="m", base_url=base_url, api_key="k", model_info=info, parallel_tool_calls=False
    )
    poet = AssistantAgent("poet", client, description="Writes lines.")
    lookup = FunctionTool(flight, name="flight_lookup", description="Finds a flight.", strict=False)
    planner = AssistantAgent("planner", client, tools=[lookup], handoffs=[Handoff(target="desk", name="ask_the_desk")])
    desk = AssistantAgent("desk", client, tools=[hotel, AgentTool(poet)], handoffs=["planner"])
    team = Swarm([planner, desk], termination_condition=TextMentionTermination("DONE") | MaxMessageTermination(20))
    async for event in team.run_stream(task="A trip, please."):
        print(type(event).__name__, getattr(event, "content", ""))


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
