"""SQLPolicy: which calls it judges, what it is made with, and texts at the edges."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.kernel import KernelSpace
from lgov_core.policies import CostControlPolicy, PolicySet, SQLPolicy, load_policies
from lgov_core.types import Action, Decision, Effect, Point, Severity


def call(arguments: dict[str, Any], name: str = "run_sql", **more: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments=arguments, **more)


def test_a_dialect_must_be_known() -> None:
    with pytest.raises(PolicyError, match="did you mean sqlite"):
        SQLPolicy(dialect="sqlit")
    for wrong in ("", 1, "zzzz", "SQLite, normalization_strategy=lowercase"):
        with pytest.raises(PolicyError, match="dialect"):
            SQLPolicy(dialect=wrong)  # type: ignore[arg-type]
    assert SQLPolicy(dialect="postgresql").dialect == "postgres"


def test_denied_kinds_alone_make_a_policy() -> None:
    policy = SQLPolicy(["DROP", "DELETE"])
    assert (policy.name, SQLPolicy(None).judge_sql("SELECT 1").effect) == ("SQLPolicy", Effect.ALLOW)
    for fine in (
        "SELECT name FROM users WHERE id = 42",
        "UPDATE orders SET status = 'shipped' WHERE order_id = 3",
        "INSERT INTO logs (message) VALUES ('x')",
        "INSERT INTO t (a, b) VALUES (1, 2) ON CONFLICT (a) DO UPDATE SET b = 2",
        "INSERT INTO t (a, b) VALUES (1, 2) ON DUPLICATE KEY UPDATE b = 2",
        "SELECT TOP 5 [name] FROM users ORDER BY id",
        "SELECT `name` FROM users LIMIT 3",
        "SELECT name::text FROM users WHERE data->>'a' = 'b'",
    ):
        decision = policy.judge_sql(fine)
        assert not decision.blocks, (fine, decision.reason)
    for argument in ("query", "sql", "statement", "input"):
        denied = policy.judge(call({argument: "DROP TABLE users"}))
        assert denied is not None
        assert (denied.effect, denied.severity, denied.policy) == (Effect.DENY, Severity.CRITICAL, "SQLPolicy")
    assert policy.judge(call({"query": "SELECT 1", "input": "DELETE FROM users WHERE id = 1"})).blocks


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # text to some servers, a statement to others
        (r"SELECT '\''; DROP TABLE users; -- '", "sql-unparsable"),
        ("SELECT 1 -- x\rDROP TABLE users", "sql-unparsable"),
        ("SELECT 1 /*!; DROP TABLE users */", "sql-executable-comment"),
        ("SELECT 1 SHUTDOWN", "sql-unparsable"),
        ("WITH a AS (SELECT 1 AS x) SELECT x SHUTDOWN", "sql-unparsable"),
        ("SELECT 1 RECONFIGURE", "sql-unparsable"),
        # of one server only
        ("SELECT pg_read_file('/etc/passwd')", "sql-function"),
        ("SELECT * INTO OUTFILE '/tmp/x' FROM users", "sql-unparsable"),
        ("SELECT [name] FROM users; EXEC xp_cmdshell 'dir'", "sql-denied-statement"),
        # of none
        ("SELEC name FROM users", "sql-unparsable"),
        ("SELECT FROM WHERE", "sql-unparsable"),
        ("", "sql-unparsable"),
    ],
)
def test_without_a_dialect_the_gravest_reading_counts(text: str, rule: str) -> None:
    decision = SQLPolicy().judge_sql(text)
    assert decision.effect is Effect.DENY
    assert decision.rule == rule, decision.reason


def test_the_action_may_carry_the_dialect() -> None:
    policy = SQLPolicy()
    quoted = r"SELECT '\''"
    assert policy.judge(call({"query": quoted})).blocks
    assert not policy.judge(call({"query": r"SELECT '\'"}, context={"dialect": "sqlite"})).blocks
    assert policy.judge(call({"query": r"SELECT '\'"}, context={"dialect": "postgres"})).blocks
    for wrong in ("sqlit", 3, ["sqlite"]):
        assert policy.judge(call({"query": "SELECT 1"}, context={"dialect": wrong})).rule == "dialect-unknown"
    # the policy's own goes before
    own = SQLPolicy(dialect="postgres")
    assert own.judge(call({"query": r"SELECT '\'"}, context={"dialect": "sqlite"})).blocks


def test_from_tool_denies_where_no_dialect_is_carried() -> None:
    policy = SQLPolicy(dialect="from_tool")
    assert policy.judge(call({"query": "SELECT 1"})).rule == "dialect-unknown"
    assert policy.judge_sql("SELECT 1").rule == "dialect-unknown"
    assert not policy.judge(call({"query": "SELECT 1"}, context={"dialect": "duckdb"})).blocks
    assert policy.judge(call({"query": "DROP TABLE t"}, context={"dialect": "duckdb"})).blocks


def test_in_a_file_the_dialect_must_be_said() -> None:
    def loaded(**options: Any) -> PolicySet:
        return load_policies({"version": 1, "rules": [{"use": "sql", "with": options}]})

    with pytest.raises(PolicyError, match="needs dialect"):
        loaded(mode="read_only")
    with pytest.raises(PolicyError, match="dialect None is unknown"):
        loaded(dialect=None)
    assert not loaded(dialect="from_tool").judge(call({"sql": "SELECT 1"}, context={"dialect": "mysql"})).blocks
    assert loaded(dialect="from_tool").judge(call({"sql": "SELECT 1"})).blocks


def test_under_a_kernel_with_a_budget() -> None:
    kernel = KernelSpace(policy=[SQLPolicy(deny=["DROP", "DELETE"]), CostControlPolicy(max_cost_usd=100)])
    found: list[tuple[str, str]] = []
    kernel.on_policy_violation(lambda violation: found.append((violation.policy_name, str(violation.severity))))
    assert kernel.get_policies() == ["SQLPolicy", "CostControlPolicy"]
    assert kernel.execute(None, "SELECT name FROM users WHERE id = 42") is not None
    assert found == []
    assert kernel.execute(None, "DROP TABLE users") is None
    assert found == [("SQLPolicy", "critical")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "readonly"}, "guarded or read_only"),
        ({"deny": "DROP"}, "list of strings"),
        ({"deny": ["DORP"]}, "did you mean DROP"),
        ({"deny": ["table:"]}, "table:NAME"),
        ({"deny": [1]}, "not text"),
        ({"argument": ""}, "argument"),
        ({"argument": []}, "argument"),
        ({"tools": "run_sql"}, "list of strings"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        SQLPolicy(**{"dialect": "sqlite", **settings})


def test_it_judges_the_calls_of_its_tools_only() -> None:
    policy = SQLPolicy(dialect="sqlite", tools=["*_sql"])
    assert policy.judge(call({"query": "DROP TABLE t"})).blocks
    assert policy.judge(call({"query": "DROP TABLE t"}, name="search")) is None
    assert policy.judge(call({}, kind="handoff")) is None
    assert policy.judge(Action(Point.POST_TOOL_CALL, "run_sql", arguments={"query": "DROP TABLE t"})) is None


@pytest.mark.parametrize(
    "arguments", [{}, {"text": "SELECT 1"}, {"query": None}, {"query": ["SELECT 1"]}, {"query": b"SELECT"}]
)
def test_a_call_without_sql_is_denied(arguments: dict[str, Any]) -> None:
    decision = SQLPolicy(dialect="sqlite").judge(call(arguments))
    assert decision is not None
    assert (decision.effect, decision.rule) == (Effect.DENY, "sql-missing")
    assert "query or sql" in decision.reason


def test_of_several_arguments_each_that_is_present_is_judged() -> None:
    policy = SQLPolicy(dialect="sqlite", argument=["query", "sql"])
    assert not policy.judge(call({"sql": "SELECT 1"})).blocks
    assert policy.judge(call({"query": "SELECT 1", "sql": "DROP TABLE t"})).blocks
    assert policy.judge(call({"query": "SELECT 1", "sql": None})).rule == "sql-missing"
    assert policy.judge(call({"text": "SELECT 1"})).rule == "sql-missing"


def test_the_worst_of_several_statements_is_the_reason() -> None:
    decision = SQLPolicy(dialect="sqlite").judge_sql("SELECT * FROM sqlite_master; DROP TABLE t")
    assert (decision.rule, decision.severity) == ("sql-denied-statement", Severity.CRITICAL)
    assert "DROP" in decision.reason


def test_tables_is_a_list_of_the_only_tables() -> None:
    policy = SQLPolicy(dialect="postgres", tables=["staff", "hr.*"])
    for fine in (
        "SELECT * FROM Staff",
        "SELECT * FROM hr.pay",
        "WITH w AS (SELECT * FROM staff) SELECT * FROM w",
        "WITH RECURSIVE w AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM w WHERE i < 3) SELECT * FROM w",
        "SELECT * FROM staff WHERE id IN (WITH w AS (SELECT 1) SELECT * FROM w)",
        "SELECT * FROM generate_series(1, 3)",
    ):
        assert not policy.judge_sql(fine).blocks, fine
    for wrong in (
        "SELECT * FROM orders",
        "SELECT * FROM pay",
        "SELECT * FROM staff, orders",
        "WITH w AS (SELECT * FROM orders) SELECT * FROM w",
        # not what the WITH query of that name stands for
        "WITH orders AS (SELECT * FROM orders) SELECT * FROM orders",
        "WITH a AS (SELECT * FROM orders), orders AS (SELECT 1) SELECT * FROM a",
        "SELECT * FROM orders WHERE id IN (WITH orders AS (SELECT 1) SELECT * FROM orders)",
        "WITH orders AS (SELECT 1) SELECT * FROM public.orders",
    ):
        assert policy.judge_sql(wrong).rule == "sql-denied-table", wrong


def test_a_catalog_is_open_only_when_it_is_named() -> None:
    assert SQLPolicy(dialect="sqlite", tables=["*"]).judge_sql("SELECT * FROM sqlite_master").rule == "sql-catalog"
    assert (
        not SQLPolicy(dialect="sqlite", tables=["*", "sqlite_master"]).judge_sql("SELECT * FROM sqlite_master").blocks
    )


def test_further_functions_can_be_made_known() -> None:
    policy = SQLPolicy(dialect="sqlite", mode="read_only", functions=["Distance", "load_extension"])
    assert not policy.judge_sql("SELECT distance(1, 2)").blocks
    assert policy.judge_sql("SELECT nearest(1, 2)").rule == "sql-function"
    assert policy.judge_sql("SELECT load_extension('x')").rule == "sql-function"


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


def test_merge_may_add_and_change_but_not_remove() -> None:
    policy = SQLPolicy(dialect="snowflake")
    head = "MERGE INTO stock s USING deliveries d ON s.sku = d.sku"
    added = " WHEN NOT MATCHED THEN INSERT (sku, n) VALUES (d.sku, d.n)"
    assert not policy.judge_sql(f"{head} WHEN MATCHED THEN UPDATE SET s.n = d.n{added}").blocks
    assert policy.judge_sql(f"{head} WHEN MATCHED THEN DELETE").rule == "sql-denied-statement"
    for on in ("1 = 1", "s.sku = s.sku", "d.sku = 3", "TRUE"):
        loose = f"MERGE INTO stock s USING deliveries d ON {on} WHEN MATCHED THEN UPDATE SET s.n = 0"
        assert policy.judge_sql(loose).rule == "sql-unbounded-write", on
    own = "MERGE INTO stock s USING stock d ON s.sku = d.sku WHEN MATCHED THEN UPDATE SET s.n = 0"
    assert policy.judge_sql(own).rule == "sql-unbounded-write"
    for deny in ("MERGE", "UPDATE", "INSERT"):
        strict = SQLPolicy([deny], dialect="snowflake")
        assert strict.judge_sql(f"{head} WHEN MATCHED THEN UPDATE SET s.n = d.n{added}").blocks, deny
    assert SQLPolicy(dialect="snowflake", mode="read_only").judge_sql(head + added).rule == "sql-read-only"


def test_names_that_a_database_may_take_for_the_same_are_denied() -> None:
    policy = SQLPolicy(["table:salary"], dialect="tsql")
    for name in ("salary", "SALARY", "[salary]", "ｓａｌａｒｙ", "sálary"):
        assert policy.judge_sql(f"SELECT * FROM {name}").rule == "sql-denied-table", name
    assert policy.judge_sql("SELECT * FROM salaries").effect is Effect.ALLOW


def test_a_function_of_somebody_is_unknown_whatever_its_name() -> None:
    for dialect in ("postgres", "tsql", "snowflake", "duckdb", "oracle"):
        policy = SQLPolicy(dialect=dialect, mode="read_only", functions=["mine.distance"])
        assert not policy.judge_sql("SELECT lower(a), mine.distance(a, b) FROM t").blocks, dialect
        assert policy.judge_sql("SELECT evil.lower(a) FROM t").rule == "sql-function", dialect
    policy = SQLPolicy(dialect="postgres", mode="read_only")
    assert not policy.judge_sql("SELECT pg_catalog.lower(a) FROM t").blocks
    assert policy.judge_sql("SELECT * FROM evil.generate_series(1, 3)").rule == "sql-function"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("SELECT 1 -- " + "x" * 20_000, "sql-too-long"),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "sql-too-deep"),
        ("SELECT " + "- " * 40 + "1", "sql-too-deep"),
        ("SELECT " + "NOT " * 3000 + "1", "sql-too-deep"),
        ("SELECT " + "CASE WHEN 1 THEN " * 900 + "1" + " END" * 900, "sql-too-deep"),
        ("SELECT * FROM t " + "JOIN b " * 24, "sql-too-deep"),  # minutes, if the parser had its way
    ],
)
def test_texts_too_long_or_too_deep_are_denied(text: str, rule: str) -> None:
    decision = SQLPolicy(dialect="sqlite").judge_sql(text)
    assert (decision.effect, decision.rule) == (Effect.DENY, rule)


def test_a_denial_for_want_of_stack_is_not_kept() -> None:
    policy = SQLPolicy(dialect="sqlite")
    text = "SELECT " + "(" * 40 + "1" + ")" * 40
    seen: list[Decision] = []

    def deep_down(levels: int) -> None:
        if levels:
            deep_down(levels - 1)
        else:
            seen.append(policy.judge_sql(text))

    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    deep_down(sys.getrecursionlimit() - depth - 60)
    assert (seen[0].effect, seen[0].rule) == (Effect.DENY, "sql-too-deep")
    assert policy.judge_sql(text).effect is Effect.ALLOW


def test_a_verdict_is_kept_for_its_text() -> None:
    policy = SQLPolicy(dialect="sqlite")
    assert policy.judge_sql("SELECT 1") is policy.judge_sql("SELECT 1")
    assert policy.judge_sql("SELECT 1") is not SQLPolicy(dialect="postgres").judge_sql("SELECT 1")


def test_threads_get_the_same_verdicts() -> None:
    policy = SQLPolicy(dialect="sqlite", deny=["table:secret"])
    texts = [f"SELECT {i} FROM {'secret' if i % 3 == 0 else 'staff'}" for i in range(60)]
    wrong: list[str] = []

    def judge() -> None:
        wrong.extend(text for text in texts if policy.judge_sql(text).blocks != ("secret" in text))

    threads = [threading.Thread(target=judge) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_parser_is_imported_when_a_policy_is_made() -> None:
    code = (
        "import sys, lgov_core.policies as p\n"
        "heavy = {'sqlglot', 'yaml', 'fastjsonschema'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "p.SQLPolicy()\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "p.SQLPolicy(dialect='sqlite')\n"
        "assert 'sqlglot' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
