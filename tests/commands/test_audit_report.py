"""`lgov audit show --counts`, and the options that choose entries of a record."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, load_key, make_key, verify
from tests.commands.cli_runner import LGOV, lgov

DENIED = Decision(Effect.DENY, "sql", "no-drop", "it destroys a table")
SHADOWED = Decision(
    Effect.ALLOW,
    "files",
    "default",
    "",
    parts=(Decision(Effect.DENY, "files", "no-write", "it writes", shadowed=True),),
)
ALLOWED = Decision(Effect.ALLOW, "desk", "default", "")
EMAIL = "zoë@example.com"


def act(name: str, agent: str, point: Point = Point.PRE_TOOL_CALL, session: str = "s1", **arguments: object) -> Action:
    return Action(point, name, agent=agent, session_id=session, rollout_id="r1", arguments=arguments)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five decisions of two agents: one denied, and one that shadow mode let pass."""
    path = tmp_path / "audit.db"
    with AuditLog(path, signer=None) as log:
        log.commit(act("run_sql", "clerk", query="DROP TABLE staff"), DENIED)
        log.commit(act("run_sql", "clerk", query="SELECT 1"), ALLOWED)
        log.commit(act("write_file", "writer<b>", session="s2", text=EMAIL), SHADOWED)
        nested = json.dumps({"to": EMAIL})
        log.commit(act("gpt", "writer<b>", Point.POST_MODEL_CALL, tool_calls=[{"arguments": nested}]), ALLOWED)
        log.commit(act("gpt", "clerk", Point.PRE_MODEL_CALL), ALLOWED)
    return path


def test_a_record_is_compared_with_the_key_and_the_heads_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own.key", "other.key"):
        make_key(tmp_path / name)
    path, heads = tmp_path / "signed.db", tmp_path / "heads.jsonl"
    with AuditLog(path, signer=load_key(tmp_path / "own.key"), heads=heads) as log:
        log.commit(act("run_sql", "clerk"), ALLOWED)
    monkeypatch.setenv("LGOV_HEADS", str(heads))
    for name, status in (("own.key", 0), ("other.key", 4)):
        monkeypatch.setenv("LGOV_AUDIT_KEY", str(tmp_path / name))
        assert lgov("audit", "show", "--counts", str(path)).exit_code == status
    monkeypatch.delenv("LGOV_AUDIT_KEY")
    assert "kept elsewhere (--head)" not in lgov("audit", "show", "--counts", str(path)).output
    heads.unlink()
    assert lgov("audit", "show", "--counts", str(path)).exit_code == 2


def shown(path: Path, *options: str) -> list[Any]:
    return json.loads(lgov("audit", "show", str(path), "--json", *options).stdout)


def verify_report(path: Path, *options: str) -> dict[str, Any]:
    done = lgov("audit", "show", "--counts", str(path), "--json", *options)
    assert done.exit_code == 4, done.output
    return json.loads(done.stdout)["verified"]


def test_decisions_are_counted_by_tool_rule_and_agent(path: Path) -> None:
    report = json.loads(lgov("audit", "show", "--counts", str(path), "--json").stdout)
    assert report["decisions"] == {"deny": 1, "allow": 3, "would deny": 1}
    assert report["tools"] == {"run_sql": {"deny": 1, "allow": 1}, "write_file": {"would deny": 1}}
    assert report["results"] == {}
    assert report["rules"] == {
        "sql/no-drop": {"deny": 1}, "desk/default": {"allow": 3}, "files/no-write": {"would deny": 1},
    }  # fmt: skip
    assert report["agents"] == {"clerk": {"deny": 1, "allow": 2}, "writer<b>": {"would deny": 1, "allow": 1}}
    assert report["points"]["pre_tool_call"] == {"deny": 1, "allow": 1, "would deny": 1}
    (hour,) = report["times"]
    assert hour.endswith(":00")


