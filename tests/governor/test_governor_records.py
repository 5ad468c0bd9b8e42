"""What a governor records and shows: commits, outcomes, observers, rollouts in tasks and threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from governors import ALLOW, DENY, Says, both, call, governor

from lgov_core.audit import AuditLog
from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor, ObservedDecision, PluginFailure
from lgov_core.hookspecs import hookimpl
from lgov_core.policies import BoundedPolicy, PolicySet
from lgov_core.scope import RolloutScope, carry_into_threads, current_scope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point, Reward, ToolOutcome


def test_decision_is_committed_before_it_is_given(tmp_path: Any) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    subject = governor(Says(DENY), audit=audit)
    decision = subject.decide(call(q="x"))
    [entry] = [entry for entry in audit.entries() if entry.entry_id == decision.decision_id]
    assert entry.effect == "deny"
    audit.close()
    denied = subject.decide(call(q="x"))
    assert denied.rule == "audit-failed"


def test_what_cannot_be_read_is_refused_on_record_without_asking_a_policy(tmp_path: Any) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    subject = governor(Says(ALLOW), audit=audit)
    decision = subject.refuse(call(q="x"), "unreadable-reply", "two tool calls have the same id")
    [entry] = [entry for entry in audit.entries() if entry.entry_id == decision.decision_id]
    assert (entry.effect, decision.rule, subject.effects["deny"]) == ("deny", "unreadable-reply", 1)
    assert (decision.policy, decision.fault) == ("lgov", True)
    assert decision.reason == "two tool calls have the same id"
    of_the_agent = subject.refuse(call(q="x"), "unreadable-arguments", "a key is there twice", is_fault=False)
    assert (of_the_agent.policy, of_the_agent.fault) == ("lgov", False)
    audit.close()
    assert subject.refuse(call(q="x"), "unreadable-reply", "").rule == "audit-failed"


def test_what_was_permitted_before_is_on_record_again_without_asking_a_policy(tmp_path: Any) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    subject = governor(Says(DENY), audit=audit)
    with enter_scope(RolloutScope("ro_1", 2)):
        decision = subject.take(call(q="x"), ALLOW)
    [entry] = [entry for entry in audit.entries() if entry.entry_id == decision.decision_id]
    assert (decision.effect, entry.effect, entry.rollout_id) == (Effect.ALLOW, "allow", "ro_1")
    audit.close()


def test_a_commit_that_fails_turns_an_allow_into_a_deny(tmp_path: Any) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    subject = governor(Says(ALLOW), audit=audit)
    assert subject.decide(call()).effect is Effect.ALLOW
    audit.close()
    for decision in both(subject, call()):
        assert decision.effect is Effect.DENY
        assert decision.rule == "audit-failed"
        assert [(part.policy, part.rule) for part in decision.parts] == [("p", "fine"), ("lgov", "audit-failed")]


def test_the_end_of_a_rollout_and_nothing_else_settles_its_rewards() -> None:
    class Settles:
        @hookimpl
        def lgov_rollout_reward(self, rollout: RolloutScope) -> list[Reward]:
            settled.append(rollout)
            return []

    settled: list[RolloutScope] = []
    subject = governor(Says(ALLOW), Settles())
    with enter_scope(RolloutScope("ro_1", 2)):
        both(subject, call())
        assert settled == []
        both(subject, Action(Point.AGENT_SHUTDOWN, "agent"))
    assert [(rollout.rollout_id, rollout.attempt) for rollout in settled] == [("ro_1", 2)] * 2


def test_an_action_in_a_rollout_has_its_ids_and_one_of_its_own() -> None:
    class Counts(BoundedPolicy):
        name, stateful, permits = "counts", True, True

        def judge(self, action: Action) -> Decision:
            seen.append(action)
            return self.allow()

        def observe(self, event: object) -> None: ...

    seen: list[Action] = []
    with enter_scope(RolloutScope("ro_1", 2, session_id="s_1")):
        Governor(Counts()).decide(call())
    (action,) = seen
    assert (action.rollout_id, action.attempt, action.session_id) == ("ro_1", 2, "s_1")
    assert str(action.operation_id).startswith("op_")


def test_an_outcome_that_cannot_be_recorded_is_counted() -> None:
    class Record:
        def commit(self, action: Action, decision: Decision) -> str:
            return "aud_1"

        def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
            raise KeyError("gone")

    class Rewarding:
        @hookimpl
        def lgov_reward(self, outcome: ToolOutcome) -> list[Reward]:
            return [Reward(1.0, dimension="air")]

    subject = governor(Rewarding(), audit=Record())
    (reward,) = subject.record(ToolOutcome(Action(Point.PRE_TOOL_CALL, "tool", call_id="call_1"), "ok"))
    assert reward.value == 1.0
    assert subject.failures["commit_outcome:audit"] == 1


def test_observers_and_reward_hooks_that_raise_are_isolated() -> None:
    seen: list[object] = []

    class Good:
        @hookimpl
        def lgov_observe(self, event: object) -> None:
            seen.append(event)

        @hookimpl
        def lgov_reward(self, outcome: ToolOutcome) -> list[Reward]:
            return [Reward(0.5, "air")]

    class Bad:
        @hookimpl
        def lgov_observe(self, event: object) -> None:
            raise ValueError("broken sink")

        @hookimpl
        def lgov_reward(self, outcome: ToolOutcome) -> list[Reward]:
            raise ValueError("broken rule")

    subject = governor(Good(), Bad(), Says(ALLOW))
    with enter_scope(RolloutScope("ro_1", 2)):
        subject.decide(call())
        rewards = subject.record(ToolOutcome(call(), "ok"))
    assert [(r.rollout_id, r.attempt, r.tool_call_id) for r in rewards] == [("ro_1", 2, "call_1")]
    kinds = [type(event) for event in seen]
    assert ObservedDecision in kinds
    assert ToolOutcome in kinds
    assert Reward in kinds
    assert PluginFailure in kinds
    assert subject.failures.total() >= 3


def test_the_start_of_a_rollout_is_judged() -> None:
    class Closed:
        @hookimpl
        def lgov_agent_startup(self, action: Action) -> Decision:
            return DENY

    with pytest.raises(PolicyDenied), governor(Closed()).rollout(RolloutScope("ro_1")):
        pytest.fail("the rollout began")
    assert current_scope() is None


class _Ends:
    """Denies the beginning where told to, and keeps how rollouts ended."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed
        self.reasons: list[object] = []

    @hookimpl
    def lgov_agent_startup(self, action: Action) -> Decision | None:
        return DENY if self.closed else None

    @hookimpl
    def lgov_agent_shutdown(self, action: Action) -> None:
        self.reasons.append(action.arguments["reason"])


