"""SQLPolicy: statements without a syntax tree (DESCRIBE, SHOW, transactions, DuckDB's own), plain CREATE, MERGE, functions."""

from __future__ import annotations

import sqlite3

import pytest
import sqlglot

from lgov_core.policies import SQLPolicy


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("sqlite", "PRAGMA table_info(orders)"),
        ("sqlite", "PRAGMA main.index_list('orders')"),
        ("mysql", "DESCRIBE orders"),
        ("mysql", "DESC `shop`.`orders`"),
        ("mysql", "SHOW FULL COLUMNS FROM orders FROM shop LIKE 'a%'"),
        ("mysql", "SHOW CREATE TABLE orders"),
        ("mysql", "SHOW TABLES"),
        ("snowflake", "SHOW TABLES IN SCHEMA shop.public"),
        ("snowflake", "DESCRIBE TABLE shop.public.orders"),
        ("clickhouse", "SHOW CREATE TABLE orders"),
        ("duckdb", "SHOW ALL TABLES"),
        ("spark", "DESCRIBE EXTENDED orders"),
    ],
)
def test_tables_may_be_described_in_both_modes(dialect: str, text: str) -> None:
    for mode in ("read_only", "guarded"):
        decision = SQLPolicy(dialect=dialect, mode=mode).judge_sql(text)
        assert not decision.blocks, decision.reason


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("sqlite", "PRAGMA user_version"),
        ("sqlite", "PRAGMA table_info = orders"),
        ("sqlite", "PRAGMA table_info(sqlite_master)"),
        ("mysql", "SHOW TABLES FROM mysql"),
        ("mysql", "SHOW COLUMNS FROM user FROM mysql"),
        ("mysql", "SHOW TABLES WHERE sleep(10)"),
        ("mysql", "SHOW FULL PROCESSLIST"),
        ("mysql", "SHOW VARIABLES LIKE 'a'"),
        ("mysql", "SHOW CREATE USER root"),
        ("mysql", "DESCRIBE SELECT sleep(3)"),
        ("mysql", "DESC ANALYZE DELETE FROM t"),
        ("mysql", "DESC ANALYZE SELECT 1 FROM t"),
        ("mysql", "DESCRIBE DELETE FROM t WHERE id = 1"),
        ("mysql", "EXPLAIN DESCRIBE SELECT 1 FROM t"),
        ("duckdb", "DESCRIBE SELECT * FROM 'x.csv'"),
        ("duckdb", "DESCRIBE WITH a AS (SELECT getenv('HOME')) SELECT * FROM a"),
        ("spark", "DESCRIBE SELECT a"),  # perhaps a column of a table of that name
        ("snowflake", "SHOW GRANTS"),
        ("snowflake", "DESCRIBE USER x"),
        ("clickhouse", "DESCRIBE TABLE url('http://x')"),
        ("clickhouse", "SHOW CREATE TABLE system.users"),
        ("duckdb", "DESCRIBE 'x.csv'"),
        ("duckdb", "DESCRIBE users.csv"),
        ("postgres", "SHOW data_directory"),
        ("tsql", "DESCRIBE orders"),  # a call of a procedure
    ],
)
def test_what_shows_more_than_tables_is_denied(dialect: str, text: str) -> None:
    for mode in ("read_only", "guarded"):
        assert SQLPolicy(dialect=dialect, mode=mode).judge_sql(text).blocks


def test_descriptions_keep_to_the_rules_for_tables() -> None:
    for text in ("DESCRIBE users", "SHOW COLUMNS FROM users FROM shop", "SHOW CREATE TABLE `Users`"):
        assert SQLPolicy(["table:users"], dialect="mysql").judge_sql(text).rule == "sql-denied-table", text
        assert SQLPolicy(dialect="mysql", tables=["orders"]).judge_sql(text).rule == "sql-denied-table", text
        assert SQLPolicy(["DESCRIBE", "SHOW"], dialect="mysql").judge_sql(text).blocks, text


def test_a_query_may_be_described_where_it_may_be_asked() -> None:
    for dialect in ("duckdb", "mysql"):
        for text in ("DESCRIBE SELECT a FROM users", "DESC WITH x AS (SELECT a FROM users) SELECT * FROM x"):
            for mode in ("read_only", "guarded"):
                assert not SQLPolicy(dialect=dialect, mode=mode, max_rows=5).judge_sql(text).blocks, text
            assert SQLPolicy(["table:users"], dialect=dialect).judge_sql(text).rule == "sql-denied-table", text
            for kind in ("DESCRIBE", "EXPLAIN", "SELECT"):
                assert SQLPolicy([kind], dialect=dialect).judge_sql(text).rule == "sql-denied-statement", (kind, text)


