"""SQLPolicy: writes that reach every row by way of a copy of the table, a pattern, or an upsert; and texts that cost much."""

from __future__ import annotations

import pytest

from lgov_core.errors import PolicyError
from lgov_core.policies import SQLPolicy


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
        "DELETE FROM users WHERE id IN (SELECT user_id FROM bans WHERE kind = 'x')",
        "DELETE FROM users USING (SELECT id FROM users WHERE email = 'x') s WHERE users.id = s.id",
        "DELETE FROM users USING bans b WHERE users.id = b.user_id AND b.kind = 'x'",
        "UPDATE jobs SET state = 'run' WHERE id = (SELECT id FROM jobs WHERE state = 'ready' ORDER BY id LIMIT 1)",
        "WITH p AS (SELECT 5 AS id) DELETE FROM users WHERE id IN (SELECT id FROM p)",
        "INSERT INTO users (id, n) SELECT id, n + 1 FROM users WHERE id = 7 ON CONFLICT (id) DO UPDATE SET n = excluded.n",
        "INSERT INTO daily SELECT day, count(*) FROM events GROUP BY day ON CONFLICT (day) DO UPDATE SET n = excluded.n",
        "INSERT INTO users SELECT * FROM users",
        "DELETE FROM users WHERE id = 3 AND email IS NOT NULL",
        "DELETE FROM users WHERE id = ANY (ARRAY[1, 2])",
        "DELETE FROM users WHERE (a, b) IN ((1, 2), (3, 4))",
        "DELETE FROM users WHERE email = $1",
        "DELETE FROM users WHERE created_at::date = '2026-01-01'",
        "DELETE FROM users WHERE doc->>'kind' = 'trial'",
        "MERGE INTO users u USING staged s ON u.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a",
    ],
)
def test_a_part_of_the_rows(text: str) -> None:
    decision = SQLPolicy(dialect="postgres").judge_sql(text)
    assert not decision.blocks, decision.reason


@pytest.mark.parametrize(
    "where",
    [
        "id <> 99",
        "id > 0",
        "id NOT IN (1, 2, 3)",
        "NOT (state = 'open')",
        "banned",
        "id IS NULL",
        "id = 3 OR id = 4",
        "name LIKE 'test%'",
        "seen < now() - interval '30 days'",
        "id IN (SELECT user_id FROM orders)",
        "id NOT IN (SELECT min(id) FROM users GROUP BY email)",
        "EXISTS (SELECT 1 FROM bans b WHERE b.user_id = users.id)",
        # a column of the row around, where no inner table has it
        "pay IN (SELECT pay FROM orders WHERE id = 5)",
        "id IN (SELECT users.id FROM orders WHERE orders.id = 5)",
        "id IN (SELECT o.id FROM orders o, users WHERE o.kind = users.kind)",
    ],
)
def test_only_comparisons_that_can_only_narrow_name_rows(where: str) -> None:
    for text in (f"DELETE FROM users WHERE {where}", f"UPDATE users SET a = 1 WHERE {where}"):
        assert SQLPolicy(dialect="postgres").judge_sql(text).rule == "sql-unbounded-write", text


def test_open_comparisons_of_columns_that_the_owner_lists_count() -> None:
    policy = SQLPolicy(dialect="postgres", ranges=["sessions.expires_*"])
    for text in (
        "DELETE FROM sessions WHERE expires_at < now() - interval '30 days'",
        "DELETE FROM sessions WHERE now() > expires_at AND kind <> 'api'",
        "DELETE FROM sessions WHERE expires_at BETWEEN '2026-01-01' AND '2026-02-01'",
    ):
        assert not policy.judge_sql(text).blocks, text
    for text in (
        "DELETE FROM sessions WHERE created_at < now()",
        "DELETE FROM sessions WHERE expires_at < created_at",
        "DELETE FROM sessions WHERE expires_at <> now()",
        "DELETE FROM tokens WHERE expires_at < now()",
    ):
        assert policy.judge_sql(text).rule == "sql-unbounded-write", text
    with pytest.raises(PolicyError, match=r"ranges has 'expires_at'"):
        SQLPolicy(dialect="postgres", ranges=["expires_at"])


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("mysql", "DELETE FROM users WHERE id"),
        ("mysql", "DELETE FROM users WHERE is_active IN (0, 1)"),
        ("tsql", "UPDATE users SET a = 1 WHERE deleted = 0 OR deleted = 1"),
        ("mysql", "DELETE FROM users WHERE email = 0"),  # holds for every text without digits
        ("mysql", "DELETE FROM users WHERE email = FALSE"),
        ("mysql", "DELETE FROM users WHERE email IN ('' + 0)"),
        ("mysql", "DELETE FROM users WHERE email = CAST('0' AS SIGNED)"),
        ("mysql", "DELETE FROM users WHERE email = CONVERT('0', SIGNED)"),
        ("sqlite", "DELETE FROM users WHERE \"yes\" = 'yes'"),
        # operators that bind as closely as =, so that these compare the comparison
        *(
            (name, f"DELETE FROM users WHERE id = 1 {rest}")
            for name in ("sqlite", "mysql")
            for rest in ("LIKE 0", "IN (0)", "REGEXP 0")
        ),
        *(
            ("sqlite", f"UPDATE users SET a = 1 WHERE id = 1 {rest}")
            for rest in ("GLOB 0", "BETWEEN 0 AND 0", "NOT IN (1)", "NOT LIKE 1")
        ),
        ("tsql", "WITH c AS (SELECT 1 AS a, id FROM users) DELETE FROM c WHERE a = 1"),
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
        ("mysql", "UPDATE users SET a = 1 WHERE status IN (1, 2)"),
        ("databricks", "INSERT INTO sales REPLACE WHERE day = '2026-01-01' SELECT * FROM fresh"),
        ("databricks", "INSERT INTO users REPLACE USING (id) SELECT * FROM fresh"),
        ("sqlite", "INSERT INTO docs(docs) VALUES ('rebuild')"),
        ("sqlite", "INSERT INTO docs(body) VALUES ('delete-all')"),
    ],
)
def test_a_part_of_the_rows_in_the_words_of_one_dialect(dialect: str, text: str) -> None:
    assert not SQLPolicy(dialect=dialect).judge_sql(text).blocks


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
