"""An ordinary LangChain agent that answers questions about pay. It contains no lgov code.

The demo runs this file unchanged: the model's address comes from OPENAI_BASE_URL, as for any such agent.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain.tools import ToolRuntime, tool
from langchain_core.tools import ToolException
from langchain_openai import ChatOpenAI


@dataclass
class Context:
    """The data that the agent works on: the path of the company database."""

    database: str


@tool
def run_sql(query: str, runtime: ToolRuntime[Context]) -> str:
    """Run SQL on the company database."""
    rows = []
    try:
        with closing(sqlite3.connect(runtime.context.database)) as connection, connection:
            for statement in query.split(";"):
                if statement.strip():
                    rows = connection.execute(statement).fetchmany(5)
    except sqlite3.Error as error:
        raise ToolException(f"Error: {error}") from error
    return "\n".join(", ".join(str(value) for value in row) for row in rows) or "no rows"


run_sql.handle_tool_error = True


def make_agent(model: str):
    """The agent: one tool, at most four model calls a question."""
    return create_agent(
        ChatOpenAI(model=model, max_retries=2, timeout=120),
        [run_sql],
        system_prompt="Answer from the company database.",
        context_schema=Context,
        middleware=[ModelCallLimitMiddleware(run_limit=4, exit_behavior="end")],
        name="pay_desk",
    )


def answer(agent: Any, question: str, database: str) -> str:
    """Asks the agent one question and returns what it says in the end."""
    messages = [{"role": "user", "content": question}]
    state = agent.invoke({"messages": messages}, context=Context(database))
    return str(state["messages"][-1].content)
