"""Choices of one reply: alternatives, of which an attempt goes on with one. Numbers are worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.transitions import (
    CreditRules,
    Finding,
    Transition,
    TransitionSet,
    assemble,
    assign_credit,
    make_chains,
    read_parquet,
    rollout_returns,
    write_parquet,
)
from lgov_core.transitions.credit.length import penalise_length
from lgov_core.transitions.export.messages import preference_pairs, sft_records, totals_of
from lgov_core.transitions.export.trl import trl_rollouts
from lgov_core.transitions.values import line_of
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout, Span

ASK = [{"role": "user", "content": "Who?"}]
NO_CAP = CreditRules(air_cap=None)


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(
    name: str,
    choice: int = 0,
    *,
    prompt: Sequence[int] = (1,),
    reply: Sequence[int] | None = None,
    at: float = 0.0,
    rollout: str = "r",
    messages: Sequence[Mapping[str, Any]] = ASK,
    tools: Sequence[str] = (),
    text: str | None = None,
) -> CapturedCall:
    reply = (10 + choice,) if reply is None else reply
    answers = [{"index": n, "message": said(text if text is not None else f"{name}/{n}")} for n in range(4)]
    return CapturedCall(
        response_id=name,
        model="m",
        request={"messages": list(messages)},
        response={"choices": answers},
        prompt_ids=tuple(prompt),
        response_ids=tuple(reply),
        logprobs=(-0.5,) * len(reply),
        finish_reason="stop",
        weights_version=0,
        temperature=1.0,
        top_p=1.0,
        started_at=at,
        ended_at=at + 0.5,
        rollout_id=rollout,
        attempt=1,
        tool_call_ids=tuple(tools),
        choice=choice,
    )


def made(calls: Sequence[CapturedCall], rewards: Sequence[Reward] = ()) -> TransitionSet:
    names = sorted({one.rollout_id or "" for one in calls})
    rollouts = [Rollout(name, "t", "run", {}, 0.0) for name in names]
    attempts = [Attempt(name, 1, 0.0, 9.0, Outcome.SUCCEEDED) for name in names]
    numbered = [replace(one, reward_id=f"w{n}") for n, one in enumerate(rewards)]
    return assemble(rollouts, attempts, calls, numbered)


def on(name: str, choice: int | None, value: float, rollout: str = "r") -> Reward:
    return Reward(value, "task", rollout, 1, response_id=name, choice=choice)


def final(value: float, rollout: str = "r") -> Reward:
    return Reward(value, "task", rollout, 1)


def credits(data: TransitionSet, rules: CreditRules = NO_CAP) -> dict[tuple[str, str, int], float | None]:
    found = assign_credit(data, rules).transitions
    return {(one.rollout_id, one.response_id, one.choice): one.credit for one in found}


THREE = [call("a", choice) for choice in range(3)]
#: Goes on from choice 1 of ``a``: 1 11, and what a tool said.
NEXT = call("b", prompt=(1, 11, 5), at=1.0)


# ---------------------------------------------------------------------- which one it was


@pytest.mark.parametrize(
    ("calls", "rewards", "aside", "unknown"),
    [
        pytest.param([*THREE, NEXT], [], {0, 2}, 0, id="tokens"),
        pytest.param([NEXT, *reversed(THREE)], [], {0, 2}, 0, id="any-order-of-arrival"),
        pytest.param(
            [*THREE, call("b", prompt=(7,), at=1.0, messages=[*ASK, said("a/2"), *ASK])], [], {0, 1}, 0, id="messages"
        ),
        pytest.param(
            [call("a", 0, tools=["x"]), call("a", 1, tools=["y"])],
            [Reward(0.1, "air", "r", 1, tool_call_id="y")],
            {0},
            0,
            id="tool-call",
        ),
        pytest.param(
            [call("a", 0, tools=["x"]), call("a", 1, tools=["x"])],
            [Reward(0.1, "air", "r", 1, tool_call_id="x")],
            {1},
            1,
            id="a-tool-call-that-both-proposed",
        ),
        pytest.param(
            [call("a", 0, tools=["x"]), call("a", 1, tools=["y"])],
            [Reward(0.1, "air", "r", 2, tool_call_id="y")],
            {1},
            1,
            id="a-tool-call-of-another-attempt",
        ),
        pytest.param(THREE, [], {1, 2}, 1, id="nothing-says"),
        pytest.param([*THREE, call("b", prompt=(7,), at=1.0)], [], {1, 2}, 1, id="context-made-anew"),
        pytest.param([*THREE, NEXT, call("c", prompt=(1, 12, 5), at=2.0)], [], {0}, 0, id="both-branches"),
        pytest.param(
            [call("a", 0, reply=(9,)), call("a", 1, reply=(9,)), call("b", prompt=(1, 9, 5), at=1.0)],
            [],
            {1},
            0,
            id="two-that-say-the-same",
        ),
        pytest.param(
            [call("a", 0, reply=(9,)), call("a", 1, reply=(9, 8)), call("b", prompt=(1, 9, 8, 5), at=1.0)],
            [],
            {0},
            0,
            id="one-begins-as-the-other",
        ),
        pytest.param([call("a"), call("b", prompt=(1, 10, 5), at=1.0)], [], set(), 0, id="one-choice"),
        pytest.param([call("a", 2)], [], set(), 0, id="one-choice-of-which-others-are-not-on-record"),
    ],
)
def test_the_choice_that_an_attempt_went_on_with(
    calls: list[CapturedCall], rewards: list[Reward], aside: set[int], unknown: int
) -> None:
    data = made(calls, rewards)
    assert {one.choice for one in data.transitions if one.set_aside} == aside
    assert {one.response_id for one in data.transitions if one.set_aside} <= {"a"}
    assert data.counts().get("unknown_choice", 0) == unknown


@pytest.mark.parametrize(
    "message", ["text", None, 5, {"role": "assistant", "tool_calls": 5}, {"tool_calls": ["x"]}], ids=repr
)
def test_messages_that_are_none_say_nothing(message: Any) -> None:
    data = made([*THREE, call("b", prompt=(7,), at=1.0, messages=[*ASK, message])])
    assert [one.set_aside for one in data.transitions] == [False, True, True, False]


@pytest.mark.parametrize(("attempt", "aside"), [(1, 0), (None, 0), (2, 1)])
def test_a_tool_call_that_ran_tells_which_choice_proposed_it(attempt: int | None, aside: int) -> None:
    told = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "y"}
    span = Span("execute_tool x", "s", 1.0, 2.0, told, "r", attempt)
    rollout, tried = Rollout("r", "t", "run", {}, 0.0), Attempt("r", 1, 0.0, 9.0, Outcome.SUCCEEDED)
    data = assemble([rollout], [tried], [call("a", 0, tools=["x"]), call("a", 1, tools=["y"])], [final(1.0)], [span])
    assert [one.choice for one in data.transitions if one.set_aside] == [aside]


def chat_span(choice: int | None, *tools: str) -> Span:
    told: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": "a",
        "lgov.choice": choice,
        "lgov.tool_call_ids": list(tools),
        "lgov.prompt_token_ids": [1],
        "lgov.response_token_ids": [10 + (choice or 0)],
        "lgov.response_logprobs": [-0.5],
    }
    told = {name: value for name, value in told.items() if value not in (None, [])}
    return Span("chat m", f"chat{choice}", 0.0, 1.0, told, "r", 1)


RAN = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "y"}
UNDER = Span("execute_tool x", "t", 1.0, 2.0, RAN, "r", 1, parent_id="chat1")
NAMED = Span("execute_tool x", "t", 1.0, 2.0, {**RAN, "gen_ai.response.id": "a"}, "r", 1)


@pytest.mark.parametrize(
    ("calls", "spans"),
    [
        pytest.param([], [chat_span(0, "x"), chat_span(1, "y"), NAMED], id="the-tool-names-the-call"),
        pytest.param([], [chat_span(0), chat_span(1), UNDER], id="the-tool-is-under-the-choice"),
        pytest.param(
            [],
            [chat_span(0), chat_span(1), replace(NAMED, attributes={**NAMED.attributes, "lgov.choice": 1})],
            id="and-choice",
        ),
        pytest.param([call("a", 0), call("a", 1, tools=["y"])], [chat_span(None), NAMED], id="captured"),
        pytest.param([call("a", 0), call("a", 1, tools=["y"])], [chat_span(None, "y")], id="one-span-for-both"),
    ],
)
def test_a_tool_call_is_of_the_choice_that_proposed_it(calls: list[CapturedCall], spans: list[Span]) -> None:
    rollout, tried = Rollout("r", "t", "run", {}, 0.0), Attempt("r", 1, 0.0, 9.0, Outcome.SUCCEEDED)
    rewards = [Reward(0.5, "air", "r", 1, tool_call_id="y", reward_id="w0"), replace(final(1.0), reward_id="w1")]
    data = assemble([rollout], [tried], calls, rewards, spans)
    assert [(one.tool_call_ids, dict(one.rewards)) for one in data.transitions] == [
        (("x",) if spans[0].attributes.get("lgov.tool_call_ids") == ["x"] else (), {}),
        (("y",), {"air": 0.5, "task": 1.0}),
    ]
    assert data.counts() == {}


# ---------------------------------------------------------------------- rewards


def test_a_final_reward_is_not_that_of_a_choice_that_was_set_aside() -> None:
    first, second = made([call("a", 0), call("a", 1)], [on("a", 1, 0.5), final(1.0)]).transitions
    assert (first.rewards, second.rewards) == ({"task": 1.0}, {"task": 0.5})
    # Choice 1 was gone on with, by an agent that is not selected or in a call without tokens.
    further = replace(NEXT, prompt_ids=(1, 11, 5), response_ids=())
    data = made([*THREE, further], [final(1.0)])
    assert [dict(one.rewards) for one in data.transitions] == [{}, {"task": 1.0}, {}]


def test_a_reward_that_names_no_choice_is_of_the_one_that_was_gone_on_with() -> None:
    data = made([*THREE, NEXT], [on("a", None, 0.5)])
    assert [dict(one.rewards) for one in data.transitions] == [{}, {"task": 0.5}, {}, {}]
    (told,) = [one for one in data.diagnostics if one.finding is Finding.AMBIGUOUS_REWARD_TARGET]
    assert "it goes to choice 1" in told.detail


def test_a_tool_call_id_that_all_choices_gave_is_that_of_the_one_gone_on_with() -> None:
    calls = [*(replace(one, tool_call_ids=("call_0",)) for one in THREE), NEXT]
    data = made(calls, [Reward(0.5, "air", "r", 1, tool_call_id="call_0"), final(1.0)])
    assert [dict(one.rewards) for one in data.transitions] == [{}, {"air": 0.5}, {}, {"task": 1.0}]
    assert data.counts() == {}


def test_a_choice_that_was_cancelled_is_not_the_one_that_was_gone_on_with() -> None:
    data = made([replace(THREE[0], finish_reason="cancelled"), THREE[1], THREE[2]], [final(1.0)])
    assert [(one.choice, one.set_aside, dict(one.rewards)) for one in data.transitions] == [
        (1, False, {"task": 1.0}),
        (2, True, {}),
    ]


def test_a_reward_on_a_choice_that_is_not_there_says_so() -> None:
    data = made([*THREE, NEXT], [on("a", 7, 0.5), final(1.0)])
    (told,) = [one for one in data.diagnostics if one.finding is Finding.UNKNOWN_REWARD_TARGET]
    assert told.detail == "r: there is no choice 7 of call a"


def test_where_the_choice_gone_on_with_cannot_be_trained_on_no_other_has_its_reward() -> None:
    broken = replace(THREE[1], logprobs=None)
    data = made([THREE[0], broken, THREE[2], replace(NEXT, response_ids=())], [final(1.0)])
    assert [(one.choice, dict(one.rewards)) for one in data.transitions] == [(0, {}), (2, {})]
    assert [one.value for one in data.unassigned] == [1.0]
    assert rollout_returns(data.transitions) == {}
    assert set(credits(data).values()) == {0.0}


# ---------------------------------------------------------------------- credit


def two_rollouts(first: Sequence[Reward], second: Sequence[Reward]) -> TransitionSet:
    """Two rollouts of a call of three choices and one that goes on from choice 1."""
    other = [replace(one, rollout_id="s", response_id=f"s{one.response_id}") for one in (*THREE, NEXT)]
    return made([*THREE, NEXT, *other], [*first, *second])


def test_what_a_choice_earned_is_neither_its_alternatives_nor_of_what_came_before() -> None:
    data = two_rollouts(
        [on("a", 0, 0.25), on("a", 1, 0.5), on("b", 0, 0.125), final(1.0)], [on("sa", 1, 0.25, "s"), final(0.0, "s")]
    )
    returns = [one.value_to_go for one in assign_credit(data, NO_CAP).transitions]
    assert returns == [0.25, 1.625, 0.0, 1.125, 0.0, 0.25, 0.0, 0.0]
    assert rollout_returns(data.transitions) == {("r", 1): 1.625, ("s", 1): 0.25}
    # Turn 0: mean (1.625 + 0.25) / 2. Turn 1: mean 1.125 / 2. Choices 0 and 1 of a: mean 0.375.
    assert credits(data) == {
        ("r", "a", 0): -0.125,
        ("r", "a", 1): 0.6875,
        ("r", "a", 2): 0.0,
        ("r", "b", 0): 0.5625,
        ("s", "sa", 0): 0.0,
        ("s", "sa", 1): -0.6875,
        ("s", "sa", 2): 0.0,
        ("s", "sb", 0): -0.5625,
    }


def test_a_call_of_several_choices_is_one_turn_to_the_discount() -> None:
    data = two_rollouts([final(1.0)], [final(0.0, "s")])
    found = assign_credit(data, CreditRules(discount=0.5)).transitions
    assert [one.value_to_go for one in found if one.rollout_id == "r"] == [0.0, 0.5, 0.0, 1.0]


RULES = {
    "return_to_go": CreditRules(),
    "identical": CreditRules(scheme="identical", discount=0.9),
    "step": CreditRules(scheme="step"),
    "gigpo": CreditRules(scheme="gigpo", std_floor=0.1),
    "flow_grpo": CreditRules(scheme="flow_grpo"),
    "left-out": CreditRules(leave_one_out=True, caps={"task": 0.5}),
    "batch": CreditRules(normalise_batch=True),
    "gae": CreditRules(scheme="gae"),
    "plugin": CreditRules(scheme="lengths"),
}


class Lengths:
    @hookimpl
    def lgov_assign_credit(self, scheme: str, rollouts: Sequence[Sequence[Transition]]) -> list[list[float]]:
        return [[float(len(rollout))] * len(rollout) for rollout in rollouts]


@pytest.mark.parametrize("rules", RULES.values(), ids=list(RULES))
def test_the_line_is_credited_as_if_there_were_no_alternatives(rules: CreditRules) -> None:
    data = two_rollouts(
        [on("a", 0, 0.25), on("a", 1, 0.5), on("a", 2, 8.0), final(1.0)], [on("sa", 1, 0.25, "s"), final(0.0, "s")]
    )
    data = replace(data, transitions=tuple(replace(one, value=0.5) for one in data.transitions))
    alone = replace(data, transitions=tuple(line_of(data.transitions)))
    manager = make_plugin_manager([Lengths()])
    both = assign_credit(data, rules, manager=manager).transitions
    expected = assign_credit(alone, rules, manager=manager).transitions
    line = line_of(both)
    assert [(one.credit, one.value_to_go) for one in line] == [(one.credit, one.value_to_go) for one in expected]
    aside = [one.credit for one in both if one.set_aside]
    assert aside[2:] == [0.0, 0.0]  # of s nobody named them
    assert aside[0] is not None
    assert aside[1] is not None
    assert aside[1] > 0 > aside[0]


def test_where_credit_is_in_deviations_that_of_choices_is_too() -> None:
    data = two_rollouts([on("a", 0, 0.5), on("a", 1, 0.0), final(1.0)], [final(0.0, "s")])
    # 0.5 and 0 are one deviation from their mean, and so are the rollouts' 1 and 0.
    found = credits(data, CreditRules(scheme="flow_grpo"))
    assert (found["r", "a", 0], found["r", "a", 1], found["s", "sa", 1]) == (1.0, 1.0, -1.0)


def test_choices_are_compared_with_what_names_them_and_not_with_the_final_reward() -> None:
    # Both are worth the same: the final reward, which the first has, says nothing of the second.
    calls = [call("a", 0), call("a", 1), call("b", 0, reply=(7,), rollout="s")]
    data = made(calls, [on("a", 0, 0.1), on("a", 1, 0.1), final(1.0), final(0.0, "s")])
    assert data.transitions[0].rewards == {"task": 1.1}
    assert credits(data)["r", "a", 1] == 0.0
    pairs = preference_pairs(assign_credit(data, NO_CAP), calls).records
    assert [(one["chosen_response_id"], one["rejected_response_id"]) for one in pairs] == [("a", "b")]


def test_a_group_of_one_rollout_is_not_compared() -> None:
    assert set(credits(made(THREE, [on("a", 0, 1.0), on("a", 1, 0.0)])).values()) == {0.0}


def test_a_penalty_on_length_is_of_each_choice_itself() -> None:
    data = made([call("a", 0, reply=(5,) * 4), call("a", 1)], [on("a", 0, 0.5), final(1.0)])
    first = penalise_length(data, limit=4, margin=2).transitions[0]
    assert first.own_rewards == {"task": 0.5, "length": -1.0}
    assert first.rewards == {"task": 1.5, "length": -1.0}


# ---------------------------------------------------------------------- export


def test_alternatives_do_not_break_the_chain() -> None:
    before = call("z", prompt=(1,), reply=(2,), at=-1.0)
    several = [call("a", choice, prompt=(1, 2, 3)) for choice in range(3)]
    chains = make_chains(made([before, *several, call("b", prompt=(1, 2, 3, 11, 5), at=1.0)]).transitions)
    assert [[(link.transition.response_id, link.transition.choice) for link in chain.links] for chain in chains] == [
        [("z", 0), ("a", 1), ("b", 0)],
        [("a", 0)],
        [("a", 2)],
    ]


def test_choices_of_one_call_that_earned_differently_are_a_pair() -> None:
    calls = [*THREE, NEXT]
    data = assign_credit(made(calls, [on("a", 0, 0.75), on("a", 1, 0.25), final(1.0)]))
    found = preference_pairs(data, calls)
    (pair,) = found.records
    # By what each earned itself: that choice 1 went on to earn 1 says nothing of choice 0; of choice 2 nobody said anything.
    assert (pair["chosen"], pair["rejected"]) == ([said("a/0")], [said("a/1")])
    assert (pair["chosen_return"], pair["rejected_return"]) == (0.75, 0.25)
    assert found.left_out == {"prompt_seen_once": 2}


def test_what_was_set_aside_is_not_worth_imitating() -> None:
    calls = [*THREE, replace(NEXT, request={"messages": [*ASK, said("a/1"), *ASK]})]
    data = made(calls, [on("a", 0, 5.0), final(1.0)])
    found = sft_records(data, calls)
    (record,) = found.records
    assert [one.get("content") for one in record["messages"]] == ["Who?", "a/1", "Who?", "b/0"]
    assert (record["rewards"], record["response_ids"]) == ({"task": 1.0}, ["a", "b"])
    assert found.left_out == {"set_aside": 2}
    assert totals_of(data.transitions) == {"task": 1.0}


def test_a_rollout_with_alternatives_has_a_place_in_trl() -> None:
    found = trl_rollouts(made([*THREE, NEXT], [on("a", 0, 5.0), final(1.0)]))
    assert not found.left_out
    assert found.columns["completion_ids"] == [[11, 5, 10]]
    assert found.columns["reward_task"] == [1.0]


def test_a_row_says_what_was_set_aside(tmp_path: Path) -> None:
    transitions = assign_credit(made([*THREE, NEXT])).transitions
    assert [one.as_row()["set_aside"] for one in transitions] == [True, False, True, False]
    pytest.importorskip("pyarrow")
    read = read_parquet(write_parquet(transitions, tmp_path / "t.parquet"))
    assert [one.set_aside for one in read] == [True, False, True, False]
