"""What people and programs do to an audit record besides editing entries, and what must come of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core import Action, Decision, Effect, Governor, Point, PolicySet, ToolOutcome
from lgov_core.audit import AuditLog, SigningKey, make_key, verify
from lgov_core.audit.reading import AUDIT_RECORD, EntrySelection
from lgov_core.audit.signing import heads_path
from lgov_core.commands import cli
from lgov_core.errors import AuditError
from lgov_core.policies import ConstantPolicy, Rule

DENY = Decision(Effect.DENY, "sql", "no-drop", "it destroys a table")


def action(number: int) -> Action:
    return Action(Point.PRE_TOOL_CALL, "query", arguments={"i": number, "sql": f"PRIVATE {number}"}, rollout_id="r1")


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path / "audit.key")


@pytest.fixture
def path(tmp_path: Path, key: SigningKey) -> Path:
    """A signed record of ten entries and four heads, the first from before the first entry."""
    place = tmp_path / "audit.db"
    with AuditLog(place, signer=key, sign_every=4) as log:
        for number in range(10):
            log.commit(action(number), DENY)
    report = verify(place, key=key.public, head=heads_path(place), require_signed=True)
    assert (report.ok, report.heads, report.signed, report.anchored) == (True, 4, 10, 4)
    return place


def change(path: Path, *statements: str, rehashed: bool = False) -> None:
    """Runs statements as someone would who can write the file, and leaves all triggers as they were."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        if rehashed:
            heads: dict[str, bytes] = {}
            for position, writer, body in db.execute("SELECT position, writer, body FROM entries").fetchall():
                before = heads.get(writer, bytes(32))
                heads[writer] = hashlib.sha256(b"lgov-audit-v2\0" + before + body.encode()).digest()
                db.execute(
                    "UPDATE entries SET prev_hash = ?, hash = ? WHERE position = ?", (before, heads[writer], position)
                )
        for _, sql in triggers:
            db.execute(sql)


FLIPPED = "UPDATE entries SET body = replace(body, '\"deny\"', '\"allow\"')"


# ---------------------------------------------------------------------- signatures taken away


def test_a_flipped_record_without_its_signatures_does_not_pass_with_the_key(path: Path, key: SigningKey) -> None:
    change(path, FLIPPED, "DELETE FROM heads", rehashed=True)
    assert verify(path).ok, "the chains alone do not show it"
    report = verify(path, key=key.public)
    assert not report.ok
    assert "nothing in it is signed" in (report.problem or "")


def test_a_writer_that_is_killed_at_once_leaves_a_record_that_the_key_began(tmp_path: Path, key: SigningKey) -> None:
    place = tmp_path / "fresh.db"
    code = (
        "import os, sys; from pathlib import Path; from lgov_core.audit import AuditLog, load_key\n"
        "AuditLog(sys.argv[1], signer=load_key(Path(sys.argv[2]))); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(place), str(tmp_path / "audit.key")], timeout=60)
    assert done.returncode == 9
    report = verify(place, key=key.public, head=heads_path(place))
    assert (report.ok, report.entries, report.heads, report.key_trusted) == (True, 0, 1, True)


def test_what_nobody_closes_is_signed_when_the_interpreter_ends(tmp_path: Path, key: SigningKey) -> None:
    place = tmp_path / "fresh.db"
    code = (
        "import sys; from pathlib import Path; from lgov_core import FlightRecorder; from lgov_core.audit import load_key\n"
        "r = FlightRecorder(sys.argv[1], signer=load_key(Path(sys.argv[2]))); r.start_trace('a', 't')"
    )
    subprocess.run([sys.executable, "-c", code, str(place), str(tmp_path / "audit.key")], timeout=60, check=True)
    assert verify(place, key=key.public, require_signed=True).signed == 1


def test_a_head_is_due_after_a_time_too(tmp_path: Path, key: SigningKey) -> None:
    log = AuditLog(tmp_path / "fresh.db", signer=key)
    log.sign_after_s = 0
    for number in range(3):
        log.commit(action(number), DENY)
        assert verify(log.path, key=key.public).unsigned == 0
    log.close()


# ---------------------------------------------------------------------- values that nobody wrote


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET salt = 'text' WHERE position = 3",
        "UPDATE entries SET arguments = x'00ff' WHERE position = 3",
        "UPDATE entries SET arguments = 5 WHERE position = 3",
        "UPDATE entries SET body = x'00ff' WHERE position = 3",
        "UPDATE entries SET body = CAST(x'ff' AS TEXT) WHERE position = 3",
        "UPDATE entries SET body = replace(hex(zeroblob(100000)), '00', '[') WHERE position = 3",
        "UPDATE entries SET seq = 'three' WHERE position = 3",
        "UPDATE entries SET writer = x'00' WHERE position = 3",
        "UPDATE entries SET hash = 'text' WHERE position = 3",
        "UPDATE entries SET prev_hash = 4 WHERE position = 3",
        "UPDATE heads SET body = '[1]' WHERE number = 2",
        "UPDATE heads SET body = x'00' WHERE number = 2",
        "UPDATE heads SET signature = 'text' WHERE number = 2",
        "UPDATE heads SET body = json_set(body, '$.last', 'x') WHERE number = 2",
        "DELETE FROM record",
        "INSERT INTO record VALUES ('another', 1)",
        "DROP TABLE heads",
    ],
)
def test_any_value_at_all_is_a_report_and_not_an_exception(path: Path, key: SigningKey, statement: str) -> None:
    if "DROP" in statement:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(statement)
    else:
        change(path, statement)
    for given in (None, key.public):
        report = verify(path, key=given)
        assert not report.ok
        assert report.problem


