"""A class whose methods are tools, made from a list of names: choices, patterns, aliases, a file, limits."""

from enum import StrEnum
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from lgov_core.testing import ScriptedModelServer, call


class Priority(StrEnum):
    low = "low"
    high = "high"


class Address(BaseModel):
    street: str
    zip_code: str = Field(pattern=r"^\d{5}$", alias="zipCode")


class Ticket(BaseModel):
    title: str = Field(min_length=3, max_length=80)
    priority: Priority = Priority.low
    tags: list[str] = []
    address: Address | None = None
    due: str | None = Field(None, description="ISO date")


@tool(args_schema=Ticket)
def create_ticket(title: str, **more: Any) -> str:
    """Creates a ticket."""
    return f"{title} {more}"


class House:
    """Its methods are the tools."""

    def set_light(self, room: Literal["kitchen", "bath"], level: int = 50) -> str:
        """Sets a lamp."""
        return f"{room} {level}"

    def upload(self, file: str, mode: Literal["append", "replace"] = "append") -> str:
        """Uploads a file of the project."""
        return f"{file} {mode}"

    def tools(self, names: list[str]) -> list[Any]:
        """The tools of these names, as a file of settings might list them."""
        return [create_ticket, *(StructuredTool.from_function(getattr(self, name)) for name in names)]


REPLIES: list[Any] = [
    call(
        "create_ticket",
        title="Broken",
        priority="high",
        tags=["a"],
        address={"street": "x", "zipCode": "12345"},
        due=None,
    ),
    call("create_ticket", title="Broken"),
    call("set_light", room="bath"),
    call("set_light", room="kitchen", level=100),
    call("upload", file="notes.txt"),
    call("upload", file="sub/new.txt", mode="replace"),
    "done",
]
with ScriptedModelServer(REPLIES) as server:
    agent = create_agent(
        ChatOpenAI(model="m", base_url=server.base_url, api_key="k"), House().tools(["set_light", "upload"])
    )
    for message in agent.invoke({"messages": [("user", "A ticket, please.")]})["messages"]:
        print(f"RAN {message.content}" if message.type == "tool" else message.type)
