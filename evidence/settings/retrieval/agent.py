"""An OpenAI Agents SDK agent that answers questions from passages it searches for. It knows nothing of lgov.

The model's address comes from OPENAI_BASE_URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents import (
    Agent,
    MaxTurnsExceeded,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


@dataclass
class Library:
    """What the agent works on: something whose ``best`` passages for a query can be asked for."""

    passages: Any


@function_tool
def search(context: RunContextWrapper[Library], query: str) -> str:
    """Search the passages."""
    return "\n".join(context.context.passages.best(query))


def make_agent(model: str) -> Agent[Library]:
    """The agent: one tool."""
    return Agent(
        name="reader",
        instructions="Answer from the passages.",
        tools=[search],
        model=OpenAIChatCompletionsModel(model, AsyncOpenAI(max_retries=2, timeout=300)),
    )


async def answer(agent: Agent[Library], question: str, passages: Any, turns: int = 6) -> str:
    """Asks the agent one question and returns what it says in the end; nothing when it never comes to an end."""
    try:
        result = await Runner.run(agent, question, context=Library(passages), max_turns=turns)
    except MaxTurnsExceeded:
        return ""
    return str(result.final_output)
