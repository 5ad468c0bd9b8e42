"""A task that needs several turns, and an agent for it that knows nothing of lgov.

A corridor has some rooms. In each hangs a sign, and one of four doors leads on: which one depends on the sign, by a rule
that nobody tells the agent. The next sign is seen only in the next room. The agent has six turns, or as
many as a corridor says.

    open(door)   leads on, or says that the door is locked; either way it takes a turn
    look()       reads the sign again: harmless, always successful, and of no use

So the decisions of a rollout come one after the other, and each is seen to be right or wrong at once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

DOORS = ("north", "east", "south", "west")
SIGNS = ("sun", "moon", "star", "leaf")
TURNS = 6

SYSTEM = {"role": "system", "content": "Walk to the end of the corridor."}
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "open",
            "description": "Open a door.",
            "parameters": {"type": "object", "properties": {"door": {"type": "string"}}, "required": ["door"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Read the sign.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)
POLICY = """
version: 1
name: corridor
default: deny
rules:
  - {name: tools, use: tool, with: {allow: [open, look]}}
"""

#: Of the log that the model is warmed up on: how often it looks, and the signs whose door it knows. It opens that door so
#: often; at other signs it tries any.
LOOKS = 0.2
KNOWN = ("sun", "moon")
RIGHT = 0.9


def right_door(sign: str) -> str:
    """The rule that has to be found out."""
    return DOORS[SIGNS.index(sign)]


def draw_signs(chance: random.Random, split: str, rooms: int) -> tuple[str, ...]:
    """The signs of one corridor. One sequence in five is held out: no training corridor has it."""
    while True:
        numbers = [chance.randrange(len(SIGNS)) for _ in range(rooms)]
        held_out = sum(number * len(SIGNS) ** place for place, number in enumerate(numbers)) % 5 == 3
        if held_out == (split == "held_out"):
            return tuple(SIGNS[number] for number in numbers)


@dataclass
class Corridor:
    """Where a walk of at most ``turns`` turns stands. ``rooms`` were left by their right door."""

    signs: tuple[str, ...]
    rooms: int = 0
    turns: int = TURNS

    @property
    def out(self) -> bool:
        return self.rooms == len(self.signs)

    @property
    def view(self) -> str:
        return "out" if self.out else f"room {self.rooms + 1}: {self.signs[self.rooms]}"

    def do(self, tool: str, arguments: Any) -> str:
        """Does what a tool is asked for. Raises `ValueError` for a door that does not open."""
        if tool == "look":
            return self.view
        if arguments.get("door") != right_door(self.signs[self.rooms]):
            raise ValueError(f"locked. {self.view}")
        self.rooms += 1
        return self.view


#: Asks the model: the messages so far; gives its reply.
Ask = Callable[[list[dict[str, Any]]], Awaitable[dict[str, Any]]]
#: Runs a tool: its name, its arguments as JSON text, the id of the call; gives what the model is told.
Run = Callable[[str, str, str], Awaitable[str]]


async def walk(corridor: Corridor, ask: Ask, run: Run) -> None:
    """The agent: asks, does what the reply says, tells what came of it; until it is out or has had its turns."""
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": corridor.view}]
    for _ in range(corridor.turns):
        message = await ask(messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            messages.append({"role": "user", "content": corridor.view})
        for call in calls:
            function = call["function"]
            told = "one thing at a time"
            if call is calls[0]:
                told = await run(function["name"], function["arguments"], call["id"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": told})
        if corridor.out:
            return


def logged_walk(chance: random.Random, rooms: int, turns: int = TURNS) -> list[dict[str, Any]]:
    """A walk as the log has it: a clumsy one, of somebody who knows half of the signs."""
    corridor = Corridor(draw_signs(chance, "train", rooms))
    messages: list[dict[str, Any]] = [SYSTEM, {"role": "user", "content": corridor.view}]
    for _ in range(turns):
        tool, arguments = "look", {}
        if chance.random() >= LOOKS:
            sign = corridor.signs[corridor.rooms]
            known = sign in KNOWN and chance.random() < RIGHT
            tool, arguments = "open", {"door": right_door(sign) if known else chance.choice(DOORS)}
        call = {"id": "call_log", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
        try:
            told = corridor.do(tool, arguments)
        except ValueError as error:
            told = f"Error: {error}"
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_log", "content": told},
        ]
        if corridor.out:
            break
    return messages
