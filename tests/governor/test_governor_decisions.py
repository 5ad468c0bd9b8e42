"""What a governor makes of a judgement: ids of the rollout, the entry on record, counts, and what observers see."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.errors import AuditError
from lgov_core.governor import Governor, ObservedDecision, PluginFailure, in_scope
from lgov_core.hookspecs import hookimpl
from lgov_core.policies import BoundedPolicy, PolicySet, ToolPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point, Reward, ToolOutcome
from tests.governor.governors import ALLOW, Says, call, governor

SCOPE = RolloutScope("roll_1", 2, "sess_1")


class Seen:
    """A plugin that keeps every event."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Broken:
    """A record that takes no entry."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def commit(self, action: Action, decision: Decision) -> str:
        time.sleep(0.02)
        raise self.error

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        raise self.error


# ---------------------------------------------------------------------- the rollout of an action


def test_an_action_gets_the_ids_of_the_running_rollout_where_it_has_none() -> None:
    with enter_scope(SCOPE):
        action = in_scope(call())
        own = in_scope(Action(Point.PRE_TOOL_CALL, "t", session_id="own"))
        placed = in_scope(Action(Point.PRE_TOOL_CALL, "t", rollout_id="roll_2", attempt=5))
    assert (action.rollout_id, action.attempt, action.session_id) == ("roll_1", 2, "sess_1")
    assert (own.rollout_id, own.session_id) == ("roll_1", "own")
    assert (placed.rollout_id, placed.attempt, placed.session_id) == ("roll_2", 5, None)
    assert in_scope(call()).rollout_id is None


def test_an_action_is_recognised_by_an_operation_id_but_not_after_the_call() -> None:
    first, second = in_scope(call(), identify=True), in_scope(call(), identify=True)
    assert first.operation_id is not None
    assert first.operation_id.startswith("op_")
    assert first.operation_id != second.operation_id
    assert in_scope(Action(Point.PRE_TOOL_CALL, "t", operation_id="op"), identify=True).operation_id == "op"
    assert in_scope(call()).operation_id is None
    for point in (Point.POST_TOOL_CALL, Point.POST_MODEL_CALL):
        assert in_scope(Action(point, "t"), identify=True).operation_id is None


def test_an_operation_id_is_given_where_a_policy_or_plugin_keeps_count() -> None:
    class Counts(BoundedPolicy):
        name, stateful = "counts", True

        def judge(self, action: Action) -> Decision:
            return self.allow()

        def observe(self, event: Any) -> None: ...

    class Stateful(Says):
        stateful = True

    def operation_of(*plugins: object, **options: Any) -> str | None:
        seen = Seen()
        governor(seen, *plugins, **options).decide(call())
        return seen.of(ObservedDecision)[0].action.operation_id

    assert operation_of(Says(ALLOW)) is None
    assert operation_of(Stateful(ALLOW)) is not None
    assert operation_of(policies=[Counts()]) is not None


# ---------------------------------------------------------------------- the record


def test_a_decision_has_the_digests_of_the_policies_and_the_id_of_its_entry(tmp_path: Path) -> None:
    first, second = PolicySet([ToolPolicy(allow=["run_sql"])]), PolicySet([ToolPolicy(allow=["*"])])
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        subject = Governor([first, ToolPolicy(allow=["*"]), second], audit=log)
        decision = subject.decide(call())
        (entry,) = log.entries()
    assert subject.policy_digest == f"{first.digest},{second.digest}"
    assert decision.policy_digest == entry.policy_digest == subject.policy_digest
    assert decision.decision_id == entry.entry_id
    assert Governor(first).decide(call()).decision_id is None


@pytest.mark.parametrize(
    ("error", "says"), [(AuditError("the disk is full"), "the disk is full"), (OSError("secret"), "OSError")]
)
def test_what_is_not_on_record_is_denied_and_keeps_what_was_decided(error: Exception, says: str) -> None:
    seen = Seen()
    subject = governor(seen, Says(ALLOW), audit=Broken(error))
    decision = subject.decide(call())
    assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, "lgov", "audit-failed")
    assert decision.fault
    assert decision.reason == "the decision could not be recorded, so nothing may be done"
    assert [(part.policy, part.effect) for part in decision.parts] == [("p", Effect.ALLOW), ("lgov", Effect.DENY)]
    assert says in decision.parts[-1].reason
    assert "secret" not in decision.parts[-1].reason
    assert decision.latency_us > 0
    assert decision.decision_id is None
    assert subject.failures == {"audit": 1}
    assert subject.effects == {"deny": 1}
    (event,) = seen.of(ObservedDecision)
    assert event.decision is decision
    assert 0.02 <= event.commit_s < 5


def test_an_observer_sees_each_decision_when_it_was_taken() -> None:
    seen = Seen()
    subject = governor(seen, Says(ALLOW))
    before = time.time()
    decisions = [subject.decide(call()), asyncio.run(subject.adecide(call()))]
    events = seen.of(ObservedDecision)
    assert [event.decision for event in events] == decisions
    assert all(before <= event.at <= time.time() for event in events)
    assert all(0 <= event.commit_s < 1 for event in events)
    assert subject.effects == {"allow": 2}


def test_an_outcome_that_is_not_on_record_is_shown_and_counted() -> None:
    seen = Seen()
    subject = governor(seen, Says(ALLOW), audit=Broken(AuditError("the disk is full")))
    assert subject.record(ToolOutcome(call(), "ok")) == []
    (failure,) = seen.of(PluginFailure)
    assert (failure.hook, failure.plugin) == ("commit_outcome", "audit")
    assert "the disk is full" in failure.error
    assert subject.failures == {"commit_outcome:audit": 1}
    assert len(seen.of(ToolOutcome)) == 1


def test_an_outcome_belongs_to_its_decisions_entry_and_rollout(tmp_path: Path) -> None:
    seen = Seen()
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        subject = governor(seen, Says(ALLOW), audit=log)
        with enter_scope(SCOPE):
            decision = subject.decide(call())
            subject.record(ToolOutcome(call(), "ok", decision=decision))
            subject.record(ToolOutcome(call(), "ok"))
        _, outcome, alone = log.entries()
    assert outcome.refers_to == decision.decision_id
    assert alone.refers_to is None
    assert [outcome.rollout_id, alone.rollout_id] == ["roll_1"] * 2
    assert [event.action.attempt for event in seen.of(ToolOutcome)] == [2, 2]


# ---------------------------------------------------------------------- rewards


class Rewards:
    """A plugin that rewards each call, and notes the thread."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> list[Reward]:
        self.threads.append(threading.get_ident())
        return [Reward(0.5)]


