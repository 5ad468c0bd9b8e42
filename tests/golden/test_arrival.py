"""Any order and any batching of arrival gives the same transitions, diagnostics and chains."""

from __future__ import annotations

import random
from typing import Any

from golden_cases import otlp_spans, request_line
from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.transitions import TransitionSet, assign_credit, make_transitions, read_spans
from lgov_core.transitions.spans import read_span_lines
from lgov_core.transitions.tokens import make_chains
from tests.slow import examples

AGENTS = ("write", "rewrite", "check")
OUTCOMES = ("succeeded", "failed", "blocked", "infrastructure", None)


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some rollouts of some agents with calls, tools and rewards; ids, parents and targets may be wrong or missing."""
    spans: list[dict[str, Any]] = []
    for rollout in range(draw(st.integers(1, 3))):
        base = {"rollout": f"r{rollout}", "attempt": draw(st.integers(1, 2)), "task": "t", "trace": f"trace{rollout}"}
        spans.append(
            {
                "agent": "root",
                "id": f"{rollout}-root",
                **base,
                "outcome": draw(st.sampled_from(OUTCOMES)),
                "at": [0, draw(st.sampled_from([9, None]))],
            }
        )
        inside = [f"{rollout}-root"]
        for number, agent in enumerate(draw(st.lists(st.sampled_from(AGENTS), max_size=3))):
            name = f"{rollout}-{agent}-{number}"
            spans.append(
                {
                    "agent": agent,
                    "id": name,
                    "under": draw(st.sampled_from([*inside, "nowhere", name])),
                    **base,
                    "at": [0, 9],
                }
            )
            inside.append(name)
        calls = draw(st.integers(0, 4))
        context = [1]
        for number in range(calls):
            reply = [draw(st.integers(2, 5))]
            began = draw(st.integers(1, 4))
            spans.append(
                {
                    "call": draw(st.sampled_from([f"c{rollout}-{number}", "same", None])),
                    "under": draw(st.sampled_from(inside)),
                    "prompt": list(context),
                    "reply": draw(st.sampled_from([reply, None])),
                    "logprobs": draw(st.sampled_from([[-0.5], [-0.5, -0.5], None])),
                    "proposes": [f"k{number}"],
                    "weights": draw(st.integers(0, 1)),
                    **base,
                    "at": [began, began + 1],
                }
            )
            context = [*context, *reply, 9] if draw(st.booleans()) else [1, draw(st.integers(6, 8))]
        for _ in range(draw(st.integers(0, 4))):
            target = draw(
                st.sampled_from([{}, {"for_call": "same"}, {"for_call": f"c{rollout}-0"}, {"for_tool": "k0"}])
            )
            value = draw(st.floats(-2, 2, width=16) | st.just(float("nan")))
            spans.append(
                {"reward": value, "dimension": draw(st.sampled_from(["task", "air"])), **target, **base, "at": [5, 5]}
            )
    return otlp_spans({"spans": spans})


def converted(lines: list[str]) -> tuple[Any, ...]:
    spans, found = read_span_lines([line.encode() for line in lines], "spans")
    assert found == []
    data = make_transitions(read_spans(spans))
    credited: TransitionSet = assign_credit(data)
    rows = [one.as_row() for one in credited.transitions]
    return (
        rows,
        credited.diagnostics,
        repr(data.unassigned),
        [one.as_row() for one in make_chains(credited.transitions)],
    )


@settings(max_examples=examples(60), deadline=None)
@given(traces(), st.randoms(use_true_random=False))
def test_any_order_and_any_batching_of_arrival_give_the_same(
    spans: list[dict[str, Any]], chance: random.Random
) -> None:
    expected = converted([request_line(spans)])
    again = [*spans, *chance.sample(spans, chance.randint(0, len(spans)))]  # some come twice
    chance.shuffle(again)
    lines: list[str] = []
    while again:
        size = chance.randint(1, len(again))
        lines.append(request_line(again[:size]))
        again = again[size:]
    assert converted(lines) == expected
