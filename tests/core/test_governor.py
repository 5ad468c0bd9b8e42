"""The governor: most severe wins, transforms fold, and whatever breaks is a deny."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.errors import PluginError, PolicyDenied, PolicyError
from lgov_core.governor import Governor, ObservedDecision, PluginFailure
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import BoundedPolicy, CostControlPolicy, PolicySet, SQLPolicy, ToolPolicy
from lgov_core.scope import RolloutScope, carry_into_threads, current_scope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point, Reward, ToolOutcome


def governor(*plugins: object, **options: Any) -> Governor:
    return Governor(plugins=plugins, manager=make_plugin_manager(builtin=(), third_party=False), **options)


def call(**arguments: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, "run_sql", arguments=arguments, call_id="call_1")


class Says:
    """A plugin that gives one fixed answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Any:
        return self.answer(action) if callable(self.answer) else self.answer


class SaysLater(Says):
    @hookimpl
    async def lgov_pre_tool_call(self, action: Action) -> Any:
        await asyncio.sleep(0)
        return self.answer(action) if callable(self.answer) else self.answer


ALLOW = Decision(Effect.ALLOW, "p", "fine")
WARN = Decision(Effect.WARN, "p", "odd")
ESCALATE = Decision(Effect.ESCALATE, "p", "ask")
DENY = Decision(Effect.DENY, "p", "no", "because")


def explode(_action: Action) -> Decision:
    raise RuntimeError("secret detail")


def both(governor_: Governor, action: Action) -> list[Decision]:
    """The decision of the synchronous and of the asynchronous dispatcher."""
    return [governor_.decide(action), asyncio.run(governor_.adecide(action))]


@pytest.mark.parametrize("kind", [Says, SaysLater])
@pytest.mark.parametrize(
    ("answers", "effect"),
    [
        ([ALLOW], Effect.ALLOW),
        ([ALLOW, WARN], Effect.WARN),
        ([WARN, ESCALATE, ALLOW], Effect.ESCALATE),
        ([DENY, ALLOW, ALLOW], Effect.DENY),
        ([ALLOW, ALLOW, DENY], Effect.DENY),
        ([ALLOW, explode], Effect.DENY),
        ([explode, ALLOW], Effect.DENY),
        ([ALLOW, True], Effect.DENY),
        ([ALLOW, "allow"], Effect.DENY),
        ([ALLOW, None], Effect.ALLOW),
        ([None], Effect.DENY),
        ([], Effect.DENY),
    ],
)
def test_most_severe_effect_wins_and_faults_deny(
    kind: Callable[[Any], Any], answers: Sequence[Any], effect: Effect
) -> None:
    for decision in both(governor(*map(kind, answers)), call()):
        assert decision.effect is effect


def test_no_policy_at_all_denies_acts_but_not_text_points() -> None:
    for decision in both(governor(), call()):
        assert decision.rule == "no-policy"
    for decision in both(governor(), Action(Point.PRE_MODEL_CALL, "m", kind="model")):
        assert decision.effect is Effect.ALLOW


def test_a_failing_policy_is_named_but_its_message_is_not_told() -> None:
    decision = governor(Says(explode)).decide(call())
    assert decision.rule == "policy-error"
    assert "RuntimeError" in decision.reason
    assert "secret detail" not in decision.denial_message()


@pytest.mark.parametrize("late", [Says(lambda _a: time.sleep(5)), SaysLater(lambda _a: time.sleep(0))])
def test_a_policy_that_does_not_answer_in_time_is_a_deny(late: Says) -> None:
    if isinstance(late, SaysLater):

        class Hangs:
            @hookimpl
            async def lgov_pre_tool_call(self) -> Decision:
                await asyncio.sleep(5)
                return ALLOW

        plugin: object = Hangs()
    else:
        plugin = late
    subject = governor(plugin, timeout_s=0.1)
    decisions = both(subject, call())
    subject.close()
    assert [decision.rule for decision in decisions] == ["policy-timeout"] * 2


def test_transforms_fold_in_order_and_are_judged_again() -> None:
    def suffix(letter: str) -> Callable[[Action], Decision | None]:
        def judge(action: Action) -> Decision | None:
            text = str(action.arguments["q"])
            if text.endswith(letter) or len(text) > 3:
                return None
            return Decision(Effect.TRANSFORM, letter, arguments={"q": text + letter})

        return judge

    first, second = Says(suffix("b")), Says(suffix("a"))  # pluggy asks the plugin registered last first
    for decision in both(governor(first, second), call(q="x")):
        assert decision.effect is Effect.TRANSFORM
        assert decision.arguments is not None
        assert str(decision.arguments["q"]).startswith("xab")


