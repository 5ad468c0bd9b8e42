"""FlightRecorder: agent-os's method names over an append-only record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lgov_core import Action, Effect, FlightRecorder, Governor, Point, PolicySet, ToolOutcome
from lgov_core.audit import AuditLog, verify
from lgov_core.errors import AuditError
from lgov_core.policies import ConstantPolicy, Rule
from lgov_core.rl_governance.flight_recorder import default_record_path


@pytest.fixture
def recorder(tmp_path: Path):
    with FlightRecorder(tmp_path / "flight.db") as made:
        yield made


def test_traces_end_in_one_of_four_ways(recorder: FlightRecorder) -> None:
    ids = [recorder.start_trace("agent-1", "run_sql", {"query": q}, "a prompt") for q in ("a", "b", "c", "d", "e")]
    recorder.log_success(ids[0], result={"rows": 3}, execution_time_ms=12.5)
    recorder.log_violation(ids[1], "no DROP here", policy_name="SQLPolicy", severity="critical")
    recorder.log_error(ids[2], ValueError("gone"))
    recorder.log_shadow_exec(ids[3], "would be 3 rows")
    log = recorder.get_log()
    assert [one["trace_id"] for one in log] == ids
    assert [one["policy_verdict"] for one in log] == ["allowed", "blocked", "error", "shadow", "pending"]
    assert [one["entry_type"] for one in log] == ["tool_call", "policy_check", "tool_call", "tool_call", "tool_call"]
    assert (log[0]["result"], log[0]["execution_time_ms"]) == ({"rows": 3}, 12.5)
    assert (log[1]["violation_reason"], log[1]["policy_name"], log[1]["severity"]) == (
        "no DROP here", "SQLPolicy", "critical",
    )  # fmt: skip
    assert log[2]["error"] == "gone"
    assert log[0]["tool_args"] == {"query": "a"}
    assert log[0]["input_prompt"] == "a prompt"
    assert len(recorder.entries()) == 9  # an outcome is an entry of its own
    assert recorder.verify_integrity() == {
        "valid": True, "total_entries": 9, "message": "9 entries verified, 0 of them signed",
    }  # fmt: skip


def test_governed_acts_are_in_the_same_log(recorder: FlightRecorder) -> None:
    rules = [
        Rule(ConstantPolicy(Effect.DENY, name="never", reason="no"), tools=("rm",)),
        Rule(ConstantPolicy(Effect.ALLOW)),
    ]
    governor = Governor(PolicySet(rules), audit=recorder)
    for tool in ("ls", "rm"):
        action = Action(Point.PRE_TOOL_CALL, tool, arguments={"path": "x"}, agent="clerk", call_id=tool)
        decision = governor.decide(action)
        governor.record(ToolOutcome(action, "denied" if decision.blocks else "ok", "done", decision=decision))
    recorder.log_signal("clerk", "SIGSTOP", reason="critical")
    recorder.note("policy", "trusted", {})  # about the record, not about an agent
    found = [(one["entry_type"], one["tool_name"], one["policy_verdict"]) for one in recorder.get_log()]
    assert found == [
        ("policy_check", "ls", "allowed"),
        ("tool_call", "ls", "allowed"),
        ("policy_check", "rm", "blocked"),
        ("signal", "SIGSTOP", "allowed"),
    ]
    assert recorder.get_statistics() == {
        "total_actions": 4,
        "by_verdict": {"allowed": 3, "blocked": 1},
        "top_agents": [{"agent_id": "clerk", "count": 4}],
        "avg_execution_time_ms": pytest.approx(0),
    }


def test_queries_are_newest_first_and_all_conditions_hold(recorder: FlightRecorder) -> None:
    for number in range(6):
        trace = recorder.start_trace(f"agent-{number % 2}", f"tool{number}")
        (recorder.log_violation if number % 3 == 0 else recorder.log_success)(trace, "r")
    assert [one["tool_name"] for one in recorder.query_logs(agent_id="agent-0")] == ["tool4", "tool2", "tool0"]
    assert [one["tool_name"] for one in recorder.query_logs(policy_verdict="blocked", limit=1)] == ["tool3"]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert recorder.query_logs(start_time=later) == []
    assert len(recorder.query_logs(end_time=later.replace(tzinfo=None))) == 6
    with pytest.raises(AuditError, match="no verdict"):
        recorder.query_logs(policy_verdict="denied")


def test_reading_on_from_a_position_gives_only_what_is_new(recorder: FlightRecorder) -> None:
    first = recorder.start_trace("a", "one")
    (seen,) = recorder.get_log()
    assert recorder.get_log(after=seen["position"]) == []
    recorder.log_success(first, "r")
    second = recorder.start_trace("a", "two")
    new = recorder.get_log(after=seen["position"])
    assert [(one["refers_to"], one["policy_verdict"]) for one in new] == [(first, "allowed"), (None, "pending")]
    assert new[1]["trace_id"] == second


def test_what_json_has_no_form_for_is_recorded_all_the_same(recorder: FlightRecorder) -> None:
    trace = recorder.start_trace("a", "odd", {"a": {1, 2}, "b": object(), "c": b"x", "d": float("nan")})
    recorder.log_success(trace, result=object())
    (one,) = recorder.get_log()
    assert one["tool_args"]["a"] == [1, 2]
    assert verify(recorder.path).ok


def test_redaction_comes_before_everything(tmp_path: Path) -> None:
    path = tmp_path / "flight.db"
    with FlightRecorder(path, redact=["password"]) as recorder:
        trace = recorder.start_trace("a", "login", {"user": "ada", "auth": [{"Password": "hunter2-secret"}]})
        recorder.log_success(trace)
        action = Action(Point.PRE_TOOL_CALL, "login", arguments={"password": "hunter2-secret"})
        Governor(ConstantPolicy(Effect.ALLOW), audit=recorder).decide(action)
        assert recorder.get_log()[0]["tool_args"] == {"user": "ada", "auth": [{"Password": "[redacted]"}]}
    assert not any(b"hunter2" in file.read_bytes() for file in tmp_path.iterdir())


def test_a_redaction_that_fails_denies(tmp_path: Path) -> None:
    def redact(key: str, value: object) -> object:
        raise KeyError(key)

    with FlightRecorder(tmp_path / "flight.db", redact=redact) as recorder:
        governor = Governor(ConstantPolicy(Effect.ALLOW), audit=recorder)
        decision = governor.decide(Action(Point.PRE_TOOL_CALL, "t", arguments={"a": 1}))
        assert (decision.effect, decision.rule) == (Effect.DENY, "audit-failed")
        assert recorder.entries() == []
    with pytest.raises(AuditError, match="list of the keys"):
        FlightRecorder(tmp_path / "other.db", redact="password")


def test_recorders_of_one_process_without_a_place_share_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_record_path().is_relative_to(tmp_path)
    with FlightRecorder() as one, FlightRecorder() as two:
        one.start_trace("a", "t")
        assert len(two.get_log()) == 1
    code = "from lgov_core import FlightRecorder; print(len(FlightRecorder().get_log()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.stdout == "0\n", done.stderr  # another process, another record


def test_threads_may_trace_at_once(recorder: FlightRecorder) -> None:
    def work(number: int) -> None:
        for _ in range(20):
            recorder.log_success(recorder.start_trace(f"agent-{number}", "t", {"n": number}), number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.get_statistics()["by_verdict"] == {"allowed": 160}
    assert recorder.verify_integrity()["valid"] is True


def test_tampering_shows_in_verify_integrity(recorder: FlightRecorder) -> None:
    import sqlite3

    recorder.log_violation(recorder.start_trace("a", "t"), "no")
    changed = recorder.entries()[1].entry_id
    other = sqlite3.connect(recorder.path)
    other.execute("DROP TRIGGER entries_are_not_changed")
    other.execute("UPDATE entries SET body = replace(body, 'blocked', 'allowed') WHERE position = 2")
    other.commit()
    other.close()
    answer = recorder.verify_integrity()
    assert (answer["valid"], answer["total_entries"]) == (False, 1)
    assert answer["first_tampered_id"] == changed
    assert json.dumps(answer)


def test_it_is_an_audit_log(recorder: FlightRecorder) -> None:
    assert isinstance(recorder, AuditLog)
