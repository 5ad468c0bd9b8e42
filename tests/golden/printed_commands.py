"""A folder with a store, a record, policies and a run that are the same in every run, and what commands print about them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.audit import AuditLog
from lgov_core.audit.signing import SigningKey
from lgov_core.commands import cli
from lgov_core.store import open_store
from lgov_core.types import (
    Action,
    CapturedCall,
    Decision,
    Effect,
    Outcome,
    Point,
    Reward,
    Rollout,
    Severity,
    Span,
    SpanEvent,
    ToolOutcome,
)
from tests.train.run_folders import Rolled, RunFolder, sql

POLICY = """\
version: 1
name: desk
rules:
  - {name: tools, use: tool, with: {allow: [search, run_sql]}}
  - {name: sql, use: sql, with: {dialect: sqlite, mode: read_only}}
"""
SHADOW = "mode: shadow\n" + POLICY
BROKEN = """\
version: 1
rules:
  - {name: tools, use: tool, with: {allowed: [search]}}
  - {name: other, use: nothing}
"""
AGENT = '''\
from langchain.agents import create_agent
from langchain_core.tools import tool


@tool
def run_sql(query: str) -> str:
    """Runs SQL."""
    return ""


@tool
def delete_file(path: str) -> str:
    """Deletes."""
    return ""
'''
CASES = [
    {"id": "read", "name": "run_sql", "arguments": {"query": "SELECT 1"}, "expect": "allow"},
    {"id": "drop", "name": "run_sql", "arguments": {"query": "DROP TABLE staff"}, "expect": "deny"},
    {"id": "wrong", "name": "search", "arguments": {"query": "x"}, "expect": "deny"},
]


def freeze(patch: pytest.MonkeyPatch) -> None:
    """Makes clocks and random ids count, so that the same calls write the same bytes."""
    ticks, seeds, ids = itertools.count(1), itertools.count(1), itertools.count(1)
    patch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000 + next(ticks) * 1_000_000_000)
    patch.setattr(time, "time", lambda: 1_700_000_000.0)
    patch.setattr(time, "monotonic_ns", lambda: next(ticks) * 1000)
    patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(ids)))

    def urandom(count: int) -> bytes:
        return hashlib.sha256(str(next(seeds)).encode()).digest()[:count].ljust(count, b"x")

    patch.setattr(os, "urandom", urandom)
    patch.setattr("lgov_core.audit.log.own_version", lambda: "1")
    patch.setattr("lgov_core.audit.log.os_user", lambda: "somebody")


def call(response_id: str, rollout_id: str | None, at: float, prompt: tuple[int, ...] = (1, 2)) -> CapturedCall:
    return CapturedCall(
        response_id, "m", {"messages": [{"role": "user", "content": "hi ü"}]}, {}, prompt, (3,), (-0.1,), "stop", 0, 1.0,
        1.0, at, at + 1, rollout_id, 1, "a", ("t1",),
    )  # fmt: skip


def write_store(place: Path) -> None:
    with open_store(str(place)) as store:  # type: ignore[attr-defined]
        store.add_rollouts(
            [Rollout("told", "t1", "run1", {"q": 1}, 1000.0), Rollout("other", "t2", "run2", {}, 1500.0)]
        )
        store.start_attempt("told", 1)
        store.add_call(call("c1", "told", 1001.0, tuple(range(50))))
        store.add_call(call("c2", "told", 1002.0, (*range(50), 3, 9)))
        store.finish_attempt("told", 1, Outcome.SUCCEEDED, rewards=[Reward(0.5), Reward(2.0, "air")])
        store.start_attempt("other", 1)
        store.add_call(call("c9", "other", 1501.0))
        store.finish_attempt("other", 1, Outcome.FAILED, rewards=[Reward(0.0)])
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "x", "n": 1}
        event = SpanEvent("e", 1001.5, {"a": [1]})
        store.add_spans([Span("execute_tool x", "s1", 1001.2, 1001.8, tool, "told", 1, None, "tr", (event,), True)])


def act(name: str, agent: str, point: Point = Point.PRE_TOOL_CALL, session: str = "s1", **arguments: object) -> Action:
    return Action(
        point, name, agent=agent, session_id=session, rollout_id="r1", call_id=f"call-{name}", arguments=arguments
    )


def write_record(place: Path, signer: SigningKey | None = None) -> None:
    denied = Decision(
        Effect.DENY, "sql", "no-drop", "it destroys a table", Severity.CRITICAL, policy_digest="d1", latency_us=12.5
    )
    part = Decision(Effect.DENY, "files", "no-write", "it writes", shadowed=True)
    shadowed = Decision(Effect.ALLOW, "files", "default", "", parts=(part,))
    allowed = Decision(Effect.ALLOW, "desk", "default", "", latency_us=3.0)
    with AuditLog(place, signer=signer, redact=["password"]) as log:
        drop = act("run_sql", "clerk", query="DROP TABLE staff", password="hunter2")
        log.commit(drop, denied)
        read = act("run_sql", "clerk", query="SELECT name FROM staff WHERE id = 7")
        entry = log.commit(read, allowed)
        log.commit_outcome(ToolOutcome(read, "ok", "7", decision=allowed, started_at=1.0, duration_s=0.5), entry)
        log.commit(act("write_file", "writer<b>", session="s2", text="zoë@example.com"), shadowed)
        nested = json.dumps({"to": "zoë@example.com"})
        log.commit(act("gpt", "writer<b>", Point.POST_MODEL_CALL, tool_calls=[{"arguments": nested}]), allowed)
        log.commit(act("gpt", "clerk", Point.PRE_MODEL_CALL, text_="x" * 70_000), allowed)
        log.append("signal", {"name": "stop"}, arguments=None, content={"why": "end"})


def write_folder(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Writes everything that the commands are about; clocks and ids count meanwhile, and no longer afterwards."""
    with patch.context() as frozen:
        freeze(frozen)
        write_store(folder / "store.sqlite")
        write_record(folder / "record.db")
        run = RunFolder(folder / "run")
        for _ in range(3):
            run.update({"t1": [Rolled(1.0), Rolled(0.0, sql("SELECT 1"))], "t2": [Rolled(1.0), Rolled(1.0)]}, loss=0.5)
    for name, text in (("policy.yaml", POLICY), ("shadow.yaml", SHADOW), ("broken.yaml", BROKEN), ("agent.py", AGENT)):
        (folder / name).write_text(text)
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in CASES))


