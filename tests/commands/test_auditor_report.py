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
from lgov_core._util.files import os_user
from lgov_core.audit import AuditLog, load_key, make_key
from lgov_core.audit.entry import decision_fields
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
REJECTED = Decision(
    Effect.DENY, "refunds", "approval-rejected", "Ada rejected this call: too much", policy_digest="b" * 64
)
PENDING = Decision(Effect.ESCALATE, "refunds", "approval-pending", "A person has to approve it", policy_digest="b" * 64)
APPROVED = Decision(
    Effect.ALLOW, "refunds", "approved", "Ada (key 1f) approved it (request apr_1)", policy_digest="b" * 64
)


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
    assert (approval["name"], approval["reason"]) == ("refund", "Ada (key 1f) approved it (request apr_1)")
    assert report["changes"][0]["what"] == "texts of 1 entry erased: asked for"


def test_a_policy_in_shadow_mode_is_named_even_where_it_would_deny_nothing(record: Path) -> None:
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.begin_policy("c" * 64, "policy.yaml", "shadow")
        log.commit(act("read_file"), Decision(Effect.ALLOW, "desk", "reads", policy_digest="c" * 64))
    for options in ((), ("--where", "tool=read_file")):  # the entry that says so need not be among the chosen
        report = json.loads(lgov("export", str(record), "--format", "report", *options, "--json").stdout)
        assert (report["shadow"][-1]["policy digest"], report["shadow"][-1]["not enforced"]) == ("c" * 64, 0)
        assert [row["mode"] for row in report["policies"]][-1] == "shadow"
        counts = ("audit", "show", str(record), "--counts", *options)
        assert "\n1 of them in shadow mode, which enforces nothing\n" in lgov(*counts).stdout
        assert json.loads(lgov(*counts, "--json").stdout)["shadow"] == 1


def test_a_rejection_by_a_person_is_no_denial_by_a_policy(record: Path) -> None:
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.commit(act("refund", order=8), REJECTED)
        log.commit(act("refund", order=9), PENDING)
    report = json.loads(lgov("export", str(record), "--format", "report", "--json").stdout)
    (rejection,) = report["rejections"]
    assert (rejection["reason"], rejection["arguments"]) == ("Ada rejected this call: too much", '{"order":8}')
    assert [row["arguments"] for row in report["unanswered"]] == ['{"order":9}']
    assert "refund" not in [row["name"] for row in report["denials"]]


def test_who_approved_and_rejected_stays_without_content(record: Path) -> None:
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.commit(act("refund", order=8), REJECTED)
    for options in ((), ("--no-content",)):
        report = json.loads(lgov("export", str(record), "--format", "report", *options, "--json").stdout)
        assert [row["by"] for row in (*report["approvals"], *report["rejections"])] == ["Ada (key 1f)", "Ada"]
        assert report["changes"][0]["by"] == os_user()


def test_an_erasure_without_a_reason_is_reported(record: Path) -> None:
    assert lgov("erase", str(record), "--where", "tool=refund", "--yes").exit_code == 0
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.append("erasure", {"erased": {}}, arguments=None, content={})  # as it was written before
    done = lgov("export", str(record), "--format", "report", "--json")
    changes = json.loads(done.stdout)["changes"]
    assert [(row["what"], row["by"]) for row in changes][1:] == [
        ("texts of 1 entry erased", os_user()),
        ("texts of 0 entries erased", None),
    ]


def test_what_was_said_from_inside_a_box_is_marked(record: Path) -> None:
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        for decision in (DENIED, REJECTED, PENDING, APPROVED):
            log.append_entry({**decision_fields(act("boxed"), decision), "inside": True}, None, None, "aud")
    report = json.loads(lgov("export", str(record), "--format", "report", "--json").stdout)
    for section in ("denials", "rejections", "unanswered", "approvals"):
        assert [row["name"] for row in report[section] if row.get("inside")] == ["boxed"]
    assert lgov("export", str(record), "--format", "report").stdout.count("said in the box yes") == 4
    assert lgov("export", str(record), "--format", "report", "--to", "report.html").exit_code == 0
    assert (record.parent / "report.html").read_text().count("<th>said in the box</th>") == 4


def test_which_policy_held_when_can_be_read(folder: Path) -> None:
    """Each decision is one of a program of its own: ``a``, then ``b``, then ``a`` again; but for two at the same time."""

    def run(log: AuditLog, digest: str, name: str = "run_sql") -> None:
        log.begin_policy(digest, f"{digest[0]}.yaml", "enforce")
        log.commit(act(name), Decision(Effect.ALLOW, "desk", "reads", policy_digest=digest))

    a, b, c = ("a" * 64, "b" * 64, "c" * 64)
    for digest, name in ((a, "read_file"), (a, "read_file"), (b, "run_sql"), (a, "read_file")):
        with AuditLog(folder / "audit.db", signer=None) as log:
            run(log, digest, name)
    with AuditLog(folder / "audit.db", signer=None) as one, AuditLog(folder / "audit.db", signer=None) as other:
        for _ in range(2):
            run(one, b)
            run(other, c)
    command = ("export", str(folder / "audit.db"), "--format", "report", "--json")
    report = json.loads(lgov(*command).stdout)
    assert [(row["file"], row["decisions"]) for row in report["policies"]] == [
        ("a.yaml", 2),
        ("b.yaml", 1),
        ("a.yaml", 1),
        ("b.yaml", 2),
        ("c.yaml", 2),
    ]
    assert [row["policy digest"] for row in report["changes"]][:4] == [a, b, a, b]
    report = json.loads(
        lgov(*command, "--where", "tool=read_file").stdout
    )  # what replaced it need not be among the chosen
    assert [(row["file"], row["decisions"]) for row in report["policies"]] == [("a.yaml", 2), ("a.yaml", 1)]