@pytest.mark.parametrize(
    "text",
    [
        "START TRANSACTION; SAVEPOINT a; INSERT INTO t (x) VALUES (1); ROLLBACK TO SAVEPOINT a; RELEASE a; COMMIT",
        "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT 1; COMMIT",
        "BEGIN ISOLATION LEVEL SERIALIZABLE; ROLLBACK WORK",
    ],
)
def test_transactions_have_parts(text: str) -> None:
    assert not SQLPolicy(dialect="postgres").judge_sql(text).blocks
    assert SQLPolicy(dialect="postgres", mode="read_only").judge_sql(text).rule == "sql-read-only"


def test_transactions_hide_nothing() -> None:
    for text in ("SAVEPOINT a DROP TABLE x", "START TRANSACTION READ WRITE", "ROLLBACK TO a; DROP TABLE x", "RELEASE"):
        assert SQLPolicy(dialect="postgres").judge_sql(text).blocks, text
    assert SQLPolicy(["SAVEPOINT"], dialect="postgres").judge_sql("SAVEPOINT a").rule == "sql-denied-statement"
    for text in ("SAVEPOINT shutdown", "RELEASE x", "BEGIN TRANSACTION SHUTDOWN"):
        assert SQLPolicy(dialect="tsql").judge_sql(text).blocks, text


def test_savepoints_are_let_through_by_sqlite_and_undone() -> None:
    text = "BEGIN; SAVEPOINT a; INSERT INTO t VALUES (1); ROLLBACK TO a; RELEASE SAVEPOINT a; COMMIT"
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE t (x)")
    connection.executescript(text)
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert not SQLPolicy(dialect="sqlite").judge_sql(text).blocks


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("mysql", "CREATE TABLE a (b INT) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='x'"),
        ("bigquery", "CREATE TABLE shop.a (b INT64, d TIMESTAMP) PARTITION BY DATE(d) CLUSTER BY b"),
        ("clickhouse", "CREATE TABLE a (b UInt64) ENGINE = ReplacingMergeTree(b) ORDER BY b PARTITION BY b % 10"),
        ("redshift", "CREATE TEMP TABLE a DISTKEY (b) SORTKEY (c) AS SELECT b, c FROM t"),
        ("snowflake", "CREATE TRANSIENT TABLE a (b INT) CLUSTER BY (b) COMMENT = 'x'"),
        ("postgres", "CREATE UNLOGGED TABLE a (b INT)"),
        ("sqlite", "CREATE TABLE a (b TEXT PRIMARY KEY) WITHOUT ROWID"),
        ("oracle", "CREATE GLOBAL TEMPORARY TABLE a (b NUMBER) ON COMMIT DELETE ROWS"),
        ("spark", "CREATE TABLE a (b INT) USING delta PARTITIONED BY (b)"),
        ("databricks", "CREATE TABLE a USING PARQUET AS SELECT b FROM t"),
        ("hive", "CREATE TABLE a (b INT) STORED AS ORC"),
        ("tsql", "CREATE UNIQUE CLUSTERED INDEX i ON dbo.a (b)"),
        ("tsql", "CREATE NONCLUSTERED INDEX i ON dbo.a (b) INCLUDE (c)"),
    ],
)
def test_a_plain_table_may_say_how_its_rows_are_kept(dialect: str, text: str) -> None:
    decision = SQLPolicy(dialect=dialect).judge_sql(text)
    assert not decision.blocks, decision.reason
    assert SQLPolicy(dialect=dialect, mode="read_only").judge_sql(text).rule == "sql-read-only"


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("mysql", "CREATE TABLE a (b INT) ENGINE=InnoDB DATA DIRECTORY='/tmp'"),
        ("mysql", "CREATE TABLE a (b INT) ENGINE=InnoDB CONNECTION='x'"),
        ("mysql", "CREATE TABLE a (b INT) ENGINE=CSV"),
        ("clickhouse", "CREATE TABLE a (b String) ENGINE = S3('http://x')"),
        ("clickhouse", "CREATE TABLE a (b String) ENGINE = Distributed('c', 'd', 't')"),
        ("clickhouse", "CREATE TABLE a (b String) ENGINE = MergeTree ORDER BY b SETTINGS disk = disk(type = web)"),
        ("clickhouse", "CREATE TABLE a (b String) ENGINE = MergeTree ORDER BY file('/etc/passwd')"),
        ("clickhouse", "CREATE TABLE a ON CLUSTER c (b String) ENGINE = MergeTree ORDER BY b"),
        ("postgres", "CREATE TABLE a PARTITION OF users FOR VALUES IN (1)"),
        ("postgres", "CREATE TABLE a (b INT) INHERITS (users)"),
        ("snowflake", "CREATE OR REPLACE TRANSIENT TABLE a (b INT)"),
        ("spark", "CREATE TABLE a (b INT) USING parquet LOCATION '/etc'"),
        ("spark", "CREATE TABLE a USING parquet OPTIONS (path '/etc')"),
        ("spark", "CREATE TABLE a (b INT) USING jdbc"),
        ("spark", "CREATE OR REPLACE TABLE a (b INT) USING delta"),
        ("hive", "CREATE EXTERNAL TABLE a (b INT) STORED AS PARQUET"),
        ("hive", "CREATE TABLE a (b INT) STORED AS INPUTFORMAT 'x.Y' OUTPUTFORMAT 'parquet'"),
        ("trino", "CREATE TABLE a (b INT) WITH (format = 'PARQUET', external_location = 's3://x')"),
        ("tsql", "CREATE CLUSTERED INDEX i ON a (b) DROP TABLE a"),
        ("tsql", "CREATE CLUSTERED a (b INT)"),
    ],
)
def test_a_table_over_something_else_is_not_plain(dialect: str, text: str) -> None:
    assert SQLPolicy(dialect=dialect).judge_sql(text).blocks


