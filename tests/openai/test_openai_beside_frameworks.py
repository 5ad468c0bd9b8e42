"""Model calls that another adapter evaluates are not evaluated again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lgov_core.trace import semconv
from lgov_openai import instrument, uninstrument
from tests.cells import ANSWER, Seen, asks, open_cell, says
from tests.openai import openai_programs as programs


def judged(seen: Seen) -> list[tuple[str, str, str | None]]:
    return [
        (event.action.point.value, event.action.name, event.action.framework)
        for event in seen.events
        if type(event).__name__ == "ObservedDecision"
    ]


@pytest.mark.parametrize("way", ["create_agent", "graph", "loop", "stream", "ainvoke"])
def test_beside_langchain_nothing_is_evaluated_twice(way: str, tmp_path: Path):
    pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    import lgov_langchain

    @tool
    def erase_file(path: str) -> str:
        """Erases."""
        return cell.erase(path)

    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:
        lgov_langchain.instrument(cell.governor)
        instrument(cell.governor)
        try:
            from langchain_openai import ChatOpenAI

            model = ChatOpenAI(model="m", base_url=cell.base_url, api_key="k", max_retries=0)
            answer = _langchain_run(way, model, erase_file, HumanMessage("Erase it."))
        finally:
            uninstrument()
            lgov_langchain.uninstrument()
        assert answer == ANSWER
        assert {one[2] for one in judged(cell.seen)} == {"langchain"}
        counted = [one for one in judged(cell.seen) if one[0] in ("pre_tool_call", "pre_model_call", "input")]
        assert sorted(point for point, *_ in counted) == ["input", "pre_model_call", "pre_model_call", "pre_tool_call"]
        chats = [span for span in cell.seen.spans if span.attributes[semconv.OPERATION] == semconv.CHAT]
        assert len(chats) == 2
        assert len(cell.server.requests) == 2
        assert Path(path).exists()


def _langchain_run(way: str, model: Any, erase_file: Any, question: Any) -> str:
    from langchain.agents import create_agent
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    if way in ("create_agent", "stream", "ainvoke"):
        agent = create_agent(model, [erase_file])
        asked = {"messages": [question]}
        if way == "ainvoke":
            return asyncio.run(agent.ainvoke(asked))["messages"][-1].text
        if way == "stream":
            *_, last = agent.stream(asked, stream_mode="values")
            return last["messages"][-1].text
        return agent.invoke(asked)["messages"][-1].text
    bound = model.bind_tools([erase_file])
    if way == "graph":
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([erase_file]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile().invoke({"messages": [question]})["messages"][-1].text
    messages = [question]
    while True:
        reply = bound.invoke(messages)
        messages.append(reply)
        if not reply.tool_calls:
            return reply.text
        messages += [erase_file.invoke(call) for call in reply.tool_calls]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_beside_the_agents_sdk_nothing_is_evaluated_twice(api: str, streamed: bool, tmp_path: Path):
    agents = pytest.importorskip("agents")
    import lgov_openai_agents

    def erase_file(path: str) -> str:
        return cell.erase(path)

    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:
        lgov_openai_agents.instrument(cell.governor)
        instrument(cell.governor)
        try:
            client = programs.aclient(cell.base_url)
            kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
            agent = agents.Agent(
                name="clerk", model=kind(model="m", openai_client=client), tools=[agents.function_tool(erase_file)]
            )
            if streamed:
                run = agents.Runner.run_streamed(agent, "Erase it.")
                async for _ in run.stream_events():
                    pass
            else:
                run = await agents.Runner.run(agent, "Erase it.")
            answer = run.final_output
            await client.close()
        finally:
            uninstrument()
            lgov_openai_agents.uninstrument()
        _check_judged_once(cell, answer)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_beside_autogen_nothing_is_evaluated_twice(streamed: bool, tmp_path: Path):
    pytest.importorskip("autogen_ext")
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    import lgov_autogen

    async def erase_file(path: str) -> str:
        """Erases."""
        return cell.erase(path)

    info: Any = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
                 "structured_output": False}  # fmt: skip
    path = str(tmp_path / "precious.txt")
    with open_cell(tmp_path, asks(("c1", "erase_file", {"path": path})), says(ANSWER)) as cell:
        lgov_autogen.instrument(cell.governor)
        instrument(cell.governor)
        try:
            model = OpenAIChatCompletionClient(model="m", base_url=cell.base_url, api_key="k", model_info=info)
            agent = AssistantAgent(
                "clerk", model, tools=[erase_file], max_tool_iterations=5, model_client_stream=streamed
            )
            answer = (await agent.run(task="Erase it.")).messages[-1].to_text()
            await model.close()
        finally:
            uninstrument()
            lgov_autogen.uninstrument()
        _check_judged_once(cell, answer)


def _check_judged_once(cell: Any, answer: str) -> None:
    assert answer == ANSWER
    assert "openai" not in {one[2] for one in judged(cell.seen)}
    counted = [one[0] for one in judged(cell.seen) if one[0] in ("pre_tool_call", "pre_model_call", "input")]
    assert sorted(counted) == ["input", "pre_model_call", "pre_model_call", "pre_tool_call"]
    assert len([span for span in cell.seen.spans if span.attributes[semconv.OPERATION] == semconv.CHAT]) == 2
    assert len(cell.server.requests) == 2
    assert cell.file.exists()
