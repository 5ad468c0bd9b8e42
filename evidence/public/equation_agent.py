"""An OpenAI Agents SDK agent that solves equations with a calculator. It knows nothing of lgov.

The model's address comes from OPENAI_BASE_URL.
"""

from __future__ import annotations

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
from settings.maths.agent import Calculator

set_tracing_disabled(True)

SYSTEM = "Solve the equation with the calculator."


@function_tool
async def calculate(context: RunContextWrapper[Calculator], expression: str) -> str:
    """Work out an expression."""
    return await context.context.calculate(expression)


def make_agent(model: str) -> Agent[Calculator]:
    """The agent: one tool."""
    return Agent(
        name="algebraist",
        instructions=SYSTEM,
        tools=[calculate],
        model=OpenAIChatCompletionsModel(model, AsyncOpenAI(max_retries=2, timeout=300)),
    )


async def answer(agent: Agent[Calculator], equation: str, calculator: Calculator, turns: int = 6) -> str:
    """Has one equation solved and returns the final message; empty where the agent does not finish."""
    try:
        result = await Runner.run(agent, equation, context=calculator, max_turns=turns)
    except MaxTurnsExceeded:
        return ""
    return str(result.final_output)