def test_it_says_what_it_cannot_see(record: Path) -> None:
    text = lgov("export", str(record), "--format", "report").stdout
    assert "An empty list does not show that everything was governed." in text


def rotated(record: Path, archive: str) -> None:
    assert lgov("audit", "rotate", str(record), "--to", archive).exit_code == 0
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.commit(act("run_sql", query="DROP TABLE wages"), DENIED)


def test_archives_that_the_record_names_are_in_the_report(record: Path) -> None:
    rotated(record, "far/archive")
    report = json.loads(lgov("export", str(record), "--format", "report", "--json").stdout)
    archived, current = (row["file"] for row in report["records"])
    assert current == "audit.db"
    assert [(row["record"], row["name"]) for row in report["denials"]] == [
        (archived, "write_file"),
        (archived, "write_file"),
        (archived, "run_sql"),
        (current, "run_sql"),
    ]
    assert "records" not in report["notes"]
    erased, archiving, continued = (row["what"] for row in report["changes"])
    assert (erased, archiving) == ("texts of 1 entry erased: asked for", "archived in far/archive")
    assert continued == f"continues {archived}, of 7 entries"


def test_an_archive_that_was_changed_or_is_missing_breaks_the_report(record: Path) -> None:
    rotated(record, "far/archive")
    (archive,) = (record.parent / "far/archive").glob("*.db")
    forge(archive)
    broken = lgov("export", str(record), "--format", "report", "--json")
    assert broken.exit_code == Exit.AUDIT_BROKEN
    assert [row["ok"] for row in json.loads(broken.stdout)["records"]] == [False, True]
    assert not json.loads(broken.stdout)["verified"]["ok"]
    archive.unlink()
    alone = lgov("export", str(record), "--format", "report", "--json")
    report = json.loads(alone.stdout)
    assert (alone.exit_code, report["verified"]["ok"]) == (Exit.AUDIT_BROKEN, False)
    assert "that it continues was not found" in report["records"][0]["problem"] == report["verified"]["problem"]
    assert report["keys"][0]["compared with"].endswith("audit.key.pub"), "the key was"


def test_the_oldest_of_several_archives_is_missed_too(record: Path) -> None:
    rotated(record, "archive")
    (oldest,) = (record.parent / "archive").glob("*.db")
    rotated(record, "archive")
    oldest.unlink()
    done = lgov("export", str(record), "--format", "report", "--to", "report.json")
    report = json.loads((record.parent / "report.json").read_text())
    assert (done.exit_code, report["verified"]["ok"]) == (Exit.AUDIT_BROKEN, False)
    assert [row["ok"] for row in report["records"]] == [False, True]
    assert report["in_words"].startswith("BROKEN: ")


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The verifier as an auditor runs it: one file, without lgov and all packages."""
    shutil.copy(Path(lgov_core.audit.__file__).parent / "verify.py", folder / "verify.py")
    command = [sys.executable, "-I", "-S", "verify.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_report_is_signed_with_the_key_of_the_record(record: Path) -> None:
    folder = record.parent
    assert lgov("export", str(record), "--format", "report", "--to", "report.html").exit_code == 0
    done = alone(folder, "report.html", "--key", "audit.key.pub")
    assert done.returncode == 0, done.stdout
    assert "which is the one given" in done.stdout
    assert lgov("audit", "verify", "report.html", "--key", "audit.key.pub").exit_code == 0
    make_key(folder / "other.key")
    assert "not with the one given" in alone(folder, "report.html", "--key", "other.key.pub").stdout
    page = (folder / "report.html").read_text()
    (folder / "report.html").write_text(page.replace("no-drop", "no-harm"))
    assert alone(folder, "report.html", "--key", "audit.key.pub").returncode == 4
    assert lgov("audit", "verify", "report.html").exit_code == Exit.AUDIT_BROKEN
    (folder / "report.html").write_text(page)
    signature = json.loads((folder / "report.html.sig").read_text())
    (folder / "report.html.sig").write_text(json.dumps({**signature, "body": signature["body"].replace("17", "18", 1)}))
    assert alone(folder, "report.html").returncode == 4


def test_without_the_secret_key_a_report_is_not_signed_and_says_so(record: Path) -> None:
    (record.parent / "audit.key").unlink()
    (record.parent / "report.txt.sig").write_text("of an older report")
    done = lgov("export", str(record), "--format", "report", "--to", "report.txt")
    assert done.exit_code == 0
    assert "not signed: the key that signed the record is not at hand" in done.stderr
    alone_done = alone(record.parent, "report.txt")
    assert (
        alone_done.returncode,
        "report.txt.sig, by which a report is verified, is not there" in alone_done.stdout,
    ) == (4, True)
    assert not (record.parent / "report.txt.sig").exists()


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
    assert (done.exit_code, "signed: report.html.sig" in done.stderr) == (Exit.AUDIT_BROKEN, True)
    assert 'class="broken"' in (record.parent / "report.html").read_text()


def test_a_record_that_is_broken_before_its_key_is_known_is_said_to_be_broken(record: Path) -> None:
    with sqlite3.connect(record) as connection:
        (trigger,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'heads_are_not_removed'").fetchone()
        connection.execute("DROP TRIGGER heads_are_not_removed")
        connection.execute("DELETE FROM heads WHERE number = 1")
        connection.execute(trigger)
    done = lgov("export", str(record), "--format", "report", "--to", "report.html")
    assert (done.exit_code, "not signed: the record is broken" in done.stderr) == (Exit.AUDIT_BROKEN, True)


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
