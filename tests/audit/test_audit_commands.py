"""`lgov audit` on a real record: what the documentation says, run as it stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lgov_core import Action, Decision, Effect, Governor, Point, PolicySet, ToolOutcome
from lgov_core.audit import AuditLog, load_key, make_key, verify
from lgov_core.commands import cli
from lgov_core.policies import ConstantPolicy, Rule

ROOT = Path(__file__).parents[2]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return lambda *args: CliRunner().invoke(cli, [str(arg) for arg in args])


def record(folder: Path) -> Path:
    """Two acts of one rollout, one of them denied, signed with audit.key."""
    path = folder / "audit.db"
    rules = [
        Rule(ConstantPolicy(Effect.DENY, name="never", reason="no"), tools=("rm",)),
        Rule(ConstantPolicy(Effect.ALLOW)),
    ]
    with AuditLog(path, signer=load_key(folder / "audit.key")) as log:
        governor = Governor(PolicySet(rules), audit=log)
        for tool in ("ls", "rm"):
            action = Action(Point.PRE_TOOL_CALL, tool, arguments={"path": "private"}, rollout_id="r1", call_id=tool)
            decision = governor.decide(action)
            governor.record(ToolOutcome(action, "denied" if decision.blocks else "ok", "done", decision=decision))
    return path


def test_the_commands_in_the_document_do_what_it_says(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/how-to/audit.md").read_text()
    block, *_ = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
    variable = "LGOV_AUDIT_KEY=audit.key "
    assert variable in block
    monkeypatch.setenv(*variable.strip().split("="))
    commands = [shlex.split(line.removeprefix(variable), comments=True) for line in block.splitlines()]
    names = (
        "audit keygen",
        "audit verify",
        "audit verify",
        "audit show",
        "audit show",
        "export audit.db",
        "export audit.db",
        "erase audit.db",
    )
    run_command = commands.pop(1)
    assert run_command[:2] == ["lgov", "run"]
    assert [" ".join(command[1:3]) for command in commands] == list(names)
    assert run(*commands[0][1:]).exit_code == 0
    record(tmp_path)
    for command in commands[1:]:
        done = run(*command[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 4
    assert verify(tmp_path / "audit.db").erased == 4


def test_verify_says_what_is_proved_and_ends_with_4_when_broken(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    path = record(tmp_path)
    fine = run("audit", "verify", path)
    assert fine.exit_code == 0
    assert "not compared with one that you trust" in fine.stdout
    assert "signed: 4 entries by 2 heads, 0 after" in fine.stdout

    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER entries_are_not_changed")
    connection.execute("UPDATE entries SET body = replace(body, '\"deny\"', '\"allow\"') WHERE position = 3")
    connection.commit()
    connection.close()
    broken = run("audit", "verify", path, "--json")
    assert broken.exit_code == 4
    answer = json.loads(broken.stdout)
    assert (answer["ok"], answer["first_bad"], answer["entries"]) == (False, 3, 2)
    assert "BROKEN at entry 3" in run("audit", "verify", path).stdout
    absent = run("audit", "verify", tmp_path / "absent.db")
    assert (absent.exit_code, "there is no audit record" in absent.stderr, "BROKEN" in absent.output) == (
        1,
        True,
        False,
    )
    assert run("audit", "verify").exit_code == 2


def test_show_cuts_a_long_row_to_one_line(run: Run, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        never = ConstantPolicy(Effect.DENY, name="never", reason="no\nand " + "again " * 50)
        Governor([never], audit=log).decide(Action(Point.PRE_TOOL_CALL, "pay", arguments={"note": "much " * 50}))
    header, row = run("audit", "show", tmp_path / "audit.db").stdout.splitlines()
    assert (len(header), len(row)) == (120, 120)
    assert 'pay {"note":"much much much' in row
    assert "never/deny: no and again" in row
    assert row.endswith("…")


def test_show_lists_and_filters(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    path = record(tmp_path)
    everything = json.loads(run("audit", "show", path, "--json").stdout)
    assert [(one["kind"], one["name"]) for one in everything] == [
        ("decision", "ls"), ("outcome", "ls"), ("decision", "rm"), ("outcome", "rm"),
    ]  # fmt: skip
    (denied,) = json.loads(run("audit", "show", path, "--denied", "--json").stdout)
    assert (denied["effect"], denied["arguments"]) == ("deny", {"path": "private"})
    one = json.loads(run("audit", "show", path, "--where", f"entry={denied['entry_id']}", "--json").stdout)
    assert [(entry["kind"], entry["name"]) for entry in one] == [("decision", "rm"), ("outcome", "rm")]
    assert json.loads(run("audit", "show", path, "--where", "rollout=r2", "--json").stdout) == []
    assert "never/deny" in run("audit", "show", path).stdout
    absent = run("audit", "show", tmp_path / "absent.db")
    assert absent.exit_code == 1
    assert not (tmp_path / "absent.db").exists()


def test_cloudevents_have_what_the_specification_requires(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    events = [
        json.loads(line) for line in run("export", record(tmp_path), "--format", "cloudevents").stdout.splitlines()
    ]
    assert len(events) == 4
    for event in events:
        assert event["specversion"] == "1.0"
        assert all(isinstance(event[name], str) and event[name] for name in ("id", "source", "type", "time", "subject"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", event["time"])
        assert event["data"]["entry_id"] == event["id"]
    assert len({(event["source"], event["id"]) for event in events}) == 4


def nothing_is_null(value: object) -> bool:
    return all(map(nothing_is_null, value.values())) if isinstance(value, dict) else value is not None


def test_ocsf_has_what_api_activity_requires(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    events = [json.loads(line) for line in run("export", record(tmp_path), "--format", "ocsf").stdout.splitlines()]
    required = {
        "activity_id",
        "actor",
        "api",
        "category_uid",
        "class_uid",
        "metadata",
        "severity_id",
        "src_endpoint",
        "time",
        "type_uid",
    }
    for event in events:
        assert required <= set(event)
        assert event["type_uid"] == event["class_uid"] * 100 + event["activity_id"]
        assert event["metadata"]["product"]["name"]
        assert event["metadata"]["version"] == "1.3.0"
        assert event["api"]["operation"]
        assert nothing_is_null({name: value for name, value in event.items() if name != "unmapped"})
        assert ("action_id" in event) == (event["metadata"].get("profiles") == ["security_control"])
    assert [event.get("action_id") for event in events] == [1, None, 2, None]
    assert [event["severity_id"] for event in events][2] == 4


def test_an_export_is_whole_or_not_there_and_follows_no_link(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    path = record(tmp_path)
    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "link").symlink_to("kept.txt")
    refused = run("export", path, "--to", tmp_path / "link")
    assert refused.exit_code == 1, "the record is not broken"
    assert "symbolic link" in refused.stderr
    assert (tmp_path / "kept.txt").read_text() == "kept"
    assert run("export", path, "--to", tmp_path / "no" / "folder").exit_code == 1
    done = run("export", path, "--after", 2, "--to", tmp_path / "out.jsonl", "--json")
    assert json.loads(done.stdout)["rows"] == 2
    assert [json.loads(line)["position"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [3, 4]
    assert not [name for name in tmp_path.iterdir() if name.name.endswith(".new")]


def test_erase_asks_first_and_says_when_there_is_nothing(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    path = record(tmp_path)
    assert run("erase", path, "--where", "rollout=r1").exit_code != 0  # nobody said yes
    assert verify(path).erased == 0
    assert run("erase", path, "--where", "rollout=r9", "--yes").exit_code == 1
    assert run("erase", path, "--yes").exit_code == 2
    erased = run("erase", path, "--where", "rollout=r1", "--yes", "--json", "--set", "audit_key=audit.key")
    assert [each["count"] for each in json.loads(erased.stdout)["places"]] == [4]
    assert verify(path).ok


def test_a_key_at_the_default_place_signs_what_lgov_run_records(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = json.loads(run("audit", "keygen", "--json").stdout)
    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n  - {name: all, use: allow, on: [pre_tool_call]}\n")
    (tmp_path / "agent.py").write_text("print('ran')\n")
    program = [sys.executable, "-c", "from lgov_core.commands import main; main()"]
    command = [*program, "run", "--policy", "policy.yaml", "--", "python", "agent.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    audit = tmp_path / ".lgov" / "audit.db"
    report = verify(audit, key=made["public_key"], head=f"{audit}.heads.jsonl", require_signed=True)
    assert report.ok, report
    shutil.rmtree(tmp_path / ".lgov")
    (Path(made["key"])).write_text("no key")
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 78  # a key that is there and cannot be used is not passed over
    assert "ran" not in refused.stdout


def test_a_key_that_is_there_is_no_broken_record(run: Run, tmp_path: Path) -> None:
    assert run("audit", "keygen", "--key", tmp_path / "k").exit_code == 0
    made = (tmp_path / "k").read_bytes()
    again = run("audit", "keygen", "--key", tmp_path / "k")
    assert (again.exit_code, (tmp_path / "k").read_bytes()) == (1, made)
    assert "there is a key at" in again.stderr


@pytest.mark.parametrize("left", [0, 4096])
def test_looking_into_a_file_that_lost_everything_makes_no_record_of_it(run: Run, tmp_path: Path, left: int) -> None:
    """A record that somebody emptied, or copied without its log, must not become one that is right and has no entries."""
    (tmp_path / "policy.yaml").write_text("version: 1\nrules: [{name: a, use: allow}]\n")
    path = tmp_path / "audit.db"
    if left:
        blank = sqlite3.connect(path)
        blank.execute("PRAGMA journal_mode=WAL")
        blank.close()
    else:
        path.touch()
    found = path.read_bytes()
    assert len(found) == left
    for command, status, why in (
        (["audit", "show", path], 4, "there is nothing in"),
        (["export", path], 1, "there is nothing in"),
        (["erase", path, "--where", "rollout=r1", "--yes"], 4, "there is nothing in"),
        (["policy", "eval", "policy.yaml", path], 1, "there is nothing in" if left else "holds no case"),
        (["traces", "list", path], 1, "there is nothing in"),
    ):
        done = run(*command)
        assert (done.exit_code, done.stdout) == (status, ""), command
        assert why in done.stderr
        assert path.read_bytes() == found
    broken = run("audit", "verify", path)
    assert broken.exit_code == 4
    assert "without the one that ends in -wal" in broken.stdout
    assert "entries" not in broken.stdout


@contextmanager
def closed_folder(*files: Path) -> Generator[Path]:
    """A folder with copies of the files that nobody may write to, for a user who is not root meanwhile."""
    was = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in files:
            shutil.copyfile(file, folder / file.name)
            (folder / file.name).chmod(0o444)
        folder.chmod(0o555)
        if was == 0:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(was)
            folder.chmod(0o755)


def test_a_record_is_verified_where_nothing_may_be_written(run: Run, tmp_path: Path) -> None:
    make_key(tmp_path / "audit.key")
    path, heads = record(tmp_path), tmp_path / "audit.db.heads.jsonl"
    changed = tmp_path / "changed.db"
    changed.write_bytes(path.read_bytes().replace(b'"effect":"deny"', b'"effect":"warn"'))
    with AuditLog(tmp_path / "busy.db") as log:
        log.commit(Action(Point.PRE_TOOL_CALL, "ls"), Decision(Effect.ALLOW, policy="all"))
        wal = tmp_path / "busy.db-wal"
        assert wal.stat().st_size
        with closed_folder(path, heads, changed, tmp_path / "busy.db", wal) as folder:
            assert verify(folder / path.name, head=folder / heads.name, require_signed=True).ok
            assert verify(folder / changed.name).first_bad == 3
            with_log = verify(folder / "busy.db")
    assert not with_log.ok
    assert "together with its log" in str(with_log.problem)


KILLED = """
import os, sys
from pathlib import Path
from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, load_key
log = AuditLog("audit.db", signer=load_key(Path("audit.key")))
for number in range(3):
    log.commit(Action(Point.PRE_TOOL_CALL, "ls", rollout_id="r1"), Decision(Effect.ALLOW, "p", "r", ""))
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A signed record whose first and only program was killed: all of it is in SQLite's log."""
    make_key(tmp_path / "audit.key")
    subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert b"lgvA" not in (tmp_path / "audit.db").read_bytes()
    return tmp_path / "audit.db"


