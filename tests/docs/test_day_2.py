"""docs/how-to/day-2.md: the commands of backup and restore are run as they stand there, while a program writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, load_key, make_key, verify
from lgov_core.settings import Settings
from lgov_core.store import open_store
from lgov_core.types import Rollout

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "day-2.md").read_text()
ALLOWED = Decision(Effect.ALLOW, "desk", "default", "")


def block(heading: str) -> str:
    return re.findall(rf"^## {heading}\n.*?```\w+[^\n]*\n(.*?)```", PAGE, re.M | re.S)[0]


def commit(log: AuditLog, number: int) -> None:
    log.commit(Action(Point.PRE_TOOL_CALL, f"tool-{number}", arguments={"number": number}), ALLOWED)


def test_a_backup_that_was_taken_while_a_program_writes_verifies_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = block("Backup and restore")
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
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
        done = subprocess.run(
            ["bash", "-euc", commands],
            env={**os.environ, "PATH": programs},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0, done.stdout + done.stderr
    # The machine is lost; the copies are put in place.
    for path in tmp_path.glob("*.db*"):
        path.unlink()
    for path in (tmp_path / "backup").iterdir():
        shutil.copy(path, tmp_path / path.name)
    with open_store("runs.db", make=False) as store:
        assert len(store.rollouts()) >= 20
    before = verify("audit.db", key="audit.key.pub")
    assert before.ok
    with AuditLog("audit.db", signer=load_key(tmp_path / "audit.key")) as log:
        commit(log, 0)
    after = verify("audit.db", key="audit.key.pub", head="audit.db.heads.jsonl")
    assert (after.ok, after.unsigned) == (True, 0), after.problem
    assert after.entries == before.entries + 1


def test_the_settings_of_the_page_are_settings() -> None:
    named = set(tomllib.loads(block("Logs"))) | set(re.findall(r"--set (\w+)=", PAGE))
    assert named <= set(Settings.__dataclass_fields__)
