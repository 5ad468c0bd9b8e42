"""`lgov export RECORD --format report`: what an auditor gets, and the verifier that needs nothing of lgov."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    assert key == {"key": public, "sha256": hashlib.sha256(bytes.fromhex(public)).hexdigest()}
    done = lgov("export", str(record), "--format", "report")  # no file of the one who exports can vouch for the key
    assert "with one that reached you another way" in done.stdout
    assert "audit.key.pub" not in done.stdout
    assert [(row["policy digest"][0], row["decisions"]) for row in report["policies"]] == [("a", 2), ("b", 2)]
    assert report["versions"][0]["decisions"] == 4
    (shadow,) = report["shadow"]
    assert shadow["let_pass"] == 2
    assert report["ungoverned"][0]["programs"] == "worker.py (2)"
    assert [(row["name"], row["rule"], row["would have been"]) for row in report["let_pass"]] == [
        ("write_file", "no-write", "denied"),
        ("write_file", "no-write", "denied"),
    ]
    assert [(row["name"], row["rule"]) for row in report["denials"]] == [("run_sql", "no-drop")]
    (approval,) = report["approvals"]
    assert (approval["name"], approval["reason"]) == ("refund", "Ada (key 1f) approved it (request apr_1)")
    assert report["changes"][0]["what"] == "texts of 1 entry erased: asked for"


def test_a_policy_in_shadow_mode_is_named_even_where_it_would_deny_nothing(record: Path) -> None:
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.begin_policy("c" * 64, "policy.yaml", "shadow")
        log.commit(act("read_file"), Decision(Effect.ALLOW, "desk", "reads", policy_digest="c" * 64))
    for options in ((), ("--where", "tool=read_file")):  # the entry that says so need not be among the chosen
        report = json.loads(lgov("export", str(record), "--format", "report", *options, "--json").stdout)
        assert (report["shadow"][-1]["policy digest"], report["shadow"][-1]["let_pass"]) == ("c" * 64, 0)
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
    assert [(row["file"], row["decisions"]) for row in report["policies"]] == [
        ("a.yaml", 2),
        ("b.yaml", 0),
        ("a.yaml", 1),
        ("b.yaml", 0),
        ("c.yaml", 0),
    ]


def reported(record: Path, *options: str) -> Any:
    return json.loads(lgov("export", str(record), "--format", "report", *options, "--json").stdout)


@pytest.mark.parametrize(
    ("options", "filters", "entries"),
    [
        (("--where", "tool=refund"), {"tool": "refund"}, 1),
        (("--after", "3"), {"after entry": 3}, 3),
        (("--before", "2020-01-01"), {"before": "2020-01-01T00:00:00+00:00"}, 0),
    ],
)
def test_a_report_on_a_part_of_the_record_says_so_first(
    record: Path, options: Sequence[str], filters: dict[str, object], entries: int
) -> None:
    about = reported(record, *options)["about"]
    assert (about["filters"], about["entries"], about["of"]) == (filters, entries, 6)
    words = f"This report is about a part of the record only: {' '.join(map(str, *filters.items()))}."
    assert about["in_words"].startswith(f"{words} It has {entries} of 6 entries in 1 record")
    lines = lgov("export", str(record), "--format", "report", *options).stdout.splitlines()
    assert lines[1].startswith(words)
    assert "Rejections by a person: none among the chosen entries" in lines
    assert lgov("export", str(record), "--format", "report", *options, "--to", "part.html").exit_code == 0
    page = (record.parent / "part.html").read_text()
    assert page.index(words) < page.index("<pre")


def test_a_report_on_all_says_so_and_that_texts_are_left_out(record: Path) -> None:
    assert reported(record)["about"]["in_words"] == "This report is about the whole record: 6 entries in 1 record."
    assert "are left out" in reported(record, "--no-content")["about"]["in_words"]


def shadow_log(folder: Path, *decisions: Decision, begin: tuple[str, str, str] | None = None) -> None:
    """A program that begins a policy (digest, file, mode), and decides."""
    with AuditLog(folder / "audit.db", signer=None) as log:
        if begin is not None:
            log.begin_policy(*begin)
        for decision in decisions:
            log.commit(act("pay"), decision)


def would_deny(digest: str) -> Decision:
    part = Decision(Effect.DENY, "desk", "no-pay", "it pays", shadowed=True)
    return Decision(Effect.ALLOW, "desk", "shadow", "", parts=(part,), policy_digest=digest, shadowed=True)


def test_each_time_without_enforcement_has_its_policy_its_span_and_what_was_let_pass(folder: Path) -> None:
    """Shadow mode begins before the first call that it lets pass, and ends when an enforced policy begins."""
    b, c, d = ("b" * 64, "c" * 64, "d" * 64)
    allowed = Decision(Effect.ALLOW, "desk", "reads", shadowed=True, policy_digest=b)
    denied = Decision(Effect.DENY, "desk", "no-pay", policy_digest=d)
    shadow_log(folder, allowed, would_deny(b), allowed, begin=(b, "b.yaml", "shadow"))
    time.sleep(1.1)  # times have whole seconds
    shadow_log(folder, would_deny(c), would_deny(c), begin=(c, "c.yaml", "shadow"))
    time.sleep(1.1)
    shadow_log(folder, denied, begin=(d, "d.yaml", "enforce"))
    report = reported(folder / "audit.db")
    assert [(row["file"], row["let_pass"]) for row in report["shadow"]] == [("b.yaml", 1), ("c.yaml", 2)]
    began = {row["policy digest"][0]: row["time"] for row in report["changes"]}
    assert [(row["from"], row["until"]) for row in report["shadow"]] == [
        (began["b"], began["c"]),
        (began["c"], began["d"]),
    ]
    assert [row["until"] for row in report["policies"]] == [began["c"], began["d"], None]
    assert [row["name"] for row in report["let_pass"]] == ["pay"] * 3


def test_what_held_before_the_time_that_was_chosen_holds_in_it(folder: Path) -> None:
    b, d = ("b" * 64, "d" * 64)
    shadow_log(folder, would_deny(b), begin=(b, "b.yaml", "shadow"))
    time.sleep(0.01)
    since = time.time()
    report = reported(folder / "audit.db", "--since", iso(since))
    assert [(row["file"], row["let_pass"], row["until"]) for row in report["shadow"]] == [("b.yaml", 0, None)]
    shadow_log(folder, Decision(Effect.DENY, "desk", "no-pay", policy_digest=d), begin=(d, "d.yaml", "enforce"))
    time.sleep(0.01)
    report = reported(folder / "audit.db", "--since", iso(since))
    assert [row["file"] for row in report["policies"]] == ["b.yaml", "d.yaml"]
    later = reported(folder / "audit.db", "--since", iso(time.time()))
    assert [row["file"] for row in later["policies"]] == ["d.yaml"]
    assert [row["file"] for row in reported(folder / "audit.db", "--before", iso(since))["policies"]] == ["b.yaml"]


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def test_what_decisions_came_to_adds_up_with_the_lists(record: Path) -> None:
    asked = Decision(Effect.ESCALATE, "refunds", "approval-pending", "a person decides", shadowed=True)
    with AuditLog(record, signer=load_key(record.parent / "audit.key")) as log:
        log.commit(
            act("refund"), Decision(Effect.ALLOW, "refunds", "shadow", "", parts=(asked,), policy_digest="a" * 64)
        )
        log.commit(act("refund"), REJECTED)
        log.commit(act("refund"), PENDING)
    report = reported(record)
    assert report["counts"]["in_words"].startswith(
        "7 decisions: 1 allowed, 1 denied by a policy, 1 denied as a person had rejected it,"
        " 1 ended before a person answered, 3 let pass in shadow mode."
    )
    lists = ("denials", "rejections", "unanswered", "let_pass")
    assert [len(report[name]) for name in lists] == [1, 1, 1, 3]
    assert report["let_pass"][-1]["would have been"] == "put to a person"  # and it ran: it did not wait for one
    text = lgov("export", str(record), "--format", "report").stdout
    assert report["counts"]["in_words"] in text
    assert "  for tool refund, decisions 4, allowed 1, " in text


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
    assert [(row["record"], row["name"]) for row in report["denials"]] == [(archived, "run_sql"), (current, "run_sql")]
    assert [row["record"] for row in report["let_pass"]] == [archived, archived]
    assert "not found" not in report["notes"]["records"]
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
    assert report["verified"]["key_trusted"], "the key was right"


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


def test_one_digest_of_a_record_ties_the_report_to_its_file_whoever_prints_it(record: Path) -> None:
    rotated(record, "archive")
    (archive,) = (record.parent / "archive").glob("*.db")
    assert (
        lgov("erase", str(archive), "--where", "tool=refund", "--yes").exit_code == 0
    )  # an entry behind the continued ones
    report = json.loads(lgov("export", str(record), "--format", "report", "--json").stdout)
    text = lgov("export", str(record), "--format", "report").stdout
    assert [row["entries"] for row in report["records"]] == [8, 2]
    for row, file in zip(report["records"], (archive, record), strict=True):
        words = f"digest of entries 1 to {row['entries']}: {row['entries_sha256']}"
        assert words in alone(record.parent, str(file)).stdout
        assert json.loads(alone(record.parent, str(file), "--json").stdout)["entries_sha256"] == row["entries_sha256"]
        assert words in text
    of_archive = alone(record.parent, str(record), "--archive", "archive")
    assert (of_archive.returncode, of_archive.stdout.count("digest of entries 1 to 8: ")) == (0, 1)


KILLED = """
import os, signal, sys
from pathlib import Path
from lgov_core import Action, Point
from lgov_core.governance import Governance
from lgov_core.scope import RolloutScope

