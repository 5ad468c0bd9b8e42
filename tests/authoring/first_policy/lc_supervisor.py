"""A supervisor that hands over to two workers, each an agent and a node of the graph."""

from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command

from lgov_core.testing import ScriptedModelServer, call


def hand_over(worker: str) -> BaseTool:
    @tool(f"transfer_to_{worker}", description=f"Gives the task to {worker}.")
    def transfer(
        state: Annotated[MessagesState, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[str]:
        answer = ToolMessage("RAN transfer", name=f"transfer_to_{worker}", tool_call_id=tool_call_id)
        return Command(goto=worker, update={"messages": [*state["messages"], answer]}, graph=Command.PARENT)

    return transfer


@tool
def add(first: float, second: float) -> float:
    """Adds."""
    print("RAN add")
    return first + second


@tool
def look_up(topic: str) -> str:
    """Looks something up."""
    print("RAN look_up")
    return f"{topic}: 7"


REPLIES: list[Any] = [
    call("transfer_to_refund_desk"),
    call("look_up", topic="height"),
    "7",
    call("transfer_to_arithmetic"),
    call("add", first=7, second=1.5),
    "8.5",
    "all done",
]
with ScriptedModelServer(REPLIES) as server:
    model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
    supervisor = create_agent(model, [hand_over("refund_desk"), hand_over("arithmetic")], name="supervisor")
    graph = StateGraph(MessagesState)
    graph.add_node("supervisor", supervisor, destinations=("refund_desk", "arithmetic"))
    graph.add_node("refund_desk", create_agent(model, [look_up], name="refund_desk"))
    graph.add_node("arithmetic", create_agent(model, [add], name="arithmetic"))
    graph.add_edge(START, "supervisor")
    graph.add_edge("refund_desk", "supervisor")
    graph.add_edge("arithmetic", "supervisor")
    for chunk in graph.compile().stream({"messages": [("user", "How tall, plus 1.5?")]}):
        for update in chunk.values():
            print(update["messages"][-1].content)
