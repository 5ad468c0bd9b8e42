"""A LangChain agent that walks through a grid and says which way it went. It knows nothing of lgov.

The model's address comes from OPENAI_BASE_URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError

SYSTEM = "Walk to #, then say the way."
STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Walk:
    """A walk through a grid from ``*``: where it has come to, and the steps that it took."""

    def __init__(self, grid: Sequence[Sequence[str]]) -> None:
        cells = {(y, x): cell for y, row in enumerate(grid) for x, cell in enumerate(row)}
        self.open = {place for place, cell in cells.items() if cell != "X"}
        self.at = next(place for place, cell in cells.items() if cell == "*")
        self.goal = next(place for place, cell in cells.items() if cell == "#")
        self.taken: list[str] = []

    def seen(self) -> str:
        """The open directions, and how far off the goal is."""
        if self.at == self.goal:
            return "at #"
        y, x = self.at
        free = [name for name, (down, right) in STEPS.items() if (y + down, x + right) in self.open]
        down, right = self.goal[0] - y, self.goal[1] - x
        off = [f"{abs(down)} {'down' if down > 0 else 'up'}"] if down else []
        off += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
        return f"# is {' '.join(off)}, open: {' '.join(free) or 'none'}"

    def step(self, direction: str) -> str:
        """Takes a step where there is one to take, and says what is seen from there."""
        down, right = STEPS.get(direction, (0, 0))
        place = (self.at[0] + down, self.at[1] + right)
        if place not in self.open or direction not in STEPS:
            return "blocked"
        self.at = place
        self.taken.append(direction)
        return self.seen()


@tool
def look(runtime: ToolRuntime[Walk]) -> str:
    """Look around."""
    return runtime.context.seen()


@tool
def move(direction: str, runtime: ToolRuntime[Walk]) -> str:
    """Take a step."""
    return runtime.context.step(direction)


def make_agent(model: str) -> Any:
    """The agent: two tools."""
    chat = ChatOpenAI(model=model, max_retries=2, timeout=300)
    return create_agent(chat, [look, move], system_prompt=SYSTEM, context_schema=Walk, name="walker")


async def answer(agent: Any, question: str, walk: Walk, turns: int = 12) -> str:
    """Has one way found and returns the final message; empty where the agent does not finish."""
    asked: Any = {"messages": [{"role": "user", "content": question}]}
    try:
        state = await agent.ainvoke(asked, {"recursion_limit": 2 * turns}, context=walk)
    except GraphRecursionError:
        return ""
    last = state["messages"][-1]
    return str(last.text) if isinstance(last, AIMessage) else ""