def test_merge_of_sql_server_may_insert() -> None:
    policy = SQLPolicy(dialect="tsql")
    merge = "MERGE t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET a = s.a WHEN NOT MATCHED THEN INSERT (a) VALUES (1)"
    assert not policy.judge_sql(f"{merge};").blocks
    for more in (
        " INSERT INTO x VALUES (1)",
        " DELETE FROM t",
        " SHUTDOWN",
        "; INSERT INTO x VALUES (1) DELETE FROM t",
    ):
        assert policy.judge_sql(merge + more).blocks, more


def test_a_function_without_a_schema_is_not_that_of_another() -> None:
    policy = SQLPolicy(dialect="postgres", mode="read_only", functions=["score", "app.rank_items"])
    assert not policy.judge_sql("SELECT score(id), pg_catalog.score(id), app.rank_items(id) FROM t").blocks
    for text in ("SELECT evil.score(id) FROM t", "SELECT rank_items(id) FROM t", "SELECT * FROM evil.score(3)"):
        assert policy.judge_sql(text).rule == "sql-function", text


SHORT = ("SUMMARIZE users", "SUMMARIZE SELECT * FROM users", "PIVOT users ON a USING count(*)", "UNPIVOT users ON a, b")


@pytest.mark.parametrize("text", [*SHORT, "SELECT * FROM (SUMMARIZE users)", "FROM (PIVOT users ON a USING count(*))"])
def test_shorthands_of_duckdb_are_read_as_queries(text: str) -> None:
    for mode in ("read_only", "guarded"):
        assert not SQLPolicy(dialect="duckdb", mode=mode).judge_sql(text).blocks
    assert SQLPolicy(["table:users"], dialect="duckdb").judge_sql(text).rule == "sql-denied-table"
    assert SQLPolicy(dialect="duckdb", tables=["orders"]).judge_sql(text).rule == "sql-denied-table"
    assert SQLPolicy(dialect="duckdb", columns=["users.pay"]).judge_sql(text).rule == "sql-denied-column"


def test_shorthands_of_duckdb_open_no_files() -> None:
    policy = SQLPolicy(dialect="duckdb")
    assert all(SQLPolicy(dialect="postgres").judge_sql(text).blocks for text in SHORT)
    for text in (
        "SUMMARIZE 'x.csv'",
        "SUMMARIZE users.csv",
        "SUMMARIZE read_csv('x')",
        "SUMMARIZE SUMMARIZE users",
        "SUMMARIZE",
        "FROM (SUMMARIZE 'x.csv')",
        "SELECT * FROM (SHOW 'x.csv')",
        "PIVOT 'x.csv' ON a USING count(*)",
        "PIVOT t ON a USING count(*)), (SELECT * FROM read_csv('x')",
        "UNPIVOT users.csv ON a INTO NAME m VALUE v",
    ):
        assert policy.judge_sql(text).blocks, text
    limited = SQLPolicy(dialect="duckdb", max_rows=10).judge_sql("PIVOT t ON a USING count(*)")
    assert limited.text == "FROM (PIVOT t ON a USING count(*)) LIMIT 10"


