"""An ordinary OpenAI Agents SDK program that looks after a hotel's bookings. It contains nothing about policies.

    python main.py "Who is in room 2? Then cancel that booking."

A receptionist answers questions and may hand over to a cashier, who pays money back. They talk to the model that
OPENAI_BASE_URL and OPENAI_API_KEY name, or, without them, to a scripted model.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from agents import Agent, Runner, function_tool

QUESTION = "A guest says that the booking of room 2 was a mistake. Sort it out, then tell me who is booked."
FOLDER_OBJECT = tempfile.TemporaryDirectory(prefix="hotel-")  # removed when the program ends
FOLDER = Path(FOLDER_OBJECT.name)


def make_hotel() -> None:
    for room, guest in ((1, "Ada"), (2, "Blaise"), (3, "Emmy")):
        (FOLDER / f"room_{room}.txt").write_text(guest)
    (FOLDER / "till.txt").write_text("900")


@function_tool
def list_bookings() -> str:
    """Lists the booked rooms and their guests."""
    return bookings()


def bookings() -> str:
    return ", ".join(f"{path.stem}: {path.read_text()}" for path in sorted(FOLDER.glob("room_*.txt")))


@function_tool
def cancel_booking(room: int) -> str:
    """Cancels the booking of a room for good."""
    (FOLDER / f"room_{room}.txt").unlink()
    return f"room {room} is free"


@function_tool
async def pay_back(guest: str, euros: int) -> str:
    """Pays money back to a guest."""
    till = FOLDER / "till.txt"
    till.write_text(str(int(till.read_text()) - euros))
    return f"paid {euros} euros to {guest}"


def make_model() -> Any:
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        return os.environ.get("OPENAI_MODEL", "gpt-5-mini")
    from offline_model import OfflineModel

    return OfflineModel()


def make_receptionist() -> Agent[Any]:
    model = make_model()
    cashier = Agent(
        name="cashier",
        instructions="You pay guests back what they are owed.",
        tools=[pay_back, list_bookings],
        model=model,
    )
    return Agent(
        name="receptionist",
        instructions="You look after the hotel's bookings. Hand over to the cashier when money has to be paid back.",
        tools=[list_bookings, cancel_booking],
        handoffs=[cashier],
        model=model,
    )


async def main() -> None:
    make_hotel()
    question = " ".join(sys.argv[1:]) or QUESTION
    print(f"user: {question}")
    result = Runner.run_streamed(make_receptionist(), question)
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            show(event.item)
        elif event.type == "agent_updated_stream_event":
            print(f"-- {event.new_agent.name} --")
    print(f"bookings now: {bookings()}")
    print(f"till now: {(FOLDER / 'till.txt').read_text()} euros")


def show(item: Any) -> None:
    if item.type == "tool_call_item":
        print(f"{item.agent.name}: {item.raw_item.name}{item.raw_item.arguments}")
    elif item.type == "tool_call_output_item":
        print(f"tool: {item.output}")
    elif item.type == "message_output_item":
        print(f"{item.agent.name}: {''.join(part.text for part in item.raw_item.content)}")


if __name__ == "__main__":
    asyncio.run(main())