with Governance(policy=Path("policy.yaml"), audit=Path("audit.db"), audit_key=Path(sys.argv[1])).open() as opened:
    with opened.governor.rollout(RolloutScope("r-ended", task_id="whole.py")):
        pass
    with opened.governor.rollout(RolloutScope("r-killed", task_id="agent.py")):
        opened.governor.decide(Action(Point.POST_MODEL_CALL, "gpt", arguments={"tool_calls": [{"name": "refund"}]}))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(record: Path) -> Path:
    """The record after a program that ended one run, and was killed in the next before a call that the model proposed."""
    (record.parent / "policy.yaml").write_text("version: 1\nrules: [{name: rest, use: allow}]\n")
    command = [sys.executable, "-c", KILLED, "audit.key"]
    done = subprocess.run(command, cwd=record.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    return record


def test_a_run_that_was_killed_is_named_with_its_last_entry(killed: Path) -> None:
    words = "1 run without an end in the record (running still, or killed):"
    about = "agent.py (rollout r-killed) began at "
    last = ": decision post_model_call gpt"
    unsigned = alone(killed.parent, "audit.db", "--require-signed").stdout
    assert unsigned.startswith("NOT SIGNED: ")
    report = lgov("export", str(killed), "--format", "report").stdout
    for text in (alone(killed.parent, "audit.db").stdout, unsigned, report):
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {about}")]
        assert words in text
        assert line.endswith(last)
        assert "r-ended" not in text
    done = lgov("export", str(killed), "--format", "report", "--where", "tool=refund", "--json")  # whatever was chosen
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["program"], run["rollout"], run["last entry"]) == ("agent.py", "r-killed", 11)
    assert run["policy digest"]