@pytest.mark.parametrize(
    "command",
    ["export audit.db --format report --to r.txt", "policy eval policy.yaml audit.db", "policy trust audit.db"],
)
def test_a_record_that_lies_in_the_log_of_sqlite_only_is_known_as_one(run: Run, killed: Path, command: str) -> None:
    (killed.parent / "policy.yaml").write_text("version: 1\nrules:\n  - {name: all, use: allow}\n")
    done = run(*command.split())
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert "store" not in done.output


def test_verify_leaves_the_file_whole_so_that_a_copy_of_it_has_every_entry(run: Run, killed: Path) -> None:
    assert run("audit", "verify", killed).exit_code == 0
    shutil.copy(killed, copy := killed.with_name("copy.db"))
    assert (verify(copy).ok, verify(copy).entries) == (True, 3)


def test_what_a_killed_program_left_is_not_signed_and_not_called_broken(run: Run, killed: Path) -> None:
    done = run("audit", "verify", killed, "--require-signed")
    assert done.exit_code == 4
    assert done.output.startswith("NOT SIGNED: 3 entries have no signed head: written by a program that was killed")
    assert ("BROKEN" in done.output, "at entry" in done.output) == (False, False)
    answer = json.loads(run("audit", "verify", killed, "--require-signed", "--json").stdout)
    assert (answer["ok"], answer["lacking"], answer["first_bad"]) == (False, True, 1)


