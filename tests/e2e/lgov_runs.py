"""Programs, policies and the running of `lgov run`."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")


AGENT = """
import pathlib, sqlite3, sys
pathlib.Path("it-ran").touch()
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    connection = sqlite3.connect("company.db")
    with connection:
        return str(connection.execute(query).fetchall())

agent = create_agent(ChatOpenAI(model="scripted", max_retries=0), [run_sql], name="clerk")
print(agent.invoke({"messages": [("user", " ".join(sys.argv[1:]))]})["messages"][-1].text)
sys.exit(7)
"""


def lgov_run(
    folder: Path, *command: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``lgov run`` in ``folder`` with an environment that names no model and no settings."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
    return subprocess.run(
        [*LGOV, "run", *options, "--", *command],
        cwd=folder,
        env={**clean, "TMPDIR": str(folder), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def write(folder: Path, text: str, name: str = "agent.py") -> str:
    (folder / name).write_text(text)
    return name


def make_company(folder: Path) -> None:
    connection = sqlite3.connect(folder / "company.db")
    with connection:
        connection.execute("CREATE TABLE staff(name)")
        connection.execute("INSERT INTO staff VALUES ('a'), ('b'), ('c')")
    connection.close()


WORKER = """
import sqlite3, sys
from langchain_core.tools import tool

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    with sqlite3.connect("company.db") as connection:
        return str(connection.execute(query).fetchall())

if __name__ == "__main__":
    print(run_sql.invoke({"query": sys.argv[1]}), flush=True)
"""