def test_a_run_without_an_end_is_one_that_began_and_that_its_own_program_did_not_end(tmp_path: Path) -> None:
    def note(log: AuditLog, point: Point, effect: Effect = Effect.ALLOW) -> None:
        log.commit(Action(point, "agent.py", rollout_id="r", attempt=1), Decision(effect, "p", "rule", ""))

    def began_and_last() -> list[tuple[int, int]]:
        report = lgov_core.audit.verify(tmp_path / "audit.db")
        return [(run["first"]["entry"], run["last"]["entry"]) for run in report.unended]

    killed, child, again, denied = (AuditLog(tmp_path / "audit.db", signer=None) for _ in range(4))
    note(denied, Point.AGENT_STARTUP, Effect.DENY)
    assert began_and_last() == []
    note(killed, Point.AGENT_STARTUP)
    note(child, Point.PRE_TOOL_CALL)
    assert began_and_last() == [(2, 3)]
    note(again, Point.AGENT_STARTUP)  # under the same rollout and attempt
    note(child, Point.PRE_TOOL_CALL)
    assert began_and_last() == [(2, 3), (4, 5)]
    note(again, Point.AGENT_SHUTDOWN)
    note(denied, Point.AGENT_STARTUP, Effect.ESCALATE)
    note(denied, Point.AGENT_SHUTDOWN)  # as the end of a run that was not let begin is judged too
    assert began_and_last() == [(2, 3)]
    note(killed, Point.AGENT_SHUTDOWN)
    assert began_and_last() == []
    for log in (killed, child, again, denied):
        log.close()


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
    assert lines[3].startswith("ok: 6 entries")
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
