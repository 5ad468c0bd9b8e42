"""Governed components: written, read back, and without a governor."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core.code_executor import CodeExecutor
from autogen_core.models import AssistantMessage, ChatCompletionClient, UserMessage
from autogen_core.tools import FunctionTool, Workbench

from lgov_autogen import (
    GovernedChatCompletionClient,
    GovernedCodeExecutor,
    GovernedWorkbench,
    governing,
    instrument,
)
from lgov_core.errors import InstrumentationError
from lgov_core.governor import Governor
from lgov_core.types import Point
from tests.autogen.autogen_parts import at, deny, playing
from tests.cells import says

DENY = at(Point.PRE_TOOL_CALL, lambda action: deny("no"))


ran: list[str] = []


def act(word: str) -> str:
    """Acts."""
    ran.append(word)
    return f"acted on {word}"


def tool() -> FunctionTool:
    ran.clear()
    return FunctionTool(act, description="Acts.")


async def test_a_governed_workbench_holds_no_tools_of_its_own() -> None:
    workbench = GovernedWorkbench([tool()], Governor())
    assert vars(workbench)["_tools"] == []
    assert [schema["name"] for schema in await workbench.list_tools()] == ["act"]


async def test_governed_components_are_written_and_read_back() -> None:
    from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor

    replies = [says("done"), says("x")]
    with playing("explicit", DENY, *replies) as (parts, seen, _server):
        # An inner client is written without its key, as AutoGen does it.
        client = GovernedChatCompletionClient(parts.bare_client(), parts.governor, agent="clerk")
        workbench = GovernedWorkbench([tool()], parts.governor, agent="clerk")
        executor = GovernedCodeExecutor(LocalCommandLineCodeExecutor(), parts.governor)
        agent = AssistantAgent("clerk", client, workbench=workbench)
        written = agent.dump_component()
        with governing(parts.governor):
            again = AssistantAgent.load_component(written.model_dump())
            loaded: Any = ChatCompletionClient.load_component(client.dump_component())
            other: Any = Workbench.load_component(workbench.dump_component())
            third: Any = CodeExecutor.load_component(executor.dump_component())
        assert (type(loaded), loaded.agent, loaded.governor) == (GovernedChatCompletionClient, "clerk", parts.governor)
        assert (type(other), other.agent, other.governor) == (GovernedWorkbench, "clerk", parts.governor)
        assert (type(third), third.governor) == (GovernedCodeExecutor, parts.governor)
        assert (await again.run(task="go")).messages[-1].to_text() == "done"  # type: ignore[attr-defined]
        assert (await other.call_tool("act", {"word": "x"})).is_error
        assert (await loaded.create([UserMessage(content="x", source="user")])).content == "x"
    assert [one.action.agent for one in seen.decisions(Point.OUTPUT)] == ["clerk", "clerk"]


async def test_a_component_without_a_governor_does_nothing() -> None:
    with playing("explicit", DENY, says("x")) as (parts, _seen, server):
        client = GovernedChatCompletionClient(parts.bare_client())
        with pytest.raises(InstrumentationError, match="no governor"):
            await client.create([UserMessage(content="x", source="user")])
        with pytest.raises(InstrumentationError, match="no governor"):
            _ = [item async for item in client.create_stream([UserMessage(content="x", source="user")])]
        with pytest.raises(InstrumentationError, match="no governor"):
            await GovernedWorkbench([tool()]).call_tool("act", {"word": "x"})
        assert server.requests == []
        instrument(parts.governor)
        assert (await client.create([UserMessage(content="x", source="user")])).content == "x"
    assert ran == []


async def test_a_governed_workbench_passes_its_state_on() -> None:
    with playing("explicit", DENY) as (parts, _seen, _server):
        inner = AssistantAgent("inner", parts.bare_client())
        from autogen_agentchat.tools import AgentTool

        workbench = GovernedWorkbench([AgentTool(inner)], parts.governor)
        await inner.model_context.add_message(AssistantMessage(content="kept", source="inner"))
        state = await workbench.save_state()
        assert "kept" in str(state)
        await inner.model_context.clear()
        await workbench.load_state(state)
        assert "kept" in str(await inner.model_context.get_messages())
        async with workbench:
            await workbench.reset()
