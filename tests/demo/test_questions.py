"""The split into train and held-out, and what the questions ask."""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core.demo.company import (
    COMPARISONS,
    DEPARTMENTS,
    HELD_OUT_FORMS,
    HELD_OUT_THRESHOLDS,
    OPERATIONS,
    THRESHOLDS,
    Question,
    Split,
    build_company,
    draw_question,
    reference_answer,
)

ALL = [
    *(Question(operation, department) for operation, department in itertools.product(OPERATIONS, DEPARTMENTS)),
    *(Question(*parts) for parts in itertools.product(OPERATIONS, DEPARTMENTS, COMPARISONS, THRESHOLDS)),
]


def drawn(split: Split, count: int = 4000) -> list[Question]:
    chance = random.Random(5)
    return [draw_question(chance, split) for _ in range(count)]


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(build_company(Path(tmp_path_factory.mktemp("company")) / "company.sqlite"))
    yield connection
    connection.close()


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_what_is_drawn_is_on_the_side_it_was_drawn_for(split: Split) -> None:
    assert {question.split for question in drawn(split)} == {split}


def test_the_sides_share_no_question_in_words_or_in_sql() -> None:
    train, held_out = drawn("train"), drawn("held_out")
    assert not {question.text for question in train} & {question.text for question in held_out}
    assert not {question.reference_sql() for question in train} & {question.reference_sql() for question in held_out}


def test_a_held_out_question_is_new_in_form_or_in_value() -> None:
    train = [question for question in ALL if question.split == "train"]
    forms = {(question.operation, question.comparison) for question in train}
    values = {question.threshold for question in train}
    for question in ALL:
        if question.split == "held_out":
            assert (question.operation, question.comparison) not in forms or question.threshold not in values
    assert not forms & HELD_OUT_FORMS
    assert not values & set(HELD_OUT_THRESHOLDS)


def test_every_part_occurs_on_both_sides_so_nothing_held_out_is_a_new_word() -> None:
    for questions in (drawn("train"), drawn("held_out")):
        assert {question.operation for question in questions} == set(OPERATIONS)
        assert {question.department for question in questions} == set(DEPARTMENTS)
        assert {question.comparison for question in questions} >= set(COMPARISONS)
    # Numbers are read digit by digit, so every digit must have been seen.
    digits = {digit for question in drawn("train") for digit in str(question.threshold or "")}
    assert digits == set("0123456789")


def test_about_half_of_the_held_out_questions_are_new_in_form() -> None:
    new_form = sum((question.operation, question.comparison) in HELD_OUT_FORMS for question in drawn("held_out"))
    assert 0.45 < new_form / 4000 < 0.55


def test_the_same_seed_asks_the_same() -> None:
    assert drawn("train", 50) == drawn("train", 50)


def test_every_reference_query_runs_and_gives_one_number(company: sqlite3.Connection) -> None:
    for question in ALL:
        rows = company.execute(question.reference_sql()).fetchall()
        assert len(rows) == 1
        assert len(rows[0]) == 1
        assert isinstance(reference_answer(company, question), int)


def test_the_reference_query_asks_what_the_words_say(company: sqlite3.Connection) -> None:
    pay = [amount for (amount,) in company.execute("SELECT pay FROM staff WHERE dept = 'labs'")]
    by_hand = {
        Question("total pay", "labs"): sum(pay),
        Question("staff count", "labs", "over", 50): sum(amount > 50 for amount in pay),
        Question("highest pay", "labs", "under", 60): max(amount for amount in pay if amount < 60),
        Question("lowest pay", "labs", "at least", 30): min(amount for amount in pay if amount >= 30),
        Question("total pay", "labs", "at most", 70): sum(amount for amount in pay if amount <= 70),
    }
    assert {question: reference_answer(company, question) for question in by_hand} == by_hand


def test_an_empty_result_counts_as_zero(company: sqlite3.Connection) -> None:
    assert reference_answer(company, Question("highest pay", "labs", "over", 100)) == 0
    assert Question("highest pay", "labs", "over", 100).text == "What is the highest pay in labs for pay over 100?"
