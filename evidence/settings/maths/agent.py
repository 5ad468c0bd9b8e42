"""An AutoGen agent that solves word problems with a calculator. It knows nothing of lgov.

The model's address comes from OPENAI_BASE_URL.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Calculator:
    """The agent's tool, which keeps what it was asked for."""

    def __init__(self) -> None:
        self.expressions: list[str] = []

    async def calculate(self, expression: str) -> str:
        """Work out an expression."""
        self.expressions.append(expression)
        value = _value(ast.parse(expression, mode="eval").body)
        return f"{value:.10g}"


def _value(node: Any) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("only numbers and + - * / ( )")


def make_client(model: str) -> OpenAIChatCompletionClient:
    """The model as AutoGen sees it."""
    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    }
    return OpenAIChatCompletionClient(model=model, model_info=info, max_retries=2, timeout=300)


async def answer(
    client: OpenAIChatCompletionClient, problem: str, calculator: Calculator | None = None, steps: int = 6
) -> str:
    """Has one problem solved and returns the final message; empty where the agent does not finish."""
    agent = AssistantAgent(
        "solver",
        client,
        tools=[(calculator or Calculator()).calculate],
        system_message="Solve the problem with the calculator.",
        max_tool_iterations=steps,
    )
    result = await agent.run(task=problem)
    last = result.messages[-1]
    return last.content if isinstance(last, TextMessage) else ""
