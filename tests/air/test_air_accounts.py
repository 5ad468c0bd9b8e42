"""AIR is paid once, bounded, and taken back when the attempt ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from air_cases import ATTEMPT, Bench, Seen

from lgov_core import air
from lgov_core.errors import PluginError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.reward import AirPlugin, AirRules, PolicyReward, RewardConfig, RuleSet
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point, Severity, ToolOutcome


def test_each_agent_returns_its_potential_on_its_last_call() -> None:
    bench = Bench(AirPlugin())
    with bench.governor.rollout(ATTEMPT):
        bench.chat("w1", agent="writer")
        bench.tool("t", "c1", agent="writer")
        bench.chat("k1", agent="checker")
        bench.tool("u", "c2", agent="checker")
        bench.tool("v", "c3", agent="checker")
        bench.chat("w2", agent="writer")
        bench.chat("k2", agent="checker")
    assert bench.paid()[3:] == [(-0.05, "air", None, "w2"), (pytest.approx(-0.1), "air", None, "k2")]


def test_a_repeated_call_earns_nothing() -> None:
    bench = Bench(AirPlugin())
    with enter_scope(ATTEMPT):
        assert bench.tool("t", "c1", arguments={"a": 1, "b": [2]}) == [(0.05, "air")]
        assert bench.tool("t", "c2", arguments={"b": (2,), "a": 1}) == []
        assert bench.tool("t", "c3", arguments={"a": 2}) == [(0.05, "air")]
        assert bench.tool("u", "c4", arguments={"a": 1}) == [(0.05, "air")]
        # What has no unmistakable form counts as one and the same.
        assert bench.tool("v", "c5", arguments={"a": object()}) == [(0.05, "air")]
        assert bench.tool("v", "c6", arguments={"a": object()}) == []
    with enter_scope(RolloutScope("r1", 3)):
        assert bench.tool("t", "c1", arguments={"a": 1, "b": [2]}) == [(0.05, "air")]


def test_a_milestone_is_the_tool_or_what_a_function_says() -> None:
    rules = RuleSet()
    rules.on_tool_success("t", milestone="tool", name="tool")(lambda: 0.1)
    rules.on_tool_success("page", milestone=lambda arguments: arguments.get("page"), name="page")(lambda: 0.2)
    bench = Bench(AirPlugin(rules))
    with enter_scope(ATTEMPT):
        assert [bench.tool("t", f"t{n}", arguments={"n": n}) for n in range(3)] == [[(0.1, "air")], [], []]
        pages = [{"page": 1, "x": n} for n in range(2)] + [{"page": 2}, {}]
        assert [bench.tool("page", f"p{n}", arguments=page) for n, page in enumerate(pages)] == [
            [(0.2, "air")],
            [],
            [(pytest.approx(0.2), "air")],
            [],
        ]


def test_the_cap_bounds_the_potential() -> None:
    bench = Bench(AirPlugin(RuleSet(base=AirRules(tool_success=0.3, tool_error=-0.5), cap=0.5)))
    with bench.governor.rollout(ATTEMPT):
        for n in range(4):
            bench.tool("t", f"c{n}", arguments={"n": n})
        for n in range(3):
            bench.tool("t", f"e{n}", "error")
    values = [reward.value for reward in bench.seen.rewards]
    assert values == pytest.approx([0.3, 0.2, -0.5, -0.5, 0.5])
    assert sum(values) == pytest.approx(0.0)


def test_plain_rules_pay_each_call_up_to_the_cap() -> None:
    rules = RuleSet(cap=0.5)
    rules.on_tool_success(shaped=False, name="plain")(lambda: 0.2)
    bench = Bench(AirPlugin(rules))
    with bench.governor.rollout(ATTEMPT):
        for n in range(5):
            bench.tool("t", f"c{n}")
    assert [reward.value for reward in bench.seen.rewards] == pytest.approx([0.2, 0.2, 0.1])
    free = Bench(AirPlugin(AirRules(shaped=False)))
    with free.governor.rollout(ATTEMPT):
        for n in range(5):
            free.tool("t", f"c{n}")
    assert [reward.value for reward in free.seen.rewards] == [0.05] * 5


def test_denials_are_charged_in_full_each_time() -> None:
    bench = Bench(AirPlugin())
    denied = Decision(Effect.DENY, "p", "r", "no")
    with bench.governor.rollout(ATTEMPT):
        for n in range(4):
            bench.tool("t", f"c{n}", "denied", decision=denied)
    assert bench.paid() == [(-0.5, "compliance", f"c{n}", None) for n in range(4)]


def test_no_agent_keeps_what_another_lost_nor_pays_for_it() -> None:
    """The three sum to 0, and each alone too: only one may be trained. Nothing says which model call was whose last."""
    bench = Bench(AirPlugin())
    with bench.governor.rollout(ATTEMPT):
        for agent, call, status in (("a", "c0", "ok"), ("b", "c1", "error"), ("a", "c2", "ok"), ("b", "c3", "error")):
            action = Action(Point.PRE_TOOL_CALL, call, call_id=call, agent=agent)
            bench.governor.record(ToolOutcome(action, status))  # type: ignore[arg-type]
    paid = [(reward.value, reward.tool_call_id, reward.response_id) for reward in bench.seen.rewards]
    assert paid[-2:] == [(-0.1, "c2", None), (0.1, "c3", None)]
    assert len(paid) == 6


def test_interleaved_attempts_have_their_own_accounts() -> None:
    plugin = AirPlugin()
    bench = Bench(plugin)

    async def attempt(number: int) -> None:
        async with bench.governor.arollout(RolloutScope(f"r{number}")):
            for call in range(3):
                await asyncio.to_thread(bench.tool, "t", f"{number}-{call}")
                await asyncio.sleep(0)

    async def all_at_once() -> None:
        await asyncio.gather(*map(attempt, range(20)))

    asyncio.run(all_at_once())
    for number in range(20):
        own = [reward for reward in bench.seen.rewards if reward.rollout_id == f"r{number}"]
        assert [reward.value for reward in own] == [0.05, -0.05]
    assert plugin._accounts == {}


def test_an_observing_governor_takes_back_too() -> None:
    manager = make_plugin_manager(builtin=(), third_party=False)
    governor = Governor(plugins=[AirPlugin(), seen := Seen()], manager=manager, observe_only=True)
    call = ToolOutcome(Action(Point.PRE_TOOL_CALL, "t", call_id="c"), "ok")

    async def attempt() -> None:
        async with governor.arollout(RolloutScope("r2")):
            await governor.arecord(call)

    with governor.rollout(RolloutScope("r1")):
        governor.record(call)
    asyncio.run(attempt())
    assert [(reward.rollout_id, reward.value) for reward in seen.rewards] == [
        ("r1", 0.05),
        ("r1", -0.05),
        ("r2", 0.05),
        ("r2", -0.05),
    ]


def test_more_open_attempts_than_there_is_room_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgov_core.air.outcome_rewards.MOST_OPEN_ATTEMPTS", 2)
    bench = Bench(AirPlugin())
    for number in range(3):
        with enter_scope(RolloutScope(f"r{number}")):
            bench.tool("t", "c")
    assert [reward.rollout_id for reward in bench.seen.rewards] == ["r0", "r1"]
    assert "not ended" in bench.seen.failures[0].error


def test_two_plugins_that_charge_denials_are_refused() -> None:
    for plugins in ([AirPlugin(), PolicyReward()], [PolicyReward(), PolicyReward()], [AirPlugin(), AirPlugin()]):
        with pytest.raises(PluginError, match="would each charge the same denial"):
            Bench(*plugins)
    Bench(AirPlugin(AirRules(denied=0.0)), PolicyReward())
    rules = RuleSet()
    rules.on_denied(lambda: -1.0)
    with pytest.raises(PluginError, match="AirPlugin and PolicyReward"):
        Bench(AirPlugin(rules), PolicyReward())


def test_a_plugin_that_is_registered_later_is_refused_too() -> None:
    bench = Bench(AirPlugin())
    bench.governor.manager.register(PolicyReward())
    with pytest.raises(PluginError, match="same denial"):
        bench.governor.plugins_changed()


def test_a_rule_added_later_does_not_charge_twice() -> None:
    rules = RuleSet(base=AirRules(denied=0.0))
    policy = PolicyReward(config=RewardConfig.for_training())
    bench = Bench(policy, AirPlugin(rules))
    rules.on_denied(name="late")(lambda: -1.0)
    decision = Decision(Effect.DENY, "p", "r", "no", Severity.HIGH)
    assert len(bench.tool("t", "c", "denied", decision=decision)) == 1
    assert "has charged this denial already" in bench.seen.failures[0].error


def test_a_governed_process_leaves_the_charge_to_a_plugin(tmp_path: Path) -> None:
    from lgov_core.governance import Governance

    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n  - {name: none, use: deny}\n")
    governance = Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db")
    for plugins, dimension in (([], -0.5), ([PolicyReward(config=RewardConfig.for_training())], -0.01)):
        with air.scope():
            process = governance.open(plugins=plugins, manager=make_plugin_manager(builtin=(), third_party=False))
            action = Action(Point.PRE_TOOL_CALL, "t", call_id="c")
            decision = process.governor.decide(action)
            rewards = process.governor.record(ToolOutcome(action, "denied", decision=decision))
            process.close()
        assert len(rewards) == 1
        assert rewards[0].value <= dimension < 0
