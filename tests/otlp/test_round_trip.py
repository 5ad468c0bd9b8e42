"""Rollouts that go out as spans and come in again give the same training data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.store import TraceStore, open_store
from lgov_core.trace import semconv
from lgov_core.trace.canonical import canonical
from lgov_core.trace.otlp_export import with_ids
from lgov_core.trace.otlp_http import CONTENT_TYPE_OF, Protocol, decode_traces, encode_traces
from lgov_core.trace.rollout_spans import rollout_spans
from lgov_core.transitions import build_transitions, make_transitions, read_spans
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    opened = open_store(tmp_path / "traces.db")
    yield opened
    opened.close()


def call(rollout: str, turn: int, **changes: Any) -> CapturedCall:
    made = CapturedCall(
        f"{rollout}-{turn}", "m", {"messages": [{"role": "user", "content": "q"}]},
        {"choices": [{"message": {"role": "assistant", "content": "a"}}]}, (1, 2, turn), (3, turn), (-0.5, -1.25), "stop",
        turn, 0.7, 0.9, 1e9 + turn, 1e9 + turn + 0.5, rollout, 1, "clerk", (f"{rollout}-c{turn}",),
    )  # fmt: skip
    return replace(made, **changes)


def fill(store: TraceStore) -> None:
    outcomes = [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.BLOCKED, Outcome.INFRASTRUCTURE, Outcome.TRUNCATED]
    for number, outcome in enumerate(outcomes):
        rollout = f"r{number}"
        store.add_rollouts([Rollout(rollout, f"t{number % 2}", "run", {}, 1e9)])
        store.start_attempt(rollout, 1)
        for turn in range(3):
            store.add_call(call(rollout, turn, finish_reason="length" if turn == number else "stop"))
        store.add_call(call(rollout, 2, choice=1, response_ids=(9,), logprobs=(-2.0,), tool_call_ids=()))
        store.add_rewards(
            [
                Reward(0.1 * number, "air", rollout, 1, tool_call_id=f"{rollout}-c0", source="a rule"),
                Reward(0.5, "task", rollout, 1, response_id=f"{rollout}-1"),
                Reward(0.25, "task", rollout, 1, response_id=f"{rollout}-2", choice=1),
                Reward(-1.0, "compliance", rollout, 1, tool_call_id="nobody's"),
            ]
        )
        agent = {semconv.OPERATION: semconv.INVOKE_AGENT, semconv.AGENT_NAME: "clerk"}
        top = Span("invoke_agent clerk", f"{number + 1:016x}", 1e9, 1e9 + 4, agent, rollout, 1)
        chat = {semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: f"{rollout}-0"}
        store.add_spans([top, Span("chat m", f"{number + 100:016x}", 1e9, 1e9 + 1, chat, rollout, 1, top.span_id)])
        store.finish_attempt(rollout, 1, outcome, rewards=[Reward(1.0)])


def trained(found: Any) -> list[Any]:
    return sorted((one.as_row() for one in found.transitions), key=lambda row: (row["rollout_id"], row["turn"]))


@pytest.mark.parametrize("protocol", ["protobuf", "json"])
def test_the_same_training_data(store: TraceStore, protocol: Protocol) -> None:
    fill(store)
    here = build_transitions(store)
    bodies = [
        encode_traces(with_ids(rollout_spans(store, rollout.rollout_id)), protocol, {}) for rollout in store.rollouts()
    ]
    came = [canonical(span) for body in reversed(bodies) for span in decode_traces(body, CONTENT_TYPE_OF[protocol])]
    there = make_transitions(read_spans(reversed(came)), need_logprobs=True)
    assert trained(there) == trained(here)
    assert len(here.transitions) == 16
    found = [sorted(one.finding.value for one in each.diagnostics) for each in (here, there)]
    assert found[0] == found[1]
    assert [one.value for one in there.unassigned] == [one.value for one in here.unassigned]


def test_rewards_that_name_no_attempt_stay_with_the_one_that_counts(store: TraceStore) -> None:
    """As a judge writes them that comes later: it knows the rollout, or a call."""
    store.add_rollouts([Rollout("r", "t", "run", {}, 1e9)])
    for attempt, outcome in ((1, Outcome.TIMEOUT), (2, Outcome.SUCCEEDED)):
        store.start_attempt("r", attempt)
        store.add_call(call("r", attempt, attempt=attempt))
        store.finish_attempt("r", attempt, outcome)
    store.add_rewards(
        [
            Reward(1.0, "task", "r"),
            Reward(0.5, "task", "r", response_id="r-2"),
            Reward(0.25, "air", "r", tool_call_id="r-c2"),
            Reward(9.0, "task", "r", response_id="r-1"),
        ]
    )
    spans = rollout_spans(store, "r")
    there = make_transitions(read_spans(map(canonical, decode_traces(encode_traces(with_ids(spans), "json", {})))))
    for found in (build_transitions(store), there):
        (one,) = found.transitions
        assert (one.attempt, one.rewards) == (2, {"air": 0.25, "task": 1.5})
        assert not found.unassigned


def test_what_comes_in_over_otlp_changes_nothing_that_was_recorded(store: TraceStore) -> None:
    """The endpoint's record is the truth: a copy of it, and a lie about it, come in as claims."""
    fill(store)
    before = trained(build_transitions(store))
    copy = decode_traces(encode_traces(with_ids(rollout_spans(store, "r0")), "json", {}))
    store.add_spans([span for span in copy if span.name.startswith("chat")])
    lie = {
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: "r1-0",
        semconv.PROMPT_TOKEN_IDS: [7],
        semconv.RESPONSE_TOKEN_IDS: [7],
        semconv.AGENT_NAME: "liar",
    }
    store.add_spans([Span("chat m", "f" * 16, 1e9, 1e9, lie, "r1", 1, trace_id="e" * 32, claimed=True)])
    forged = {semconv.DECISION_EFFECT: "deny", semconv.TOOL_CALL_ID: "r1-c1", semconv.OUTCOME: "blocked"}
    store.add_spans([Span("lgov.decision", "d" * 16, 1e9, 1e9, forged, "r1", 1, trace_id="e" * 32, claimed=True)])
    assert trained(build_transitions(store)) == before
