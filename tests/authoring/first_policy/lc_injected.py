"""Tools with arguments that LangGraph puts in, defaults of another type, choices and a model of their own."""

from typing import Annotated, Any, Literal

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import InjectedState
from pydantic import BaseModel, Field

from lgov_core.testing import ScriptedModelServer, call


class Guest(BaseModel):
    full_name: str = Field(alias="fullName", description="As in the passport.")
    age: int = 18


@tool
def count(word: str, state: Annotated[dict, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]) -> str:  # type: ignore[type-arg]
    """Counts messages."""
    return f"{word} {len(state['messages'])} {tool_call_id != ''}"


@tool
def rooms(floor: int, config: RunnableConfig, view: Literal["sea", "yard"] = "sea", note: str = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
    """Lists the free rooms."""
    return f"{floor} {view} {note} {'configurable' in config}"


@tool("check_in")
def arrive(guest: Guest, runtime: ToolRuntime, tags: list[str] | None = None) -> str:
    """Checks a guest in."""
    return f"{guest.full_name} {guest.age} {tags} {len(runtime.state['messages'])}"


REPLIES: list[Any] = [
    call("count", word="a"),
    call("rooms", floor=2),
    call("rooms", floor=3, view="yard", note="quiet"),
    call("check_in", guest={"fullName": "Ada"}),
    "done",
]
with ScriptedModelServer(REPLIES) as server:
    model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
    agent = create_agent(model, [count, rooms, arrive])
    for message in agent.invoke({"messages": [("user", "A room, please.")]})["messages"]:
        print(f"RAN {message.content}" if message.type == "tool" else message.type)
