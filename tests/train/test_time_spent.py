"""Where the time of a training went."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.trace import semconv
from lgov_core.train.loop.figures import PARTS, busy_seconds, rollout_seconds, time_spent
from lgov_core.types import Attempt, CapturedCall, Outcome, Span

CHAT = {semconv.OPERATION: semconv.CHAT}
TOOL = {semconv.OPERATION: semconv.EXECUTE_TOOL}


def span(name: str, start: float, end: float, attributes: dict[str, Any], **more: Any) -> Span:
    return Span(name, f"{name} {start}", start, end, attributes, "ro", 1, **more)


def call(start: float, end: float) -> CapturedCall:
    return CapturedCall("c", "m", {}, {}, (1,), (2,), (0.0,), "stop", 0, 1.0, 1.0, start, end, "ro", 1)


def attempt(start: float, end: float | None) -> Attempt:
    return Attempt("ro", 1, start, end, Outcome.SUCCEEDED)


def test_each_moment_counts_for_one_part() -> None:
    spans = [
        span("chat m", 1.0, 5.0, CHAT),
        span(semconv.DECISION_SPAN_NAME, 1.0, 1.5, {}),
        span("execute_tool t", 5.0, 8.0, TOOL),
        span("chat m", 6.0, 7.0, CHAT),  # an agent within the tool
        span("execute_tool t", 0.0, 9.0, TOOL, claimed=True),
    ]
    found = rollout_seconds([attempt(0.0, 10.0)], [call(2.0, 4.5)], spans)
    assert found == pytest.approx({"governance": 0.5, "sampling": 2.5, "http": 2.0, "tools": 2.0, "framework": 3.0})


def test_a_decision_within_a_sampled_call_is_governance() -> None:
    found = rollout_seconds([attempt(0.0, 4.0)], [call(1.0, 3.0)], [span(semconv.DECISION_SPAN_NAME, 1.5, 2.0, {})])
    assert (found["governance"], found["sampling"]) == (0.5, 1.5)


def test_calls_at_the_same_time_count_once() -> None:
    found = rollout_seconds([attempt(0.0, 4.0)], [call(1.0, 3.0), call(2.0, 9.0)], [])
    assert (found["sampling"], found["framework"]) == (3.0, 1.0)


def test_an_attempt_that_has_not_ended_takes_no_time() -> None:
    assert rollout_seconds([attempt(0.0, None)], [call(1.0, 3.0)], []) == dict.fromkeys(PARTS, 0.0)


def line(step: int, **more: Any) -> dict[str, Any]:
    seconds = {**dict.fromkeys(PARTS, 0.0), "sampling": 6.0, "framework": 2.0}
    given = {"collect_s": 4.0, "busy_s": 4.0, "update_s": 1.0, "publish_s": 1.0, "rollout_s": seconds, "rollouts": 8}
    return {"phase": "train", "step": step, "sampled_tokens": 60, **given, **more}


def test_waiting_is_divided_as_the_time_of_the_rollouts_was() -> None:
    spent = time_spent([line(1), {"phase": "test", "step": 1}, line(2), line(2)])
    assert spent is not None
    assert spent.seconds == {
        "governance": 0.0, "sampling": 6.0, "http": 0.0, "tools": 0.0, "framework": 2.0, "waiting": 0.0, "update": 2.0,
        "publishing": 2.0,
    }  # fmt: skip
    assert str(spent).startswith("time: sampling 50%, agent framework 17%, update 17%, publishing 17%")
    assert str(spent).endswith("of 12.0 s; 1.33 rollouts/s, 10.0 sampled tokens/s")
    assert "sampling               6.0 s  50.0%" in spent.table()
    assert spent.as_json()["shares"]["update"] == pytest.approx(1 / 6, abs=1e-4)


def test_the_time_before_rollouts_and_that_of_lost_ones_is_waiting() -> None:
    lost = Attempt("lost", 1, 0.0, 900.0, Outcome.INFRASTRUCTURE)
    ran = [attempt(10.0, 12.0), attempt(11.0, 13.0), attempt(20.0, 21.0), attempt(30.0, None)]
    assert busy_seconds([lost, *ran]) == 4.0
    assert sum(rollout_seconds([lost, *ran], [], []).values()) == 5.0
    spent = time_spent([line(1, collect_s=10.0)])
    assert spent is not None
    assert (spent.seconds["waiting"], spent.seconds["sampling"], spent.seconds["framework"]) == (6.0, 3.0, 1.0)
    spent = time_spent([line(1, rollout_s=dict.fromkeys(PARTS, 0.0), busy_s=0.0)])
    assert spent is not None
    assert (spent.seconds["waiting"], spent.seconds["framework"]) == (4.0, 0.0)


def test_rollouts_of_further_groups_are_counted() -> None:
    further = {
        "busy_s": 1.0,
        "rollout_s": {**dict.fromkeys(PARTS, 0.0), "tools": 8.0},
        "rollouts": 4,
        "sampled_tokens": 30,
    }
    spent = time_spent([line(1, further=further)])
    assert spent is not None
    assert (spent.seconds["tools"], spent.rollouts, spent.tokens) == (2.0, 12, 90)


def test_a_run_without_these_figures_says_nothing() -> None:
    assert time_spent([]) is None
    assert time_spent([{"phase": "train", "step": 1, "loss": 0.5}]) is None
