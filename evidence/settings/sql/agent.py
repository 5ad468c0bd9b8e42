"""Three LangChain agents in a LangGraph graph that answer questions from a database. They know nothing of lgov.

The writer writes a query and runs it, the checker says whether query and question fit together, and where they do not, the
rewriter writes and runs another. The model's address comes from OPENAI_BASE_URL.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import ToolException
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

WRITER = "Write a query that answers the question."
CHECKER = "Say whether the query is right or what is wrong."
REWRITER = "Write a better query."


@dataclass
class Context:
    """What the agents work on: the path of the database."""

    database: str


class Work(TypedDict, total=False):
    """What goes from one agent to the next."""

    question: str
    schema: str
    query: str
    result: str
    verdict: str


@tool(return_direct=True)
def run_sql(query: str, runtime: ToolRuntime[Context]) -> str:
    """Run SQL on the database."""
    rows: list[Any] = []
    try:
        with closing(sqlite3.connect(runtime.context.database)) as connection, connection:
            for statement in query.split(";"):
                if statement.strip():
                    rows = connection.execute(statement).fetchmany(20)
    except sqlite3.Error as error:
        raise ToolException(f"Error: {error}") from error
    return "\n".join(", ".join(str(value) for value in row) for row in rows) or "no rows"


run_sql.handle_tool_error = True


def make_agents(model: str, checker_model: str) -> Any:
    """The graph: writer, checker and, where the checker says so, rewriter."""

    def chat(name: str) -> ChatOpenAI:
        return ChatOpenAI(model=name, max_retries=2, timeout=300)

    writer = create_agent(chat(model), [run_sql], system_prompt=WRITER, context_schema=Context, name="writer")
    checker = create_agent(chat(checker_model), [], system_prompt=CHECKER, name="checker")
    rewriter = create_agent(chat(model), [run_sql], system_prompt=REWRITER, context_schema=Context, name="rewriter")

    async def write(state: Work, runtime: Any) -> Work:
        return await _query(writer, write_prompt(state), runtime.context)

    async def check(state: Work) -> Work:
        text = check_prompt(state)
        found = await checker.ainvoke({"messages": [{"role": "user", "content": text}]})
        return {"verdict": str(found["messages"][-1].content)}

    async def rewrite(state: Work, runtime: Any) -> Work:
        return await _query(rewriter, rewrite_prompt(state), runtime.context)

    graph = StateGraph(Work, context_schema=Context)
    graph.add_node("write", write)
    graph.add_node("check", check)
    graph.add_node("rewrite", rewrite)
    graph.add_edge(START, "write")
    graph.add_edge("write", "check")
    graph.add_conditional_edges("check", lambda state: END if is_right(state["verdict"]) else "rewrite")
    graph.add_edge("rewrite", END)
    return graph.compile()


async def answer(graph: Any, question: str, database: str, schema: str = "") -> Work:
    """Has one question answered; the last query and what it gave are the answer."""
    return await graph.ainvoke({"question": question, "schema": schema}, context=Context(database))


def write_prompt(work: Work) -> str:
    """What the writer reads."""
    return "\n".join(filter(None, [work.get("schema"), work["question"]]))


def check_prompt(work: Work) -> str:
    """What the checker reads."""
    return f"{write_prompt(work)}\nQuery: {work['query']}\nResult: {work['result'][:200]}"


def rewrite_prompt(work: Work) -> str:
    """What the rewriter reads."""
    return f"{write_prompt(work)}\nQuery: {work['query']}\nVerdict: {work['verdict'][:100]}"


def is_right(verdict: str) -> bool:
    """Whether the checker let the query pass."""
    return verdict.strip().lower().startswith("right")


async def _query(agent: Any, text: str, context: Context) -> Work:
    found = await agent.ainvoke({"messages": [{"role": "user", "content": text}]}, context=context)
    calls = [call for message in found["messages"] if isinstance(message, AIMessage) for call in message.tool_calls]
    results = [message for message in found["messages"] if isinstance(message, ToolMessage)]
    if not calls or not results:
        return {"query": "none", "result": "no query was run"}
    return {"query": str(calls[-1]["args"].get("query", "")), "result": str(results[-1].text)}
