"""Damaged audit records: every command that reads one says what cannot be read, with status 4, and none ends in a traceback."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, load_key, make_key
from lgov_core.audit.rotation import rotate
from tests.commands.cli_runner import lgov

DENIED = Decision(Effect.DENY, "sql", "no-drop", "it would drop a table")
READING = (
    ("audit", "show", "audit.db"),
    ("audit", "show", "audit.db", "--json"),
    ("audit", "show", "audit.db", "--denied"),
    ("audit", "show", "audit.db", "--counts"),
    ("export", "audit.db"),
    ("export", "audit.db", "--format", "ocsf"),
    ("export", "audit.db", "--format", "cloudevents"),
    ("export", "audit.db", "--format", "report", "--to", "report.html"),
    ("export", "audit.db", "--format", "report", "--json"),
    ("erase", "audit.db", "--where", "text=staff", "--dry-run"),
    ("audit", "verify", "audit.db", "--archive", "archive"),
)


@pytest.fixture
def record(folder: Path) -> Path:
    """A signed record that continues an archived one, each of some pages."""
    key, path = make_key(folder / "audit.key"), folder / "audit.db"
    (folder / "lgov.toml").write_text('audit_key = "audit.key"\n')
    write(path, 40)
    rotate(path, folder / "archive", signer=key)
    write(path, 40)
    return path


def write(path: Path, count: int) -> None:
    with AuditLog(path, signer=load_key(path.parent / "audit.key")) as log:
        for number in range(count):
            action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": f"DROP TABLE staff{number}" * 20})
            log.commit(action, DENIED)


def archive_of(record: Path) -> Path:
    (archive,) = (record.parent / "archive").glob("audit-*.db")
    return archive


def tamper(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    """Changes a record, and leaves its triggers as they were."""
    with closing(sqlite3.connect(path)) as connection, connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        change(connection)
        for _, statement in triggers:
            connection.execute(statement)


def cut_body(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET body = substr(body, 1, 60) WHERE position = 3")


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_an_entry_that_cannot_be_read_is_named_with_status_4(record: Path, command: tuple[str, ...]) -> None:
    tamper(record, cut_body)
    done = lgov(*command)
    assert done.exit_code == 4, done.output
    if command[1] not in ("verify", "show") and "report" not in command:
        assert f"entry 3 of audit record {record.name} cannot be read" in done.stderr.replace(f"{record.parent}/", "")
        assert "lgov audit verify" in done.stderr


def test_what_can_be_read_is_written_all_the_same(record: Path) -> None:
    tamper(record, cut_body)
    positions = [json.loads(line)["position"] for line in lgov("export", str(record)).stdout.splitlines()]
    assert positions == [1, 2, *range(4, 42)]
    assert [entry["position"] for entry in json.loads(lgov("audit", "show", "--json", "audit.db").stdout)][-1] == 41
    report = lgov("export", str(record), "--format", "report").stdout
    assert report.splitlines()[3].startswith("BROKEN at entry 3")
    assert "Not in this report: entry 3 of audit record" in report


def test_a_text_that_was_exchanged_is_not_shown_as_what_was_judged(record: Path) -> None:
    tamper(record, lambda db: db.execute('UPDATE entries SET arguments = \'{"query":"SELECT 1"}\' WHERE position = 3'))
    done = lgov("audit", "show", "audit.db")
    assert (done.exit_code, "SELECT 1" in done.output) == (4, False)
    assert "the text of its arguments does not match the hash" in done.stderr


COLUMNS = ("body", "arguments", "content", "hash", "prev_hash", "salt", "writer", "seq", "rollout_id")


def damaged(path: Path, chance: random.Random) -> None:
    """Damages a record in one way of those that a disk or a person has."""
    way = chance.choice(["flip", "overwrite", "cut", "column", "column", "head", "type"])
    if way in ("flip", "overwrite", "cut"):
        raw = bytearray(path.read_bytes())
        at = chance.randrange(len(raw))
        if way == "cut":
            del raw[at:]
        for place in range(at, min(len(raw), at + (20 if way == "overwrite" else 1))):
            raw[place] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        return
    table, column, key = (
        ("heads", "body", "number") if way == "head" else ("entries", chance.choice(COLUMNS), "position")
    )

    def change(db: sqlite3.Connection) -> None:
        at = chance.randint(1, 41 if table == "entries" else 1)
        (value,) = db.execute(f"SELECT {column} FROM {table} WHERE {key} = ?", (at,)).fetchone()
        raw = bytearray(value if isinstance(value, bytes) else str(value).encode())
        if raw:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        flipped = bytes(raw) if isinstance(value, bytes) else bytes(raw).decode("latin-1")
        other = chance.choice([7, 1.5, b"\xff\x00", "x"]) if way == "type" else flipped
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (other, at))

    tamper(path, change)


@pytest.mark.parametrize("seed", range(30))
def test_no_damage_makes_a_command_end_in_a_traceback(record: Path, seed: int) -> None:
    chance = random.Random(seed)
    damaged(record if seed % 3 else archive_of(record), chance)
    for command in READING:
        done = lgov(*command)  # which raises what is no error of lgov
        assert done.exit_code in (0, 1, 4), (seed, command, done.output)


# ---------------------------------------------------------------------- the report and the archives before a record


def report(*options: str) -> tuple[int, str]:
    done = lgov("export", "audit.db", "--format", "report", *options)
    return done.exit_code, done.stdout


@pytest.mark.parametrize("options", [(), ("--archive", "archive")])
def test_an_archive_that_is_damaged_is_broken_on_top_of_the_report_as_verify_says(
    record: Path, options: tuple[str, ...]
) -> None:
    archive = archive_of(record)
    for size in (archive.stat().st_size // 2, 100, 0):
        archive.write_bytes(archive.read_bytes()[:size])
        status, text = report(*options)
        assert (status, text.splitlines()[3].startswith("BROKEN: ")) == (4, True), text
        assert archive.name in text.splitlines()[3]
        assert archive.stat().st_size == size, "reading writes nothing"
        assert lgov("audit", "verify", "audit.db", "--archive", "archive").exit_code == 4


def test_an_archive_that_was_renamed_is_found_by_its_content(record: Path) -> None:
    archive = archive_of(record)
    archive.rename(archive.with_name("of-last-year.sqlite"))
    for options in ((), ("--archive", "archive")):
        status, text = report(*options)
        assert (status, "of-last-year.sqlite, record" in text) == (0, True), text
    assert lgov("audit", "verify", "audit.db", "--archive", "archive").exit_code == 0


def test_another_record_under_the_name_of_an_archive_does_not_pass_for_it(record: Path) -> None:
    archive = archive_of(record)
    archive.unlink()
    AuditLog(archive, signer=None).close()
    status, text = report()
    assert (status, text.splitlines()[3].startswith("BROKEN: "), archive.name in text.splitlines()[3]) == (
        4,
        True,
        True,
    )


def test_an_archive_that_is_nowhere_breaks_the_report_whether_its_folder_was_named_or_not(record: Path) -> None:
    archive_of(record).unlink()
    for options, where in (((), "was not found: name its folder"), (("--archive", "archive"), "is not in archive")):
        status, text = report(*options)
        assert (status, f"that it continues {where}" in text.splitlines()[3]) == (4, True), text
    assert lgov("audit", "verify", "audit.db", "--archive", "archive").exit_code == 4
    alone = lgov("audit", "verify", "audit.db")
    assert (alone.exit_code, "(verify --archive looks at them too)" in alone.stdout) == (0, True), "it is one file"
