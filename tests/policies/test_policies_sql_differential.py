"""SQLPolicy against SQLite itself: what SQLite's authorizer sees a statement do, the policy must have denied.

The authorizer shares no code with the policy.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3

import pytest

from lgov_core.policies import SQLPolicy
from tests.policies.sql_statement_maker import SECRET, Maker, texts

ONLY_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
READING = ONLY_READING | {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
ROW_WRITES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
MAKING = {
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_VIEW,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
}
DESCRIBING = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"}

Event = tuple[int, str | None, str | None]


def events_of(text: str) -> list[Event]:
    """What SQLite's authorizer reports when the text is run, up to the first error."""
    seen: list[Event] = []
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.executescript(
            "CREATE TABLE staff(id INTEGER PRIMARY KEY, name TEXT, pay INT);"
            "CREATE TABLE orders(id INTEGER PRIMARY KEY, staff_id INT, total INT);"
            f"CREATE TABLE {SECRET}(id INTEGER PRIMARY KEY, answer TEXT);"
            "INSERT INTO staff VALUES (1,'a',10),(2,'b',20),(3,'c',30);"
            # SQLite declares these tables, with a write to its schema, when they are first used
            "SELECT * FROM json_each('[1]'); SELECT * FROM pragma_table_info('staff');"
        )

        def watch(code: int, one: str | None, two: str | None, _schema: str | None, _inner: str | None) -> int:
            seen.append((code, one, two))
            # a damaged ':memory:' would make a file
            return sqlite3.SQLITE_DENY if code == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK

        connection.set_authorizer(watch)
        connection.set_progress_handler(lambda: 1, 20_000)
        with contextlib.suppress(sqlite3.Error, sqlite3.Warning, ValueError):
            connection.executescript(text)
    finally:
        connection.close()
    return seen


def touches_secret(events: list[Event]) -> bool:
    return any(SECRET in (str(one).lower(), str(two).lower()) for _code, one, two in events)


def writes(events: list[Event]) -> bool:
    return any(
        code not in READING and not (code == sqlite3.SQLITE_PRAGMA and str(one).lower() in DESCRIBING)
        for code, one, _two in events
    )


def changes_rows(events: list[Event]) -> bool:
    return any(code in ROW_WRITES and not str(one).startswith("sqlite_") for code, one, _two in events)


def does_more_than_guarded(events: list[Event]) -> bool:
    codes = {code for code, _one, _two in events}
    for code, one, two in events:
        if code == sqlite3.SQLITE_PRAGMA and str(one).lower() in DESCRIBING:
            continue
        if code == sqlite3.SQLITE_REINDEX and sqlite3.SQLITE_CREATE_INDEX in codes:
            continue  # making an index fills it
        if code not in READING | ROW_WRITES | MAKING or two == "load_extension":
            return True
    return False


POLICIES = {
    "read_only": SQLPolicy(dialect="sqlite", mode="read_only", deny=[f"table:{SECRET}"]),
    "guarded": SQLPolicy(dialect="sqlite", deny=[f"table:{SECRET}"]),
    "no rows": SQLPolicy(dialect="sqlite", deny=["INSERT", "UPDATE", "DELETE"]),
}


@pytest.mark.parametrize("seed", range(4))
def test_what_sqlite_sees_is_denied(seed: int) -> None:
    effects = 0
    for text in texts(seed, 400):
        events = events_of(text)
        reasons = []
        if touches_secret(events):
            reasons += ["read_only", "guarded"]
        if writes(events) or any(str(one).startswith("sqlite_") for _code, one, _two in events):
            reasons.append("read_only")
        if does_more_than_guarded(events):
            reasons.append("guarded")
        if changes_rows(events):
            reasons.append("no rows")
        effects += bool(reasons)
        for name in reasons:
            assert POLICIES[name].judge_sql(text).blocks, f"{name} let through {text!r}, which does {events}"
    assert effects > 150, "the generator no longer makes statements that do something"


def test_harmless_statements_are_let_through() -> None:
    """The test above would pass if everything were denied."""
    maker = Maker(99)
    tried = 0
    for _ in range(400):
        text = maker.disguise(maker.statement())
        events = events_of(text)
        only_reads = {code for code, _one, _two in events} <= ONLY_READING
        named = text.lower()
        if not events or not only_reads or any(name in named for name in (SECRET, "sqlite_", "load_extension")):
            continue
        tried += 1
        decision = POLICIES["read_only"].judge_sql(text)
        assert not decision.blocks, f"{text!r} was denied: {decision.reason}"
    assert tried > 40


# ---------------------------------------------------------------------- writes without a limit

