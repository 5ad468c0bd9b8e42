"""Tools whose arguments lead somewhere: files, the web, a database, code, money."""

import asyncio
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI

from lgov_core.testing import ScriptedModelServer, call


@function_tool
def read_file(path: str) -> str:
    """Reads a file."""
    return f"RAN {Path(path).read_text()}"


@function_tool
def list_files(directory: str | None = None) -> str:
    """Lists files."""
    return f"RAN list {directory}"


@function_tool
def fetch(url: str, headers: str | None = None) -> str:
    """Fetches a page."""
    return "RAN fetch"


@function_tool
def run_sql(query: str) -> str:
    """Asks the database."""
    return "RAN sql"


@function_tool
def run_python(code: str) -> str:
    """Runs Python."""
    return "RAN python"


@function_tool
def refund(order_id: str, amount: float) -> str:
    """Pays money back."""
    return "RAN refund"


@function_tool
def get_posts(country_code: str) -> str:
    """Lists posts."""
    return "RAN posts"


TOOLS: list[Any] = [read_file, list_files, fetch, run_sql, run_python, refund, get_posts]
REPLIES: list[Any] = [
    call("read_file", path="notes.txt"),
    call("list_files", directory=None),
    call("fetch", url="https://93.184.216.34/a"),
    call("run_sql", query="SELECT 1"),
    call("get_posts", country_code="DE"),
    call("read_file", path="/etc/hostname"),
    call("fetch", url="http://169.254.169.254/"),
    call("run_sql", query="DROP TABLE orders"),
    call("run_python", code="print(1)"),
    call("refund", order_id="7", amount=1.5),
    "done",
]


async def main(base_url: str) -> None:
    model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=base_url, api_key="k"))
    result = await Runner.run(Agent(name="all", model=model, tools=TOOLS), "Go.", max_turns=20)
    for item in result.to_input_list():
        if "output" in item:
            print(item["output"])


with ScriptedModelServer(REPLIES) as server:
    asyncio.run(main(server.base_url))
