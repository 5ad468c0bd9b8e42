"""SQLPolicy on public collections of statements, read where the data lies: harmless ones, and injections."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lgov_core.policies import SQLPolicy

DATA = Path(__file__).parents[3] / "shared" / "data"
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


def rows_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        pytest.skip(f"needs the data set at {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_harmless_selects_are_rarely_denied(capsys: pytest.CaptureFixture[str]) -> None:
    policy = SQLPolicy(dialect="sqlite", mode="read_only")
    found = rows_of(DATA / "sql_injection" / "benign_selects.jsonl")
    texts = [row.get("sql") or row.get("query") or row.get("text") for row in found]
    denied = [text for text in texts if policy.judge_sql(text).blocks]
    with capsys.disabled():
        print(f"\nharmless SELECTs denied: {len(denied)} of {len(texts)}")
    assert len(texts) >= 1000
    assert len(denied) <= 0.005 * len(texts)


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
