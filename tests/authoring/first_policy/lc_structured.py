"""A router that answers in a form, and an agent with a structured answer."""

from typing import Any, Literal

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from lgov_core.testing import ScriptedModelServer, call


class Route(BaseModel):
    """Where a question goes."""

    way: Literal["tickets", "people"]


class Ticket(BaseModel):
    """A ticket."""

    number: int
    urgent: bool


@tool
def find_ticket(words: list[str], newest: bool = True) -> str:
    """Finds a ticket."""
    print("RAN find_ticket")
    return f"17 {words} {newest}"


REPLIES: list[Any] = [
    call("Route", way="tickets"),
    call("find_ticket", words=["printer"]),
    call("Ticket", number=17, urgent=False),
]
with ScriptedModelServer(REPLIES) as server:
    model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
    agent = create_agent(model, [find_ticket], response_format=ToolStrategy(Ticket))
    route = model.with_structured_output(Route, method="function_calling").invoke("The printer again.")
    print("RAN", route)
    print("RAN", agent.invoke({"messages": [("user", "The printer again.")]})["structured_response"])
