"""A database, tools for it, the ways to run an agent, and an instrumented process."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.tools import tool
from scripted import Judging, Witness, allow, make_governor

from lgov_core.governor import Governor
from lgov_core.types import Action, Decision, Point
from lgov_langchain import instrument, uninstrument

DROP = ("c1", "run_sql", {"query": "DROP TABLE staff"})
COUNT = ("c2", "run_sql", {"query": "SELECT count(*) FROM staff"})


class Database:
    """A SQLite file with three rows, and tools over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.execute("CREATE TABLE staff(name)")
        self.execute("INSERT INTO staff VALUES ('a'), ('b'), ('c')")

    def execute(self, query: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                return connection.execute(query).fetchall()
        finally:
            connection.close()

    @property
    def rows(self) -> int:
        return self.execute("SELECT count(*) FROM staff")[0][0]

    def sync_tool(self) -> Any:
        @tool
        def run_sql(query: str) -> str:
            """Runs SQL."""
            return str(self.execute(query))

        return run_sql

    def async_tool(self) -> Any:
        @tool
        async def run_sql(query: str) -> str:
            """Runs SQL."""
            return await asyncio.to_thread(lambda: str(self.execute(query)))

        return run_sql


def ask(agent: Any, how: str, text: str = "tidy up") -> list[Any]:
    """Runs the agent in one of LangChain's ways and returns the messages of the conversation."""
    question = {"messages": [{"role": "user", "content": text}]}
    if how == "invoke":
        return agent.invoke(question)["messages"]
    if how == "batch":
        return agent.batch([question])[0]["messages"]
    if how == "stream":
        return list(agent.stream(question, stream_mode="values"))[-1]["messages"]
    if how == "ainvoke":
        return asyncio.run(agent.ainvoke(question))["messages"]

    async def consume() -> list[Any]:
        last: Any = None
        async for mode, chunk in agent.astream(question, stream_mode=["values", "messages"]):
            last = chunk if mode == "values" else last
        return last["messages"]

    return asyncio.run(consume())


@contextmanager
def instrumented(
    witness: Witness, judge: Callable[[Action], Decision | None] = lambda action: None
) -> Iterator[Governor]:
    def both(action: Action) -> Decision | None:
        decision = judge(action)
        return allow() if decision is None and action.point is Point.PRE_TOOL_CALL else decision

    governor = make_governor(Judging(both), witness=witness)
    instrument(governor)
    try:
        yield governor
    finally:
        uninstrument()
