"""An ordinary AutoGen team that looks after a small archive. It contains nothing about policies.

    python main.py "What is in the archive? Then throw the old letters away."

An archivist answers questions and may hand over to a caretaker, who throws things away. They talk to the model that
OPENAI_BASE_URL and OPENAI_API_KEY name, or, without them, to a scripted model.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import HandoffMessage, TextMessage, ToolCallExecutionEvent, ToolCallRequestEvent
from autogen_agentchat.teams import Swarm

QUESTION = "Our archive is full. Throw the old letters away, then tell me what is left."
FOLDER_OBJECT = tempfile.TemporaryDirectory(prefix="archive-")  # removed when the program ends
FOLDER = Path(FOLDER_OBJECT.name)


def make_archive() -> None:
    for name in ("letters_1912.txt", "letters_1913.txt", "map.txt"):
        (FOLDER / name).write_text(f"the {name.removesuffix('.txt')}\n")


async def list_files() -> str:
    """Lists what is in the archive."""
    return ", ".join(sorted(path.name for path in FOLDER.iterdir()))


async def read_file(name: str) -> str:
    """Reads a file of the archive."""
    return (FOLDER / Path(name).name).read_text()


async def delete_file(name: str) -> str:
    """Throws a file of the archive away."""
    (FOLDER / Path(name).name).unlink()
    return f"threw {name} away"


def make_model() -> Any:
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        return OpenAIChatCompletionClient(model=os.environ.get("OPENAI_MODEL", "gpt-5-mini"), parallel_tool_calls=False)
    from offline_model import OfflineModel

    return OfflineModel()


def make_team() -> Swarm:
    model = make_model()
    archivist = AssistantAgent(
        "archivist",
        model,
        tools=[list_files, read_file, delete_file],
        handoffs=["caretaker"],
        max_tool_iterations=8,
        system_message="You look after the archive. Say TERMINATE when you are done.",
    )
    caretaker = AssistantAgent(
        "caretaker",
        model,
        tools=[delete_file],
        handoffs=["archivist"],
        max_tool_iterations=8,
        system_message="You throw away what you are told to, then hand back to the archivist.",
    )
    return Swarm(
        [archivist, caretaker], termination_condition=TextMentionTermination("TERMINATE") | MaxMessageTermination(20)
    )


async def main() -> None:
    make_archive()
    question = " ".join(sys.argv[1:]) or QUESTION
    async for event in make_team().run_stream(task=question):
        show(event)
    print(f"files in the archive now: {await list_files()}")


def show(event: Any) -> None:
    if isinstance(event, ToolCallRequestEvent):
        for call in event.content:
            print(f"{event.source}: {call.name}{call.arguments}")
    elif isinstance(event, ToolCallExecutionEvent):
        for result in event.content:
            print(f"tool: {result.content}")
    elif isinstance(event, HandoffMessage):
        print(f"{event.source} hands over to {event.target}")
    elif isinstance(event, TextMessage):
        print(f"{event.source}: {event.content}")


if __name__ == "__main__":
    asyncio.run(main())