def test_a_reward_is_returned_shown_and_on_its_call() -> None:
    seen = Seen()
    subject = governor(seen, Rewards())
    with enter_scope(SCOPE):
        (reward,) = subject.record(ToolOutcome(call(), "ok"))
    assert (reward.value, reward.rollout_id, reward.attempt, reward.tool_call_id) == (0.5, "roll_1", 2, "call_1")
    assert seen.of(Reward) == [reward]


def test_rewards_of_an_asynchronous_agent_are_collected_in_a_thread() -> None:
    rewards, seen = Rewards(), Seen()
    here = threading.get_ident()
    assert len(asyncio.run(governor(rewards).arecord(ToolOutcome(call(), "ok")))) == 1
    assert rewards.threads[0] != here

    class Where(Seen):
        @hookimpl
        def lgov_observe(self, event: Any) -> None:
            self.events.append(threading.get_ident())

    seen = Where()
    asyncio.run(governor(seen).arecord(ToolOutcome(call(), "ok")))
    assert seen.events == [here]


# ---------------------------------------------------------------------- a governor that only observes


def test_a_governor_that_only_observes_covers_nothing_and_reads_nothing() -> None:
    subject = governor(observe_only=True)
    assert not any(subject.covers(point) or subject.evaluates(point) for point in Point)
    assert subject.reads_replies() is False
    decision = subject.decide(call())
    assert (decision.effect, decision.policy, decision.rule) == (Effect.ALLOW, "lgov", "observe-only")
    assert subject.effects == {}


def test_a_governor_exports_its_spans_and_shows_no_content_unless_it_is_told() -> None:
    assert governor().exports_spans is True
    assert governor().capture_content is False
    assert governor().observe_only is False
    assert governor().timeout_s == 2.0
    assert governor().audit is None