async def test_the_end_of_a_rollout_says_how_it_ended() -> None:
    ends, closed = _Ends(), _Ends(closed=True)
    scope = RolloutScope("ro_1")
    with governor(ends).rollout(scope):
        pass
    with pytest.raises(ValueError, match="broken"), governor(ends).rollout(scope):
        raise ValueError("broken")
    with pytest.raises(PolicyDenied), governor(closed).rollout(scope):
        pass
    async with governor(ends).arollout(scope):
        pass
    with pytest.raises(PolicyDenied):
        async with governor(closed).arollout(scope):
            pass
    with pytest.raises(asyncio.CancelledError):
        async with governor(ends).arollout(scope):
            raise asyncio.CancelledError
    assert ends.reasons == ["completed", "error", "completed", "cancelled"]
    assert closed.reasons == ["error", "error"]


async def test_a_hundred_interleaved_rollouts_do_not_mix() -> None:
    carry_into_threads()
    seen: dict[str, set[str | None]] = {}
    lock = threading.Lock()

    class Watch:
        @hookimpl
        def lgov_observe(self, event: object) -> None:
            if isinstance(event, ObservedDecision) and event.action.point is Point.PRE_TOOL_CALL:
                with lock:
                    seen.setdefault(str(event.action.arguments["mine"]), set()).add(event.action.rollout_id)

    subject = governor(Watch(), Says(ALLOW))
    pool = ThreadPoolExecutor(8)

    async def rollout(number: int) -> None:
        async with subject.arollout(RolloutScope(f"ro_{number}")):
            mine = f"ro_{number}"
            for _ in range(3):
                await asyncio.sleep(0)
                await subject.adecide(call(mine=mine))
                await asyncio.to_thread(subject.decide, call(mine=mine))
                await asyncio.get_running_loop().run_in_executor(pool, subject.decide, call(mine=mine))
                thread = threading.Thread(target=subject.decide, args=(call(mine=mine),))
                thread.start()
                await asyncio.to_thread(thread.join)

    await asyncio.gather(*map(rollout, range(100)))
    pool.shutdown()
    assert len(seen) == 100
    assert all(ids == {mine} for mine, ids in seen.items())


@pytest.mark.parametrize(
    "give",
    [
        lambda pool, job: pool.apply(job, (0,)),
        lambda pool, job: pool.apply_async(func=job, args=(0,)).get(),
        lambda pool, job: pool.map(job, range(3)),
        lambda pool, job: pool.starmap(job, [(0,)]),
        lambda pool, job: list(pool.imap(job, range(3), chunksize=2)),
        lambda pool, job: list(pool.imap_unordered(job, range(3))),
    ],
    ids=["apply", "apply_async", "map", "starmap", "imap", "imap_unordered"],
)
def test_work_of_a_thread_pool_belongs_to_its_rollout(give: Callable[..., Any]) -> None:
    carry_into_threads()
    seen: list[RolloutScope | None] = []
    scopes = [RolloutScope("first"), RolloutScope("second"), None]
    with enter_scope(scopes[0]):  # its threads begin in the first rollout, and outlive it
        pool = ThreadPool(2)
    with pool:
        for scope in scopes:
            seen.clear()
            with enter_scope(scope):
                give(pool, lambda _number: seen.append(current_scope()))
            assert set(seen) == {scope}


def test_a_thread_pool_that_is_imported_later_is_covered() -> None:
    code = """
from lgov_core.scope import RolloutScope, carry_into_threads, current_scope, enter_scope
carry_into_threads()
from multiprocessing.pool import ThreadPool
from pathlib import Path
with ThreadPool(1) as pool, enter_scope(RolloutScope("late")):
    print(pool.apply(lambda: current_scope().rollout_id))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "late\n", done.stderr


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("within_a_set", [True, False])
def test_a_transform_that_contains_itself_is_denied_and_recorded(
    tmp_path: Path, bounded: bool, within_a_set: bool
) -> None:
    class Cyclic(BoundedPolicy):
        name = "cyclic"
        permits = True

        def judge(self, action: Action) -> Decision:
            arguments: dict[str, Any] = {"path": "a"}
            arguments["more"] = [arguments]
            return self.transform("changed", "because", arguments=arguments)

    policy = Cyclic()
    policy.bounded = bounded
    with AuditLog(tmp_path / "audit.db") as audit:
        governor = Governor(PolicySet([policy]) if within_a_set else policy, audit=audit)
        decision = governor.decide(Action(Point.PRE_TOOL_CALL, "read", arguments={"path": "a"}))
        assert (decision.effect, decision.rule, decision.fault) == (Effect.DENY, "policy-error", True)
        assert "contain themselves" in decision.reason
        assert [entry.effect for entry in audit.entries()] == ["deny"]
