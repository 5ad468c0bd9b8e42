"""Choices of one reply: which one an attempt went on with, and its rewards. Numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lgov_core.transitions import (
    DataFinding,
    rollout_returns,
)
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout, Span
from tests.transitions.alternatives_parts import ASK, NEXT, THREE, call, credits, final, made, on, said
from tests.transitions.assembled import assemble

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
def test_malformed_messages_select_no_choice(message: Any) -> None:
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


def test_a_choice_set_aside_does_not_get_the_final_reward() -> None:
    first, second = made([call("a", 0), call("a", 1)], [on("a", 1, 0.5), final(1.0)]).transitions
    assert (first.rewards, second.rewards) == ({"task": 1.0}, {"task": 0.5})
    # Choice 1 was gone on with, by an agent that is not selected or in a call without tokens.
    further = replace(NEXT, prompt_ids=(1, 11, 5), response_ids=())
    data = made([*THREE, further], [final(1.0)])
    assert [dict(one.rewards) for one in data.transitions] == [{}, {"task": 1.0}, {}]


def test_a_reward_without_a_choice_belongs_to_the_one_used() -> None:
    data = made([*THREE, NEXT], [on("a", None, 0.5)])
    assert [dict(one.rewards) for one in data.transitions] == [{}, {"task": 0.5}, {}, {}]
    (told,) = [one for one in data.diagnostics if one.finding is DataFinding.AMBIGUOUS_REWARD_TARGET]
    assert "it goes to choice 1" in told.detail


def test_a_shared_tool_call_id_belongs_to_the_choice_used() -> None:
    calls = [*(replace(one, tool_call_ids=("call_0",)) for one in THREE), NEXT]
    data = made(calls, [Reward(0.5, "air", "r", 1, tool_call_id="call_0"), final(1.0)])
    assert [dict(one.rewards) for one in data.transitions] == [{}, {"air": 0.5}, {}, {"task": 1.0}]
    assert data.counts() == {}


def test_a_cancelled_choice_is_not_the_one_used() -> None:
    data = made([replace(THREE[0], finish_reason="cancelled"), THREE[1], THREE[2]], [final(1.0)])
    assert [(one.choice, one.set_aside, dict(one.rewards)) for one in data.transitions] == [
        (1, False, {"task": 1.0}),
        (2, True, {}),
    ]


def test_a_reward_on_a_choice_that_is_not_there_says_so() -> None:
    data = made([*THREE, NEXT], [on("a", 7, 0.5), final(1.0)])
    (told,) = [one for one in data.diagnostics if one.finding is DataFinding.UNKNOWN_REWARD_TARGET]
    assert told.detail == "r: there is no choice 7 of call a"


def test_an_untrainable_choice_passes_its_reward_to_no_other() -> None:
    broken = replace(THREE[1], logprobs=None)
    data = made([THREE[0], broken, THREE[2], replace(NEXT, response_ids=())], [final(1.0)])
    assert [(one.choice, dict(one.rewards)) for one in data.transitions] == [(0, {}), (2, {})]
    assert [one.value for one in data.unassigned] == [1.0]
    assert rollout_returns(data.transitions) == {}
    assert set(credits(data).values()) == {0.0}
