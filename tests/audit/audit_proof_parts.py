"""Values and helpers of these tests."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from lgov_core.audit import AuditLog, SigningKey, make_key, verify
from lgov_core.audit import verify as verify_function
from lgov_core.types import Action, Decision, Effect, Point, Severity, ToolOutcome

DENY = Decision(Effect.DENY, "sql", "no-drop", "it destroys a table", Severity.CRITICAL)
ALLOW = Decision(Effect.ALLOW, "sql", "reads")
VERIFIER = Path(sys.modules[verify_function.__module__].__file__ or "")


def action(number: int) -> Action:
    return Action(
        Point.PRE_TOOL_CALL,
        f"tool{number}",
        arguments={"i": number},
        rollout_id=f"r{number % 3}",
        call_id=f"c{number}",
        text=f"text {number}",
    )


@dataclass(frozen=True)
class Signed:
    """A record of two writers, 72 entries, several heads; ``older`` is a copy of it from halfway."""

    path: Path
    older: Path
    heads: Path
    key: SigningKey


def make_signed(folder: Path) -> Signed:
    """A signed record of 72 entries, an older copy of it, and its heads at a second place."""
    key = make_key(folder / "audit.key")
    path, older, heads = folder / "audit.db", folder / "older.db", folder / "elsewhere" / "heads.jsonl"
    heads.parent.mkdir()
    with (
        AuditLog(path, signer=key, sign_every=24, heads=heads) as one,
        AuditLog(path, signer=key, sign_every=24, heads=heads) as two,
    ):
        for number in range(60):
            log = (one, two)[number % 7 % 2]
            decision = ALLOW if number % 4 else DENY
            decision_id = log.commit(action(number), decision)
            if number % 5 == 0:
                log.commit_outcome(ToolOutcome(action(number), "ok", result=f"{number} rows"), decision_id)
            if number == 30:
                with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(older)) as copy:
                    source.backup(copy)
    report = verify(path, key=key.public, head=heads, require_signed=True)
    assert report.ok, report
    assert (report.entries, report.signed, report.unsigned, report.key_trusted) == (72, 72, 0, True)
    assert report.heads >= 3
    assert report.anchored == report.heads
    return Signed(path, older, heads, key)
