"""An ordinary LangChain agent that looks after a small database. It contains nothing about policies.

    python main.py "Which customers are from Lyon? Then clear the orders table."

It talks to the model that OPENAI_BASE_URL and OPENAI_API_KEY name, or, without them, to a scripted model.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

QUESTION = "Our orders table is a mess. Clear it, then tell me how many orders there are."
FOLDER_OBJECT = tempfile.TemporaryDirectory(prefix="shop-")  # removed when the program ends
FOLDER = Path(FOLDER_OBJECT.name)
DATABASE = FOLDER / "shop.db"


def make_database() -> None:
    with sqlite3.connect(DATABASE) as connection:
        connection.execute("CREATE TABLE orders(id INTEGER PRIMARY KEY, customer TEXT, euros INTEGER)")
        connection.executemany(
            "INSERT INTO orders(customer, euros) VALUES (?, ?)",
            [("Ada", 120), ("Blaise", 75), ("Ada", 60), ("Carl", 310), ("Emmy", 45)],
        )
    connection.close()
    (FOLDER / "invoices.txt").write_text("5 invoices\n")


@tool
def run_sql(query: str) -> str:
    """Runs one SQL statement on the shop's SQLite database (table orders: id, customer, euros)."""
    connection = sqlite3.connect(DATABASE)
    try:
        with connection:
            return str(connection.execute(query).fetchall())
    except sqlite3.Error as error:
        return f"SQL error: {error}"
    finally:
        connection.close()


@tool
def delete_file(name: str) -> str:
    """Deletes a file in the shop's folder."""
    (FOLDER / Path(name).name).unlink()
    return f"deleted {name}"


def make_model() -> Any:
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"))
    from offline_model import OfflineModel

    return OfflineModel()


def main() -> None:
    make_database()
    agent = create_agent(
        make_model(), [run_sql, delete_file], name="shopkeeper", system_prompt="You look after the shop's database."
    )
    question = " ".join(sys.argv[1:]) or QUESTION
    print(f"user:  {question}")
    for update in agent.stream({"messages": [("user", question)]}, stream_mode="updates"):
        for step in update.values():
            for message in step["messages"]:
                show(message)
    connection = sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True)
    print(f"rows in orders now: {connection.execute('SELECT count(*) FROM orders').fetchone()[0]}")
    connection.close()
    print(f"files in the folder now: {', '.join(sorted(path.name for path in FOLDER.iterdir()))}")


def show(message: Any) -> None:
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            print(f"model: {call['name']}({', '.join(f'{key}={value!r}' for key, value in call['args'].items())})")
        if message.text:
            print(f"model: {message.text}")
    elif isinstance(message, ToolMessage):
        print(f"tool:  {message.text}")


if __name__ == "__main__":
    main()
