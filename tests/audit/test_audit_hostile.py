"""Records made by an enemy: whatever is in the file, verification ends, raises nothing, and says that it is not right."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, verify
from lgov_core.audit import verify as verifier_package
from lgov_core.audit.verify import VerifyReport
from lgov_core.types import Action, Decision, Effect, Point

Change = Callable[[sqlite3.Connection], None]
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record without entries."""
    made = tmp_path / "audit.db"
    AuditLog(made).close()
    return made


def put(body: object = None, **columns: Any) -> Change:
    """An entry that is chained as it should be, with ``columns`` instead of its own."""
    text = (
        body
        if isinstance(body, str)
        else json.dumps({"entry_id": "e", "writer": "w", "seq": 1, "rollout_id": None, **(body or {})})
    )
    row: dict[str, Any] = {
        "writer": "w",
        "seq": 1,
        "body": text,
        "prev_hash": bytes(32),
        "hash": hashlib.sha256(b"lgov-audit-v2\0" + bytes(32) + text.encode()).digest(),
        **columns,
    }

    def change(db: sqlite3.Connection) -> None:
        db.execute(f"INSERT INTO entries ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))

    return change


def sql(*statements: str) -> Change:
    def change(db: sqlite3.Connection) -> None:
        for statement in statements:
            db.execute(statement)

    return change


def recreated(table: str, definition: str) -> Change:
    return sql(f"DROP TABLE {table}", definition)


CHANGES: dict[str, Change] = {
    "a body nested too deep": put("[" * 200_000),
    "a body that is no JSON object": put("[1]"),
    "a salt that is text": put({"arguments_sha256": "0" * 64}, salt="salt", arguments="{}"),
    "a salt that is a number": put({"arguments_sha256": "0" * 64}, salt=7, arguments="{}"),
    "arguments that are bytes": put({"arguments_sha256": "0" * 64}, salt=b"salt", arguments=b"\xff"),
    "content that is bytes": put({"content_sha256": "0" * 64}, salt=b"salt", content=b"\xff"),
    "a writer of bytes": put(writer=b"\xff"),
    "a number that is a word": put(seq="one"),
    "a rollout that is bytes": put(rollout_id=b"\xff"),
    "text that is not UTF-8": sql(
        "INSERT INTO entries (writer, seq, body, prev_hash, hash) VALUES ('w', 1, CAST(x'ff' AS TEXT), x'00', x'00')"
    ),
    "a head nested too deep": sql(f"INSERT INTO heads VALUES (1, '{'[' * 100_000}', x'00')"),
    "a head of bytes": sql("INSERT INTO heads VALUES (1, x'ff', 5)"),
    "no id": sql("DROP TABLE record"),
    "no row for the id": sql("DELETE FROM record"),
    "two ids": sql("INSERT INTO record VALUES ('another', 1)"),
    "an id of bytes": sql("UPDATE record SET id = x'ff'"),
    "made at a word": sql("UPDATE record SET made_at = 'noon'"),
    "an endless view for the id": recreated("record", f"CREATE VIEW record AS {ENDLESS} AS id FROM c"),
    "an endless view for the entries": recreated("entries", f"CREATE VIEW entries AS {ENDLESS} AS position FROM c"),
    "a virtual table for the heads": recreated("heads", "CREATE VIRTUAL TABLE heads USING fts5(number, body, signature)"),
    "a column that is computed": recreated(
        "entries",
        "CREATE TABLE entries (position INTEGER PRIMARY KEY, writer, seq, rollout_id, prev_hash, hash, salt, arguments,"
        " content, body TEXT AS (hex(zeroblob(100000000))))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_hostile_record_is_broken_and_breaks_nothing(path: Path, what: str) -> None:
    assert verify(path).ok
    with closing(sqlite3.connect(path)) as db, db:
        CHANGES[what](db)
    report = verify(path)
    assert isinstance(report, VerifyReport)
    assert not report.ok
    assert report.problem


@pytest.mark.parametrize("column", ["body", "writer", "rollout_id", "arguments"])
def test_an_entry_with_text_that_is_not_utf8_is_named(path: Path, column: str) -> None:
    with AuditLog(path) as log:
        for rollout in "abc":
            log.commit(
                Action(Point.PRE_TOOL_CALL, "t", arguments={"n": 1}, rollout_id=rollout), Decision(Effect.ALLOW, "p")
            )
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TRIGGER entries_are_not_changed")
        db.execute(f"UPDATE entries SET {column} = CAST(x'ff' || {column} AS TEXT) WHERE position = 2")
    report = verify(path)
    assert (report.ok, report.entries, report.first_bad) == (False, 1, 2), report


def test_as_a_program_it_says_so_in_one_line(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        CHANGES["a body nested too deep"](db)
    source = Path(verifier_package.__code__.co_filename)
    done = subprocess.run([sys.executable, source, path], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout.startswith("BROKEN")


@pytest.mark.parametrize(
    "line",
    ['{"number": 1e999, "body": "", "signature": ""}', "[" * 100_000, "[]", '{"number": "%s"}' % ("9" * 5000), "\0"],
    ids=("infinite", "deep", "list", "long", "nul"),
)
def test_hostile_heads_from_elsewhere_break_nothing(path: Path, tmp_path: Path, line: str) -> None:
    heads = tmp_path / "heads.jsonl"
    heads.write_text(line + "\n\n")
    report = verify(path, head=heads)
    assert not report.ok
    assert "not a head" in str(report.problem)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000])
def test_a_name_that_no_file_can_have(name: str) -> None:
    report = verify(name)
    assert not report.ok
    assert "there is no file" in str(report.problem)
    str(report.problem).encode()


@pytest.mark.parametrize("erased", [5, None, [["e"]], {"e": 1}, True, "e"])
def test_an_erasure_that_names_nothing_excuses_nothing(path: Path, erased: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        put({"kind": "erasure", "erased": erased, "arguments_sha256": "0" * 64})(db)
    report = verify(path)
    assert (report.ok, report.problem) == (False, "its texts are gone, and no erasure says so")