#: Conditions that name rows by values, and such as leave rows out without naming them.
NAMED = (
    "id = 2",
    "name = 'b'",
    "id IN (1, 2)",
    "lower(name) = 'd'",
    "(id, name) IN ((1, 'a'), (2, 'b'))",
)
NAMED += ("id IN (WITH p(x) AS (VALUES (1)) SELECT x FROM p)", "id IN (SELECT s.id FROM staff s WHERE s.pay = 20)")
NAMED += ("id = (SELECT max(s.id) FROM staff s WHERE s.name = 'b')", "id IN (SELECT id FROM staff WHERE name = 'a')")
OPEN = (
    "pay > 25",
    "pay <= 25",
    "id <> 2",
    "id != 3",
    "name LIKE 'a%'",
    "id BETWEEN 1 AND 2",
    "NOT id = 2",
    "id NOT IN (3)",
)
OPEN += ("id IN (SELECT value FROM json_each('[1, 2]'))", "name NOT LIKE 'a%'", "name LIKE 'a' || '%'")
OPEN += ("id IN (SELECT s.id FROM staff s WHERE s.pay > 25)", "id = 1 OR id = 2", "name IS 'c'", "id IS NULL")
EVERYTHING = (
    "1",
    "1=1",
    "id = id",
    "TRUE",
    "'a' = 'a'",
    "id IS NOT NULL",
    "NOT 0",
    "name LIKE '%'",
    "2 > 1",
    "id IN (id)",
)
EVERYTHING += (
    "id BETWEEN id AND id",
    "id <= id + 1",
    "EXISTS (SELECT 1)",
    "rowid = id",
    "id IN (SELECT id FROM staff)",
)
EVERYTHING += (
    "id = (SELECT id)",
    "staff.id = id",
    "(id) IS (id)",
    "NOT id <> id",
    "coalesce(NULL, 1)",
    "length(name) > 0",
)
EVERYTHING += (
    "id = (SELECT s.id FROM staff s WHERE s.id = staff.id)",
    "EXISTS (SELECT 1 FROM staff s WHERE s.id = staff.id)",
)
EVERYTHING += (
    "id IN (SELECT id FROM staff s WHERE s.id = staff.id)",
    "id IN (SELECT id FROM (SELECT id FROM staff) x WHERE x.id = staff.id)",
    "(name LIKE 'a%' OR name NOT LIKE 'a%')",
    "name LIKE '%' || ''",
    "NOT id = -5",
    "id NOT IN (-1, -2)",
)
EVERYTHING += (
    "id IN (WITH p AS (SELECT id AS x) SELECT x FROM p)",
    "id IN (SELECT value FROM json_each(json_array(id)))",
    "id IN (SELECT * FROM (SELECT id))",
    "id IN (SELECT x FROM (SELECT id AS x) a, (SELECT 1 AS id) b)",
    "id = (SELECT s.id FROM staff s WHERE s.name = staff.name)",
    "id BETWEEN (SELECT min(id) FROM staff) AND (SELECT max(id) FROM staff)",
    "id IN (SELECT row_number() OVER () FROM staff)",
    "EXISTS (SELECT count(*) FROM (SELECT id FROM staff) s WHERE s.id = staff.id)",
    "id NOT IN (SELECT -1 FROM staff)",
    "id >= (SELECT 0)",
    "id IN (SELECT k.z FROM (SELECT s.id AS z FROM staff s) k WHERE k.z >= id)",
)
EVERYTHING += (
    "id IN (SELECT id FROM (SELECT * FROM staff))",
    "id",
    "id = 9 LIKE 0",
    "id = 9 IN (0)",
    "id = 9 NOT LIKE 1",
    "id % 1 = 0",
    "'staff' IN ('staff')",
    "id * 0 = 0",
)


def condition(source: random.Random, depth: int) -> str:
    if depth == 0 or source.random() < 0.2:
        return source.choice(source.choice((NAMED, OPEN, EVERYTHING)))
    one, two = condition(source, depth - 1), condition(source, depth - 1)
    return source.choice((f"({one} AND {two})", f"({one} OR {two})", f"{one} OR {two}", f"NOT ({one})", f"({one})"))


def touches_all_rows(where: str) -> bool:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(
            "CREATE TABLE staff(id INTEGER PRIMARY KEY, name TEXT, pay INT);"
            "INSERT INTO staff VALUES (1,'a',10),(2,'b',20),(3,'c',30),(4,'d',40),(5,'e',50);"
        )
        return connection.execute(f"DELETE FROM staff WHERE {where}").rowcount == 5
    finally:
        connection.close()


def test_a_write_that_hits_every_row_is_denied() -> None:
    source = random.Random(7)
    policy = POLICIES["guarded"]
    all_rows = 0
    for _ in range(600):
        where = condition(source, source.randint(0, 3))
        if touches_all_rows(where):
            all_rows += 1
            for text in (f"DELETE FROM staff WHERE {where}", f"UPDATE staff SET pay = 0 WHERE {where}"):
                assert policy.judge_sql(text).rule == "sql-unbounded-write", text
    assert all_rows > 100


@pytest.mark.parametrize("where", NAMED)
def test_a_write_to_rows_that_values_name_is_let_through(where: str) -> None:
    assert not touches_all_rows(where)
    for text in (f"UPDATE staff SET pay = 0 WHERE {where}", f"DELETE FROM staff WHERE {where} AND id < 100"):
        decision = POLICIES["guarded"].judge_sql(text)
        assert not decision.blocks, (text, decision.reason)


@pytest.mark.parametrize("where", OPEN)
def test_a_write_to_rows_that_no_value_names_is_denied(where: str) -> None:
    for text in (f"UPDATE staff SET pay = 0 WHERE {where}", f"DELETE FROM staff WHERE {where} AND pay < 100"):
        assert POLICIES["guarded"].judge_sql(text).rule == "sql-unbounded-write", text
