"""``lgov erase``: a person's texts in everything that lgov keeps, and what it names because it cannot reach it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, make_key
from lgov_core.audit.verify import verify
from lgov_core.policies import ApprovalPolicy, ApprovalRequests
from lgov_core.policies.approvals.requests import Asking
from lgov_core.store import open_store, rollout_queue
from lgov_core.trace import semconv
from lgov_core.types import ALLOW, Action, Point, Rollout, Span
from tests.commands.cli_runner import lgov

EMAIL = "ann@example.org"
TEXT = f"text={EMAIL.upper()}"


def act(name: str = "send_mail", **arguments: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments=arguments, rollout_id="r1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose record, archive, approvals, store and run have texts of Ann, and some of others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    key = make_key(tmp_path / "audit.key")
    (tmp_path / "lgov.toml").write_text(
        'policy = "rules.yaml"\naudit = "kept/audit.db"\nstore = "traces.sqlite"\naudit_key = "audit.key"\n'
    )
    (tmp_path / "rules.yaml").write_text(
        "version: 1\nrules:\n- {name: ask, use: approval, tools: [send_mail], with: {store: kept/asked.db}}\n"
    )
    (tmp_path / "kept").mkdir()
    with AuditLog(tmp_path / "kept/audit.db", signer=key) as log:
        log.commit(act(to=EMAIL), ALLOW)
    assert lgov("audit", "rotate", "kept/audit.db", "--to", "kept").exit_code == 0
    with AuditLog(tmp_path / "kept/audit.db", signer=key) as log:
        log.commit(act(to=EMAIL, text="hi"), ALLOW)
        log.commit(act(to="bob@example.org"), ALLOW)
        log.commit(act(EMAIL), ALLOW)
    asks = ApprovalPolicy(store=tmp_path / "kept/asked.db")
    asks.judge(act(to=EMAIL))
    asks.judge(act(to="bob@example.org"))
    for name in ("traces.sqlite", "runs/one/store.sqlite"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with open_store(str(tmp_path / name)) as store:
            store.add_rollouts([Rollout(each, each, "run", {"to": each}, 1.0) for each in (EMAIL, "bob")])
            store.add_spans([Span("mail", "s1", 1.0, 2.0, {"to": EMAIL})])
    (tmp_path / "runs/one/metrics.jsonl").write_text("{}\n")
    (tmp_path / "export.jsonl").write_text(json.dumps({"to": EMAIL}) + "\n" + json.dumps({"to": "bob"}) + "\n")
    return tmp_path


def places(result: Any) -> dict[str, dict[str, Any]]:
    return {Path(each["location"]).name: each for each in json.loads(result.stdout)["places"]}


def everything(folder: Path) -> bytes:
    return b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "export.jsonl"
    ).lower()


def nothing_is_erased(folder: Path) -> None:
    assert verify(folder / "kept/audit.db").erased == 0
    assert len(ApprovalRequests(folder / "kept/asked.db").all()) == 2
    with open_store(str(folder / "traces.sqlite")) as store:
        assert len(store.rollouts()) == 2


def test_a_dry_run_lists_places_and_counts_without_the_texts(folder: Path) -> None:
    result = lgov("erase", "--where", TEXT, "--dry-run")
    assert result.exit_code == 0, result.output
    assert EMAIL not in result.output.lower()
    listed = places(lgov("erase", "--where", TEXT, "--dry-run", "--json"))
    archive = next(name for name in listed if name.startswith("audit-"))
    assert {name: each["count"] for name, each in listed.items()} == {
        "audit.db": 2, archive: 1, "asked.db": 1, "traces.sqlite": 2, "store.sqlite": 2, "export.jsonl": 0,
    }  # fmt: skip
    nothing_is_erased(folder)


def test_everything_is_erased_and_the_signed_record_still_verifies(folder: Path) -> None:
    result = lgov("erase", "--where", TEXT, "--reason", "asked for", "--yes", "--json")
    assert result.exit_code == 0, result.output
    erased = places(result)
    assert "1 entry with it in a name or a reason" in erased["audit.db"]["rest"]
    assert erased["export.jsonl"]["rest"] == "1 line with it, in a file of yours"
    assert everything(folder).count(EMAIL.encode()) == 1, "the name of a tool, which the chain needs"
    assert [dict(request.arguments) for request in ApprovalRequests(folder / "kept/asked.db").all()] == [
        {"to": "bob@example.org"}
    ]
    for name in ("traces.sqlite", "runs/one/store.sqlite"):
        with open_store(str(folder / name)) as store:
            assert [rollout.rollout_id for rollout in store.rollouts()] == ["bob"]
    report = verify(folder / "kept/audit.db", require_signed=True)
    assert (report.ok, report.erased) == (True, 2), report
    assert lgov("audit", "verify", "kept/audit.db", "--archive", "kept").exit_code == 0
    again = lgov("erase", "--where", TEXT, "--yes")
    assert again.exit_code == 1, "there is nothing left to erase"


def test_nothing_of_it_stays_in_free_pages_or_logs(folder: Path) -> None:
    with open_store(str(folder / "traces.sqlite")) as store:
        store.add_rollouts([Rollout("long", "long", "run", {"to": EMAIL * 10_000}, 1.0)])
    reader = ApprovalRequests(folder / "kept/asked.db")  # keeps the log from being deleted with the last connection
    assert reader.all()
    assert lgov("erase", "--where", TEXT, "--yes").exit_code == 0
    assert (folder / "kept/asked.db-wal").stat().st_size == 0
    with closing(sqlite3.connect(folder / "traces.sqlite")) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
    assert everything(folder).count(EMAIL.encode()) == 1
    reader.close()


def test_the_name_of_a_tool_leaves_a_store_with_its_last_decision(folder: Path) -> None:
    with open_store(str(folder / "traces.sqlite")) as store:
        names = (EMAIL, "read_file")
        store.add_spans(
            [
                Span(semconv.DECISION_SPAN_NAME, f"d{name}", 1.0, 2.0, {semconv.ACTION_NAME: name}, rollout_id=name)
                for name in names
            ]
        )
    assert lgov("erase", "--where", TEXT, "--yes").exit_code == 0
    with closing(sqlite3.connect(folder / "traces.sqlite")) as connection:
        assert connection.execute("SELECT action FROM decision_kinds").fetchall() == [("read_file",)]
    assert EMAIL.encode() not in (folder / "traces.sqlite").read_bytes()


def test_other_spellings_are_named_as_not_looked_for(folder: Path) -> None:
    assert (
        "other spellings of the text, such as one that is percent-encoded"
        in lgov("erase", "--where", TEXT, "--dry-run").stdout
    )


def test_it_asks_first(folder: Path) -> None:
    result = lgov("erase", "--where", TEXT)
    assert result.exit_code != 0
    assert "asked.db: 1 request" in result.stderr
    nothing_is_erased(folder)
    assert lgov("erase", "--where", TEXT, "--json").exit_code == 2
    assert lgov("erase", "--where", "rollout=r1", "--yes").exit_code == 2
    for value in ("", " "):  # which every entry holds
        for command in (("erase", "--yes"), ("erase", "kept/audit.db", "--yes"), ("audit", "show", "kept/audit.db")):
            assert lgov(*command, "--where", f"text={value}").exit_code == 2


def test_a_place_that_cannot_be_erased_from_is_named_and_the_others_are_erased(folder: Path) -> None:
    (folder / "audit.key").rename(folder / "elsewhere.key")
    make_key(folder / "audit.key")
    result = lgov("erase", "--where", TEXT, "--yes", "--json")
    assert result.exit_code == 1
    erased = places(result)
    assert "only who has its key may erase from it" in erased["audit.db"]["rest"]
    assert (erased["audit.db"]["count"], erased["asked.db"]["count"]) == (0, 1)


def test_what_is_not_reached_is_named(folder: Path) -> None:
    archive = next((folder / "kept").glob("audit-*.db"))
    (folder / "far").mkdir()
    archive.rename(folder.parent / archive.name)
    (folder / "runs/one/transitions").mkdir()
    (folder / "runs/one/transitions/step-000001.parquet").write_bytes(b"PAR1")
    missed = json.loads(lgov("erase", "--where", TEXT, "--dry-run", "--json").stdout)["not_reached"]
    assert missed[0] == f"{archive.name}, the archive before {folder / 'kept/audit.db'}"
    assert missed[1] == f"{folder / 'runs/one/transitions'}, and the models trained on it"
    assert any("backups" in line for line in missed)
    (folder.parent / archive.name).unlink()


def test_a_request_whose_call_waits_stays_and_is_counted(folder: Path) -> None:
    requests = ApprovalRequests(folder / "kept/asked.db")
    request = next(each for each in requests.all() if EMAIL in each.arguments.values())
    requests.ask(Asking(request.content, request.digest, request.inquiry, waits_s=60))
    result = lgov("erase", "--where", TEXT, "--yes", "--json")
    asked = places(result)["asked.db"]
    assert (asked["count"], asked["rest"]) == (0, "1 request whose call waits for the answer")
    assert len(requests.all()) == 2
    assert result.exit_code == 1, "a text is still there"


def test_a_run_without_an_end_is_named_and_erased_once_it_has_been_silent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(str(folder / "traces.sqlite")) as store:
        store.start_attempt(EMAIL, 1)
    result = lgov("erase", "--where", TEXT, "--yes", "--json")
    assert result.exit_code == 1
    said = f"what waits or runs: 1 rollout ({EMAIL}); one whose program was killed is over 1 h after its last write"
    assert places(result)["traces.sqlite"]["rest"] == said
    monkeypatch.setattr(rollout_queue, "SILENT_S", -1.0)
    result = lgov("erase", "--where", TEXT, "--yes", "--json")
    assert (result.exit_code, places(result)["traces.sqlite"]["rest"]) == (0, "")
    assert EMAIL.encode() not in (folder / "traces.sqlite").read_bytes()


def test_a_folder_can_be_named(folder: Path) -> None:
    erased = places(lgov("erase", "runs", "--where", TEXT, "--yes", "--json"))
    assert "store.sqlite" in erased


def test_files_of_every_kind_that_hold_it_are_named(folder: Path) -> None:
    for name in ("notes.md", "rules.py", "suggested.yaml"):
        (folder / name).write_text(f"# {EMAIL}\n")
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        connection.execute("CREATE TABLE people (mail)")
        connection.execute("INSERT INTO people VALUES (?)", (EMAIL,))
        connection.commit()
    named = places(lgov("erase", "--where", TEXT, "--dry-run", "--json"))
    assert {"notes.md", "rules.py", "suggested.yaml", "shop.db"} <= set(named)
