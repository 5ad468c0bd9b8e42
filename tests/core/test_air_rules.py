"""Rules of AIR: registered in Python or YAML, paid on exactly the call that earned them, loud when they fail."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

from lgov_core import air
from lgov_core.errors import PluginError, RewardError, RewardFileError
from lgov_core.governor import Governor, PluginFailure
from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies.document import read_yaml
from lgov_core.reward import AirPlugin, AirRules, PolicyReward, RewardConfig, RuleSet
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from lgov_core.types import ALLOW, Action, Decision, Effect, Point, Reward, Severity, Span, ToolOutcome

# ---------------------------------------------------------------------- what the tests are made of


class Seen:
    """Keeps the rewards and failures that a governor shows."""

    def __init__(self) -> None:
        self.rewards: list[Reward] = []
        self.failures: list[PluginFailure] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, Reward):
            self.rewards.append(event)
        elif isinstance(event, PluginFailure):
            self.failures.append(event)


class Bench:
    """A governor that allows everything, with plugins of rewards, and what it showed."""

    def __init__(self, *plugins: Any) -> None:
        self.seen = Seen()
        self.governor = Governor(
            plugins=[*plugins, self.seen], manager=make_plugin_manager(builtin=(), third_party=False)
        )

    def tool(self, name: str, call_id: str | None, status: Any = "ok", **given: Any) -> list[tuple[float, str]]:
        action = Action(
            Point.PRE_TOOL_CALL,
            name,
            arguments=given.pop("arguments", {}),
            agent=given.pop("agent", None),
            call_id=call_id,
        )
        outcome = ToolOutcome(action, status, **given)
        return [(reward.value, reward.dimension) for reward in self.governor.record(outcome)]

    def chat(self, response_id: str | None, *, model: str = "m", agent: str = "a", error: str | None = None) -> None:
        span = LiveSpan(self.governor, semconv.CHAT, model, {semconv.REQUEST_MODEL: model, semconv.AGENT_NAME: agent})
        span.set({semconv.RESPONSE_ID: response_id, semconv.FINISH_REASONS: ["stop"], semconv.OUTPUT_TOKENS: 7})
        span.end(error)

    def paid(self) -> list[tuple[float, str, str | None, str | None]]:
        return [(r.value, r.dimension, r.tool_call_id, r.response_id) for r in self.seen.rewards]


ATTEMPT = RolloutScope("r1", 2)

# ---------------------------------------------------------------------- as the documents have it

#: The block of the skill's section on automatic intermediate rewarding; only what it imports has another name.
SKILL = """
from lgov_core import air

# Define reward rules
@air.on_tool_success
def reward_tool_success(tool_name, output):
    return 0.3  # Partial reward

@air.on_tool_failure
def penalize_failure(tool_name, error):
    return -0.2  # Penalty

def agent_with_air(resource, task):
    # AIR automatically assigns intermediate rewards
    # based on tool execution status
    result = my_agent.run(resource.model_api, task)
    final_reward = evaluate(result, task.ground_truth)
    return final_reward
