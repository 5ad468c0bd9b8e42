"""The same agents on Spider's, GSM8K's and multi-hop questions, from the folder that EVIDENCE_DATA names.

The data are read there and not copied. Training tasks and held-out tasks (the split ``values``) are disjoint: other databases
for Spider, the test split for GSM8K, other questions for multi-hop QA.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from settings.known import SETTINGS
from settings.maths import tasks as maths
from settings.retrieval import tasks as retrieval
from settings.retrieval.library import read_library
from settings.setting import Conversation, Setting, call, result, says
from settings.sql import log as sql
from settings.sql.agent import CHECKER, REWRITER, WRITER, check_prompt, rewrite_prompt, write_prompt
from settings.sql.tasks import run_query

DATA = Path(os.environ.get("EVIDENCE_DATA", "data"))
#: How much of the log goes wrong.
ERRS = 0.25
#: Results of queries that say nothing.
_NOTHING = ("no rows", "0", "None")
#: Every so many-th database or question is held out.
EVERY = 3


class Spider:
    """Spider's questions (Yu et al. 2018, arXiv 1809.08887) over databases with short schemas, those with few result rows.

    Questions whose answer is nothing, 0 or NULL are left out: most wrong queries of an empty table have that answer too.
    """

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        templates = folder / "templates"
        templates.mkdir(parents=True, exist_ok=True)
        self._schemas: dict[str, str] = {}
        for dump in sorted((DATA / "text2sql_spider" / "databases").glob("*.sql")):
            path = templates / f"{dump.stem}.db"
            path.unlink(missing_ok=True)
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.executescript(dump.read_text())
                self._schemas[dump.stem] = _schema(connection)
        self._templates = templates
        self.options = {"folder": str(folder / "databases"), "templates": str(templates), **options}
        known = [
            row
            for row in _lines(DATA / "text2sql_spider" / "tasks.jsonl")
            if row["gold_row_count"] <= 20 and len(self._schemas.get(row["db"], " " * 9999)) <= 700
        ]
        known = [row for row in known if run_query(templates / f"{row['db']}.db", row["gold_sql"]) not in _NOTHING]
        names = sorted({row["db"] for row in known})
        held_out = set(names[::EVERY])
        self._tasks = {
            split: [row for row in known if (row["db"] in held_out) == (split == "values")]
            for split in ("train", "values")
        }

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        row = chance.choice(self._tasks[split])
        schema = self._schemas[row["db"]]
        kept = {name: row[name] for name in ("db", "question", "gold_sql", "ordered")}
        return {**kept, "schema": schema}

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        row = self.draw_task(chance, "train")
        others = [one["gold_sql"] for one in self._tasks["train"] if one["db"] == row["db"]]
        gold = row["gold_sql"]
        query = chance.choice(others) if chance.random() < ERRS else gold
        shown = run_query(self._templates / f"{row['db']}.db", query)
        work: Any = {"question": row["question"], "schema": row["schema"], "query": query, "result": shown}
        verdict = "right" if query == gold else "wrong query"
        found = [
            Conversation((*_begin(WRITER, write_prompt(work)), call("run_sql", query=query)), sql.TOOLS),
            Conversation((*_begin(CHECKER, check_prompt(work)), says(verdict))),
        ]
        if verdict != "right":
            prompt = rewrite_prompt({**work, "verdict": verdict})
            found.append(Conversation((*_begin(REWRITER, prompt), call("run_sql", query=gold)), sql.TOOLS))
        return found

    def texts(self, chance: random.Random) -> Iterable[str]:
        return ()


class GSM8K:
    """GSM8K (Cobbe et al. 2021, arXiv 2110.14168) with its calculator steps, problems of at most four."""

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        known = [
            row
            for row in _lines(DATA / "math_calc" / "tasks.jsonl")
            if row["dataset"] == "gsm8k" and 1 <= len(row["calc_steps"]) <= 4 and len(row["question"]) <= 400
        ]
        self._tasks = {
            "train": [row for row in known if row["split"] == "train"],
            "values": [row for row in known if row["split"] == "test"],
        }

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        row = chance.choice(self._tasks[split])
        return {"problem": row["question"], "answer": row["answer"]}

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        row = chance.choice(self._tasks["train"])
        messages = [*_begin(maths.SYSTEM, row["question"])]
        steps = row["calc_steps"]
        if len(steps) > 1 and chance.random() < ERRS:
            steps = steps[:-1]
        for step in steps:
            messages += [call("calculate", expression=step["expr"]), result(step["result"])]
        said = row["answer"] if steps is row["calc_steps"] else steps[-1]["result"]
        return [Conversation((*messages, says(f"Answer: {said}")), maths.TOOLS)]

    def texts(self, chance: random.Random) -> Iterable[str]:
        return ()


class MultiHop:
    """Questions of MuSiQue, HotpotQA and 2WikiMultihopQA over one corpus of passages."""

    def __init__(self, folder: Path, seed: int, options: Mapping[str, Any]) -> None:
        path = DATA / "multihop_qa" / "passages.jsonl"
        self.options = {"passages": str(path), **options}
        self._library = read_library(path)
        known = _lines(DATA / "multihop_qa" / "tasks.jsonl")
        self._tasks = {
            split: [row for number, row in enumerate(known) if (number % EVERY == 0) == (split == "values")]
            for split in ("train", "values")
        }

    def draw_task(self, chance: random.Random, split: str) -> Mapping[str, Any]:
        row = chance.choice(self._tasks[split])
        return {"question": row["question"], "answer": row["answer"]}

    def draw_log(self, chance: random.Random) -> Sequence[Conversation]:
        row = chance.choice(self._tasks["train"])
        queries = [row["question"]]
        if chance.random() >= ERRS:
            queries.append(str(row["reasoning"]).split(". ")[0][:150])
        messages = [*_begin(retrieval.SYSTEM, row["question"])]
        for query in queries:
            messages += [call("search", query=query[:150]), result("\n".join(self._library.best(query[:150])))]
        return [Conversation((*messages, says(f"Answer: {row['answer']}")), retrieval.TOOLS)]

    def texts(self, chance: random.Random) -> Iterable[str]:
        return ()


#: The three settings on real questions.
REAL = {
    name: replace(SETTINGS[name], make_world=world, title=f"{SETTINGS[name].title}, {questions}")
    for name, world, questions in (
        ("sql", Spider, "Spider's questions"),
        ("retrieval", MultiHop, "MuSiQue, HotpotQA and 2Wiki questions"),
        ("maths", GSM8K, "GSM8K's problems"),
    )
}

_FOLDERS = {"sql": "text2sql_spider", "retrieval": "multihop_qa", "maths": "math_calc"}


def setting(name: str) -> Setting:
    """The setting on real questions. Raises `FileNotFoundError` where they are not in the folder of EVIDENCE_DATA."""
    folder = DATA / _FOLDERS[name]
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: set EVIDENCE_DATA to the folder that holds it")
    return REAL[name]


def _begin(system: str, text: str) -> tuple[Mapping[str, Any], ...]:
    return {"role": "system", "content": system}, {"role": "user", "content": text}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _schema(connection: sqlite3.Connection) -> str:
    """The tables with their columns, one line a table."""
    names = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    columns = {name: [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')] for name in names}
    return "\n".join(f"{name}({', '.join(found)})" for name, found in columns.items())
