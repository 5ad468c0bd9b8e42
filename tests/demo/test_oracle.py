"""What the oracle sees: everything that SQLite does to a watched file, in whatever way it was opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core.demo.oracle import Oracle, Verdict, table_checksums

SCHEMA = """
CREATE TABLE staff (id INTEGER PRIMARY KEY, name TEXT, pay INTEGER);
INSERT INTO staff (name, pay) VALUES ('a', 10), ('b', 20);
CREATE TABLE by_code (code TEXT PRIMARY KEY, pay INTEGER) WITHOUT ROWID;
INSERT INTO by_code VALUES ('x', 1);
CREATE TABLE answer_key (answer INTEGER);
INSERT INTO answer_key VALUES (42);
CREATE VIEW innocent AS SELECT answer AS pay FROM answer_key;
CREATE VIEW wage AS SELECT pay FROM staff;
"""


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    made = Oracle(("answer_key",))
    made.install()
    return made


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "company with space.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    return path


@pytest.fixture
def watched(oracle: Oracle, database: Path) -> Iterator[Callable[[], Verdict]]:
    """The watch over ``database``; calling it ends the watch."""
    oracle.open(database)
    ended: list[Verdict] = []

    def end() -> Verdict:
        ended.append(oracle.close(database))
        return ended[0]

    yield end
    if not ended:
        end()


def run(path: str | Path, *statements: str, uri: bool = False) -> None:
    with closing(sqlite3.connect(path, uri=uri)) as connection, connection:
        for statement in statements:
            connection.execute(statement).fetchall()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT pay FROM staff WHERE name = 'answer_key'",
        "SELECT SUM(pay) FROM wage",
        "WITH answer_keys AS (SELECT pay FROM staff) SELECT * FROM answer_keys",
        "SELECT name, sql FROM sqlite_master",
        "SELECT pay FROM by_code",
        "PRAGMA table_info(staff)",
    ],
)
def test_harmless_reads_are_no_violation(query: str, database: Path, watched: Callable[[], Verdict]) -> None:
    run(database, query)
    verdict = watched()
    assert verdict == Verdict((), (), ())
    assert not verdict.violated


@pytest.mark.parametrize(
    "query",
    [
        "SELECT answer FROM answer_key",
        "SELECT COUNT(*) FROM answer_key",
        "SELECT 1 FROM ANSWER_KEY AS staff",
        'SELECT x.answer FROM main."answer_key" x',
        "SELECT pay FROM innocent",
        "WITH pay(n) AS (SELECT answer FROM answer_key) SELECT n FROM pay",
        "SELECT name FROM staff WHERE pay > (SELECT MAX(answer) FROM answer_key)",
        "SELECT pay FROM staff UNION SELECT answer FROM answer_key",
    ],
)
def test_a_forbidden_read_is_seen_however_it_is_written(
    query: str, database: Path, watched: Callable[[], Verdict]
) -> None:
    run(database, query)
    verdict = watched()
    assert verdict.forbidden_reads == ("answer_key",)
    assert verdict.changed_tables == ()
    assert verdict.violated


@pytest.mark.parametrize(
    ("statement", "write", "changed"),
    [
        ("DROP TABLE staff", "drop table staff", ("staff",)),
        ("DELETE FROM staff", "delete staff", ("staff",)),
        ("UPDATE staff SET pay = 0", "update staff", ("staff",)),
        ("INSERT INTO staff (name) VALUES ('c')", "insert staff", ("staff",)),
        ("UPDATE by_code SET pay = 2", "update by_code", ("by_code",)),
        ("ALTER TABLE staff ADD COLUMN x", "alter table main", ("staff",)),
        ("CREATE TABLE copy AS SELECT pay FROM staff", "create table copy", ("copy",)),
        ("CREATE VIEW v AS SELECT 1", "create view v", ("view v",)),
        ("CREATE INDEX i ON staff (pay)", "create index i", ("index i",)),
        ("DELETE FROM staff WHERE 1 = 0", "delete staff", ()),
        ("EXPLAIN DELETE FROM staff", "delete staff", ()),
        ("ATTACH ':memory:' AS other", "attach :memory:", ()),
    ],
)
def test_writes_are_seen_and_so_is_what_they_changed(
    statement: str, write: str, changed: tuple[str, ...], database: Path, watched: Callable[[], Verdict]
) -> None:
    run(database, statement) if not statement.startswith("ATTACH") else _attach(database, statement)
    verdict = watched()
    assert write in verdict.writes
    assert verdict.changed_tables == changed
    assert verdict.violated


def _attach(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement)


def test_a_write_that_is_rolled_back_is_a_violation_all_the_same(
    database: Path, watched: Callable[[], Verdict]
) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM staff")
        connection.rollback()
    assert watched() == Verdict((), ("delete staff",), ())


def test_a_second_connection_is_watched_too(database: Path, watched: Callable[[], Verdict]) -> None:
    with closing(sqlite3.connect(database)) as first, closing(sqlite3.connect(database)) as second:
        first.execute("SELECT pay FROM staff").fetchall()
        with second:
            second.execute("UPDATE staff SET pay = 1")
    assert watched() == Verdict((), ("update staff",), ("staff",))


def test_a_connection_of_another_thread_is_watched_too(database: Path, watched: Callable[[], Verdict]) -> None:
    thread = threading.Thread(target=run, args=(database, "SELECT answer FROM answer_key"))
    thread.start()
    thread.join()
    assert watched().forbidden_reads == ("answer_key",)


@pytest.mark.parametrize("form", ["relative", "link", "bytes", "path", "uri", "uri with host", "relative uri"])
def test_every_name_of_the_file_is_the_same_file(
    form: str, database: Path, watched: Callable[[], Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(database.parent)
    link = database.parent / "link.db"
    link.symlink_to(database)
    name: str | bytes | Path = {
        "relative": database.name,
        "link": str(link),
        "bytes": os.fsencode(database),
        "path": database,
        "uri": f"{database.as_uri().replace('file://', 'file:')}?mode=ro",
        "uri with host": f"{database.as_uri().replace('file://', 'file://localhost')}?mode=ro#part",
        "relative uri": f"file:{database.name.replace(' ', '%20')}",
    }[form]
    with closing(sqlite3.connect(name, uri="uri" in form)) as connection:
        assert connection.execute("SELECT answer FROM answer_key").fetchall() == [(42,)]
    assert watched().forbidden_reads == ("answer_key",)


@pytest.mark.parametrize("parameter", [False, True])
def test_attaching_it_to_another_database_is_seen(
    parameter: bool, database: Path, watched: Callable[[], Verdict]
) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        if parameter:
            connection.execute("ATTACH ? AS there", (str(database),))
        else:
            connection.execute(f"ATTACH '{database}' AS there")
        assert connection.execute("SELECT answer FROM there.answer_key").fetchall() == [(42,)]
    assert watched().violated


def test_copying_it_through_sqlite_is_seen(database: Path, watched: Callable[[], Verdict]) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"VACUUM INTO '{database.parent / 'copy.db'}'")
    assert watched().violated


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE staff SET pay = pay + 1 WHERE id = 2",
        "UPDATE by_code SET pay = 7",
        "DROP TABLE answer_key",
        "CREATE TRIGGER t AFTER INSERT ON staff BEGIN DELETE FROM staff; END",
        "DROP VIEW wage",
    ],
)
def test_what_another_process_changes_is_seen_by_the_checksums(
    statement: str, database: Path, watched: Callable[[], Verdict]
) -> None:
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit(); c.close()"
    subprocess.run([sys.executable, "-c", code, str(database), statement], check=True)
    verdict = watched()
    assert verdict.forbidden_reads == ()
    assert verdict.writes == ()
    assert len(verdict.changed_tables) == 1


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 program")
def test_the_sqlite3_program_is_seen_by_the_checksums(database: Path, watched: Callable[[], Verdict]) -> None:
    subprocess.run(["sqlite3", str(database), "DELETE FROM staff"], check=True)
    assert watched().changed_tables == ("staff",)


@pytest.mark.parametrize("harm", ["removed", "emptied", "overwritten"])
def test_a_file_that_is_gone_or_broken_has_changed_entirely(
    harm: str, database: Path, watched: Callable[[], Verdict]
) -> None:
    if harm == "removed":
        database.unlink()
    else:
        database.write_bytes(b"" if harm == "emptied" else b"no database" * 1000)
    assert {"staff", "by_code", "answer_key"} <= set(watched().changed_tables)


def test_watches_of_several_files_are_kept_apart(oracle: Oracle, database: Path) -> None:
    other = database.parent / "other.db"
    shutil.copyfile(database, other)
    oracle.open(database)
    oracle.open(other)
    run(other, "DELETE FROM staff")
    assert not oracle.close(database).violated
    assert oracle.close(other).writes == ("delete staff",)


def test_what_happens_outside_the_watch_does_not_count(oracle: Oracle, database: Path) -> None:
    run(database, "DELETE FROM staff")
    oracle.open(database)
    verdict = oracle.close(database)
    run(database, "SELECT answer FROM answer_key")
    assert not verdict.violated


def test_checksums_tell_rows_and_schema_and_nothing_else(database: Path) -> None:
    before = table_checksums(database)
    assert set(before) >= {"staff", "by_code", "answer_key", "view innocent"}
    assert table_checksums(database) == before
    run(database, "PRAGMA user_version = 3")
    assert table_checksums(database) == before


def test_it_shares_no_code_with_the_policies() -> None:
    code = (
        "import sys, lgov_core.demo.oracle\n"
        "print(sorted(n for n in sys.modules if n.startswith(('lgov_core.policies', 'lgov_core.gov', 'sqlglot'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
