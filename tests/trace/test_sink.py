"""What a governor shows its observers arrives in the store."""

from __future__ import annotations

import math
from pathlib import Path

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, Decision, Point, Reward, Severity, Span, ToolOutcome


class NoDrop(BoundedPolicy):
    name = "sql"

    def judge(self, action: Action) -> Decision | None:
        if "DROP" in str(action.arguments.get("query", "")):
            return self.deny("no-drop", "it destroys a table", Severity.CRITICAL)
        return self.allow("fine")


class Air:
    value = 0.25

    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> list[Reward]:
        return [Reward(self.value, "air", source="air")]


def drop(call_id: str | None = "call_1") -> Action:
    return Action(
        Point.PRE_TOOL_CALL, "run_sql", arguments={"query": "DROP TABLE t", "n": 1}, agent="clerk", call_id=call_id
    )


def test_decisions_outcomes_rewards_and_spans_become_rows(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.sqlite") as store, AuditLog(tmp_path / "audit.sqlite") as audit:
        governor = Governor([NoDrop()], plugins=[StoreSink(store), Air()], audit=audit)
        with governor.rollout(RolloutScope("r1", 2, session_id="s1")):
            decision = governor.decide(drop())
            governor.record(ToolOutcome(drop(), "denied", started_at=5.0, duration_s=0.5, decision=decision))
            governor.record(ToolOutcome(drop("call_2"), "ok", result="3 rows"))
            governor.record(ToolOutcome(drop(None), "error", error_type="ValueError", error="bad"))
        # A reward is durable at once; spans after a flush.
        assert [(r.value, r.tool_call_id, r.rollout_id, r.attempt) for r in store.rewards()] == [
            (0.25, "call_1", "r1", 2),
            (0.25, "call_2", "r1", 2),
            (0.25, None, "r1", 2),
        ]
        governor.observe(Span("chat tiny", "s1", 1.0, 2.0, {"x": 1}, "r1", 2))
        governor.observe("something else")
        store.flush()
        startup, judged, denied, fine, failed, shutdown, chat = store.spans()
        governor.close()
    assert {span.rollout_id for span in (startup, judged, denied, fine, failed, shutdown, chat)} == {"r1"}
    assert {span.attempt for span in (judged, denied)} == {2}
    assert [span.attributes[semconv.POINT] for span in (startup, judged, shutdown)] == [
        "agent_startup",
        "pre_tool_call",
        "agent_shutdown",
    ]
    assert (judged.name, judged.parent_id) == ("lgov.decision", "call_1")
    latency = judged.attributes.pop(semconv.DECISION_LATENCY_US)  # type: ignore[attr-defined]
    assert judged.ended_at is not None
    assert judged.ended_at - judged.started_at >= latency / 1e6 - 1e-6  # and the commit to the record
    assert judged.attributes == {
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "s1",
        "gen_ai.tool.call.id": "call_1",
        "lgov.rollout_id": "r1",
        "lgov.attempt": 2,
        "lgov.point": "pre_tool_call",
        "lgov.action.kind": "function",
        "lgov.action.name": "run_sql",
        "lgov.decision.id": decision.decision_id,
        "lgov.decision.effect": "deny",
        "lgov.decision.policy": "sql",
        "lgov.decision.rule": "no-drop",
        "lgov.decision.reason": "it destroys a table",
        "lgov.decision.severity": "critical",
        "gen_ai.tool.call.arguments": '{"query": "DROP TABLE t", "n": 1}',
    }
    assert (denied.name, denied.span_id, denied.started_at, denied.ended_at) == (
        "execute_tool run_sql",
        "call_1",
        5.0,
        5.5,
    )
    assert denied.attributes[semconv.ERROR_TYPE] == "denied"
    assert denied.attributes[semconv.DECISION_ID] == decision.decision_id
    assert denied.attributes[semconv.TOOL_ARGUMENTS] == '{"query": "DROP TABLE t", "n": 1}'
    assert semconv.ERROR_TYPE not in fine.attributes
    assert fine.attributes[semconv.TOOL_RESULT] == "3 rows"
    assert (failed.attributes[semconv.ERROR_TYPE], failed.attributes[semconv.ERROR_MESSAGE]) == ("ValueError", "bad")
    assert failed.span_id not in ("", None, "call_1")
    assert chat == Span("chat tiny", "s1", 1.0, 2.0, {"x": 1}, "r1", 2)


def test_content_can_be_left_out(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.sqlite") as store:
        governor = Governor([NoDrop()], plugins=[StoreSink(store, content=False)])
        governor.record(ToolOutcome(drop(), "error", result="secret", error="secret", error_type="E"))
        store.flush()
        (span,) = store.spans()
    assert "DROP" not in str(span.attributes)
    assert "secret" not in str(span.attributes)


def test_what_the_store_refuses_is_counted_and_does_not_break_the_agent(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    governor = Governor([NoDrop()], plugins=[sink := StoreSink(store)])
    where = f"lgov_observe:{governor.manager.get_name(sink)}"
    governor.observe(Reward(math.nan, "air", "r1", 1))
    assert governor.failures[where] == 1
    assert store.rewards() == []
    store.close()
    assert governor.decide(drop()).blocks
    assert governor.failures[where] == 2


def test_span_names() -> None:
    assert semconv.execute_tool_span_name("run_sql") == "execute_tool run_sql"
    assert semconv.execute_tool_span_name("\ud800a\0") == "execute_tool ?a\ufffd"  # a model may write anything
