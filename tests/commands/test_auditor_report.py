"""`lgov export RECORD --format report`: what an auditor gets, and the verifier that needs nothing of lgov."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import lgov_core.audit
from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, make_key
from lgov_core.audit.reading import EntrySelection
from lgov_core.commands.group import Exit
from tests.commands.cli_runner import lgov

DENIED = Decision(Effect.DENY, "sql", "no-drop", "it would drop <staff>", policy_digest="b" * 64)
SHADOWED = Decision(
    Effect.ALLOW,
    "desk",
    "shadow",
    "",
    parts=(Decision(Effect.DENY, "desk", "no-write", "it writes", shadowed=True),),
    policy_digest="a" * 64,
)
APPROVED = Decision(Effect.ALLOW, "refunds", "approved", "Ada approved it (request apr_1)", policy_digest="b" * 64)


def act(name: str, **arguments: object) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, agent="clerk", rollout_id="r1", arguments=arguments)


@pytest.fixture
def record(folder: Path) -> Path:
    """A signed record: shadow mode, then a denial and an approval, a program that was not governed, an erasure."""
    key = make_key(folder / "audit.key")
    (folder / "lgov.toml").write_text('audit_key = "audit.key"\n')
    with AuditLog(folder / "audit.db", signer=key) as log:
        log.commit(act("write_file", path="a"), SHADOWED)
        log.commit(act("write_file", path="b"), SHADOWED)
        log.commit(act("run_sql", query="DROP TABLE staff"), DENIED)
        log.commit(act("refund", order=7), APPROVED)
        log.append("ungoverned", {"rollout_id": "r1", "programs": {"worker.py": 2}}, arguments=None, content={})
        log.erase(EntrySelection(entry_id=log.entries()[0].entry_id), reason="asked for")
    return folder / "audit.db"


def forge(record: Path) -> None:
    """Changes the rule of the denial, and leaves no other trace."""
    with sqlite3.connect(record) as connection:
        (trigger,) = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = 'entries_are_not_changed'"
        ).fetchone()
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute("UPDATE entries SET body = replace(body, 'no-drop', 'no-harm') WHERE position = 3")
        connection.execute(trigger)


def test_the_report_says_who_was_denied_and_approved_and_what_proves_it(record: Path) -> None:
    done = lgov("export", str(record), "--format", "report", "--to", "report.json")
    assert done.exit_code == 0, done.output
    report = json.loads((record.parent / "report.json").read_text())
    assert report["verified"]["ok"]
    assert report["verified"]["unsigned"] == 0
    public = (record.parent / "audit.key.pub").read_text().strip().rpartition(":")[2]
    (key,) = report["keys"]
    assert (key["key"], key["compared with"]) == (public, "audit.key.pub") or key["compared with"].endswith(".pub")
    assert [(row["policy digest"][0], row["decisions"]) for row in report["policies"]] == [("a", 2), ("b", 2)]
    assert report["versions"][0]["decisions"] == 4
    (shadow,) = report["shadow"]
    assert shadow["not enforced"] == 2
    assert report["ungoverned"][0]["programs"] == "worker.py (2)"
    assert [(row["name"], row["rule"], row["enforced"]) for row in report["denials"]] == [
        ("write_file", "no-write", False),
        ("write_file", "no-write", False),
        ("run_sql", "no-drop", True),
    ]
    (approval,) = report["approvals"]
    assert (approval["name"], approval["reason"]) == ("refund", "Ada approved it (request apr_1)")
    assert report["changes"][0]["what"] == "texts of 1 entries erased: asked for"


def test_the_page_loads_nothing_and_escapes_what_agents_wrote(record: Path) -> None:
    assert lgov("export", str(record), "--format", "report", "--to", "report.html").exit_code == 0
    page = (record.parent / "report.html").read_text()
    assert "it would drop &lt;staff&gt;" in page
    assert "<staff>" not in page
    assert not any(loads in page for loads in ("<script", "http:", "https:", " src=", "@import"))
    assert 'class="ok"' in page


def test_reasons_are_left_out_on_request_and_a_period_is_chosen(record: Path) -> None:
    done = lgov("export", str(record), "--format", "report", "--no-content", "--json")
    assert "staff" not in done.stdout
    assert "asked for" not in done.stdout
    none = json.loads(lgov("export", str(record), "--format", "report", "--before", "2020-01-01", "--json").stdout)
    assert (none["counts"]["entries"], none["denials"]) == (0, [])


def test_the_text_is_for_a_terminal(record: Path) -> None:
    lines = lgov("export", str(record), "--format", "report").stdout.splitlines()
    assert lines[2].startswith("ok: 6 entries")
    assert "Approvals: 1" in lines


def test_a_broken_record_is_reported_as_broken(record: Path) -> None:
    forge(record)
    done = lgov("export", str(record), "--format", "report", "--to", "report.html")
    assert done.exit_code == Exit.AUDIT_BROKEN
    assert 'class="broken"' in (record.parent / "report.html").read_text()


def test_the_verifier_is_one_file_that_needs_nothing_of_lgov(
    record: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = tmp_path_factory.mktemp("auditor")
    shutil.copy(Path(lgov_core.audit.__file__).parent / "verify.py", alone / "verify.py")
    for name in ("audit.db", "audit.key.pub", "audit.db.heads.jsonl"):
        shutil.copy(record.parent / name, alone / name)
    options = ["--key", "audit.key.pub", "--head", "audit.db.heads.jsonl", "--require-signed"]
    command = [
        sys.executable,
        "-I",
        "-S",
        "verify.py",
        "audit.db",
        *options,
    ]  # no site-packages, no path to this project
    done = subprocess.run(command, cwd=alone, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: 6 entries")
    forge(alone / "audit.db")
    broken = subprocess.run(command, cwd=alone, capture_output=True, text=True, timeout=60, check=False)
    assert broken.returncode == 4
