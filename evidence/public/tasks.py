"""Three sets of reasoning-gym (Apache-2.0): their seeds, their scores, and examples solved with the agents' tools.

The package makes the entry of a number: entry ``i`` of a data set with seed ``s`` has the number ``s + i``. So ranges of
numbers that do not overlap are seeds that are not shared. `NUMBERS` was written down before any run.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reasoning_gym
import sympy
from reasoning_gym.arithmetic.leg_counting import ANIMALS
from settings.maths.tasks import SYSTEM as CALCULATOR_SYSTEM
from settings.maths.tasks import TOOLS as CALCULATOR
from settings.setting import Conversation, Message, call, function_tool, result, says

from public.equation_agent import SYSTEM as EQUATION_SYSTEM
from public.path_agent import SYSTEM as PATH_SYSTEM
from public.path_agent import Walk

#: Of each split the first number and how many there are. Plans are chosen on ``development``; ``seeds`` are held out.
NUMBERS = {"train": (1_000_000, 4096), "development": (2_000_000, 512), "seeds": (3_000_000, 512)}
#: Of each set the package's name for it and what differs from the package's own difficulty: sizes for a small model.
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "legs": ("leg_counting", {"min_animals": 2, "max_animals": 4}),
    "equations": ("simple_equations", {}),
    "paths": (
        "shortest_path",
        {"min_rows": 3, "max_rows": 5, "min_cols": 3, "max_cols": 5, "p_blocked": 0.3},
    ),
}
WALKING = (
    {"type": "function", "function": {"name": "look", "description": "Look around.", "parameters": {
        "type": "object", "properties": {}}}},
    function_tool("move", "Take a step.", "direction"),
)  # fmt: skip
_ANSWER = re.compile(r"Answer:(.*)", re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """An entry of a set: what the package asks, and what it knows of the answer."""

    name: str
    question: str
    answer: str
    metadata: Mapping[str, Any]

    def score(self, said: str | None) -> float:
        """The package's own score of an answer, 0 to 1."""
        known = {"question": self.question, "answer": self.answer, "metadata": self.metadata}
        return float(_dataset(self.name, 0).score_answer(said, known))


def entry(name: str, number: int) -> Entry:
    """The entry of a number."""
    made = _dataset(name, 0)[number]
    return Entry(name, made["question"].strip(), made["answer"], made["metadata"])


def answered(text: str) -> str | None:
    """What stands behind ``Answer:``, or None."""
    matched = _ANSWER.search(text)
    return matched[1].strip() if matched else None


@functools.cache
def _dataset(name: str, seed: int) -> Any:
    package_name, config = CONFIGS[name]
    return reasoning_gym.create_dataset(package_name, seed=seed, size=10**9, **config)


class ProceduralWorld:
    """The tasks of one set. The log is made of training entries that are solved with the agent's tools, without mistakes."""

    name: str

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        self.options = dict(options)

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        number = _draw(chance, split)
        return {"number": number, "question": entry(self.name, number).question}

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        return self.solved(entry(self.name, _draw(chance, "train")))

    def texts(self, chance: random.Random) -> Iterable[str]:
        return ()

    def solved(self, asked: Entry) -> Sequence[Conversation]:
        """The conversation of an agent that solves ``asked``; none where that cannot be done."""
        raise NotImplementedError


class LegsWorld(ProceduralWorld):
    """How many legs so many animals have: a product and a sum for each kind of animal."""

    name = "legs"

    def solved(self, asked: Entry) -> Sequence[Conversation]:
        messages: list[Message] = []
        total = 0
        for animal, count in asked.metadata["animals"].items():
            messages += _calculated(f"{total} + {count} * {ANIMALS[animal]}", total + count * ANIMALS[animal])
            total += count * ANIMALS[animal]
        return [Conversation((*_begin(CALCULATOR_SYSTEM, asked), *messages, says(f"Answer: {total}")), CALCULATOR)]


class EquationsWorld(ProceduralWorld):
    """Linear equations with one unknown: a difference, then a quotient."""

    name = "equations"

    def solved(self, asked: Entry) -> Sequence[Conversation]:
        unknown = sympy.Symbol(asked.metadata["variable"])
        left, right = (sympy.sympify(side, {unknown.name: unknown}) for side in asked.metadata["equation"].split(" = "))
        factor, offset = (int(value) for value in (left.coeff(unknown, 1), left.coeff(unknown, 0)))
        if factor == 0:
            return []  # "0 = 0": every answer solves it, and the package expects one
        rest = int(right) - offset
        messages: list[Message] = []
        if offset:
            messages += _calculated(f"{right} {'-' if offset > 0 else '+'} {abs(offset)}", rest)
        messages += _calculated(f"{rest} / {factor}", rest // factor)
        return [
            Conversation((*_begin(EQUATION_SYSTEM, asked), *messages, says(f"Answer: {rest // factor}")), CALCULATOR)
        ]


class PathsWorld(ProceduralWorld):
    """The shortest way through a grid: a look, then a step at a time."""

    name = "paths"

    def solved(self, asked: Entry) -> Sequence[Conversation]:
        walk = Walk(asked.metadata["matrix"])
        messages: list[Message] = [call("look"), result(walk.seen())]
        for direction in asked.metadata["solution"]:
            messages += [call("move", direction=direction), result(walk.step(direction))]
        return [Conversation((*_begin(PATH_SYSTEM, asked), *messages, says(f"Answer: {asked.answer}")), WALKING)]


def shown_in_training(name: str, split: str) -> float:
    """The share of a split's entries whose text is that of a training entry."""
    texts = {
        part: [entry(name, first + number).question for number in range(count)]
        for part, (first, count) in NUMBERS.items()
        if part in ("train", split)
    }
    trained = set(texts["train"])
    return sum(text in trained for text in texts[split]) / len(texts[split])


def _draw(chance: random.Random, split: str) -> int:
    first, count = NUMBERS[split]
    return first + chance.randrange(count)


def _begin(system: str, asked: Entry) -> tuple[Message, ...]:
    return {"role": "system", "content": system}, {"role": "user", "content": asked.question}


def _calculated(expression: str, value: int) -> list[Message]:
    return [call("calculate", expression=expression), result(str(value))]
