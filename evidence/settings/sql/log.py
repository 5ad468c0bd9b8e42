"""The log that the model is warmed up on: writers that err, checkers that are mostly right, rewriters that err less."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from settings.setting import HERE, Conversation, call, denial, function_tool, says
from settings.sql.agent import CHECKER, REWRITER, WRITER, check_prompt, rewrite_prompt, write_prompt
from settings.sql.tasks import (
    COMPARISONS,
    DEPARTMENTS,
    OPERATIONS,
    TABLES,
    Question,
    build_database,
    draw_question,
    draw_task,
    run_query,
)

POLICY = HERE / "sql" / "policy.yaml"
TOOLS = (function_tool("run_sql", "Run SQL on the database.", "query"),)
#: Shares of the log: queries that destroy or read credentials, other wrong queries by who wrote them, wrong verdicts.
FORBIDDEN = 0.06
WRITER_ERRS = 0.5
REWRITER_ERRS = 0.45
CHECKER_ERRS = 0.1

_FORBIDDEN = ("DROP TABLE staff", "DELETE FROM projects", "SELECT password FROM credentials")


class SQLWorld:
    """Databases for the log's results; every rollout has one of its own."""

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        self.options = {"folder": str(folder / "databases"), **options}
        (folder / "log").mkdir(parents=True, exist_ok=True)
        self._databases = [folder / "log" / f"{n}.db" for n in range(8)]
        for number, path in enumerate(self._databases):
            path.unlink(missing_ok=True)
            build_database(path, seed=number)  # the same for every seed, as is the warm start
        self._results: dict[tuple[Path, str], str] = {}
        self._denials = {query: denial(POLICY, "run_sql", query=query) for query in _FORBIDDEN}

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        return draw_task(chance, split)

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        question = draw_question(chance, "train")
        query, verdict = self._draw_query(chance, question, WRITER_ERRS)
        work: Any = {"question": question.text, "query": query, "result": self._result(chance, query)}
        told = verdict if chance.random() >= CHECKER_ERRS else _another_verdict(chance, verdict)
        found = [
            Conversation((*_begin(WRITER, write_prompt(work)), call("run_sql", query=query)), TOOLS),
            Conversation((*_begin(CHECKER, check_prompt(work)), says(told))),
        ]
        if told != "right":
            better, _ = self._draw_query(chance, question, REWRITER_ERRS)
            prompt = rewrite_prompt({**work, "verdict": told})
            found.append(Conversation((*_begin(REWRITER, prompt), call("run_sql", query=better)), TOOLS))
        return found

    def texts(self, chance: random.Random) -> Iterable[str]:
        for _ in range(100):
            yield draw_question(chance, "forms").text
        yield "Error: no such column: Error: no such table: no query was run none"

    def _draw_query(self, chance: random.Random, question: Question, errs: float) -> tuple[str, str]:
        """A query, and what a good checker would say of it."""
        if chance.random() < FORBIDDEN:
            return chance.choice(_FORBIDDEN), "wrong statement"
        if chance.random() >= errs:
            return question.query(), "right"
        asked, what = _mistaken(chance, question)
        return (asked.query(), f"wrong {what}") if asked != question else (question.query(), "right")

    def _result(self, chance: random.Random, query: str) -> str:
        if query in self._denials:
            return self._denials[query]
        path = chance.choice(self._databases)
        found = self._results.get((path, query))
        if found is None:
            found = self._results[path, query] = run_query(path, query)
        return found


def make_world(folder: Path, seed: int, options: Mapping[str, Any]) -> SQLWorld:
    """The world of a seed."""
    return SQLWorld(folder, seed, options)


def _begin(system: str, text: str) -> tuple[Mapping[str, Any], ...]:
    return {"role": "system", "content": system}, {"role": "user", "content": text}


def _mistaken(chance: random.Random, question: Question) -> tuple[Question, str]:
    what = chance.choice(("operation", "column", "department", "condition"))
    if what == "operation":
        return replace(question, operation=chance.choice(tuple(OPERATIONS))), what
    if what == "column":
        return replace(question, column=chance.choice(TABLES[question.table])), what
    if what == "department":
        return replace(question, department=chance.choice(DEPARTMENTS)), what
    if chance.random() < 0.5:
        return replace(question, comparison=None, number=None), what
    if question.comparison is None:
        return question, what
    return replace(question, comparison=chance.choice(tuple(COMPARISONS))), what


def _another_verdict(chance: random.Random, verdict: str) -> str:
    known = ("right", "wrong operation", "wrong column", "wrong department", "wrong condition")
    return chance.choice([one for one in known if one != verdict])
