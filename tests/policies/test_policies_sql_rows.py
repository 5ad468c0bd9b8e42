"""SQLPolicy: closed columns, and how many rows a query may give."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.policies import SQLPolicy
from lgov_core.types import Action, Effect, Point


def call(arguments: dict[str, Any], name: str = "run_sql", **more: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments=arguments, **more)


def test_columns_are_closed_by_any_way_to_them() -> None:
    policy = SQLPolicy(dialect="postgres", columns=["staff.pay", "users.pass*"])
    for fine in (
        "SELECT name, id FROM staff WHERE name = 'x'",
        "SELECT count(*) FROM staff",
        "SELECT * FROM orders",
        "SELECT pay FROM orders",
        "SELECT name AS pay FROM staff",
        "WITH staff AS (SELECT 1 AS pay) SELECT pay, * FROM staff",
        "INSERT INTO staff (id, name) VALUES (1, 'pay')",
        "DELETE FROM staff WHERE id = 1",
        "SELECT o.pay, o.* FROM orders o JOIN staff s ON s.id = o.staff_id",
        "UPDATE staff SET name = 'x' WHERE id = 1",
    ):
        decision = policy.judge_sql(fine)
        assert not decision.blocks, (fine, decision.reason)
    for wrong in (
        "SELECT pay FROM staff",
        'SELECT "PAY" FROM staff',
        "SELECT s.pay AS x FROM hr.staff AS s",
        "SELECT * FROM staff",
        "SELECT s.* FROM staff s, orders o",
        "SELECT name FROM staff ORDER BY pay",
        "SELECT name FROM staff WHERE pay > 3",
        "SELECT pay FROM staff, orders",
        "SELECT staff FROM staff",
        "SELECT row_to_json(s) FROM staff s",
        "SELECT c FROM staff AS t(a, b, c)",
        "SELECT name FROM staff JOIN orders USING (pay)",
        "SELECT name FROM staff NATURAL JOIN orders",
        "WITH s AS (SELECT * FROM staff) SELECT name FROM s",
        "SELECT max(password) FROM users",
        "UPDATE staff SET pay = 1 WHERE id = 1",
        "INSERT INTO staff VALUES (1, 'x', 3)",
        "INSERT INTO staff (id, pay) VALUES (1, 3)",
        "UPDATE staff SET name = 'x' WHERE id = 1 RETURNING *",
        "CREATE INDEX i ON staff (pay)",
        "SELECT (staff).pay FROM staff",
        "SELECT count(DISTINCT pay) FROM staff",
        "TABLE staff",
        "SELECT x.pay FROM (SELECT * FROM staff) AS x",
        "INSERT INTO copies SELECT * FROM staff",
        "SELECT o.id, pay FROM orders o JOIN staff s ON s.id = o.staff_id",
    ):
        assert policy.judge_sql(wrong).rule == "sql-denied-column", wrong
    with pytest.raises(PolicyError, match=r"columns has 'pay'"):
        SQLPolicy(dialect="postgres", columns=["pay"])


@pytest.mark.parametrize(
    ("dialect", "text", "limited"),
    [
        ("sqlite", "SELECT a FROM t", "SELECT a FROM t LIMIT 10"),
        ("sqlite", "SELECT a FROM t -- all\n;", "SELECT a FROM t LIMIT 10"),
        ("sqlite", "SELECT a FROM t LIMIT 5", None),
        ("sqlite", "SELECT a FROM t LIMIT 500 OFFSET 20", "SELECT a FROM t LIMIT 10 OFFSET 20"),
        ("mysql", "SELECT a FROM t LIMIT 20, 5", None),
        ("postgres", "SELECT a FROM t UNION ALL SELECT b FROM u", "SELECT a FROM t UNION ALL SELECT b FROM u LIMIT 10"),
        ("postgres", "SELECT a FROM (SELECT a FROM t LIMIT 3) s", "SELECT a FROM (SELECT a FROM t LIMIT 3) s LIMIT 10"),
        ("postgres", "SELECT a FROM t FETCH FIRST 3 ROWS ONLY", None),
        ("tsql", "SELECT DISTINCT a FROM t", "SELECT DISTINCT TOP 10 a FROM t"),
        ("tsql", "SELECT TOP 3 a FROM t", None),
        ("oracle", "SELECT a FROM t", "SELECT a FROM t FETCH FIRST 10 ROWS ONLY"),
        ("sqlite", "INSERT INTO t (a) VALUES (1)", None),
        ("sqlite", "EXPLAIN QUERY PLAN SELECT a FROM t", None),
        ("sqlite", "SELECT a FROM t; SELECT b FROM t LIMIT 3", "SELECT a FROM t LIMIT 10; SELECT b FROM t LIMIT 3"),
        ("sqlite", "SELECT 'a;b' -- limit 5", "SELECT 'a;b' LIMIT 10"),
        ("mysql", "SELECT a FROM t LIMIT 20, 500", "SELECT a FROM t LIMIT 20, 10"),
        ("mysql", "SELECT a FROM t WHERE b = 500 LIMIT 500", "SELECT a FROM t WHERE b = 500 LIMIT 10"),
        (
            "postgres",
            "SELECT a FROM t WHERE b IN (SELECT c FROM u LIMIT 99)",
            "SELECT a FROM t WHERE b IN (SELECT c FROM u LIMIT 99) LIMIT 10",
        ),
        ("tsql", "WITH w AS (SELECT a FROM t) SELECT a FROM w", "WITH w AS (SELECT a FROM t) SELECT TOP 10 a FROM w"),
        ("tsql", "SELECT TOP (99) a FROM t", "SELECT TOP (10) a FROM t"),
        (
            "tsql",
            "SELECT a FROM t ORDER BY a OFFSET 5 ROWS",
            "SELECT a FROM t ORDER BY a OFFSET 5 ROWS FETCH NEXT 10 ROWS ONLY",
        ),
        ("oracle", "SELECT a FROM t FETCH FIRST 99 ROWS ONLY", "SELECT a FROM t FETCH FIRST 10 ROWS ONLY"),
        ("bigquery", "SELECT a FROM t ORDER BY a", "SELECT a FROM t ORDER BY a LIMIT 10"),
        ("drill", "SELECT a FROM t", "SELECT a FROM t LIMIT 10"),
        ("teradata", "SELECT TOP 3 a FROM t", None),
    ],
)
def test_the_number_of_rows_is_limited(dialect: str, text: str, limited: str | None) -> None:
    decision = SQLPolicy(dialect=dialect, max_rows=10).judge(call({"query": text, "other": 1}))
    assert decision is not None
    if limited is None:
        assert decision.effect is Effect.ALLOW, decision.reason
    else:
        assert (decision.effect, decision.rule) == (Effect.TRANSFORM, "sql-max-rows"), decision.reason
        assert decision.arguments == {"query": limited, "other": 1}


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("sqlite", "SELECT a FROM t LIMIT -1"),
        ("sqlite", "SELECT a FROM t LIMIT 5 + 500"),
        ("postgres", "SELECT a FROM t LIMIT ALL"),
        ("tsql", "SELECT TOP 50 PERCENT a FROM t"),
        ("tsql", "SELECT TOP 3 WITH TIES a FROM t ORDER BY a"),
        ("tsql", "SELECT a FROM t UNION ALL SELECT b FROM u"),
        ("oracle", "SELECT a FROM t FETCH FIRST 3 ROWS WITH TIES"),
        ("postgres", "SELECT a FROM t FOR UPDATE"),
        ("clickhouse", "SELECT a FROM t LIMIT 2 BY a"),
        ("teradata", "SELECT a FROM t"),
        ("duckdb", "SELECT a FROM t LIMIT 10%"),
        ("postgres", "VALUES (1),(2),(3),(4),(5),(6),(7),(8),(9),(10),(11)"),
    ],
)
def test_where_a_limit_cannot_be_written_it_is_denied(dialect: str, text: str) -> None:
    decision = SQLPolicy(dialect=dialect, max_rows=10).judge_sql(text)
    assert (decision.blocks, decision.rule) == (True, "sql-max-rows")
    assert dialect != "teradata" or "TOP 10" in decision.reason


def test_max_rows_needs_a_number_and_a_dialect() -> None:
    for wrong in (0, -1, True, "5", 1.5):
        with pytest.raises(PolicyError, match="max_rows"):
            SQLPolicy(dialect="sqlite", max_rows=wrong)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="max_rows needs a dialect"):
        SQLPolicy(max_rows=5)


def test_a_star_without_the_closed_columns_is_let_through() -> None:
    policy = SQLPolicy(dialect="duckdb", columns=["staff.pay"])
    assert not policy.judge_sql("SELECT * EXCLUDE (pay) FROM staff").blocks
    assert policy.judge_sql("SELECT * EXCLUDE (name) FROM staff").rule == "sql-denied-column"
    assert policy.judge_sql("SELECT COLUMNS('p.*') FROM staff").rule == "sql-denied-column"
    hidden = SQLPolicy(dialect="sqlite", columns=["staff.id"])
    assert hidden.judge_sql("SELECT rowid FROM staff").rule == "sql-denied-column"


def test_a_changed_limit_runs_and_gives_so_many_rows() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
    connection.executemany("INSERT INTO t VALUES (?, 'limit 99')", [(i,) for i in range(50)])
    policy = SQLPolicy(dialect="sqlite", mode="read_only", max_rows=7)
    for text in (
        "SELECT a FROM t",
        "SELECT a FROM t LIMIT 30 OFFSET 5",
        "SELECT a, b FROM t WHERE b = 'limit 99' ORDER BY a DESC -- LIMIT 5",
        "SELECT a FROM t UNION ALL SELECT a FROM t",
        "WITH w AS (SELECT a FROM t LIMIT 40) SELECT * FROM w",
        "SELECT a FROM t WHERE a IN (SELECT a FROM t LIMIT 30)",
        "VALUES (1), (2)",
    ):
        decision = policy.judge(call({"query": text}))
        assert decision is not None
        assert not decision.blocks, (text, decision.reason)
        ran = text if decision.arguments is None else decision.arguments["query"]
        assert 0 < len(connection.execute(ran).fetchall()) <= 7, ran
