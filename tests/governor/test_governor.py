"""Decisions of a governor: severity, transforms, timeouts, plugins, observe_only."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from governors import ALLOW, DENY, Says, both, call, governor

from lgov_core.audit import AuditLog
from lgov_core.errors import PluginError, PolicyError
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import BoundedPolicy, CostControlPolicy, PolicySet, SQLPolicy, ToolPolicy
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.types import Action, Decision, Effect, Point, Reward, ToolOutcome


class SaysLater(Says):
    @hookimpl
    async def lgov_pre_tool_call(self, action: Action) -> Any:
        await asyncio.sleep(0)
        return self.answer(action) if callable(self.answer) else self.answer


WARN = Decision(Effect.WARN, "p", "odd")


ESCALATE = Decision(Effect.ESCALATE, "p", "ask")


def explode(_action: Action) -> Decision:
    raise RuntimeError("secret detail")


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


def test_a_failing_policy_is_named_without_its_message() -> None:
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


def test_a_transformed_action_is_judged_by_earlier_policies_too() -> None:
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
def test_an_escalation_is_replaced_by_the_one_on_the_final_form(final: Decision | None) -> None:
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
            assert [part.rule for part in decision.parts if part.policy == "p"] == ([final.rule] if final else [])
    still = Says(lambda _action: ESCALATE)
    for decision in both(governor(still, shrink), call(q="big")):
        assert decision.effect is Effect.ESCALATE


def test_transforms_that_never_settle_are_denied() -> None:
    grow = Says(lambda action: Decision(Effect.TRANSFORM, "g", arguments={"q": str(action.arguments["q"]) + "!"}))
    for decision in both(governor(grow), call(q="")):
        assert decision.blocks


def test_an_escalation_asks_the_model_to_wait() -> None:
    waits = Decision(
        Effect.ESCALATE, "four-eyes", "approval-pending", "a person has to approve (request apr_1)"
    ).denial_message()
    assert waits.startswith("NOT RUN YET, needs approval by policy four-eyes/approval-pending")
    assert "request apr_1" in waits
    assert "exactly the same call again" in waits
    denied = DENY.denial_message()
    assert denied.startswith("DENIED by policy p/no: because.")
    assert "do not repeat it" in denied


def test_a_misspelt_hook_is_refused() -> None:
    class Typo:
        @hookimpl
        def lgov_pre_tool_cal(self, action: Action) -> Decision:
            return DENY

    manager = make_plugin_manager(builtin=(), third_party=False)
    with pytest.raises(PluginError, match="lgov_pre_tool_cal"):
        Governor(plugins=[Typo()], manager=manager)


class Collects:
    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        self.events.append(event)


class Rewards:
    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> Sequence[Reward]:
        return [Reward(1.0)]


def test_observe_only_decides_nothing_and_shows_what_happened() -> None:
    hears = Collects()
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


def test_observe_only_refuses_policies_hooks_and_audit(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="evaluates nothing, but was given p"):
        governor(policies=Policied("p"), observe_only=True)
    with pytest.raises(PolicyError, match="evaluates nothing"):
        governor(Says(DENY), observe_only=True)
    with AuditLog(tmp_path / "audit.db") as audit, pytest.raises(PolicyError, match="an audit record"):
        governor(audit=audit, observe_only=True)


def test_observe_only_refuses_a_hook_registered_later() -> None:
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


def test_a_bounded_policy_may_return_an_awaitable() -> None:
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
def test_a_stateful_policy_as_a_plugin_observes_denials(as_plugins: bool) -> None:
    policies = [CostControlPolicy(max_calls=1), ToolPolicy(allow=["t"])]
    manager = make_plugin_manager(policies if as_plugins else [], builtin=(), third_party=False)
    subject = Governor([] if as_plugins else policies, manager=manager)
    effects = [subject.decide(Action(Point.PRE_TOOL_CALL, name)).effect for name in ("other", "t", "t")]
    assert effects == [Effect.DENY, Effect.ALLOW, Effect.DENY]


def test_a_policy_as_a_plugin_keeps_its_own_timeout() -> None:
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
def test_a_plugin_without_hooks_is_refused(plugin: Any) -> None:
    with pytest.raises(PluginError, match=r"not marked|not a plugin"):
        governor(plugin)


@pytest.mark.parametrize(
    "policies", [5, None, "strict", ["strict"], [None], [SQLPolicy], SQLPolicy, [lambda action: None]]
)
@pytest.mark.parametrize("made", [Governor, PolicySet], ids=["governor", "set"])
def test_an_object_that_is_not_a_policy_is_refused(made: Any, policies: Any) -> None:
    with pytest.raises(PolicyError, match=r"not a policy|no policy|not a list of rules"):
        made(policies)


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, math.inf, None, True, "2"])
def test_a_timeout_must_be_a_positive_number(timeout_s: Any) -> None:
    with pytest.raises(PolicyError, match=r"^governor: timeout_s is"):
        governor(Says(ALLOW), timeout_s=timeout_s)


def test_one_plugin_at_most_charges_denials() -> None:
    class Charges:
        charges_denials = True

        @hookimpl
        def lgov_reward(self, outcome: ToolOutcome) -> list[Reward]:
            return []

    with pytest.raises(PluginError, match="Charges and Charges would each charge the same denial"):
        governor(Charges(), Charges())


def test_a_governor_that_is_closed_has_no_threads_that_wait_for_work() -> None:
    class Slow(BoundedPolicy):
        name, bounded = "slow", False

        def judge(self, action: Action) -> Decision:
            threads.append(threading.current_thread())
            return self.allow()

    threads: list[threading.Thread] = []
    subject = Governor(Slow())
    subject.decide(call())
    assert threads[0].is_alive()
    subject.close()
    threads[0].join(20)
    assert not threads[0].is_alive()
    assert subject.decide(call()).effect is Effect.ALLOW
    subject.close()
