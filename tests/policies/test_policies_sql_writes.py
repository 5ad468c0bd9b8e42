"""SQLPolicy: writes that reach every row by way of a copy of the table, a pattern, or an upsert; and texts that cost much."""

from __future__ import annotations

import sqlite3

import pytest

from lgov_core.policies import SQLPolicy

RANKED = "SELECT id, row_number() OVER (PARTITION BY email ORDER BY id) AS n FROM users"


@pytest.mark.parametrize(
    "text",
    [
        # the table once more, under another name
        "WITH s AS (SELECT id FROM users) DELETE FROM users USING s WHERE users.id = s.id",
        "WITH s AS (SELECT id AS k FROM users) DELETE FROM users USING s WHERE users.id = k",
        "UPDATE users SET a = 1 FROM (SELECT id FROM users) s WHERE users.id = s.id",
        "UPDATE users SET a = 1 FROM (SELECT id AS k FROM users UNION SELECT 1) s WHERE users.id = s.k",
        "WITH s AS (SELECT * FROM users) MERGE INTO users u USING s ON u.id = s.id WHEN MATCHED THEN UPDATE SET a = 1",
        "DELETE FROM users WHERE id IN (SELECT id FROM users u WHERE u.id = users.id)",
        "DELETE FROM users WHERE id IN (SELECT id FROM (SELECT id FROM users) x WHERE x.id = users.id)",
        "DELETE FROM users WHERE id IN (SELECT x.id FROM (SELECT id FROM users) x JOIN (SELECT id FROM users) y"
        " ON true WHERE x.id = y.id)",
        "DELETE FROM users WHERE id IN (SELECT id FROM (SELECT id FROM users) x WHERE id IN (SELECT id FROM users))",
        "WITH d AS (DELETE FROM users USING (SELECT id FROM users) s WHERE users.id = s.id RETURNING *)"
        " SELECT * FROM d WHERE id = 1",
        # what is not null, in other words
        "DELETE FROM users WHERE id IS DISTINCT FROM NULL",
        "DELETE FROM users WHERE NOT (id IS NOT DISTINCT FROM NULL::int)",
        "DELETE FROM users WHERE id IS DISTINCT FROM nullif(1, 1)",
        # rows of values, and doubles
        "DELETE FROM users WHERE (a, b) IN ((a, b))",
        "DELETE FROM users WHERE (a, 1) IN ((a, 1), (2, 3))",
        "DELETE FROM users WHERE (a, b) IN (SELECT a, b FROM users)",
        "DELETE FROM users WHERE id NOT IN (SELECT min(id) FROM users)",
        "DELETE FROM users WHERE id NOT IN (SELECT min(id) FROM users GROUP BY 1 + 1)",
        "DELETE FROM users WHERE id NOT IN (SELECT min(id) FROM users GROUP BY email HAVING false)",
        "DELETE FROM users WHERE id NOT IN (SELECT n FROM generate_series(-3, -1) AS g(n))",
        "WITH n AS (SELECT -1 AS id), m AS (SELECT id FROM n) DELETE FROM users WHERE id NOT IN (SELECT id FROM m)",
        "DELETE FROM users WHERE id NOT IN (SELECT min(age) FROM users GROUP BY email)",
        "WITH users AS (SELECT 0 AS id, '' AS email) DELETE FROM users WHERE id NOT IN (SELECT min(id) FROM users"
        " GROUP BY email)",
        # patterns that fit every text
        "DELETE FROM users WHERE name LIKE 'a%' OR name NOT LIKE 'a%'",
        "DELETE FROM users WHERE name NOT LIKE 'a!%' ESCAPE '!' OR name LIKE 'a!%' ESCAPE '!'",
        "DELETE FROM users WHERE name LIKE '%' || ''",
        "DELETE FROM users WHERE name ILIKE concat('%', '%')",
        "DELETE FROM users WHERE name LIKE (SELECT '%')",
        "DELETE FROM users WHERE name ~ 'a|'",
        "DELETE FROM users WHERE name ~ 'x?'",
        "DELETE FROM users WHERE name ~ '(?i)(abc)?'",
        "DELETE FROM users WHERE name ~ '[[:alpha:]x]*'",
        # both truth values
        "DELETE FROM users WHERE banned = false OR banned = true",
        "DELETE FROM users WHERE true = users.banned OR (id = 3 OR (banned = false))",
        "DELETE FROM users WHERE (banned IS TRUE) OR (banned IS FALSE)",
        "DELETE FROM users WHERE banned IN (true, false)",
        "DELETE FROM users WHERE banned = ANY(ARRAY[true, false])",
        "DELETE FROM users WHERE is_active IN ('t', 'f')",
        "DELETE FROM users WHERE banned OR NOT banned",
        "DELETE FROM users WHERE banned OR banned = false",
        # what holds for every row there is
        "DELETE FROM users WHERE id IS NOT NULL",
        "DELETE FROM users WHERE email NOTNULL AND 1 = 1",
        "DELETE FROM users WHERE id IS NOT NULL OR id IS NULL",
        "DELETE FROM users WHERE tableoid = 'users'::regclass",
        "DELETE FROM users WHERE xmin IS DISTINCT FROM 0",
        "DELETE FROM users WHERE id IN (SELECT generate_series(1, 1000000))",
        "DELETE FROM users WHERE id = ANY (SELECT n FROM generate_series(1, 1000000) AS g(n))",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) DELETE FROM users"
        " WHERE id IN (SELECT i FROM n)",
        # edges
        "DELETE FROM users WHERE id NOT IN (-1, -2)",
        "DELETE FROM users WHERE NOT (id = -5)",
        "DELETE FROM users WHERE seen < 'infinity'",
        "DELETE FROM users WHERE seen >= '-infinity'",
        # upserts
        "INSERT INTO users SELECT * FROM users ON CONFLICT (id) DO UPDATE SET admin = true",
        "INSERT INTO users (id) SELECT id FROM (SELECT id FROM users) x ON CONFLICT (id) DO UPDATE SET admin = true",
        "WITH x AS (SELECT * FROM users) INSERT INTO users SELECT * FROM x ON CONFLICT (id) DO UPDATE SET admin = true",
    ],
)
def test_every_row_by_another_way(text: str) -> None:
    assert SQLPolicy(dialect="postgres").judge_sql(text).rule == "sql-unbounded-write"