"""


def test_the_block_of_the_skill_runs_and_its_rewards_are_on_the_calls_that_earned_them() -> None:
    with air.scope() as rules:
        names: dict[str, Any] = {}
        exec(SKILL, names)
        bench = Bench(air.plugin())

        class MyAgent:
            def run(self, api: str, task: Any) -> str:
                bench.tool("search", "c1", result="three rows", arguments={"q": "pay"})
                bench.tool("run_sql", "c2", "error", error="no such table", arguments={"q": "SELECT"})
                bench.tool("search", "c3", result="one row", arguments={"q": "staff"})
                return "42"

        class Given:
            model_api, ground_truth = "http://localhost/v1", "42"

        names |= {"my_agent": MyAgent(), "evaluate": lambda result, truth: float(result == truth)}
        with bench.governor.rollout(ATTEMPT):
            assert names["agent_with_air"](Given, Given) == 1.0
    assert [rule.name for rule in rules.rules] == ["reward_tool_success", "penalize_failure"]
    assert names["reward_tool_success"]("search", "x") == 0.3  # it stays a function
    assert bench.paid() == [
        (0.3, "air", "c1", None),
        (-0.2, "air", "c2", None),
        (pytest.approx(0.3), "air", "c3", None),
        (pytest.approx(-0.4), "air", None, None),  # what is left of the potential, taken back
    ]
    assert {(reward.rollout_id, reward.attempt) for reward in bench.seen.rewards} == {("r1", 2)}
    assert [reward.source for reward in bench.seen.rewards][:2] == ["air:reward_tool_success", "air:penalize_failure"]


def test_rules_of_one_context_do_not_reach_another() -> None:
    with air.scope() as outer:
        air.on_tool_success(lambda: 0.1)
        with air.scope() as inner:
            assert air.current() is inner
            assert inner.rules == ()

        async def in_task() -> Any:
            air.use(RuleSet())
            return air.current()

        assert asyncio.run(in_task()) is not outer
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(air.current()))
        thread.start()
        thread.join()
        assert found[0] is not outer
        assert air.current() is outer
        with air.scope(), pytest.raises(RewardError, match="no AIR rule is registered in this context"):
            air.plugin()
    assert len(outer.rules) == 1


def test_rules_that_are_added_later_count() -> None:
    rules = RuleSet()
    bench = Bench(AirPlugin(rules))
    assert bench.tool("t", "c1") == []
    rules.on_tool_success(lambda: 0.5)
    assert bench.tool("t", "c1") == [(0.5, "air")]


# ---------------------------------------------------------------------- which calls


def test_globs_choose_tools_and_agents_and_every_rule_that_covers_a_call_pays() -> None:
    rules = RuleSet(cap=None)

    @rules.on_tool_success("search_*", "run_sql")
    def found(output: str | None) -> float:
        return 0.1 if output else 0.0

    @rules.on_tool_success("search_web", agents="writer", name="by the writer")
    def written() -> float:
        return 0.25

    bench = Bench(AirPlugin(rules))
    assert bench.tool("search_web", "1", result="x") == [(0.1, "air")]
    assert bench.tool("search_web", "2", result="x", agent="writer") == [(0.1, "air"), (0.25, "air")]
    assert bench.tool("search_web", "3", agent="rewriter") == []
    assert bench.tool("research_web", "4", result="x") == []
    assert bench.tool("RUN_SQL", "5", result="x") == []
    assert bench.tool("run_sql", "6", result="") == []


def test_base_values_pay_only_where_no_rule_covers_the_call() -> None:
    rules = RuleSet(base=AirRules())
    rules.on_tool_success("quiet")(lambda: None)
    bench = Bench(AirPlugin(rules))
    assert bench.tool("quiet", "1") == []
    assert bench.tool("other", "2") == [(0.05, "air")]
    assert bench.tool("quiet", "3", "error") == [(-0.05, "air")]


def test_rules_get_what_they_ask_for() -> None:
    rules, asked = RuleSet(cap=None), []

    @rules.on_tool_failure
    def failed(
        tool_name: Any, arguments: Any, agent: Any, call_id: Any, error: Any, error_type: Any, status: Any
    ) -> None:
        asked.append((tool_name, dict(arguments), agent, call_id, error, error_type, status))

    @rules.on_denied(name="denied")
    def denied(
        reason: Any, policy: Any, rule: Any, severity: Any, decision: Any, outcome: Any, extra: int = 3
    ) -> float:
        asked.append((reason, policy, rule, severity, decision.effect, outcome.status, extra))
        return -0.5

    @rules.on_model_call("gpt*")
    def spoke(**given: Any) -> float:
        asked.append(tuple(sorted(given)))
        return 0.0

    bench = Bench(AirPlugin(rules))
    bench.tool("t", "c", "invalid_args", arguments={"x": 1}, agent="a", error="bad", error_type="E")
    decision = Decision(Effect.DENY, "desk", "no-drop", "not that", Severity.HIGH)
    assert bench.tool("t", "c", "denied", decision=decision) == [(-0.5, "compliance")]
    with enter_scope(ATTEMPT):
        bench.chat("resp-1", model="gpt-9")
        bench.chat("resp-1", model="llama")
    assert asked == [
        ("t", {"x": 1}, "a", "c", "bad", "E", "invalid_args"),
        ("not that", "desk", "no-drop", Severity.HIGH, Effect.DENY, "denied", 3),
        ("agent", "finish_reason", "input_tokens", "model", "output_tokens", "response_id", "span"),
    ]


def test_timeouts_and_faults_earn_nothing() -> None:
    rules = RuleSet()
    for register in (rules.on_tool_success, rules.on_tool_failure, rules.on_denied):
        register(name=register.__name__)(lambda: -1.0)
    bench = Bench(AirPlugin(rules))
    assert bench.tool("t", "c", "timeout") == []
    for stopped in ("CancelledError", "KeyboardInterrupt"):
        assert bench.tool("t", "c", "error", error_type=stopped) == []
    broken = Decision(Effect.DENY, "p", "policy-error", "it failed", fault=True)
    assert bench.tool("t", "c", "denied", decision=broken) == []


# ---------------------------------------------------------------------- model calls


def test_a_model_call_is_paid_on_its_response_id() -> None:
    rules = RuleSet(cap=None)
    rules.on_model_call(name="short")(lambda output_tokens, finish_reason: 0.1 if finish_reason == "stop" else 0.0)
    rules.on_model_call(name="cost", shaped=False)(lambda output_tokens: -0.01 * output_tokens)
    bench = Bench(AirPlugin(rules))
    bench.chat("outside any rollout")
    with bench.governor.rollout(ATTEMPT):
        bench.chat("resp-1")
        bench.chat("resp-2", error="ValueError")
    assert bench.paid() == [
        (0.1, "air", None, "resp-1"),
        (pytest.approx(-0.07), "air", None, "resp-1"),
        (-0.1, "air", None, None),
    ]
    assert {(reward.rollout_id, reward.attempt) for reward in bench.seen.rewards} == {("r1", 2)}


def test_a_call_without_an_id_is_paid_nothing_and_counted() -> None:
    rules = RuleSet()
    rules.on_model_call(name="m")(lambda: 0.1)
    rules.on_tool_success(name="t")(lambda: 0.1)
    plugin = AirPlugin(rules)
    bench = Bench(plugin)
    with bench.governor.rollout(ATTEMPT):
        bench.chat(None)
        assert bench.tool("t", None) == []
        assert bench.tool("t", "c", "error") == []
    assert bench.paid() == []
    assert bench.seen.failures == []
    assert plugin.unplaced == 2


def test_with_several_agents_each_takes_its_own_back_on_its_own_last_call() -> None:
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


# ---------------------------------------------------------------------- what cannot be farmed


def test_a_call_that_is_repeated_earns_nothing_and_other_arguments_are_another_call() -> None:
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


def test_the_cap_bounds_the_potential_and_what_is_taken_back_is_what_was_paid() -> None:
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


def test_denials_are_charged_in_full_each_time_and_not_taken_back() -> None:
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


def test_interleaved_attempts_have_accounts_of_their_own_and_keep_none_when_they_end() -> None:
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


def test_a_governor_that_only_watches_takes_back_too() -> None:
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
    monkeypatch.setattr("lgov_core.reward.air_plugin.MOST_OPEN_ATTEMPTS", 2)
    bench = Bench(AirPlugin())
    for number in range(3):
        with enter_scope(RolloutScope(f"r{number}")):
            bench.tool("t", "c")
    assert [reward.rollout_id for reward in bench.seen.rewards] == ["r0", "r1"]
    assert "not ended" in bench.seen.failures[0].error


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (math.nan, "nan, not a finite number"),
        (math.inf, "inf, not a finite number"),
        ("0.3", "'0.3', not a finite number"),
        (True, "True, not a finite number"),
    ],
)
def test_a_rule_that_fails_is_loud_and_nothing_is_paid_or_booked(answer: Any, said: str) -> None:
    rules = RuleSet()
    rules.on_tool_success(name="fine")(lambda: 0.1)

    @rules.on_tool_success(name="broken")
    def broken(arguments: Any) -> Any:
        if arguments.get("fine"):
            return 0.0
        if isinstance(answer, Exception):
            raise answer
        return answer

    plugin = AirPlugin(rules)
    bench = Bench(plugin)
    with bench.governor.rollout(ATTEMPT):
        assert bench.tool("t", "c1") == []
        assert bench.tool("t", "c2", arguments={"fine": 1}) == [(0.1, "air")]
    (failure,) = bench.seen.failures
    assert failure.hook == "lgov_reward"
    assert said in failure.error
    assert bench.governor.failures == {"lgov_reward:AirPlugin": 1}
    assert [reward.value for reward in bench.seen.rewards] == [0.1, -0.1]


def test_a_reward_of_any_plugin_that_is_not_finite_is_refused() -> None:
    class Pays:
        @hookimpl
        def lgov_reward(self) -> Sequence[Reward]:
            return [Reward(0.1), Reward(math.nan)]

        @hookimpl
        def lgov_span_reward(self) -> Sequence[Reward]:
            return [Reward(0.1)]  # on nothing

        @hookimpl
        def lgov_rollout_reward(self) -> Sequence[Reward]:
            raise KeyError("end")

    bench = Bench(Pays())
    with bench.governor.rollout(ATTEMPT):
        assert bench.tool("t", "c") == []
        bench.chat("resp-1")
    assert bench.paid() == []
    assert [failure.hook for failure in bench.seen.failures] == [
        "lgov_reward",
        "lgov_span_reward",
        "lgov_rollout_reward",
    ]


@pytest.mark.parametrize(
    ("register", "said"),
    [
        (lambda rules: rules.on_tool_success(lambda tool, output: 0.1), "asks for 'tool'"),
        (lambda rules: rules.on_tool_success(lambda error: 0.1), "asks for 'error', which on_tool_success"),
        (lambda rules: rules.on_tool_success(lambda output, /: 0.1), "asks for 'output'"),
        (lambda rules: rules.on_tool_success("t", "")(lambda: 0.1), "tools must be globs"),
        (lambda rules: rules.on_tool_success("t", agents=[])(lambda: 0.1), "agents must be globs"),
        (lambda rules: rules.on_tool_success("t", weight=2)(lambda: 0.1), "no option 'weight'"),
        (lambda rules: rules.on_tool_success("t")("run_sql"), "is for a function"),
        (lambda rules: rules.on_tool_success("t", milestone="day")(lambda: 0.1), "milestone is 'day'"),
        (lambda rules: rules.on_tool_success("t", milestone=lambda day: 1)(lambda: 0.1), "asks for 'day'"),
        (lambda rules: rules.add(air.AirRule("x", "tool_sucess", 0.1)), "no event 'tool_sucess'"),  # type: ignore[arg-type]
        (lambda rules: rules.add(air.AirRule("x", "denied", math.nan)), "nan, not a finite number"),
        (lambda rules: [rules.on_denied(name="x")(lambda: 0.1) for _ in range(2)] and rules.add(
            air.AirRule("x", "denied", 0.1)), "two AIR rules are called 'x'"),
    ],
)  # fmt: skip
def test_rules_without_meaning_are_refused(register: Any, said: str) -> None:
    with pytest.raises(RewardError, match=said):
        register(RuleSet())


def test_a_coroutine_function_is_no_rule() -> None:
    async def later(output: str) -> float:
        return 0.1

    with pytest.raises(RewardError, match="coroutine"):
        RuleSet().on_tool_success(later)


def test_a_module_that_is_loaded_again_replaces_its_rules() -> None:
    with air.scope() as rules:
        for _ in range(2):
            exec(SKILL, {"__name__": "agent_file"})
        assert [rule.name for rule in rules.rules] == ["reward_tool_success", "penalize_failure"]


@pytest.mark.parametrize("cap", [-1.0, math.nan, True, "1"])
def test_a_cap_without_meaning_is_refused(cap: Any) -> None:
    with pytest.raises(RewardError, match="cap"):
        RuleSet(cap=cap)


# ---------------------------------------------------------------------- one charge a denial


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


def test_a_rule_that_is_added_later_does_not_charge_a_second_time() -> None:
    rules = RuleSet(base=AirRules(denied=0.0))
    policy = PolicyReward(config=RewardConfig.for_training())
    bench = Bench(policy, AirPlugin(rules))
    rules.on_denied(name="late")(lambda: -1.0)
    decision = Decision(Effect.DENY, "p", "r", "no", Severity.HIGH)
    assert len(bench.tool("t", "c", "denied", decision=decision)) == 1
    assert "has charged this denial already" in bench.seen.failures[0].error


def test_a_governed_process_leaves_the_charge_to_the_plugin_that_says_so(tmp_path: Path) -> None:
    from lgov_core.process.governed import ProcessOptions, open_process

    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n  - {name: none, use: deny}\n")
    options = ProcessOptions(tmp_path / "policy.yaml", tmp_path / "audit.db")
    for plugins, dimension in (([], -0.5), ([PolicyReward(config=RewardConfig.for_training())], -0.01)):
        with air.scope():
            process = open_process(options, plugins=plugins, manager=make_plugin_manager(builtin=(), third_party=False))
            action = Action(Point.PRE_TOOL_CALL, "t", call_id="c")
            decision = process.governor.decide(action)
            rewards = process.governor.record(ToolOutcome(action, "denied", decision=decision))
            process.close()
        assert len(rewards) == 1
        assert rewards[0].value <= dimension < 0


# ---------------------------------------------------------------------- rules in YAML

FILE = """
version: 1
cap: 0.4
defaults: {tool_error: -0.1}
rules:
  - name: rows
    on: tool_success
    tools: ["search_*"]
    agents: [clerk]
    reward: 0.2
    milestone: tool
  - {on: denied, reward: -0.75}
  - {name: talk, on: model_call, tools: ["gpt-*"], reward: 0.01, shaped: false}
