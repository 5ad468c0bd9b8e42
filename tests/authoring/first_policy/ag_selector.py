"""A team whose model chooses who speaks, with a tool of a member that is never asked."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import SelectorGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_core.testing import ScriptedModelServer, call


def search_web(query: str) -> str:
    """Searches."""
    return f"RAN {query}"


def percentage_change(start: float, end: float) -> str:
    """Computes."""
    return f"RAN {(end - start) / start}"


async def delete_record(table: str, record_id: int) -> str:
    """Deletes."""
    return "RAN deleted"


async def main(base_url: str) -> None:
    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    members: list[Any] = [
        AssistantAgent("planner", client, description="Plans"),
        AssistantAgent("searcher", client, description="Searches", tools=[search_web]),
        AssistantAgent("analyst", client, description="Computes", tools=[percentage_change]),
        AssistantAgent("cleaner", client, description="Cleans up", tools=[delete_record]),
    ]
    team = SelectorGroupChat(members, client, termination_condition=TextMentionTermination("TERMINATE"))
    result = await team.run(task="How much did it change?")
    print(*(message.to_text() for message in result.messages), sep="\n")


REPLIES: list[Any] = [
    "searcher",
    call("search_web", query="points"),
    "analyst",
    call("percentage_change", start=1, end=2.5),
    "planner",
    "TERMINATE",
]
with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
