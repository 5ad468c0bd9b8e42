"""A person's answer is an entry of the record when it is given, or once a governed program has that record; never twice."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core._util.files import os_user
from lgov_core.audit import AuditEntry, AuditLog, make_key
from lgov_core.audit.auditor_report import evidence
from lgov_core.audit.reading import EntrySelection
from lgov_core.governance import Governance, record_answers
from lgov_core.policies import ApprovalRequests
from lgov_core.types import Action, Decision, Point
from lgov_core.views.governance import answer_approval
from lgov_core.views.governance import record_answers as waits_on_record
from tests.commands.cli_runner import lgov

POLICY = """
version: 1
rules:
  - {name: by-a-person, tools: [pay], use: approval, with: {store: .lgov/approvals.db}}
"""
BY_FLOW = """
version: 1
rules:
  - {name: by-a-person, tools: [pay], use: flow, with: {otherwise: approve, store: .lgov/approvals.db}}
  - {name: rest, use: allow}
"""
OF_TWO = POLICY.replace("approvals.db", "approvals.db, approvers: 2")
FILE = Path(".lgov/approvals.db")
RECORD = Path("record.db")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def settings(folder: Path) -> Path:
    """Settings that name the policy and the record."""
    (folder / "lgov.toml").write_text('policy = "policy.yaml"\naudit = "record.db"\n')
    return folder / "lgov.toml"


def call(amount: int = 12) -> Decision:
    """A governed program calls the tool, starts and ends."""
    with Governance(policy=Path("policy.yaml"), audit=RECORD).open() as opened:
        return opened.governor.decide(
            Action(Point.PRE_TOOL_CALL, "pay", arguments={"amount": amount, "to": "ada@example.org"})
        )


def ask(amount: int = 12) -> str:
    """The id of the request that a call makes."""
    return call(amount).parts[0].request


def answer(*words: str, file: Path = FILE) -> str:
    """Answers by the command; returns what it says beside the answer."""
    answered = lgov("approvals", str(file), *words)
    assert answered.exit_code == 0, answered.output
    return answered.stderr


def on_record() -> list[AuditEntry]:
    with AuditLog(RECORD, signer=None) as log:
        return [entry for entry in log.entries() if entry.kind == "approval"]


def report() -> dict[str, list[dict[str, str]]]:
    return json.loads(lgov("export", str(RECORD), "--format", "report", "--json").stdout)


@pytest.mark.usefixtures("settings")
def test_a_rejection_is_on_record_when_it_is_given_though_no_call_comes_again() -> None:
    request = ask()
    answer("--reject", request, "--by", "Eve", "--reason", "never")
    (entry,) = on_record()
    assert (entry.name, entry.arguments) == ("pay", '{"amount":12,"to":"ada@example.org"}')
    assert json.loads(entry.content or "")["reason"] == "never"
    assert (entry.policy, entry.rule, entry.body["by"], entry.body["request"]) == (
        "by-a-person",
        "approval-rejected",
        "Eve",
        request,
    )
    assert "never" not in json.dumps(dict(entry.body))
    shown = lgov("audit", "show", str(RECORD), "--where", "tool=pay").stdout
    assert "by-a-person/approval-rejected: Eve re" in shown
    (row,) = report()["rejections"]
    assert row["by"] == "Eve"
    assert ": never; shown: The agent asks to run pay." in row["reason"]
    with Governance.from_settings().open():
        pass
    assert len(on_record()) == 1


@pytest.mark.parametrize("beside", [True, False], ids=["policy.yaml", "a policy elsewhere"])
def test_the_record_and_its_key_in_the_settings_suffice(folder: Path, beside: bool) -> None:
    make_key(folder / "audit.key")
    (folder / "lgov.toml").write_text('audit = "record.db"\naudit_key = "audit.key"\n')
    (folder / "policy.yaml").write_text(POLICY.replace(".lgov/approvals.db", "asked.db"))
    with Governance(policy=Path("policy.yaml"), audit=RECORD, audit_key=folder / "audit.key").open() as opened:
        opened.governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments={}))
    if not beside:
        (folder / "policy.yaml").rename(folder / "elsewhere.yaml")
    assert answer("--reject", "apr_", "--by", "Eve", file=Path("asked.db")) == ""
    assert [entry.body["by"] for entry in on_record()] == ["Eve"]
    assert lgov("audit", "verify", str(RECORD), "--key", "audit.key.pub", "--require-signed").exit_code == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [("", "there is no record .lgov/audit.db"), ('audit = "record.db"\npolicy = "other.yaml"\n', "other.db")],
    ids=["no record is named", "the policy of the settings asks elsewhere"],
)
def test_an_answer_that_is_not_on_record_at_once_says_why(folder: Path, settings: str, why: str) -> None:
    (folder / "other.yaml").write_text(POLICY.replace(".lgov/approvals.db", "other.db"))
    request = ask()
    (folder / "lgov.toml").write_text(settings)
    told = answer("--approve", request, "--by", "Eve")
    assert told.startswith("not on record until a governed program starts or ends: ")
    assert told.endswith(f"{why}\n")
    assert on_record() == []


def test_the_file_is_the_one_that_a_run_in_this_folder_asks_in(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.replace(".lgov/approvals.db", "asked.db"))
    request = ask()
    assert [each["request_id"] for each in json.loads(lgov("approvals", "--json").stdout)] == [request]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("given", ["approve", "reject"])
def test_by_http_or_the_window_too(given: str) -> None:
    request = ask()
    with closing(ApprovalRequests(FILE)) as requests:
        digest = requests.all()[0].digest
    answer_approval([FILE], request, given, by="Eve", reason="", digest=digest)  # pyright: ignore[reportArgumentType]
    assert [(entry.body["by"], entry.body["request"]) for entry in on_record()] == [("Eve", request)]


@pytest.mark.usefixtures("settings")
def test_the_entry_says_what_the_person_was_shown_until_it_is_erased(folder: Path) -> None:
    question = "Pay $amount to $to?"
    (folder / "policy.yaml").write_text(POLICY.replace("approvals.db", f"approvals.db, question: '{question}'"))
    context = {"user_text": ["The bill of order 7"], "user": "bob"}
    with Governance.from_settings().open() as opened:
        opened.governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments={"amount": 1, "to": "a"}, context=context))
    answer("--approve", "apr_", "--by", "Eve")
    (entry,) = on_record()
    shown = {"question": "Pay 1 to a?", "user_text": "The bill of order 7", "requesters": ["bob", os_user()]}
    assert json.loads(entry.content or "") == shown
    assert report()["approvals"][0]["reason"].endswith("; shown: Pay 1 to a? | the user: The bill of order 7")
    assert lgov("erase", str(RECORD), "--where", "text=order 7", "--yes").exit_code == 0
    (entry,) = on_record()
    assert (entry.arguments, entry.content) == (None, None)
    with closing(ApprovalRequests(FILE)) as requests:  # with what is left nobody's guess at the text can be confirmed
        assert requests.all()[0].digest[:16] not in json.dumps(dict(entry.body))
    assert lgov("audit", "verify", str(RECORD)).exit_code == 0


def test_a_redacted_argument_is_not_on_record_by_what_the_person_was_shown(folder: Path) -> None:
    (folder / "lgov.toml").write_text('policy = "policy.yaml"\naudit = "record.db"\nredact = ["to"]\n')
    (folder / "policy.yaml").write_text(POLICY.replace("approvals.db", "approvals.db, question: 'Pay $to?'"))
    call()
    answer("--approve", "apr_", "--by", "Eve")
    (entry,) = on_record()
    assert json.loads(entry.content or "")["question"] == "Pay [redacted]?"


@pytest.mark.usefixtures("settings")
def test_the_first_of_two_approvals_too(folder: Path) -> None:
    (folder / "policy.yaml").write_text(OF_TWO)
    keys = {
        name: json.loads(lgov("approvals", str(FILE), "--key", name, "--json").stdout)["key"] for name in ("a", "b")
    }
    request = ask()
    for number, name in enumerate(keys, start=1):
        answer("--approve", request, "--by", keys[name])
        assert [entry.body["by"][0] for entry in on_record()] == ["a", "b"][:number]
        assert (on_record()[-1].reason or "").endswith(f"({number} of 2)")
    assert call().effect.label == "allow"
    assert [row["by"][0] for row in report()["approvals"]] == ["a", "b"]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("given", ["approve", "reject"])
def test_the_report_lists_an_answer_once_though_decisions_show_it(given: str) -> None:
    answer(f"--{given}", ask(), "--by", "Eve")
    call(), call()
    rows = report()
    assert [row["by"] for row in (*rows["approvals"], *rows["rejections"])] == ["Eve"]
    assert len(rows["unanswered"]) == (2 if given == "approve" else 1)  # the third call asks anew
    (entry,) = on_record()  # where the entry is not among the chosen, the decisions by the answer are
    later = evidence(RECORD, EntrySelection(since=(entry.time_ns + 1_000) / 1e9), key=None, heads=None)
    assert {row["by"] for row in (*later.approvals, *later.rejections)} == {"Eve"}


@pytest.mark.parametrize("policy", [POLICY, BY_FLOW], ids=["approval", "flow"])
def test_where_the_settings_name_no_record_the_next_start_with_it_records_the_answer(folder: Path, policy: str) -> None:
    (folder / "policy.yaml").write_text(policy)
    request = ask()
    answer("--approve", request, "--by", "Eve")
    assert on_record() == []
    for _ in range(2):
        with Governance(policy=Path("policy.yaml"), audit=RECORD).open():
            assert [entry.body["request"] for entry in on_record()] == [request]


def test_an_answer_that_a_program_waited_for_is_on_record_at_its_end() -> None:
    with Governance(policy=Path("policy.yaml"), audit=RECORD).open() as opened:
        opened.governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments={}))
        answer("--approve", "apr_", "--by", "Eve")
        assert on_record() == []
    assert [entry.body["by"] for entry in on_record()] == ["Eve"]


def test_without_the_key_of_a_signed_record_the_answer_waits(folder: Path, settings: Path) -> None:
    make_key(folder / "audit.key")
    governance = Governance(policy=Path("policy.yaml"), audit=RECORD, audit_key=folder / "audit.key")
    with governance.open() as opened:
        opened.governor.decide(Action(Point.PRE_TOOL_CALL, "pay", arguments={}))
    assert "signed with the key" in answer("--approve", "apr_", "--by", "Eve")
    assert on_record() == []
    with governance.open():
        assert len(on_record()) == 1
    assert lgov("audit", "verify", str(RECORD), "--require-signed").exit_code == 0


def test_a_process_that_ends_between_the_entry_and_its_note_makes_no_second_one() -> None:
    answer("--approve", ask(), "--by", "Eve")

    class Ended(Exception):
        """The end of the process."""

    class Ending(AuditLog):
        def append(self, *about: object, **more: object) -> str:
            super().append(*about, **more)  # type: ignore[arg-type]  # pyright: ignore
            raise Ended

    with closing(ApprovalRequests(FILE)) as requests:
        with Ending(RECORD, signer=None) as log, pytest.raises(Ended):
            requests.put_on_record(log)
        with AuditLog(RECORD, signer=None) as log:
            requests.put_on_record(log)
    assert len(on_record()) == 1


def test_what_a_person_wrote_can_be_erased_from_the_record() -> None:
    answer("--reject", ask(), "--by", "Eve", "--reason", "Mallory lies")
    with Governance(policy=Path("policy.yaml"), audit=RECORD).open() as opened:
        assert isinstance(opened.audit, AuditLog)
        assert opened.audit.erase(EntrySelection(text="mallory")) == 1
    (entry,) = on_record()
    assert (entry.content, entry.body["by"]) == (None, "Eve")


def test_and_before_it_is_there() -> None:
    answer("--reject", ask(), "--by", "Eve", "--reason", "Mallory lies")
    assert lgov("erase", "--where", "text=mallory", "--yes").exit_code == 0
    assert all(b"Mallory" not in file.read_bytes() for file in FILE.parent.iterdir())
    call(13)
    (entry,) = on_record()
    assert (entry.content, entry.arguments, entry.body["by"]) == (None, None, "Eve")


def test_files_that_cannot_be_used_or_are_in_use_never_keep_a_program_from_its_start() -> None:
    answer("--approve", ask(), "--by", "Eve")
    governance = Governance(policy=Path("policy.yaml"), audit=RECORD)
    with closing(sqlite3.connect(FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        governance.open().close()
        assert time.monotonic() - begun < 1.2
        assert on_record() == []
    FILE.unlink()
    with AuditLog(RECORD, signer=None) as log:
        record_answers(log, [FILE, Path("policy.yaml"), Path(".lgov")])
    assert not FILE.exists()


def test_an_answer_counts_where_it_cannot_be_taken_to_the_record_and_whoever_gives_it_reads_why(settings: Path) -> None:
    request_id = ask()
    with closing(ApprovalRequests(FILE)) as requests:
        requests.approve(request_id, by="Eve")
    with closing(sqlite3.connect(FILE)) as other:
        other.execute("ALTER TABLE unrecorded RENAME TO moved")
    assert "no such table: unrecorded" in waits_on_record(FILE)
