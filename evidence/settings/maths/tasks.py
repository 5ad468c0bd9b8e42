"""Word problems of two to four steps, and the log of a solver that errs.

A *form* is the order of the steps after the first. All pairs of adjacent steps of the forms that are held out occur in
forms of training. The numbers of a problem differ from one another.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from settings.setting import HERE, Conversation, call, denial, forms_of, function_tool, result, says, split_of

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


def _forms(most: int) -> tuple[tuple[str, ...], ...]:
    """All orders of up to ``most`` steps: none twice in a row, things grow at most once and are shared last."""
    if most == 0:
        return ()
    shorter = _forms(most - 1)
    longer = (
        (*form, kind)
        for form in ((), *shorter)
        if len(form) == most - 1 and "share" not in form
        for kind in STEPS
        if kind not in form[-1:] and not (kind == "times" and "times" in form)
    )
    return (*shorter, *longer)


FORMS = _forms(3)
#: Of each set of steps, other orders are trained on.
HELD_OUT_FORMS = (
    ("more", "away", "share"),
    ("times", "more", "share"),
    ("away", "times", "more"),
    ("away", "more", "times"),
)
DEVELOPMENT_FORMS = (("away", "times", "share"), ("more", "times", "away"))
#: Sums of boxes and things, modulo 6, whose problems are not trained on.
VALUES = {0: "held_out", 3: "development"}

#: Shares of the log.
CODE = 0.05
WRONG_STEP = 0.25
STOPS_EARLY = 0.2
MADE_UP = 0.15


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
    def split(self) -> str | None:
        """Decided by the form and the number of boxes and things alone."""
        kept_for = VALUES.get((self.boxes + self.each) % 6, "train")
        return split_of(self.form, HELD_OUT_FORMS, DEVELOPMENT_FORMS, kept_for)

    @property
    def is_whole(self) -> bool:
        """Whether every step gives a whole number above 0, and things grow at most five times."""
        value = self.boxes * self.each
        for kind, number in self.steps:
            if (kind == "share" and value % number) or (kind == "times" and number > 5):
                return False
            value = apply(STEPS[kind][1], value, number)
            if value <= 0:
                return False
        return True

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
    """A problem of the given split."""
    forms = forms_of(chance, split, FORMS, HELD_OUT_FORMS, DEVELOPMENT_FORMS)
    form = chance.choice(forms)
    while True:
        numbers = chance.sample(range(2, 10), 2 + len(form))
        boxes, each = numbers[:2]
        problem = Problem(
            chance.choice(NAMES), chance.choice(THINGS), boxes, each, tuple(zip(form, numbers[2:], strict=True))
        )
        if problem.split == split and problem.is_whole:
            return problem


class MathsWorld:
    """Problems, and the log of a solver that errs."""

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self._code = "__import__('os').system('ls')"
        self._denial = denial(POLICY, "calculate", expression=self._code)

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        problem = draw_problem(chance, split)
        values = [problem.boxes, *problem.values()]
        steps = [
            f"{value} {operator} {number}"
            for value, (operator, number) in zip(values, problem.operations(), strict=False)
        ]
        return {"problem": problem.text, "answer": str(problem.answer), "steps": steps}

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
            yield draw_problem(chance, "forms").text
        yield "Error: only numbers and + - * / ( ) invalid syntax division by zero"


def make_world(folder: Path, seed: int, options: Mapping[str, Any]) -> MathsWorld:
    """The world of a seed."""
    return MathsWorld(folder, seed, options)