#: What differs between two runs: this folder, ages, sizes of files, and the id that a database makes itself.
_CHANGING = (
    (r"\d+(\.\d+)? (s|min|h|d) ago", "SOME TIME ago"),
    (r"\"?size_bytes\"?: \d+|\"?free_bytes\"?: \d+", "BYTES"),
    (r"\d+\.\d MB", "SIZE MB"),
    (r"\"record\": \"[0-9a-f]{32}\"", '"record": "ID"'),
)


def printed(folder: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The exit status of ``lgov ARGUMENTS``, and what it writes, with this run's own names replaced."""
    result = CliRunner().invoke(cli, list(arguments), prog_name="lgov")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception

    def plain(text: str) -> str:
        text = text.replace(str(folder), "FOLDER")
        for pattern, replacement in _CHANGING:
            text = re.sub(pattern, replacement, text)
        return text

    return {"exit": result.exit_code, "stdout": plain(result.stdout), "stderr": plain(result.stderr)}


GOLDEN = Path(__file__).with_name("printed_commands.json")


def print_all(folder: Path, patch: pytest.MonkeyPatch, commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What each of the commands prints in the same new folder, one after the other."""
    home = folder / "home"
    (folder / "here" / ".git").mkdir(parents=True)
    patch.chdir(folder / "here")
    for name in [name for name in os.environ if name.startswith("LGOV_")]:
        patch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        patch.setenv(name, str(home))
    write_folder(folder / "here", patch)
    return [{"command": list(command), **printed(folder / "here", command)} for command in commands]


def read_golden() -> list[dict[str, Any]]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


if __name__ == "__main__":  # writes what is printed now; say in the commit why it changed
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        found = print_all(Path(name).resolve(), patch, [case["command"] for case in read_golden()])
    GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