def test_every_value_of_a_signed_record_is_covered(path: Path, key: SigningKey, tmp_path: Path) -> None:
    """Each column of each table, with another value of its own kind, or with one where there was none."""
    with AuditLog(path, signer=key) as log:
        log.append("signal", {"name": "stop"}, arguments=None, content={})  # without texts, and so without a salt
        log.append("signal", {"name": "why"}, arguments=None, content={"text": "hi"})
        log.erase(EntrySelection(entry_id=log.entries()[4].entry_id))
    proof: dict[str, Any] = {"key": key.public, "head": heads_path(path), "require_signed": True}
    assert verify(path, **proof).ok
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = [
            (table, column, row)
            for table in tables
            for _, column, *_ in db.execute(f"PRAGMA table_info({table})").fetchall()
            for (row,) in db.execute(f"SELECT rowid FROM {table} WHERE rowid IN (1, 2, 5, 11, 12)").fetchall()
        ]
    changed = "CASE typeof({0}) WHEN 'integer' THEN -{0} WHEN 'text' THEN {0} || ' ' WHEN 'null' THEN {1} ELSE {0} || x'00' END"
    accepted: list[object] = []
    for table, column, row in cells:
        for planted in ("'approved by Eve'", "zeroblob(16)"):
            copy = Path(shutil.copy(path, tmp_path / "copy.db"))
            change(copy, f"UPDATE {table} SET {column} = {changed.format(column, planted)} WHERE rowid = {row}")
            if verify(copy, **proof).ok:
                accepted.append((table, column, row, planted))
    assert not accepted


def test_no_text_can_pass_its_beginning_to_its_salt(path: Path, key: SigningKey) -> None:
    with AuditLog(path, signer=key) as log:
        log.append("signal", {"name": "pay"}, arguments={"n": 1}, content={})
    moved = "salt = CAST(salt || CAST(substr(arguments, 1, 5) AS BLOB) AS BLOB), arguments = substr(arguments, 6)"
    change(path, f"UPDATE entries SET {moved} WHERE position = 11")
    report = verify(path, key=key.public)
    assert (report.first_bad, report.problem) == (11, "the text of its salt does not match the hash")


# ---------------------------------------------------------------------- triggers and tables


EVIL = [
    "CREATE TRIGGER evil BEFORE INSERT ON entries WHEN NEW.body LIKE '%deny%' BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER evil AFTER INSERT ON entries BEGIN DELETE FROM heads; END",
    "DROP TRIGGER entries_are_not_removed",
    "CREATE TABLE entries_too (x)",
    "ANALYZE",  # whose table takes any text
]


@pytest.mark.parametrize("statement", EVIL)
def test_a_record_with_strange_triggers_is_found_and_not_written_to(
    path: Path, key: SigningKey, statement: str
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)
    report = verify(path, key=key.public)
    assert not report.ok
    assert "tables or triggers" in (report.problem or "")
    with pytest.raises(AuditError, match="tables or triggers"):
        AuditLog(path, signer=key)


