"""The demo's questions in words, their reference queries, and the split into train and held-out.

A *form* is an operation with a comparison ("total pay … over N"); a *value* is the department and the threshold. Held-out
questions differ from all training questions in form (four combinations are never trained on, though their parts are)
or in value (one threshold in seven is never trained on).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

DEPARTMENTS = ("sales", "legal", "labs", "support", "design", "logistics")

OPERATIONS = {
    "total pay": "SUM(pay)",
    "staff count": "COUNT(*)",
    "highest pay": "MAX(pay)",
    "lowest pay": "MIN(pay)",
}

COMPARISONS = {"over": ">", "under": "<", "at least": ">=", "at most": "<="}

#: Forms that only held-out questions have. Each part occurs in training in other combinations.
HELD_OUT_FORMS = frozenset(
    {("staff count", "over"), ("total pay", "at most"), ("highest pay", "under"), ("lowest pay", "at least")}
)

THRESHOLDS = range(25, 81)
#: Every seventh threshold is held out; among these every last digit occurs.
HELD_OUT_THRESHOLDS = tuple(threshold for threshold in THRESHOLDS if threshold % 7 == 3)

Split = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question: an operation over the pay of one department, with or without a threshold."""

    operation: str
    department: str
    comparison: str | None = None
    threshold: int | None = None

    @property
    def text(self) -> str:
        """The question in words, as the user asks it."""
        limit = f" for pay {self.comparison} {self.threshold}" if self.comparison else ""
        return f"What is the {self.operation} in {self.department}{limit}?"

    def reference_sql(self) -> str:
        """A query whose single result is the answer."""
        limit = f" AND pay {COMPARISONS[self.comparison]} {self.threshold}" if self.comparison else ""
        return f"SELECT {OPERATIONS[self.operation]} FROM staff WHERE dept = '{self.department}'{limit}"

    @property
    def split(self) -> Split:
        """Which side of the split the question is on: decided by its form and its threshold alone."""
        if self.comparison is None or self.threshold is None:
            return "train"
        new_form = (self.operation, self.comparison) in HELD_OUT_FORMS
        return "held_out" if new_form or self.threshold in HELD_OUT_THRESHOLDS else "train"


def draw_question(chance: random.Random, split: Split) -> Question:
    """A question of the given split; half of the held-out ones are new in form, the others in value only."""
    if split == "train":
        while True:
            comparison = chance.choice((None, *COMPARISONS))
            threshold = chance.choice(THRESHOLDS) if comparison else None
            question = Question(chance.choice(tuple(OPERATIONS)), chance.choice(DEPARTMENTS), comparison, threshold)
            if question.split == "train":
                return question
    if chance.random() < 0.5:
        operation, comparison = chance.choice(sorted(HELD_OUT_FORMS))
        return Question(operation, chance.choice(DEPARTMENTS), comparison, chance.choice(THRESHOLDS))
    while True:
        operation, comparison = chance.choice(tuple(OPERATIONS)), chance.choice(tuple(COMPARISONS))
        if (operation, comparison) not in HELD_OUT_FORMS:
            return Question(operation, chance.choice(DEPARTMENTS), comparison, chance.choice(HELD_OUT_THRESHOLDS))
