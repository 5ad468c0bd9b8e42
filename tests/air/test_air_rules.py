"""AIR rules: which calls they cover, what they are given, and their errors."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from air_cases import ATTEMPT, Bench

from lgov_core import air
from lgov_core.errors import RewardError
from lgov_core.hookspecs import hookimpl
from lgov_core.reward import AirPlugin, AirRules, RuleSet
from lgov_core.scope import enter_scope
from lgov_core.trace import semconv
from lgov_core.types import ALLOW, Decision, Effect, Reward, Severity, Span

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


def test_the_documented_example_rewards_its_calls() -> None:
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


def test_globs_choose_tools_and_agents() -> None:
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
def test_a_rule_that_fails_is_reported_and_pays_nothing(answer: Any, said: str) -> None:
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


def test_a_worker_uses_the_rules_that_the_program_registers() -> None:
    # As in lgov_core.client.worker_process: the set in use before the agent's module is imported.
    with air.scope():
        bench = Bench(AirPlugin(air.use(RuleSet(base=AirRules()))))
        exec(SKILL, {})
        assert bench.tool("t", "c") == [(0.3, "air")]


def test_spans_other_than_model_calls_earn_nothing() -> None:
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