def test_a_call_counts_once_for_its_tool(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        log.commit(act("run_sql", "clerk", Point.POST_TOOL_CALL, query="SELECT 1"), DENIED)
    report = json.loads(lgov("audit", "show", "--counts", str(path), "--json").stdout)
    assert report["tools"]["run_sql"] == {"deny": 1, "allow": 1}
    assert report["results"] == {"run_sql": {"deny": 1}}


def test_a_reason_is_found_in_every_rule_that_answered(path: Path) -> None:
    parts = (Decision(Effect.WARN, "pace", "slow", "often"), Decision(Effect.ALLOW, "asked", "approved", "Eve said so"))
    with AuditLog(path, signer=None) as log:
        log.commit(act("pay", "clerk"), Decision(Effect.WARN, "pace", "slow", "often", parts=parts))
    assert [one["position"] for one in shown(path, "--where", "text=eve")] == [6]


def test_the_table_puts_denials_first(path: Path) -> None:
    lines = lgov("audit", "show", "--counts", str(path), "--where", "agent=clerk").stdout.splitlines()
    assert lines[0].startswith("3 decisions (2 allow, 1 deny) in 3 entries, from 20")
    assert [line.split()[0] for line in lines if "/" in line] == ["sql/no-drop", "desk/default"]


def test_the_report_says_whether_the_record_is_whole(path: Path) -> None:
    whole = lgov("audit", "show", "--counts", str(path))
    assert (whole.exit_code, whole.stdout.splitlines()[-4:-2]) == (
        0,
        ["ok: 5 entries in 1 chain, 0 with erased texts", "not signed: whoever can write the file can write it anew"],
    )
    with sqlite3.connect(path) as connection:
        (again,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'entries_are_not_changed'").fetchone()
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute("UPDATE entries SET body = replace(body, 'no-drop', 'all') WHERE position = 1")
        connection.execute(again)
    connection.close()
    broken = verify_report(path)
    assert (broken["ok"], broken["first_bad"]) == (False, 1)


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        (["--where", "tool=run_*"], [1, 2]),
        (["--where", "tool=gpt"], []),
        (["--where", "agent=writer*"], [3, 4]),
        (["--where", "session=s2"], [3]),
        (["--where", f"text={EMAIL.upper()}"], [3, 4]),
        (["--where", "text=destroys"], [1]),
        (["--since", "1h"], [1, 2, 3, 4, 5]),
        (["--before", "1h"], []),
        (["--since", "2100-01-01"], []),
        (["--denied", "--where", "tool=*"], [1, 3]),
    ],
)
def test_entries_are_chosen(path: Path, options: Sequence[str], positions: Sequence[int]) -> None:
    assert [one["position"] for one in shown(path, *options)] == positions


def test_an_unknown_time_is_wrong_usage(path: Path) -> None:
    result = lgov("audit", "show", str(path), "--since", "yesterday")
    assert result.exit_code == 2
    assert "neither an age" in result.stderr


def test_a_person_is_erased_by_a_text(path: Path) -> None:
    result = lgov("erase", str(path), "--where", f"text={EMAIL}", "--reason", "asked for", "--yes")
    assert "the texts of 2 entries" in result.stdout
    assert shown(path, "--where", f"text={EMAIL}") == []
    assert EMAIL.encode() not in path.read_bytes()
    assert (verify(path).ok, verify(path).erased) == (True, 2)


def test_what_the_chain_keeps_of_a_text_is_counted(path: Path) -> None:
    result = lgov("erase", str(path), "--where", "text=destroys", "--yes")
    assert "1 entry with it in a name or a reason" in " ".join(result.stdout.split())


def test_texts_of_an_age_are_erased(path: Path) -> None:
    with AuditLog(path, signer=None) as log:
        time.sleep(0.02)
        now = time.time()
        log.commit(act("late", "clerk", query="SELECT 2"), ALLOWED)
    before = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06}"
    assert lgov("erase", str(path), "--before", before, "--yes").exit_code == 0
    assert [one["position"] for one in shown(path) if one["arguments"]] == [6]


def test_nothing_is_erased_without_a_choice(path: Path) -> None:
    assert lgov("erase", str(path), "--yes").exit_code == 2
    assert lgov("erase", "--yes", "--where", "tool=*").exit_code == 2, "only a text is looked for everywhere"


def run_governed(folder: Path, *options: str) -> Any:
    import subprocess

    (folder / "policy.yaml").write_text("version: 1\nrules: [{name: all, use: allow}]\n")
    (folder / "agent.py").write_text("print('ran')\n")
    return subprocess.run(
        [*LGOV, "run", "--audit", "record/audit.db", *options, "--", "python", "agent.py"],
        capture_output=True, text=True, timeout=120, cwd=folder,
    )  # fmt: skip


def test_lgov_run_signs_with_the_key_it_is_given(tmp_path: Path) -> None:
    key = make_key(tmp_path / "keys" / "audit.key")
    done = run_governed(tmp_path, "--set", "audit_key=keys/audit.key", "--set", "heads=heads.jsonl")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    report = verify(
        tmp_path / "record" / "audit.db", key=key.public, head=tmp_path / "heads.jsonl", require_signed=True
    )
    assert report.ok, report.problem
    assert (report.anchored, report.key_trusted) == (2, True)


def test_heads_without_a_key_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    done = run_governed(tmp_path, "--set", "heads=heads.jsonl")
    assert (done.returncode, done.stdout) == (78, "")
    assert "no key to sign them" in done.stderr


def test_lgov_run_takes_reward_rules(tmp_path: Path) -> None:
    (tmp_path / "air.yaml").write_text("version: 1\nrules:\n  - {on: success, reward: 1}\n")
    done = run_governed(tmp_path, "--set", "air=air.yaml")
    assert (done.returncode, "air.yaml:3: on is" in done.stderr) == (78, True), done.stderr
