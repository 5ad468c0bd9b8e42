"""The window says of a store of format 4 what the code that wrote it said: after the migration, and of the same written anew.

``store.sqlite.gz`` and ``answers.json.gz`` were made by `record_golden` with the code before decisions had a table.
Left out are ``progress``, ``searched`` and ``announced``, which the API has no more. Since then two values are too few for an
interval: ``low`` and ``high`` of those are null in the answers.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lgov_core.store import open_store, rollout_queue
from tests.golden.window.window_answers import everything
from tests.golden.window.window_record import fill, settle
from tests.postgres_server import shared_server

HERE = Path(__file__).parent
TABLES = ("rollouts", "attempts", "calls", "rewards", "spans")


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return json.loads(gzip.decompress((HERE / "answers.json.gz").read_bytes()))


def old_store(path: Path) -> Path:
    with gzip.open(HERE / "store.sqlite.gz") as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return path


@pytest.fixture
def in_postgres(tmp_path: Path) -> Iterator[str]:
    """The address of a PostgreSQL store of format 3 with the same rows."""
    server = shared_server()
    name = server.new_database()
    old = old_store(tmp_path / "old.sqlite")
    with closing(sqlite3.connect(old)) as source, psycopg.connect(server.url(name)) as target:
        target.execute("CREATE SCHEMA lgov")
        target.execute("SET search_path = lgov")
        target.execute((HERE / "postgres-format-3.sql").read_bytes())
        for table in TABLES:
            found = source.execute(f"SELECT * FROM {table} ORDER BY seq")
            columns = [column for column, *_ in found.description]
            into = f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES"
            target.cursor().executemany(f"{into} ({', '.join(['%s'] * len(columns))})".encode(), found.fetchall())
            if table != "calls":
                sequence = f"pg_get_serial_sequence('lgov.{table}', 'seq')"
                target.execute(f"SELECT setval({sequence}, max(seq)) FROM {table}".encode())
        target.execute("SELECT setval('calls_order', max(seq)) FROM calls")
    yield server.url(name)
    server.drop(name)


def compare(place: str, answers: dict[str, Any]) -> None:
    with closing(open_store(place)) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_queue, "SILENT_S", math.inf)  # then an open attempt was never over
        found = everything(store, place)
    for pruned in found["prune"].values():
        pruned["spared"] = len(pruned["spared"])  # was a number
    # Which comparisons are offered was changed; those that were offered then are compared.
    compared = {name for name in found.keys() & answers.keys() if name.startswith("compare {")}
    assert compared
    for name in compared:
        assert [found[name][side].pop("weights") for side in "ab"] == [None, None]
    found, answers = (
        {name: answer for name, answer in every.items() if not name.startswith("compare") or name in compared}
        for every in (found, answers)
    )
    assert found.keys() == answers.keys()
    found["statistics"]["unannounced"] = found["statistics"].pop("named_only")
    found = {name: _before_times(answer) for name, answer in found.items()}
    for source in found["sources"]["sources"]:
        assert source["has"].pop("training") is False  # was not said then
    differ = {name: (found[name], answers[name]) for name in found if found[name] != answers[name]}
    assert differ == {}


def _before_times(answer: Any) -> Any:
    """The answer without what was not in it then: times of tool calls, sources, conversations, what a decision is about."""
    if isinstance(answer, list):
        return [_before_times(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    is_tool = {"arguments", "call_id", "started_at"} <= answer.keys()
    return {
        name: _before_times(item)
        for name, item in answer.items()
        if not (is_tool and name in ("started_at", "ended_at"))
        and not (name == "sources" and item == {})
        and name not in ("conversation", "conversations", "about")
    }


def test_a_migrated_file(tmp_path: Path, answers: dict[str, Any]) -> None:
    path = old_store(tmp_path / "store.sqlite")
    compare(str(path), answers)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (5,)
        decided = connection.execute(
            "SELECT count(*) FROM spans WHERE name = 'lgov.decision' AND claimed = 0"
        ).fetchone()
        assert connection.execute("SELECT count(*) FROM decisions").fetchone() == decided
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_migrated_database(in_postgres: str, answers: dict[str, Any]) -> None:
    compare(in_postgres, answers)


def test_a_file_written_anew(tmp_path: Path, answers: dict[str, Any]) -> None:
    path = tmp_path / "store.sqlite"
    with closing(open_store(path)) as store:
        fill(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        settle(connection.execute)
    compare(str(path), answers)


def test_a_database_written_anew(answers: dict[str, Any]) -> None:
    address = shared_server().empty_store()
    with closing(open_store(address)) as store:
        fill(store)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET search_path = lgov")
        settle(lambda statement: connection.execute(statement.encode()))
    compare(address, answers)


def test_the_migration_is_done_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_store(tmp_path / "store.sqlite")
    before = _dump(path)
    with monkeypatch.context() as patched:
        patched.setattr("lgov_core.store.tables._second", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            open_store(path)
    assert _dump(path) == before
    open_store(path).close()
    migrated = _dump(path)
    open_store(path).close()  # once is enough
    assert _dump(path) == migrated != before


def _dump(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return "\n".join([str(connection.execute("PRAGMA user_version").fetchone()), *connection.iterdump()])