"""


def test_rules_from_a_file_pay_as_those_in_python(tmp_path: Path) -> None:
    path = tmp_path / "air.yaml"
    path.write_text(FILE)
    rules = air.load_rules(path)
    assert [(rule.name, rule.event, rule.reward, rule.shaped) for rule in rules.rules] == [
        ("rows", "tool_success", 0.2, True),
        ("rule 2", "denied", -0.75, False),
        ("talk", "model_call", 0.01, False),
    ]
    assert (rules.cap, rules.base) == (0.4, AirRules(tool_error=-0.1))
    bench = Bench(AirPlugin(rules))
    with bench.governor.rollout(ATTEMPT):
        assert bench.tool("search_web", "1", agent="clerk") == [(0.2, "air")]
        assert bench.tool("search_web", "2", agent="clerk", arguments={"x": 1}) == []
        assert bench.tool("search_web", "3", agent="boss") == [(0.05, "air")]
        assert bench.tool("search_web", "4", "error") == [(-0.1, "air")]
        assert bench.tool("t", "5", "denied", decision=Decision(Effect.DENY, "p")) == [(-0.75, "compliance")]
        bench.chat("resp-1", model="gpt-1")
    assert bench.paid()[-4:] == [
        (0.01, "air", None, "resp-1"),
        (-0.2, "air", "1", None),  # clerk's
        (-0.05, "air", "3", None),  # boss's
        (0.1, "air", "4", None),
    ]


def test_rules_from_a_section_and_from_memory(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    inner = "".join(f"  {line}\n" for line in FILE.strip().splitlines())
    path.write_text(f"else: {{whatever: 1}}\nair:\n{inner}")
    assert air.load_rules(path, section="air").rules == air.rules_of(read_yaml(FILE, "file")[0]).rules
    path.write_text(path.read_text().replace("reward: 0.2", "reward: much"))
    with pytest.raises(RewardFileError, match=rf"^{path}:11: reward is 'much'"):
        air.load_rules(path, section="air")
    with pytest.raises(RewardFileError, match="no section 'rewards'"):
        air.load_rules(path, section="rewards")


def test_true_for_defaults_are_the_built_in_values() -> None:
    assert air.rules_of({"version": 1, "defaults": True}).base == AirRules()


WRONG = [
    ("", 1, "must be a mapping"),
    ("version: 2\ndefaults: true", 1, "version is 2"),
    ("version: 1\ncap: -1\ndefaults: true", 2, "cap of AIR is -1"),
    ("version: 1\ncap: lots\ndefaults: true", 2, "cap of AIR is 'lots'"),
    ("version: 1", 1, "nothing is ever paid"),
    ("version: 1\nrule: []", 2, "no key 'rule' here (did you mean rules?)"),
    ("version: 1\ndefaults: {denied: [1]}", 2, "AirRules.denied is [1]"),
    ("version: 1\ndefaults: {shaped: 3}", 2, "shaped must be True or False"),
    ("version: 1\ndefaults: {denial: 3}", 2, "no key 'denial' here (did you mean denied?)"),
    ("version: 1\nrules: 3", 2, "rules must be a list"),
    ("version: 1\nrules:\n- on: denied", 3, "the rule has no reward"),
    ("version: 1\nrules:\n- reward: 1", 3, "the rule has no on"),
    ("version: 1\nrules:\n- on: tool_sucess\n  reward: 1", 3, "on is 'tool_sucess' (did you mean tool_success?)"),
    ("version: 1\nrules:\n- on: denied\n  reward: true", 4, "reward is True"),
    ("version: 1\nrules:\n- on: denied\n  reward: .nan", 4, "'.nan' is read as float"),
    ("version: 1\nrules:\n- on: denied\n  reward: 1\n  tools: run_sql", 5, "tools must be a list of globs"),
    ("version: 1\nrules:\n- on: denied\n  reward: 1\n  agents: []", 5, "agents must be a list of globs"),
    ("version: 1\nrules:\n- on: denied\n  reward: 1\n  shaped: 1", 5, "shaped is 1"),
    ("version: 1\nrules:\n- on: denied\n  reward: 1\n  name: 7", 5, "name is 7"),
    ("version: 1\nrules:\n- on: tool_success\n  reward: 1\n  milestone: day", 5, "milestone is 'day'"),
    ("version: 1\nrules:\n- {on: denied, reward: 1, name: x}\n- {on: denied, reward: 1, name: x}", 4, "two AIR rules"),
    ("version: 1\nrules: [", 2, "not YAML"),
]


@pytest.mark.parametrize(("text", "line", "said"), WRONG)
def test_what_is_not_understood_is_an_error_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "air.yaml"
    path.write_text(text)
    with pytest.raises(RewardFileError) as raised:
        air.load_rules(path)
    assert said in str(raised.value)
    if text:
        assert str(raised.value).startswith(f"{path}:{raised.value.line}: ")
        assert raised.value.line == line


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "air.yaml")
    with pytest.raises(RewardFileError, match=r"air\.yaml: "):
        air.load_rules(tmp_path / "air.yaml")


def test_the_schema_says_the_same_as_the_loader() -> None:
    validate = fastjsonschema.compile(air.AIR_FILE_SCHEMA)
    validate(read_yaml(FILE, "file")[0])
    # What only the loader can tell: names that are given twice, files in which nothing is paid, YAML that is none.
    beyond = ("two AIR rules", "nothing is ever paid", "not YAML", ".nan")
    for text, _, said in WRONG:
        if not any(part in said for part in beyond):
            with pytest.raises(fastjsonschema.JsonSchemaException):
                validate(read_yaml(text, "file")[0])


# ---------------------------------------------------------------------- beside everything else


def test_a_worker_uses_the_rules_that_the_program_registers() -> None:
    # As in lgov_core.train.workers.worker: the set in use before the agent's module is imported.
    with air.scope():
        bench = Bench(AirPlugin(air.use(RuleSet(base=AirRules()))))
        exec(SKILL, {})
        assert bench.tool("t", "c") == [(0.3, "air")]


def test_spans_that_are_no_model_calls_earn_nothing() -> None:
    rules = RuleSet()
    rules.on_model_call(lambda: 1.0)
    bench = Bench(AirPlugin(rules))
    with enter_scope(ATTEMPT):
        bench.governor.observe(
            Span("execute_tool x", "s", 0.0, 1.0, {semconv.OPERATION: semconv.EXECUTE_TOOL}, "r1", 2)
        )
        open_span = {semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: "x"}
        bench.governor.observe(Span("chat m", "s", 0.0, None, open_span, "r1", 2))
    assert bench.seen.rewards == []
    assert bench.seen.failures == []
    assert ALLOW.effect is Effect.ALLOW
