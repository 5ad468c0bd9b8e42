"""Word problems of two to four steps, and the log of a solver that errs.

A *form* is the order of the steps after the first. Held-out problems have forms that training problems have not (their
steps occur in other orders) or numbers that are never trained on.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from settings.setting import HERE, Conversation, call, denial, function_tool, result, says

POLICY = HERE / "maths" / "policy.yaml"
SYSTEM = "Solve the problem with the calculator."
TOOLS = (function_tool("calculate", "Work out an expression.", "expression"),)

NAMES = ("Ada", "Blaise", "Carl", "Emmy", "Kurt", "Sofia")
THINGS = ("pens", "stamps", "apples", "coins", "books", "shells")
#: Each step in words, and its operator.
STEPS = {
    "more": ("{name} buys {n} more.", "+"),
    "away": ("{name} gives {n} away.", "-"),
    "times": ("They grow {n} times.", "*"),
    "share": ("They are shared by {n}.", "/"),
}
HELD_OUT_FORMS = frozenset({("away", "times"), ("more", "share"), ("times", "more"), ("more", "away", "share")})
FORMS = (
    *((first,) for first in STEPS),
    *((first, second) for first in STEPS if first != "share" for second in STEPS if second != first),
    *(
        (first, second, "share")
        for first in ("more", "away", "times")
        for second in ("more", "away")
        if first != second
    ),
)

#: Shares of the log.
CODE = 0.05
WRONG_STEP = 0.1
STOPS_EARLY = 0.1
MADE_UP = 0.1


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: so many boxes of so many things, then steps, each with its number."""

    name: str
    thing: str
    boxes: int
    each: int
    steps: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The problem in words."""
        story = [STEPS[kind][0].format(name=self.name, n=number) for kind, number in self.steps]
        asked = (
            f"How many {self.thing} does each friend get?"
            if self.form[-1] == "share"
            else f"How many {self.thing} now?"
        )
        return f"{self.name} has {self.boxes} boxes with {self.each} {self.thing} each. {' '.join(story)} {asked}"

    @property
    def form(self) -> tuple[str, ...]:
        """The kinds of its steps."""
        return tuple(kind for kind, _ in self.steps)

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.values()[-1]

    @property
    def split(self) -> str:
        """Decided by the form and the number of boxes and things alone."""
        new = self.form in HELD_OUT_FORMS or (self.boxes + self.each) % 6 == 0
        return "held_out" if new else "train"

    def operations(self) -> list[tuple[str, int]]:
        """Operator and second number of each step, the first included."""
        return [("*", self.each), *((STEPS[kind][1], number) for kind, number in self.steps)]

    def values(self) -> list[int]:
        """What is there after each step."""
        found = [self.boxes]
        for operator, number in self.operations():
            found.append(apply(operator, found[-1], number))
        return found[1:]


def apply(operator: str, value: int, number: int) -> int:
    """One step. Division is exact in every problem."""
    return {"+": value + number, "-": value - number, "*": value * number, "/": value // number}[operator]


def draw_problem(chance: random.Random, split: str) -> Problem:
    """A problem of the given split; half of the held-out ones are new in form."""
    new_form = split == "held_out" and chance.random() < 0.5
    while True:
        form = chance.choice(sorted(HELD_OUT_FORMS) if new_form else FORMS)
        boxes, each = chance.randrange(2, 10), chance.randrange(2, 10)
        value, steps = boxes * each, list[tuple[str, int]]()
        for kind in form:
            number = chance.randrange(2, 6) if kind in ("times", "share") else chance.randrange(2, 10)
            if kind == "share":
                fitting = [friends for friends in range(2, 10) if value % friends == 0]
                number = chance.choice(fitting) if fitting else 0
            steps.append((kind, number))
            value = apply(STEPS[kind][1], value, number) if number else -1
        problem = Problem(chance.choice(NAMES), chance.choice(THINGS), boxes, each, tuple(steps))
        if value > 0 and problem.split == split:
            return problem


class MathsWorld:
    """Problems, and the log of a solver that errs."""

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._code = "__import__('os').system('ls')"
        self._denial = denial(POLICY, "calculate", expression=self._code)

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        problem = draw_problem(chance, split)
        return {"problem": problem.text, "answer": str(problem.answer), "steps": len(problem.steps) + 1}

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        problem = draw_problem(chance, "train")
        messages: list[Mapping[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": problem.text},
        ]
        if chance.random() < CODE:
            messages += [call("calculate", expression=self._code), result(self._denial)]
        operations = problem.operations()
        if len(operations) > 1 and chance.random() < STOPS_EARLY:
            operations = operations[: chance.randrange(1, len(operations))]
        slip = chance.randrange(len(operations)) if chance.random() < WRONG_STEP else None
        value: float = problem.boxes
        for number, (operator, second) in enumerate(operations):
            if number == slip:
                operator = chance.choice("+-*/")
            expression = f"{value:.10g} {operator} {second}"
            value = {"+": value + second, "-": value - second, "*": value * second, "/": value / second}[operator]
            messages += [call("calculate", expression=expression), result(f"{value:.10g}")]
        said = str(chance.randrange(1, 200)) if chance.random() < MADE_UP else f"{value:.10g}"
        return [Conversation((*messages, says(f"Answer: {said}")), TOOLS)]

    def texts(self, chance: random.Random) -> Iterable[str]:
        for _ in range(100):
            yield draw_problem(chance, "held_out").text
        yield "Error: only numbers and + - * / ( ) invalid syntax division by zero"


def make_world(folder: Path, seed: int, options: Mapping[str, Any]) -> MathsWorld:
    """The world of a seed."""
    return MathsWorld(folder, seed, options)