def test_tables_and_columns_by_other_names() -> None:
    for dialect, text in (
        ("snowflake", "SELECT $2 FROM users"),
        ("snowflake", "SELECT u.$3 FROM users u"),
        ("duckdb", "SELECT #2 FROM users"),
        ("tsql", "SELECT $IDENTITY FROM users"),
        ("clickhouse", "SELECT a FROM orders WHERE id IN (users)"),
    ):
        policy = SQLPolicy(dialect=dialect, columns=["users.pay"])
        assert policy.judge_sql(text).rule == "sql-denied-column", text
    for text in ("SELECT a FROM orders WHERE id IN (users)", "SELECT a FROM orders WHERE id NOT IN (db.users)"):
        assert SQLPolicy(dialect="clickhouse", tables=["orders"]).judge_sql(text).rule == "sql-denied-table", text
        assert SQLPolicy(["table:users"], dialect="clickhouse").judge_sql(text).rule == "sql-denied-table", text
    for name in ("'users'", "$name", "?"):
        text = f"SELECT * FROM TABLE({name})"
        assert SQLPolicy(dialect="snowflake").judge_sql(text).rule == "sql-denied-table", text
    for dialect, fine in (
        ("postgres", "SELECT $1 FROM users"),
        ("snowflake", "SELECT value FROM TABLE(FLATTEN(x))"),
        ("clickhouse", "SELECT a FROM orders WHERE id IN (1, 2) AND b IN (SELECT b FROM orders) AND c IN (lower('x'))"),
    ):
        assert not SQLPolicy(dialect=dialect, columns=["users.pay"]).judge_sql(fine).blocks, fine


def test_a_limit_goes_before_the_format_of_clickhouse() -> None:
    policy = SQLPolicy(dialect="clickhouse", max_rows=10)
    assert policy.judge_sql("SELECT a FROM t FORMAT CSV").rule == "sql-max-rows"
    assert not policy.judge_sql("SELECT a FROM t LIMIT 5 FORMAT CSV").blocks
    assert policy.judge_sql("SELECT a FROM t WHERE a IN (t)").text == "SELECT a FROM t WHERE a IN (t) LIMIT 10"


def test_functions_of_oracle_without_parentheses() -> None:
    policy = SQLPolicy(dialect="oracle", mode="read_only", functions=["app.today"])
    for text in (
        "SELECT my_pkg.run FROM dual",
        "SELECT s.my_pkg.run FROM dual",
        "SELECT t.a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.b = my_pkg.run)",
        "SELECT t.a FROM t ORDER BY my_pkg.run",
    ):
        assert policy.judge_sql(text).rule == "sql-function", text
    for fine in (
        "SELECT t.a, t.doc.a.b, shop.t.c FROM shop.t WHERE t.a = app.today",
        "WITH w AS (SELECT 1 AS a FROM dual) SELECT w.a, s.x FROM w JOIN (SELECT 2 AS x FROM dual) s ON s.x > w.a",
        "SELECT x.a FROM t, XMLTABLE('/r' PASSING t.doc COLUMNS a NUMBER PATH 'a') x",
        "SELECT j.a FROM t, JSON_TABLE(t.doc, '$' COLUMNS (a NUMBER PATH '$.a')) j",
        "SELECT * FROM t MATCH_RECOGNIZE (MEASURES up.price AS p PATTERN (up+) DEFINE up AS up.price > 1)",
        "SELECT p.a FROM (SELECT dept, pay FROM staff) PIVOT (SUM(pay) FOR dept IN ('A' AS a)) p",
        "SELECT e.name, PRIOR e.name FROM emp e START WITH e.boss IS NULL CONNECT BY PRIOR e.id = e.boss",
    ):
        decision = policy.judge_sql(fine)
        assert not decision.blocks, (fine, decision.reason)


