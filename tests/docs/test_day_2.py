"""docs/how-to/day-2.md: the commands of backup and restore are run as they stand there, while a program writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core import Action, Decision, Effect, Governor, Point, RolloutScope, load_policy_file
from lgov_core.audit import AuditLog, load_key, make_key, verify
from lgov_core.audit.verify import in_words, verify_archived
from lgov_core.errors import AuditError
from lgov_core.settings import Settings
from lgov_core.store import open_store
from lgov_core.types import Rollout

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "day-2.md").read_text()
ALLOWED = Decision(Effect.ALLOW, "desk", "default", "")


def blocks(heading: str) -> list[str]:
    section = re.findall(rf"^## {heading}\n(.*?)(?=^## )", PAGE, re.M | re.S)[0]
    return re.findall(r"```\w+[^\n]*\n(.*?)```", section, re.S)


def run(commands: str) -> None:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", commands],
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def commit(log: AuditLog, number: int) -> None:
    log.commit(Action(Point.PRE_TOOL_CALL, f"tool-{number}", arguments={"number": number}), ALLOWED)


def test_a_backup_that_was_taken_while_a_program_writes_verifies_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    backup, restore = blocks("Backup and restore")
    stop, ready = threading.Event(), threading.Event()

    def write() -> None:
        with AuditLog("audit.db", signer=make_key(tmp_path / "audit.key")) as log, open_store("runs.db") as store:
            number = 0
            while not stop.is_set():
                number += 1
                store.add_rollouts([Rollout(f"r{number}", "t", "run", {})])
                commit(log, number)
                if number == 20:
                    ready.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert ready.wait(60)
        run(backup)
    finally:
        stop.set()
        writer.join()
    # The databases are lost; the copies are put in place, and the newest heads stay.
    for name in ("audit.db", "runs.db"):
        for path in tmp_path.glob(f"{name}*"):
            if path.name != "audit.db.heads.jsonl":
                path.unlink()
        shutil.copy(tmp_path / "backup" / name, name)
    with open_store("runs.db", make=False) as store:
        assert len(store.rollouts()) >= 20
    copied = verify("audit.db", key="audit.key.pub")
    assert copied.ok
    assert "older copy" in (verify("audit.db", head="audit.db.heads.jsonl").problem or "")
    key = load_key(tmp_path / "audit.key")
    with pytest.raises(AuditError, match="older copy"):
        AuditLog("audit.db", signer=key)
    run(restore)
    with AuditLog("audit.db", signer=key) as log:
        commit(log, 0)
    run("lgov audit rotate audit.db --to archive --set audit_key=audit.key")
    reports = verify_archived(
        "audit.db", "archive", key="audit.key.pub", head="audit.db.heads.jsonl", require_signed=True
    )
    assert [report.problem for _, report in reports] == [None] * 3
    (loss,) = reports[-1][1].losses
    assert loss["position"] == copied.entries + 1
    assert loss["by"] in in_words(reports[-1][1])


def test_a_replica_that_starts_with_the_rotation_archives_the_record_of_its_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key = make_key(tmp_path / "audit.key")
    monkeypatch.setenv("LGOV_AUDIT_KEY", "audit.key")
    (rotation,) = re.findall(r"`(test ! -e audit.db [^`]*)`", PAGE)
    for start in range(3):
        run(rotation)
        assert len(list(tmp_path.glob("archive/*.db"))) == start
        with AuditLog("audit.db", signer=key) as log:
            commit(log, start)
    reports = verify_archived("audit.db", "archive", key="audit.key.pub", head="audit.db.heads.jsonl")
    assert [report.problem for _, report in reports] == [None] * 3


def test_a_bad_line_among_revoked_keys_is_found_before_replicas_read_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    (tmp_path / "new").write_text(f"{'0' * 64}\nlgov-key-mistyped\n")
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    command = [sys.executable, "-m", "lgov_core", "serve", "--upstream", "http://127.0.0.1:9/v1", "--port", "0"]
    done = subprocess.run(
        [*command, "--key-secret-file", "secret", "--set", "revoked_keys=new"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"\b2\b.*neither", done.stderr)


def test_a_budget_that_a_killed_process_holds_is_begun_anew_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(
        "version: 1\ndefault: allow\nrules:\n"
        "  - {name: budget, use: cost, with: {max_calls: 1, per: global, ledger: budgets.db}}\n"
    )
    program = """
import os, sys
from lgov_core import Action, Governor, Point, RolloutScope, load_policy_file
governor = Governor(load_policy_file("policy.yaml"))
with governor.rollout(RolloutScope("r")):
    decision = governor.decide(Action(Point.PRE_TOOL_CALL, "search", arguments={}, operation_id="o-1"))
    print(decision.effect.name, flush=True)
    os._exit(9)
"""
    begun = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (begun.stdout, begun.returncode) == ("ALLOW\n", 9), begun.stderr

    def decides() -> Effect:
        governor = Governor(load_policy_file("policy.yaml"))
        with closing(governor), governor.rollout(RolloutScope("s")):
            return governor.decide(Action(Point.PRE_TOOL_CALL, "search", arguments={}, operation_id="o-2")).effect

    assert decides() is Effect.DENY
    (snippet,) = (block for block in blocks("Outages") if "reset()" in block)
    exec(snippet, {})
    assert decides() is Effect.ALLOW


def test_the_settings_of_the_page_are_settings() -> None:
    named = set(tomllib.loads(blocks("Logs")[0])) | set(re.findall(r"--set (\w+)=", PAGE))
    assert named <= set(Settings.__dataclass_fields__)