def test_what_a_transform_made_is_denied_by_a_policy_that_saw_the_action_before_it() -> None:
    def no_drop(action: Action) -> Decision:
        return DENY if "DROP" in str(action.arguments["q"]) else ALLOW

    def sneak(action: Action) -> Decision | None:
        if action.arguments["q"] == "SELECT 1":
            return Decision(Effect.TRANSFORM, "sneak", arguments={"q": "DROP TABLE t"})
        return None

    for order in ([Says(no_drop), Says(sneak)], [Says(sneak), Says(no_drop)]):
        for decision in both(governor(*order), call(q="SELECT 1")):
            assert decision.effect is Effect.DENY
            assert decision.arguments is None


@pytest.mark.parametrize("final", [ALLOW, None, WARN])
def test_an_escalation_gives_way_to_what_its_judge_says_of_the_form_that_would_run(final: Decision | None) -> None:
    def small(action: Action) -> Decision | None:
        return ESCALATE if action.arguments["q"] == "big" else final

    shrink = Says(
        lambda action: (
            Decision(Effect.TRANSFORM, "s", arguments={"q": "small"}) if action.arguments["q"] != "small" else None
        )
    )
    for order in ([Says(small), shrink], [shrink, Says(small)]):
        for decision in both(governor(*order), call(q="big")):
            assert not decision.blocks
            assert decision.arguments == {"q": "small"}
    still = Says(lambda _action: ESCALATE)
    for decision in both(governor(still, shrink), call(q="big")):
        assert decision.effect is Effect.ESCALATE


def test_transforms_that_never_settle_are_denied() -> None:
    grow = Says(lambda action: Decision(Effect.TRANSFORM, "g", arguments={"q": str(action.arguments["q"]) + "!"}))
    for decision in both(governor(grow), call(q="")):
        assert decision.blocks


def test_an_escalation_is_told_as_something_to_wait_for_and_a_denial_is_not() -> None:
    waits = Decision(
        Effect.ESCALATE, "four-eyes", "approval-pending", "a person has to approve (request apr_1)"
    ).denial_message()
    assert waits.startswith("NOT RUN YET, needs approval by policy four-eyes/approval-pending")
    assert "request apr_1" in waits
    assert "exactly the same call again" in waits
    denied = DENY.denial_message()
    assert denied.startswith("DENIED by policy p/no: because.")
    assert "do not repeat it" in denied


def test_decision_is_committed_before_it_is_given(tmp_path: Any) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    subject = governor(Says(DENY), audit=audit)
    decision = subject.decide(call(q="x"))
    [entry] = [entry for entry in audit.entries() if entry.entry_id == decision.decision_id]
    assert entry.effect == "deny"
    audit.close()
    denied = subject.decide(call(q="x"))
    assert denied.rule == "audit-failed"


def test_a_commit_that_fails_turns_an_allow_into_a_deny(tmp_path: Any) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    subject = governor(Says(ALLOW), audit=audit)
    assert subject.decide(call()).effect is Effect.ALLOW
    audit.close()
    for decision in both(subject, call()):
        assert decision.effect is Effect.DENY
        assert decision.rule == "audit-failed"


def test_a_record_that_cannot_take_an_outcome_is_counted_and_the_act_stands() -> None:
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


def test_observers_and_reward_rules_that_raise_do_not_stop_the_others() -> None:
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


def test_rollout_scope_is_judged_at_its_door() -> None:
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


async def test_a_hundred_rollouts_in_one_loop_with_tools_in_threads_do_not_mix() -> None:
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
def test_work_given_to_a_thread_pool_belongs_to_the_rollout_that_gave_it(give: Callable[..., Any]) -> None:
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