def test_verify_leaves_a_broken_record_and_its_log_as_they_are(run: Run, killed: Path) -> None:
    tampering = f"import os, sqlite3; sqlite3.connect({str(killed)!r}).execute('DROP TABLE heads'); os._exit(0)"
    subprocess.run([sys.executable, "-c", tampering], check=True)
    files = [Path(f"{killed}{end}") for end in ("", "-wal")]
    before = [file.read_bytes() for file in files]
    assert run("audit", "verify", killed).exit_code == 4
    assert before == [file.read_bytes() for file in files]


def test_a_dash_is_standard_output(run: Run, killed: Path) -> None:
    for form, begins in (("jsonl", '{"'), ("report", "Audit report of")):
        done = run("export", killed, "--format", form, "--to", "-")
        assert (done.exit_code, done.stdout.startswith(begins)) == (0, True), done.output
    run("export", killed, "--format", "ocsf", "--to", "events.jsonl")
    assert sorted(path.name for path in killed.parent.glob("[-e]*")) == ["events.jsonl"]


def test_a_backup_by_sqlite_of_a_record_in_use_has_every_entry(killed: Path) -> None:
    with AuditLog(killed, signer=load_key(killed.with_name("audit.key"))) as log:
        log.commit(Action(Point.PRE_TOOL_CALL, "ls"), Decision(Effect.ALLOW, "p", "r", ""))
        with (
            closing(sqlite3.connect(killed)) as record,
            closing(sqlite3.connect(copy := killed.with_name("copy.db"))) as to,
        ):
            record.backup(to)
    assert (verify(copy).ok, verify(copy).entries) == (True, 4)
