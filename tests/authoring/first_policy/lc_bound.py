"""Tools from a function, bound to a model: a graph with a node of tools, and a loop that a program writes itself."""

from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, Field

from lgov_core.testing import ScriptedModelServer, call


class Weather(BaseModel):
    """The weather somewhere."""

    place: str = Field(description="A town.")
    days: int = Field(default=1, ge=1, le=14)


def get_tools() -> list[Any]:
    def times(a: int, b: int) -> int:
        print("RAN times")
        return a * b

    return [StructuredTool.from_function(times, name="multiply", description="Multiplies.")]


@tool(parse_docstring=True)
def convert(amount: float, to: str) -> str:
    """Converts an amount of euros.

    Args:
        amount: How much.
        to: The currency.
    """
    print("RAN convert")
    return f"{amount} {to}"


REPLIES: list[Any] = [
    call("multiply", a=6, b=7),
    "42",
    call("Weather", place="Bonn", days=2),
    call("convert", amount=5, to="CHF"),
    "done",
]
with ScriptedModelServer(REPLIES) as server:
    model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
    tools = get_tools()
    with_tools = model.bind_tools(tools)

    def assistant(state: MessagesState) -> Any:
        return {"messages": [with_tools.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("assistant", assistant)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "assistant")
    builder.add_conditional_edges("assistant", tools_condition)
    builder.add_edge("tools", "assistant")
    print(builder.compile().invoke({"messages": [("user", "6 times 7?")]})["messages"][-1].content)

    extractor = model.bind_tools([Weather, convert])
    messages: list[AnyMessage] = [HumanMessage("Weather in Bonn, and 5 euros in francs.")]
    for _ in range(3):
        reply: Any = extractor.invoke(messages)
        messages.append(reply)
        for proposed in reply.tool_calls:
            if proposed["name"] == "convert":
                messages.append(convert.invoke(proposed))
            else:
                print("RAN", Weather(**proposed["args"]))
                messages.append(HumanMessage("And now the money."))