def test_every_row_by_an_upsert_in_other_dialects() -> None:
    for dialect, text in (
        ("mysql", "INSERT INTO users (id) SELECT id FROM users ON DUPLICATE KEY UPDATE admin = 1"),
        ("mysql", "REPLACE INTO users SELECT id, 1 FROM users"),
        ("sqlite", "INSERT OR REPLACE INTO users (id, admin) SELECT id, 1 FROM users"),
    ):
        assert SQLPolicy(dialect=dialect).judge_sql(text).rule == "sql-unbounded-write", text


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM users WHERE id IN (SELECT u.id FROM users u JOIN bans b ON b.user_id = u.id WHERE b.kind = 'x')",
        f"DELETE FROM users WHERE id IN (SELECT id FROM ({RANKED}) x WHERE x.n > 1)",
        f"WITH ranked AS ({RANKED}) DELETE FROM users WHERE id IN (SELECT id FROM ranked WHERE n > 1)",
        "DELETE FROM users USING (SELECT id FROM users WHERE email = 'x') s WHERE users.id = s.id",
        "UPDATE users SET n = s.n FROM (SELECT user_id, count(*) AS n FROM orders GROUP BY 1) s WHERE users.id = s.user_id",
        "INSERT INTO users (id, n) SELECT id, n + 1 FROM users WHERE id = 7 ON CONFLICT (id) DO UPDATE SET n = excluded.n",
        "INSERT INTO daily SELECT day, count(*) FROM events GROUP BY day ON CONFLICT (day) DO UPDATE SET n = excluded.n",
        "INSERT INTO users SELECT * FROM users",
        "DELETE FROM users WHERE id NOT IN (SELECT user_id FROM orders)",
        "WITH m AS (SELECT user_id FROM orders) DELETE FROM users WHERE id NOT IN (SELECT user_id FROM m)",
        "DELETE FROM users WHERE id IS NULL",
        "DELETE FROM users WHERE id = 3 AND email IS NOT NULL",
        "DELETE FROM users WHERE id IN (SELECT unnest(ARRAY[1, 2]))",
        "WITH RECURSIVE tree AS (SELECT id FROM parts WHERE id = 3 UNION ALL SELECT p.id FROM parts p JOIN tree"
        " ON p.parent = tree.id) DELETE FROM users WHERE id IN (SELECT id FROM tree)",
        "DELETE FROM users WHERE (a, b) IN ((1, 2), (3, 4))",
        "DELETE FROM users WHERE (a, b) IN (SELECT x, y FROM bans)",
        "DELETE FROM users WHERE id NOT IN (SELECT min(id) FROM users GROUP BY email)",
        "DELETE FROM users WHERE id NOT IN (SELECT max(u.id) FROM users AS u GROUP BY u.email, u.name)",
        "DELETE FROM users WHERE name NOT LIKE 'test%'",
        "DELETE FROM users WHERE name ~ '^test_[0-9]+$'",
        "DELETE FROM users WHERE name ~* 'foo|bar'",
        "DELETE FROM users WHERE email LIKE '%' || '@example.com'",
        "DELETE FROM users WHERE email LIKE $1",
        "DELETE FROM users WHERE id NOT IN (1, 2, 3)",
        "DELETE FROM users WHERE NOT (state = 'open')",
        "DELETE FROM users WHERE banned",
        "DELETE FROM users WHERE NOT (banned)",
        "DELETE FROM users WHERE banned = true OR verified = false",
        "DELETE FROM users WHERE (id = 3 OR id = 4) OR (id = 5)",
    ],
)
def test_a_part_of_the_rows(text: str) -> None:
    decision = SQLPolicy(dialect="postgres").judge_sql(text)
    assert not decision.blocks, decision.reason


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("mysql", "DELETE FROM users WHERE id"),
        ("mysql", "DELETE FROM users WHERE is_active IN (0, 1)"),
        ("tsql", "UPDATE users SET a = 1 WHERE deleted = 0 OR deleted = 1"),
        ("databricks", "INSERT INTO users REPLACE WHERE true SELECT * FROM nobody"),
        ("databricks", "INSERT INTO users REPLACE USING (id) SELECT id, 0 FROM users"),
        ("sqlite", "INSERT INTO docs(docs) VALUES ('delete-all')"),
        ("sqlite", "INSERT INTO docs(Docs) SELECT 'Delete-All'"),
    ],
)
def test_every_row_in_the_words_of_one_dialect(dialect: str, text: str) -> None:
    assert SQLPolicy(dialect=dialect).judge_sql(text).blocks


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("mysql", "UPDATE users SET a = 1 WHERE status IN (0, 1)"),
        ("databricks", "INSERT INTO sales REPLACE WHERE day = '2026-01-01' SELECT * FROM fresh"),
        ("databricks", "INSERT INTO users REPLACE USING (id) SELECT * FROM fresh"),
        ("sqlite", "INSERT INTO docs(docs) VALUES ('rebuild')"),
        ("sqlite", "INSERT INTO docs(body) VALUES ('delete-all')"),
    ],
)
def test_a_part_of_the_rows_in_the_words_of_one_dialect(dialect: str, text: str) -> None:
    assert not SQLPolicy(dialect=dialect).judge_sql(text).blocks


