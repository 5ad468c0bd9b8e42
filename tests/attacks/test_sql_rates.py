"""SQL that somebody may try in many dialects, judged by the policy files beside it; and how much of it is judged right."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lgov_core.policies import SQLPolicy, load_policy_file
from lgov_core.types import Action, Point

HERE = Path(__file__).parent
MODES = ("read_only", "guarded")
DATA = HERE.parents[2] / "shared" / "data"
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
SELECTS = HERE.parents[2] / "shared" / "data" / "sql_injection" / "benign_selects.jsonl"


def cases(mode: str) -> list[dict[str, Any]]:
    files = sorted(HERE.glob(f"sql_{mode}*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_cases_are_judged_right_often_enough(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    judges = load_policy_file(HERE / f"sql_{mode}.yaml")
    right = {"allow": 0, "deny": 0}
    total = {"allow": 0, "deny": 0}
    wrong: list[str] = []
    for case in cases(mode):
        decision = judges.judge(
            Action(Point(case["point"]), case["name"], arguments=case["arguments"], context=case["context"])
        )
        assert all(part.rule not in ("policy-error", "dialect-unknown") for part in (decision, *decision.parts))
        total[case["expect"]] += 1
        if decision.blocks == (case["expect"] == "deny"):
            right[case["expect"]] += 1
        else:
            wrong.append(case["id"])
    with capsys.disabled():
        print(
            f"\n{mode}: denied {right['deny']} of {total['deny']}, allowed {right['allow']} of {total['allow']}; {wrong}"
        )
    assert sum(total.values()) >= 150
    assert right["deny"] >= 0.97 * total["deny"]
    assert right["allow"] >= 0.95 * total["allow"]


@pytest.mark.parametrize("mode", MODES)
def test_every_case_says_why_and_none_stands_twice(mode: str) -> None:
    found = cases(mode)
    assert all(case["why"] for case in found)
    assert len({case["id"] for case in found}) == len(found)
    assert len({(case["context"]["dialect"], case["arguments"]["query"]) for case in found}) == len(found)


def test_many_dialects_are_covered() -> None:
    assert len({case["context"]["dialect"] for mode in MODES for case in cases(mode)}) >= 11


def test_what_read_only_allows_guarded_allows() -> None:
    policy = SQLPolicy(dialect="from_tool")
    reads = [case for case in cases("read_only") if case["expect"] == "allow"]
    denied = [
        case["id"]
        for case in reads
        if policy.judge_sql(case["arguments"]["query"], dialect=case["context"]["dialect"]).blocks
    ]
    assert len(denied) <= 0.05 * len(reads), denied


@pytest.mark.skipif(not SELECTS.exists(), reason="the collection of harmless SELECT statements is not here")
def test_harmless_selects_are_rarely_denied(capsys: pytest.CaptureFixture[str]) -> None:
    policy = SQLPolicy(dialect="sqlite", mode="read_only")
    found = [json.loads(line) for line in SELECTS.read_text(encoding="utf-8").splitlines()]
    texts = [row.get("sql") or row.get("query") or row.get("text") for row in found]
    denied = [text for text in texts if policy.judge_sql(text).blocks]
    with capsys.disabled():
        print(f"\nharmless SELECTs denied: {len(denied)} of {len(texts)}")
    assert len(texts) >= 1000
    assert len(denied) <= 0.005 * len(texts)


def rows_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        pytest.skip(f"needs the data set at {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_gold_queries_of_spider_are_rarely_denied(capsys: pytest.CaptureFixture[str]) -> None:
    """Held out: nothing was adjusted to them."""
    texts = [row["gold_sql"] for row in rows_of(DATA / "text2sql_spider" / "tasks.jsonl")]
    policy = SQLPolicy(dialect="sqlite", mode="read_only")
    denied = [text for text in texts if policy.judge_sql(text).blocks]
    with capsys.disabled():
        print(f"\ngold queries of Spider denied: {len(denied)} of {len(texts)}")
    assert len(denied) <= 0.02 * len(texts), denied


def test_fragments_of_injections_do_nothing_but_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Held out: libinjection's fragments, put where a value belongs. What is let through, SQLite itself sees only read."""
    fragments = [
        row["decoded"] for row in rows_of(DATA / "sql_injection" / "fragments.jsonl") if row["label"] == "attack"
    ]
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO users VALUES (1, 'a')"
    )
    seen: list[int] = []

    def watch(code: int, *_: str | None) -> int:
        seen.append(code)
        return sqlite3.SQLITE_OK if code in READING else sqlite3.SQLITE_DENY

    connection.set_authorizer(watch)
    policy = SQLPolicy(dialect="sqlite", mode="read_only")
    passed = 0
    for fragment in fragments:
        for before, after in (
            ("SELECT name FROM users WHERE id = ", ""),
            ("SELECT name FROM users WHERE name = '", "'"),
        ):
            text = f"{before}{fragment}{after}"
            if policy.judge_sql(text).blocks:
                continue
            passed += 1
            seen.clear()
            with contextlib.suppress(sqlite3.Error, sqlite3.Warning, ValueError):
                connection.execute(text).fetchmany(5)
            assert set(seen) <= READING, text
    with capsys.disabled():
        print(f"\ninjection fragments in a query: {passed} of {2 * len(fragments)} leave a plain query")
    assert passed > 0
