"""Every model and tool call of an agent that streams is captured."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv

pytest.importorskip("openai")
from tests.instrumentation.watched_programs import script, watched


async def run_openai(base_url: str) -> str:
    import openai

    one = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    schema: Any = {"type": "function", "function": {"name": "add", "strict": True, "parameters": one}}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        while True:
            async with client.chat.completions.stream(model="m", messages=messages, tools=[schema]) as stream:
                message = (await stream.get_final_completion()).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                number = json.loads(call.function.arguments)["a"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(number + 1)})


async def run_langchain(base_url: str) -> str:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    async def add(a: int) -> str:
        """Adds one."""
        return str(a + 1)

    agent: Any = create_agent(ChatOpenAI(base_url=base_url, api_key=lambda: "k", model="m"), [add])
    said = ""
    async for message, _ in agent.astream({"messages": [("user", "go")]}, stream_mode="messages"):
        said += message.text
    return said.removeprefix("12")


async def run_autogen(base_url: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    async def add(a: int) -> str:
        """Adds one."""
        return str(a + 1)

    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    agent = AssistantAgent("a", client, tools=[add], model_client_stream=True, max_tool_iterations=5)
    result = await agent.run(task="go")
    await client.close()
    return str(result.messages[-1].to_model_text())  # type: ignore[union-attr]


async def run_openai_agents(base_url: str) -> str:
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool

    @function_tool
    async def add(a: int) -> str:
        """Adds one."""
        return str(a + 1)

    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        agent = Agent("a", model=OpenAIChatCompletionsModel("m", client), tools=[add])
        run = Runner.run_streamed(agent, "go", run_config=RunConfig(tracing_disabled=True))
        async for _ in run.stream_events():
            pass
    return str(run.final_output)


AGENTS = {
    "openai": run_openai,
    "langchain": run_langchain,
    "autogen": run_autogen,
    "openai-agents": run_openai_agents,
}


@pytest.mark.parametrize("framework", AGENTS)
async def test_every_call_of_an_agent_that_streams_is_captured(framework: str) -> None:
    with watched(framework) as store, ScriptedModelServer(script) as server:
        assert await AGENTS[framework](server.base_url) == "done"
    calls, tools = store.of(semconv.CHAT), store.of(semconv.EXECUTE_TOOL)
    assert (len(calls), len(tools)) == (3, 2)
    assert not [span for span in (*calls, *tools) if semconv.ERROR_TYPE in span.attributes]
    assert [span.attributes[semconv.TOOL_RESULT] for span in tools] == ["1", "2"]
    assert all(span.attributes[semconv.RESPONSE_ID] for span in calls)
    assert {span.parent_id for span in tools} == {span.parent_id for span in calls}


async def hand_off_autogen(base_url: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    agent = AssistantAgent("a", client, handoffs=["b"], model_client_stream=True)
    result = await agent.run(task="go")
    await client.close()
    return str(getattr(result.messages[-1], "target", None))


async def hand_off_openai_agents(base_url: str) -> str:
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner

    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        model = OpenAIChatCompletionsModel("m", client)
        run = Runner.run_streamed(
            Agent("a", model=model, handoffs=[Agent("b", model=model)]),
            "go",
            run_config=RunConfig(tracing_disabled=True),
        )
        async for _ in run.stream_events():
            pass
    return run.last_agent.name


@pytest.mark.parametrize(
    ("framework", "program"), [("autogen", hand_off_autogen), ("openai-agents", hand_off_openai_agents)]
)
async def test_a_hand_off_in_a_stream_is_captured(framework: str, program: Callable[[str], Any]) -> None:
    asked = ScriptedReply(tool_calls=[ScriptedCall("transfer_to_b", {}, "call_0")])
    with watched(framework) as store, ScriptedModelServer([asked, ScriptedReply("done")]) as server:
        assert await program(server.base_url) == "b"
    (call,) = store.of(semconv.EXECUTE_TOOL)
    assert call.attributes[semconv.TOOL_STATUS] == "ok"
    assert call.attributes[semconv.TOOL_CALL_ID] == "call_0"