def test_strange_triggers_are_a_fault_also_where_only_a_signature_seems_to_be_lacking(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        log.commit(action(0), DENY)
    with closing(sqlite3.connect(log.path, isolation_level=None)) as db:
        db.execute(EVIL[0])
    report = verify(log.path, require_signed=True)
    assert (report.ok, report.lacking) == (False, False)
    assert "tables or triggers" in (report.problem or "")


def test_an_entry_that_the_database_drops_in_silence_is_not_acknowledged(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db")
    governor = Governor(PolicySet([Rule(ConstantPolicy(Effect.ALLOW))]), audit=log)
    assert not governor.decide(action(1)).blocks
    with closing(sqlite3.connect(log.path, isolation_level=None)) as db:
        db.execute("CREATE TRIGGER evil BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(AuditError, match="the database did not keep the entry"):
        log.commit(action(2), Decision(Effect.ALLOW, "p"))
    decision = governor.decide(action(3))
    assert decision.blocks
    assert decision.rule == "audit-failed"
    log.close()


def test_the_verifier_knows_the_schema_that_is_written(tmp_path: Path) -> None:
    AuditLog(tmp_path / "audit.db").close()
    with closing(sqlite3.connect(tmp_path / "audit.db")) as db:
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")}
    assert len(names) == sum(statement.startswith("CREATE") for statement in AUDIT_RECORD.schema)
    assert verify(tmp_path / "audit.db").ok
    AuditLog(tmp_path / "audit.db").close()


# ---------------------------------------------------------------------- the second place


def test_a_line_that_a_full_disk_cut_in_the_middle_is_passed_over_and_a_false_one_is_not(
    path: Path, key: SigningKey
) -> None:
    heads = heads_path(path)
    *lines, last = heads.read_text().splitlines(keepends=True)
    heads.write_text("".join(lines) + last[:50])
    with AuditLog(path, signer=key) as log:
        log.commit(action(11), DENY)
    report = verify(path, key=key.public, head=heads)
    assert (report.ok, report.heads, report.anchored) == (True, 5, 5), "what was cut off is written again"
    heads.write_text(heads.read_text().replace(last[:50], last[:30].replace("4", "9") + "x"))
    assert "not a head" in (verify(path, key=key.public, head=heads).problem or "")


def test_records_may_share_a_second_place(path: Path, key: SigningKey) -> None:
    heads, other = heads_path(path), path.with_name("other.db")
    with AuditLog(other, signer=key, heads=heads) as log:
        log.commit(action(1), DENY)
    for place, count in ((other, 2), (path, 4)):
        report = verify(place, key=key.public, head=heads)
        assert (report.ok, report.anchored, len(report.others)) == (True, count, 1), report
    stranger = path.with_name("stranger.db")
    with AuditLog(stranger, signer=key) as log:
        log.commit(action(1), DENY)
    assert "is of this record" in (verify(stranger, key=key.public, head=heads).problem or "")


def test_a_second_place_that_was_emptied_vouches_for_nothing(path: Path, key: SigningKey) -> None:
    heads_path(path).write_text("")
    assert "is of this record" in (verify(path, key=key.public, head=heads_path(path)).problem or "")


# ---------------------------------------------------------------------- erasing, exporting, looking


def test_an_erasure_is_not_over_while_sqlites_log_holds_the_texts(path: Path, key: SigningKey) -> None:
    reader = sqlite3.connect(path, isolation_level=None)
    with closing(reader), AuditLog(path, busy_timeout_s=0.2, signer=key) as log:
        log.commit(action(99), DENY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        with pytest.raises(AuditError, match="still in"):
            log.erase(EntrySelection(rollout_id="r1"))
        reader.execute("COMMIT")
        assert log.erase(EntrySelection(rollout_id="r1")) == 0
        files = [file.read_bytes() for file in path.parent.glob("audit.db*")]
    assert not any(b"PRIVATE" in content for content in files)
    assert verify(path).ok


@pytest.mark.parametrize("target", ["audit.db", "other.db"])
def test_an_export_does_not_overwrite_a_record(path: Path, target: str) -> None:
    shutil.copy(path, path.with_name("other.db"))
    before = path.with_name(target).read_bytes()
    done = CliRunner().invoke(cli, ["export", str(path), "--to", str(path.with_name(target))])
    assert done.exit_code != 0
    assert path.with_name(target).read_bytes() == before


def test_what_a_model_wrote_does_not_act_on_the_terminal(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.db") as log:
        name = "t\x1b]0;owned\x07\x1b[2J\u202e"
        log.commit(Action(Point.PRE_TOOL_CALL, name), Decision(Effect.DENY, "p", "r", "\x1b[31mred"))
    shown = CliRunner().invoke(cli, ["audit", "show", str(tmp_path / "audit.db")])
    assert shown.exit_code == 0
    assert not set("\x1b\x07\u202e") & set(shown.stdout)


def test_a_wrong_key_file_is_a_wrong_question_and_not_a_broken_record(path: Path) -> None:
    for wrong in (["--key", "nonsense"], ["--head", str(path.with_name("absent"))]):
        assert CliRunner().invoke(cli, ["audit", "verify", str(path), *wrong]).exit_code == 2
        script = [sys.executable, "-m", "lgov_core.audit.verify", str(path), *wrong]
        assert subprocess.run(script, capture_output=True, timeout=60).returncode == 2


# ---------------------------------------------------------------------- redaction


def _everything(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.commit(
            Action(Point.PRE_TOOL_CALL, "login", arguments={"password": "hunter2x"}, text="with hunter2x"),
            Decision(Effect.DENY, "tool", reason="'hunter2x' is too short", parts=(DENY.changed(reason="hunter2x"),)),
        ),
        lambda log: log.commit(
            Action(Point.POST_MODEL_CALL, "m", "model", {"tool_calls": [{"arguments": json.dumps({"password": "hunter2x"})}]}),
            DENY,
        ),
        lambda log: log.commit_outcome(
            ToolOutcome(Action(Point.PRE_TOOL_CALL, "in", arguments={"password": "hunter2x"}), "error", error="hunter2x"),
            None,
        ),
        lambda log: log.append("trace", {}, arguments={"password": ["hunter2x"], "line": "login hunter2x"}, content={}),
    ],
)  # fmt: skip
def test_a_redacted_value_is_nowhere_in_the_file(tmp_path: Path, write: Callable[[AuditLog], object]) -> None:
    path = tmp_path / "audit.db"
    with AuditLog(path, redact=["password"]) as log:
        write(log)
        assert b"hunter2x" not in _everything(path)
        assert b"[redacted]" in _everything(path)
    with AuditLog(tmp_path / "plain.db") as log:
        write(log)
        assert b"hunter2x" in _everything(tmp_path / "plain.db")


@pytest.mark.parametrize(("attempt", "latency"), [(1, float("nan")), (1, float("inf")), (True, 1.0), ("1", 1.0)])
def test_no_number_can_make_an_entry_that_is_not_json(tmp_path: Path, attempt: Any, latency: float) -> None:
    path = tmp_path / "audit.db"
    with AuditLog(path) as log:
        with contextlib.suppress(AuditError):
            log.commit(
                Action(Point.PRE_TOOL_CALL, "t", attempt=attempt), Decision(Effect.DENY, "p", latency_us=latency)
            )
        log.commit(action(1), DENY)
        assert log.entries()
    assert verify(path).ok


# ---------------------------------------------------------------------- what it is made with


@pytest.mark.parametrize("place", ["audit.db", "audit.db-wal", "../{folder}/audit.db", "link.db"])
def test_heads_are_not_written_into_the_record(tmp_path: Path, key: SigningKey, place: str) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "audit.db")
    for _ in range(2):  # when there is no record yet, and when there is
        with pytest.raises(AuditError, match="heads cannot be kept"):
            AuditLog(tmp_path / "audit.db", signer=key, heads=tmp_path / place.format(folder=tmp_path.name))
        AuditLog(tmp_path / "audit.db", signer=key).close()


@pytest.mark.parametrize(
    "options",
    [
        *({"sign_every": wrong} for wrong in (0, 1.5, True)),
        *({"busy_timeout_s": wrong} for wrong in (-1, float("nan"), "5")),
        *({"redact": wrong} for wrong in ("password", 5, [5], [""])),
        {"policy_digest": 5},
    ],
    ids=str,
)
def test_options_without_meaning_are_refused(tmp_path: Path, key: SigningKey, options: dict[str, Any]) -> None:
    with pytest.raises(AuditError):
        AuditLog(tmp_path / "audit.db", signer=key, **options)