def test_rows_that_are_left_are_left_by_sqlite_too() -> None:
    """What is let through as removing doubles only, removes doubles only."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT); INSERT INTO users VALUES (1, 'a'), (2, 'a'), (3, 'b')"
    )
    for text in (
        f"DELETE FROM users WHERE id IN (SELECT id FROM ({RANKED}) x WHERE x.n > 1)",
        "DELETE FROM users WHERE rowid NOT IN (SELECT min(rowid) FROM users GROUP BY email)",
    ):
        assert not SQLPolicy(dialect="sqlite").judge_sql(text).blocks
        connection.execute("SAVEPOINT a")
        assert connection.execute(text).rowcount == 1
        connection.execute("ROLLBACK TO a")


def test_values_of_no_table() -> None:
    text = "DELETE FROM users WHERE id NOT IN (SELECT -1 FROM dual)"
    assert SQLPolicy(dialect="oracle").judge_sql(text).rule == "sql-unbounded-write"


def test_values_of_an_array() -> None:
    policy = SQLPolicy(dialect="bigquery")
    assert not policy.judge_sql("DELETE FROM d.t WHERE id IN UNNEST([1, 2])").blocks
    for array in ("[id]", "ARRAY(SELECT id FROM d.t)"):
        assert policy.judge_sql(f"DELETE FROM d.t WHERE id IN UNNEST({array})").rule == "sql-unbounded-write"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        # each level asked those within it again: 30 of them took days
        ("DELETE FROM t WHERE " + "id IN (SELECT id FROM t WHERE " * 30 + "id = 5" + ")" * 30, False),
        ("DELETE FROM t WHERE " + "id IN (SELECT id FROM t WHERE " * 30 + "id = id" + ")" * 30, True),
        (
            "WITH c0 AS (SELECT id FROM t WHERE id = 5)"
            + "".join(f", c{n + 1} AS (SELECT a.id FROM c{n} a, c{n} b)" for n in range(40))
            + " DELETE FROM t WHERE id IN (SELECT id FROM c40)",
            False,
        ),
        (
            "DELETE FROM t USING "
            + ", ".join(f"a{n}" for n in range(600))
            + " WHERE "
            + " AND ".join("1 = x" for _ in range(600)),
            True,
        ),
    ],
    ids=("subqueries", "subqueries of everything", "WITH queries", "tables and conditions"),
)
def test_a_verdict_on_a_nested_condition_ends(text: str, blocks: bool) -> None:
    assert SQLPolicy(dialect="postgres").judge_sql(text).blocks is blocks


def test_names_that_lead_to_files() -> None:
    for dialect, text in (
        ("duckdb", "SELECT * FROM users.csv"),
        ("duckdb", "INSERT INTO t FROM secrets.parquet"),
        ("duckdb", 'SELECT * FROM a JOIN "secrets"."json" s USING (id)'),
        ("spark", "SELECT * FROM csv.`secrets`"),
        ("databricks", "SELECT * FROM text.passwd"),
    ):
        assert SQLPolicy(dialect=dialect, mode="guarded").judge_sql(text).rule == "sql-catalog", text
    for dialect, text in (
        ("clickhouse", "INSERT INTO t FROM INFILE '/etc/passwd' FORMAT CSV"),
        ("mysql", "SELECT a FROM t INTO OUTFILE '/tmp/x'"),
    ):
        assert SQLPolicy(dialect=dialect).judge_sql(text).blocks, text
    assert not SQLPolicy(dialect="postgres").judge_sql("SELECT * FROM main.csv").blocks
    assert not SQLPolicy(dialect="duckdb").judge_sql("SELECT a.json, b.csv FROM main.a JOIN b USING (id)").blocks
