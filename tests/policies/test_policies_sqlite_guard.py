"""guard_sqlite: a real SQLite connection refuses, also what the SQL does not show."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.policies import SQLPolicy, guard_sqlite


@pytest.fixture
def base(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "base.db", isolation_level=None)
    connection.executescript(
        """
        CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, pay INTEGER);
        CREATE TABLE salary (staff_id INTEGER, amount INTEGER);
        CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER);
        INSERT INTO staff VALUES (1, 'Ann', 10), (2, 'Bob', 20);
        INSERT INTO salary VALUES (1, 1000);
        INSERT INTO orders VALUES (1, 5);
        CREATE VIEW overview AS SELECT name, amount FROM staff JOIN salary ON staff_id = id;
        CREATE TRIGGER leak AFTER INSERT ON orders BEGIN UPDATE salary SET amount = 0; END;
        """
    )
    yield connection
    connection.close()


def refused(connection: sqlite3.Connection, sql: str) -> str:
    with pytest.raises(sqlite3.DatabaseError) as caught:
        connection.execute(sql).fetchall()
    return str(caught.value)


def test_a_view_over_a_protected_table_is_refused_where_the_policy_sees_nothing(base: sqlite3.Connection) -> None:
    sql = "SELECT * FROM overview"
    assert not SQLPolicy(["table:salary"], dialect="sqlite", mode="read_only").judge_sql(sql).blocks
    assert base.execute(sql).fetchall() == [("Ann", 1000)]
    guard_sqlite(base, deny_tables=["SALARY"])
    assert refused(base, sql) == "access to salary.amount is prohibited"
    assert base.execute("SELECT name FROM staff ORDER BY id").fetchall() == [("Ann",), ("Bob",)]


def test_a_trigger_that_writes_a_protected_table_is_refused(base: sqlite3.Connection) -> None:
    sql = "INSERT INTO orders (total) VALUES (7)"
    assert not SQLPolicy(["table:salary"], dialect="sqlite").judge_sql(sql).blocks
    guard_sqlite(base, "guarded", deny_tables=["salary"])
    assert "not authorized" in refused(base, sql) or "prohibited" in refused(base, sql)
    base.set_authorizer(None)
    assert base.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert base.execute("SELECT amount FROM salary").fetchone() == (1000,)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO orders (total) VALUES (7)",
        "UPDATE staff SET pay = 0 WHERE id = 1",
        "DELETE FROM staff WHERE id = 1",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "WITH a AS (SELECT 1) INSERT INTO orders (total) SELECT * FROM a",
        "PRAGMA query_only = OFF",
    ],
)
def test_read_only_writes_nothing(base: sqlite3.Connection, sql: str) -> None:
    guard_sqlite(base)
    assert "not authorized" in refused(base, sql)


@pytest.mark.parametrize("mode", ["read_only", "guarded"])
@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "DROP TABLE staff",
        "ALTER TABLE staff ADD COLUMN x",
        "CREATE TRIGGER t AFTER INSERT ON staff BEGIN DELETE FROM staff; END",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = OFF",
        "SELECT load_extension('x')",
        "SELECT sql FROM sqlite_master",
        "SELECT name FROM sqlite_schema",
        "SELECT count(*) FROM sqlite_master WHERE type = 'table'",
        "UPDATE sqlite_master SET sql = '' WHERE name = 'staff'",
        "SELECT amount FROM salary",
        "SELECT count(*) FROM salary",
        "PRAGMA table_info(salary)",
        "VACUUM INTO '/tmp/never-written.db'",
        "SELECT * FROM pragma_table_info('staff')",
    ],
)
def test_neither_mode_lets_it_through(base: sqlite3.Connection, mode: Any, sql: str) -> None:
    guard_sqlite(base, mode, deny_tables=["sal*"])
    assert refused(base, sql)


def test_guarded_writes_and_creates_ordinary_things(base: sqlite3.Connection) -> None:
    base.execute("DROP TRIGGER leak")
    guard_sqlite(base, "guarded", deny_tables=["salary"])
    base.execute("BEGIN")
    base.execute("INSERT INTO orders (total) VALUES (9)")
    base.execute("UPDATE staff SET pay = 11 WHERE id = 1")
    base.execute("DELETE FROM staff WHERE id = 2")
    base.execute("COMMIT")
    base.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT UNIQUE)")
    base.execute("CREATE INDEX by_body ON notes (body)")
    base.execute("CREATE TABLE sums AS SELECT sum(total) AS s FROM orders")
    base.execute("CREATE VIEW v AS SELECT * FROM notes")
    assert base.execute("SELECT s FROM sums").fetchone() == (14,)
    assert base.execute("SELECT pay FROM staff").fetchall() == [(11,)]
    assert refused(base, "CREATE TABLE stolen AS SELECT * FROM salary")


def test_a_denied_column_is_refused_by_any_name(base: sqlite3.Connection) -> None:
    guard_sqlite(base, deny_columns=["staff.pay"])
    for sql in (
        "SELECT pay FROM staff",
        "SELECT * FROM staff",
        "SELECT s.pay AS x FROM staff AS s",
        "SELECT name FROM staff ORDER BY pay",
        "SELECT name FROM staff WHERE pay > 5",
    ):
        assert refused(base, sql) in ("access to staff.pay is prohibited", "access to s.pay is prohibited"), sql
    assert base.execute("SELECT name FROM staff").fetchall() == [("Ann",), ("Bob",)]


def test_it_can_be_set_again_and_refuses_what_has_no_meaning(base: sqlite3.Connection) -> None:
    assert guard_sqlite(guard_sqlite(base), "guarded") is base
    base.execute("UPDATE staff SET pay = 1 WHERE id = 1")
    for wrong in ({"mode": "readonly"}, {"deny_tables": "salary"}, {"deny_columns": ["pay"]}):
        with pytest.raises(PolicyError):
            guard_sqlite(base, **wrong)
    with pytest.raises(PolicyError, match="not a sqlite3 connection"):
        guard_sqlite("base.db")  # type: ignore[arg-type]
