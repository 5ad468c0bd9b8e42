"""CostControlPolicy: nothing is spent that the budget does not hold, whoever asks at the same time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cost_helpers import BOUND, PRICES, after, before, governor, refused, tool

from lgov_core.governor import ObservedDecision
from lgov_core.policies import BoundedPolicy, CostControlPolicy
from lgov_core.types import Action, Decision, Effect, Point

# ---------------------------------------------------------------------- money and tokens


def test_a_call_sets_its_most_aside_and_spends_what_it_says(ledger: Any) -> None:
    policy = CostControlPolicy(max_cost_usd=1, prices=PRICES, ledger=ledger)
    assert policy.judge(before()) is None
    spent = policy.spent("ro_1")
    assert (spent.tokens, spent.reserved_tokens, spent.reserved_calls) == (0, BOUND, 1)
    assert spent.reserved_cost_usd == pytest.approx(((BOUND - 100) * 1 + 100 * 10) / 1e6)
    assert policy.judge(after(input_tokens=20, output_tokens=7)) is None
    spent = policy.spent("ro_1")
    assert (spent.tokens, spent.calls, spent.reserved_tokens, spent.reserved_calls) == (27, 1, 0, 0)
    assert spent.cost_usd == pytest.approx((20 + 70) / 1e6)
    assert spent.reserved_cost_usd == 0


def test_calls_at_the_same_time_cannot_spend_the_same_money(ledger: Any) -> None:
    policy = CostControlPolicy(max_tokens=2 * BOUND + 2, ledger=ledger)
    assert [policy.judge(before(f"op_{i}")) is None for i in range(3)] == [True, True, False]
    decision = policy.judge(before("op_3"))
    assert refused(decision) == "token-budget"
    assert decision is not None
    assert f"{2 * BOUND:,} of {2 * BOUND + 2:,} tokens" in decision.reason
    assert "2 left" in decision.reason
    policy.judge(after("op_0", input_tokens=1, output_tokens=1))
    assert policy.judge(before("op_3")) is None


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"input_tokens": 5},
        {"input_tokens": -1, "output_tokens": 1},
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": 1.5, "output_tokens": 1},
        {"input_tokens": "1", "output_tokens": 1},
        {"input_tokens": True, "output_tokens": True},
        {"input_tokens": 2**60, "output_tokens": 1},
    ],
)
def test_a_call_without_usage_has_spent_all_it_reserved(usage: dict[str, Any]) -> None:
    policy = CostControlPolicy(max_tokens=10_000)
    policy.judge(before())
    policy.judge(after(**usage))
    spent = policy.spent("ro_1")
    assert (spent.tokens, spent.reserved_tokens) == (BOUND, 0)


def test_usage_is_booked_once_for_a_reply() -> None:
    policy = CostControlPolicy(max_tokens=10_000)
    policy.judge(before())
    for _ in range(3):
        policy.judge(after(input_tokens=5, output_tokens=5))
    assert policy.spent().tokens == 10


def test_an_overspent_budget_denies_what_follows(ledger: Any) -> None:
    policy = CostControlPolicy(max_tokens=1000, ledger=ledger)
    policy.judge(before())
    policy.judge(after(input_tokens=5000, output_tokens=1))
    assert refused(policy.judge(before("op_2"))) == "token-budget"
    assert refused(policy.judge(tool())) == "token-budget", "not even what costs nothing"


def test_max_output_tokens_bounds_an_unlimited_reply() -> None:
    policy = CostControlPolicy(max_tokens=100_000, max_output_tokens=777)
    policy.judge(Action(Point.PRE_MODEL_CALL, "m", "model", arguments={"messages": []}, operation_id="op_1"))
    assert policy.spent().reserved_tokens == len('{"messages": []}') + 777
    nested = {"messages": [], "options": {"max_output_tokens": 10, "n": 3}}
    policy = CostControlPolicy(max_tokens=100_000)
    policy.judge(Action(Point.PRE_MODEL_CALL, "m", "model", arguments=nested, operation_id="op_1"))
    assert policy.spent().reserved_tokens == len(json.dumps(nested)) + 30


def test_a_prompt_whose_size_cannot_be_told_is_denied() -> None:
    endless: dict[str, Any] = {}
    endless["messages"] = [endless]
    action = Action(Point.PRE_MODEL_CALL, "m", "model", arguments=endless, operation_id="op_1")
    assert refused(CostControlPolicy(max_tokens=100_000).judge(action)) == "cost-unclear"


def test_a_model_without_a_price_is_denied_under_dollars() -> None:
    decision = CostControlPolicy(max_cost_usd=100).judge(before(model="mystery"))
    assert refused(decision) == "cost-price"
    assert decision is not None
    assert "mystery" in decision.reason
    assert "unknown_model_price" in decision.reason
    assert CostControlPolicy(max_tokens=10_000).judge(before(model="mystery")) is None
    policy = CostControlPolicy(max_cost_usd=1, unknown_model_price={"input": 1e5, "output": 1e5})
    assert refused(policy.judge(before(model="mystery"))) == "cost-budget"


def test_the_longest_glob_that_fits_gives_the_price() -> None:
    prices = {"*": {"input": 900_000, "output": 900_000}, "gpt-*": {"input": 0, "output": 0}}
    policy = CostControlPolicy(max_cost_usd=0.01, prices=prices)
    assert policy.judge(before(model="gpt-x")) is None
    assert refused(policy.judge(before("op_2", model="other"))) == "cost-budget"


# ---------------------------------------------------------------------- calls, tools, time


def test_calls_of_models_and_tools_count_together(ledger: Any) -> None:
    policy = CostControlPolicy(max_calls=3, ledger=ledger)
    assert policy.judge(before()) is None
    assert policy.judge(tool()) is None
    assert policy.judge(tool("op_2")) is None
    assert refused(policy.judge(tool("op_3"))) == "call-budget"
    assert refused(policy.judge(before("op_4"))) == "call-budget"


def test_tools_cost_what_they_are_said_to_cost() -> None:
    policy = CostControlPolicy(max_cost_usd=0.3, tool_costs={"search*": 0.1, "search_all": 0.25})
    assert policy.judge(tool(name="search_all")) is None
    assert policy.judge(tool(name="read")) is None
    assert refused(policy.judge(tool(name="search_web"))) == "cost-budget"
    policy = CostControlPolicy(max_cost_usd=0.3, tool_costs={"*": 0.1})
    assert [policy.judge(tool()) is None for _ in range(4)] == [True, True, True, False], "0.1 + 0.1 + 0.1 is 0.3"


def test_time_counts_from_the_first_action(ledger: Any) -> None:
    now = [100.0]
    policy = CostControlPolicy(max_seconds=10, clock=lambda: now[0], ledger=ledger)
    assert policy.judge(tool()) is None
    now[0] = 109.9
    assert policy.judge(tool()) is None
    assert policy.judge(tool(rollout="ro_2")) is None
    now[0] = 110.0
    assert refused(policy.judge(tool())) == "time-budget"
    now[0] = 50.0
    assert refused(policy.judge(tool())) == "time-budget"
    assert policy.judge(tool(rollout="ro_2")) is None


# ---------------------------------------------------------------------- whose budget


@pytest.mark.parametrize(
    ("per", "one", "other"),
    [
        ("rollout", {"rollout_id": "a"}, {"rollout_id": "b"}),
        ("attempt", {"rollout_id": "a", "attempt": 1}, {"rollout_id": "a", "attempt": 2}),
        ("session", {"session_id": "a"}, {"session_id": "b"}),
        ("agent", {"agent": "a"}, {"agent": "b"}),
    ],
)
def test_each_has_a_budget_and_those_without_an_id_share_one(per: Any, one: Any, other: Any) -> None:
    policy = CostControlPolicy(max_calls=1, per=per)
    for fields in (one, other, {}):
        assert policy.judge(Action(Point.PRE_TOOL_CALL, "t", **fields)) is None
        assert refused(policy.judge(Action(Point.PRE_TOOL_CALL, "t", **fields))) == "call-budget"
    assert refused(policy.judge(Action(Point.PRE_TOOL_CALL, "other"))) == "call-budget"


def test_attempts_of_a_rollout_share_its_budget() -> None:
    policy = CostControlPolicy(max_calls=1)
    assert policy.judge(tool(attempt=1)) is None
    assert refused(policy.judge(tool(attempt=2))) == "call-budget"


def test_a_budget_that_was_dropped_is_no_fresh_budget() -> None:
    policy = CostControlPolicy(max_calls=1, max_budgets=2)
    ended = Action(Point.AGENT_SHUTDOWN, "t", "agent", rollout_id="ro_1")
    policy.judge(tool(rollout="ro_1"))
    policy.judge(tool(rollout="ro_2"))
    assert refused(policy.judge(tool(rollout="ro_3"))) == "cost-budgets", "none has ended, so none is dropped"
    policy.observe(ObservedDecision(ended, Decision(Effect.ALLOW, "p"), 0.0))
    assert policy.judge(tool(rollout="ro_3")) is None
    assert refused(policy.judge(tool(rollout="ro_1"))) == "cost-closed"
    assert refused(policy.judge(tool(rollout="ro_2"))) == "call-budget"
    policy.reset("ro_1")
    assert refused(policy.judge(tool(rollout="ro_1"))) == "cost-budgets"


def test_reservations_that_never_come_back_end_as_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgov_core.policies.budgets.ledger.MAX_OPEN", 3)
    policy = CostControlPolicy(max_calls=1000)
    for number in range(10):
        policy.judge(tool(f"op_{number}"))
    spent = policy.spent()
    assert (spent.calls, spent.reserved_calls) == (7, 3)


def test_reset_gives_a_fresh_budget_to_one_or_all(ledger: Any) -> None:
    policy = CostControlPolicy(max_calls=1, ledger=ledger)
    for rollout in ("a", "b"):
        policy.judge(tool("op_" + rollout, rollout=rollout))
    policy.reset("a")
    assert policy.judge(tool(rollout="a")) is None
    assert refused(policy.judge(tool(rollout="b"))) == "call-budget"
    policy.reset()
    assert policy.spent().calls == policy.spent().reserved_calls == 0
    assert policy.judge(tool(rollout="b")) is None


def test_a_budget_that_refused_so_often_in_a_row_ends_the_run(ledger: Any) -> None:
    policy = CostControlPolicy(max_tokens=400, abort_after=2, ledger=ledger)

    def ends(operation: str, max_tokens: int, rollout: str = "ro_1") -> bool | None:
        decision = policy.judge(before(operation, max_tokens=max_tokens, rollout=rollout))
        return None if decision is None else decision.abort

    assert ends("op_1", 1_000) is False
    assert ends("op_2", 1) is None, "a smaller call passes"
    assert ends("op_3", 1_000) is False
    assert ends("op_4", 1_000, rollout="ro_2") is False, "another budget"
    assert ends("op_5", 1_000) is True


def test_a_call_that_is_judged_again_is_refused_once(ledger: Any) -> None:
    """Another policy transforms the refused call, so that all are asked again in the same decision."""

    class Tidies(BoundedPolicy):
        name = "tidies"

        def judge(self, action: Action) -> Decision | None:
            if action.arguments.get("user") == "tidy":
                return None
            return self.transform("tidy", "tidied", arguments={**action.arguments, "user": "tidy"})

    asked = governor(CostControlPolicy(max_tokens=400, abort_after=2, ledger=ledger), Tidies())
    aborts = [asked.decide(before(operation, max_tokens=1_000)).abort for operation in ("op_1", "op_2")]
    assert aborts == [False, True]
