"""The agents that the benchmark of the adapters runs, and the script of their model."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

FRAMEWORKS = ("langchain", "autogen", "openai-agents", "openai")
ADAPTERS = {
    "langchain": "lgov_langchain",
    "autogen": "lgov_autogen",
    "openai-agents": "lgov_openai_agents",
    "openai": "lgov_openai",
}


class Agent(Protocol):
    """Runs an agent for so many turns with so many tool calls at once in each, and looks at its answer."""

    def __call__(self, turns: int, wide: int = 1) -> Awaitable[None]:
        """One run."""
        ...


def task(turns: int, wide: int) -> str:
    """What the user asks for; `script` reads it."""
    return f"turns={turns} wide={wide}."


def langchain_agent() -> Agent:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> str:
        """Adds."""
        passed()
        return str(a + b)

    agent: Any = create_agent(ChatOpenAI(model="scripted", max_retries=0), [add], name="bench")

    async def run(turns: int, wide: int = 1) -> None:
        asked = {"messages": [("user", task(turns, wide))]}
        answer = await agent.ainvoke(asked, config={"recursion_limit": 100})
        assert answer["messages"][-1].text == "done"

    return run


def autogen_agent() -> Agent:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    def add(a: int, b: int) -> str:
        """Adds."""
        passed()
        return str(a + b)

    info = ModelInfo(
        vision=False, function_calling=True, json_output=False, family=ModelFamily.UNKNOWN, structured_output=False
    )
    client = OpenAIChatCompletionClient(model="scripted", model_info=info)

    async def run(turns: int, wide: int = 1) -> None:
        agent = AssistantAgent("bench", client, tools=[add], max_tool_iterations=100)
        answer = await agent.run(task=task(turns, wide))
        assert "done" in str(answer.messages[-1])

    return run


def openai_agents_agent() -> Agent:
    from agents import Agent as SDKAgent
    from agents import OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def add(a: int, b: int) -> str:
        """Adds."""
        passed()
        return str(a + b)

    model = OpenAIChatCompletionsModel("scripted", AsyncOpenAI(max_retries=0))
    agent = SDKAgent(name="bench", model=model, tools=[add])

    async def run(turns: int, wide: int = 1) -> None:
        answer = await Runner.run(agent, task(turns, wide), max_turns=100)
        assert answer.final_output == "done"

    return run


def openai_agent() -> Agent:
    from openai import AsyncOpenAI

    client: Any = AsyncOpenAI(max_retries=0)
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}]

    async def run(turns: int, wide: int = 1) -> None:
        messages: list[Any] = [{"role": "user", "content": task(turns, wide)}]
        while True:
            reply = await client.chat.completions.create(model="scripted", messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or ():
                given = json.loads(call.function.arguments)
                passed()
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
            if not message.tool_calls:
                assert message.content == "done"
                return

    return run


#: The process's CPU time in seconds at which a run has come to its model or to a tool, one after the other.
PASSED: list[float] = []


def passed() -> None:
    """A run has come to its model, or to a tool."""
    PASSED.append(time.process_time())


AGENTS: Mapping[str, Callable[[], Agent]] = {
    "langchain": langchain_agent,
    "autogen": autogen_agent,
    "openai-agents": openai_agents_agent,
    "openai": openai_agent,
}


def script(body: Mapping[str, Any]) -> Any:
    """A model that calls a tool as often as the user's text says. No two calls have one id: results are told apart by it."""
    from lgov_core.testing import ScriptedCall, ScriptedReply
    from lgov_core.types import new_id

    messages = body["messages"]
    asked = next(message["content"] for message in messages if message["role"] == "user")
    wanted = re.search(r"turns=(\d+) wide=(\d+)\.", str(asked))
    assert wanted is not None, asked
    turns, wide = map(int, wanted.groups())
    done = sum(message["role"] == "assistant" for message in messages)
    if done >= turns:
        return "done"
    return ScriptedReply(
        tool_calls=[ScriptedCall("add", {"a": done, "b": number}, new_id("call")) for number in range(wide)]
    )