def test_a_thread_pool_that_is_loaded_later_is_no_exception() -> None:
    code = """
from lgov_core.scope import RolloutScope, carry_into_threads, current_scope, enter_scope
carry_into_threads()
from multiprocessing.pool import ThreadPool
with ThreadPool(1) as pool, enter_scope(RolloutScope("late")):
    print(pool.apply(lambda: current_scope().rollout_id))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "late\n", done.stderr


def test_a_misspelt_hook_is_refused() -> None:
    class Typo:
        @hookimpl
        def lgov_pre_tool_cal(self, action: Action) -> Decision:
            return DENY

    manager = make_plugin_manager(builtin=(), third_party=False)
    with pytest.raises(PluginError, match="lgov_pre_tool_cal"):
        Governor(plugins=[Typo()], manager=manager)


# ---------------------------------------------------------------------- watching only


class Hears:
    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        self.events.append(event)


class Rewards:
    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> Sequence[Reward]:
        return [Reward(1.0)]


def test_one_that_only_watches_takes_no_decision_and_shows_what_happened() -> None:
    hears = Hears()
    watching = governor(hears, Rewards(), observe_only=True)
    assert [decision.effect for decision in both(watching, call())] == [Effect.ALLOW, Effect.ALLOW]
    assert not hears.events
    assert not watching.effects
    outcome = ToolOutcome(call(), "ok", result="1")
    (reward,) = watching.record(outcome)
    assert hears.events == [outcome, reward]
    assert reward.tool_call_id == "call_1"
    with watching.rollout(RolloutScope("r1")):
        assert current_scope() == RolloutScope("r1")


def test_one_that_only_watches_takes_nobody_who_judges(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="asks nobody, but was given p"):
        governor(policies=Policied("p"), observe_only=True)
    with pytest.raises(PolicyError, match="asks nobody"):
        governor(Says(DENY), observe_only=True)
    with AuditLog(tmp_path / "audit.db") as audit, pytest.raises(PolicyError, match="an audit record"):
        governor(audit=audit, observe_only=True)


def test_a_judge_that_comes_later_to_one_that_only_watches_is_refused() -> None:
    watching = governor(observe_only=True)
    watching.manager.register(Says(DENY), name="late")
    with pytest.raises(PolicyError, match="late"):
        watching.plugins_changed()


class Policied:
    bounded = True

    def __init__(self, name: str) -> None:
        self.name = name

    def judge(self, action: Action) -> Decision | None:
        return DENY


def test_a_bounded_policy_may_answer_an_awaitable_to_an_asynchronous_agent() -> None:
    async def later() -> Decision:
        await asyncio.sleep(0)
        return DENY

    class Waits(Policied):
        def judge(self, action: Action) -> Any:
            return later()

    assert [decision.effect for decision in both(governor(policies=Waits("w")), call())] == [Effect.DENY, Effect.DENY]


@pytest.mark.parametrize("as_plugins", [False, True])
@pytest.mark.parametrize(
    "policies",
    [lambda: [SQLPolicy(deny=["DROP"])], lambda: [ToolPolicy(allow=["*"]), CostControlPolicy(max_calls=1)]],
    ids=["one", "two"],
)
def test_a_policy_is_a_plugin_and_judges_as_a_policy_does(policies: Callable[[], list[Any]], as_plugins: bool) -> None:
    manager = make_plugin_manager(policies() if as_plugins else [], builtin=(), third_party=False)
    subject = Governor([] if as_plugins else policies(), manager=manager)
    calls = [Action(Point.PRE_TOOL_CALL, "t", arguments={"query": sql}) for sql in ("SELECT 1", "DROP TABLE users")]
    assert [subject.decide(one).effect for one in calls] == [Effect.ALLOW, Effect.DENY]


@pytest.mark.parametrize("as_plugins", [False, True])
def test_a_policy_that_keeps_count_hears_as_a_plugin_what_others_denied(as_plugins: bool) -> None:
    policies = [CostControlPolicy(max_calls=1), ToolPolicy(allow=["t"])]
    manager = make_plugin_manager(policies if as_plugins else [], builtin=(), third_party=False)
    subject = Governor([] if as_plugins else policies, manager=manager)
    effects = [subject.decide(Action(Point.PRE_TOOL_CALL, name)).effect for name in ("other", "t", "t")]
    assert effects == [Effect.DENY, Effect.ALLOW, Effect.DENY]


def test_a_policy_that_waits_for_people_is_waited_for_as_a_plugin_too() -> None:
    class Waits(BoundedPolicy):
        name, bounded, timeout_s = "waits", False, 60.0

        def judge(self, action: Action) -> Decision:
            time.sleep(0.1)
            return self.allow()

    manager = make_plugin_manager([Waits()], builtin=(), third_party=False)
    assert Governor(manager=manager, timeout_s=0.01).decide(call()).effect is Effect.ALLOW


def _not_marked(_self: object, action: Action) -> Decision:
    raise AssertionError(action)


@pytest.mark.parametrize(
    "plugin", [type("P", (), {"lgov_pre_tool_call": _not_marked})(), object(), None, SQLPolicy, lambda action: None]
)
def test_a_plugin_that_would_never_be_asked_is_refused(plugin: Any) -> None:
    with pytest.raises(PluginError, match=r"not marked|no plugin"):
        governor(plugin)


@pytest.mark.parametrize(
    "policies", [5, None, "strict", ["strict"], [None], [SQLPolicy], SQLPolicy, [lambda action: None]]
)
@pytest.mark.parametrize("made", [Governor, PolicySet], ids=["governor", "set"])
def test_what_is_no_policy_is_refused_in_words(made: Any, policies: Any) -> None:
    with pytest.raises(PolicyError, match=r"not a policy|not a list of rules|no policy"):
        made(policies)


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf, None, True, "2"])
def test_a_time_limit_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(PolicyError, match="timeout_s"):
        governor(Says(ALLOW), timeout_s=timeout_s)