def test_stages_of_snowflake_are_files() -> None:
    for mode in ("read_only", "guarded"):
        policy = SQLPolicy(dialect="snowflake", mode=mode)
        for source in ("@st", "@db.sc.st s", "@%t", "@~/x.csv", "DIRECTORY(@st)"):
            assert policy.judge_sql(f"SELECT * FROM {source}").blocks, source


@pytest.mark.parametrize(
    ("dialect", "text", "allowed"),
    [
        ("oracle", "SELECT /*+ PARALLEL(t 4) INDEX(t i_a) */ count(*) FROM t", True),
        ("spark", "SELECT /*+ BROADCAST(d), REPARTITION(3) */ f.k FROM f JOIN d ON f.k = d.k", True),
        ("oracle", "SELECT /*+ x */ 1 FROM t; DROP TABLE t", False),
        ("oracle", "SELECT /*+ x; DROP TABLE t */ 1 FROM t", False),
        ("spark", "SELECT /*+ a /* b */ */ 1 FROM t", False),
        ("oracle", "SELECT /*+ OPT_PARAM('a' 'b') */ 1 FROM t", False),
        ("mysql", "SELECT /*+ SET_VAR(sql_mode='') */ 1", False),
        ("spark", "SHOW PARTITIONS db.sales", True),
        ("spark", "SHOW FUNCTIONS", False),
        (
            "trino",
            "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY d MEASURES classifier() AS c PATTERN (A B+) DEFINE B AS p < PREV(p))",
            True,
        ),
    ],
)
def test_hints_partitions_and_rows_before(dialect: str, text: str, allowed: bool) -> None:
    assert SQLPolicy(dialect=dialect, mode="read_only").judge_sql(text).blocks is not allowed


@pytest.mark.parametrize(
    "text",
    [
        "DECLARE @x INT = 1; SELECT a FROM t WHERE id = @x",
        "declare @a nvarchar(max) = N'it''s', @b AS decimal(10, 2) = -1.5, @d date; SELECT * FROM t WHERE n = @a",
    ],
)
def test_reading_statements_may_have_variables_of_sql_server_with_plain_values(text: str) -> None:
    assert not SQLPolicy(dialect="tsql", mode="read_only").judge_sql(text).blocks
    assert SQLPolicy(["DECLARE"], dialect="tsql", mode="read_only").judge_sql(text).blocks
    assert SQLPolicy(dialect="postgres", mode="read_only").judge_sql(text).blocks


@pytest.mark.parametrize(
    "text",
    [
        "DECLARE @x INT = (SELECT id FROM t); SELECT 1",
        "DECLARE @x INT = dbo.f(1); SELECT 1",
        "DECLARE @x INT = 1 SELECT a FROM secrets",
        "DECLARE @s varchar(99) = 'DROP TABLE t'; EXEC(@s)",
        "DECLARE c CURSOR FOR SELECT 1",
        "DECLARE @p varchar(9) = '%'; DELETE FROM t WHERE a LIKE @p",
    ],
)
def test_no_more_than_plain_values_are_declared_and_none_for_writes(text: str) -> None:
    assert SQLPolicy(dialect="tsql", mode="read_only").judge_sql(text).blocks
    assert SQLPolicy(dialect="tsql").judge_sql(text).blocks


def test_chains_of_subscripts_that_the_parser_takes_minutes_for_are_refused() -> None:
    for dialect in ("postgres", "duckdb", "trino"):
        policy = SQLPolicy(dialect=dialect)
        assert not policy.judge_sql(
            "SELECT a[1].b[2], " + ", ".join(f"c[{at}]" for at in range(100)) + " FROM t"
        ).blocks
        arrays = ", ".join(["(1, ARRAY[1, 2])"] * 500)
        assert not policy.judge_sql(f"INSERT INTO t VALUES {arrays}").blocks
        for long in ("a" + "[1]" * 400, 'a ."b" [1]' * 400, "a" + "[1]" * 200 + "; SELECT b" + "[1]" * 200):
            assert policy.judge_sql(f"SELECT {long} FROM t").rule == "sql-too-deep"


def test_what_the_parser_cannot_read_is_in_the_decision_only(caplog: pytest.LogCaptureFixture) -> None:
    text = "CREATE VIEW v(a) AS SELECT 1 WITH CHECK OPTION"
    assert SQLPolicy(dialect="sqlite", mode="guarded").judge_sql(text).rule == "sql-unparsable"
    assert caplog.records == []
    sqlglot.parse(text)  # the program's own use of the parser
    assert "unsupported syntax" in caplog.text
