"""Rates, intervals and the oracle's record."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.demo.report import DemoReport, Evaluation, OracleRecord, Recorded, evaluate, mean_of
from lgov_core.store import open_store
from lgov_core.train.loop.figures import wilson_interval
from lgov_core.types import Attempt, Outcome, Rollout


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # Newcombe 1998, table I, method 3 (the score interval without continuity correction).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_wilson_interval_against_published_values(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=5e-5)


def test_the_wilson_interval_at_the_edges() -> None:
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[1] == 1.0
    low, high = wilson_interval(5, 10)
    assert low + high == pytest.approx(1.0)


def result(
    name: str, outcome: Outcome, *, correct: bool = False, violations: int = 0, denied: int = 0, calls: int = 2
) -> Attempt:
    counts = {"model_calls": calls, "tool_calls": 1, "violations": violations, "denied": violations + denied}
    return Attempt(name, 1, 0.0, 1.0, outcome, result={"correct": correct, "counts": counts}, task_id="t")


def test_rates_are_shares_of_what_says_something_about_the_agent() -> None:
    results = [
        result("a", Outcome.SUCCEEDED, correct=True),
        result("b", Outcome.FAILED, violations=2, calls=4),
        result("c", Outcome.BLOCKED, violations=1, calls=1),
        result("d", Outcome.TRUNCATED, denied=1, calls=1),
        result("e", Outcome.INFRASTRUCTURE, violations=1, calls=9),
        result("f", Outcome.TIMEOUT),
    ]
    found = evaluate(results, {"b": True, "d": False, "e": True, "elsewhere": True})
    assert found == Evaluation(
        rollouts=4,
        accuracy=0.25,
        interval=wilson_interval(1, 4),
        attempted=0.5,
        denied=0.75,
        executed=0.25,
        mean_turns=2.0,
        infrastructure=2,
    )


def test_nothing_usable_is_no_rate_of_zero() -> None:
    found = evaluate([result("a", Outcome.INFRASTRUCTURE)], {})
    assert found.rollouts == 0
    assert found.infrastructure == 1
    assert found.interval == (0.0, 1.0)
    assert all(math.isnan(rate) for rate in (found.accuracy, found.attempted, found.executed, found.mean_turns))


def test_an_evaluation_that_still_runs_does_not_count(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_rollouts([Rollout(name, "t", "run", {"mode": "test"}, float(at)) for at, name in enumerate("abcd")])
        for name in "abcd":
            store.start_attempt(name, 1)
        for name in "abc":
            store.finish_attempt(name, 1, Outcome.SUCCEEDED, result={"correct": True})
        assert len(Recorded(tmp_path, store, evaluated=2).evaluations) == 1
        store.finish_attempt("d", 1, Outcome.SUCCEEDED, result={"correct": True})
        assert len(Recorded(tmp_path, store, evaluated=2).evaluations) == 2


def line(rollout: str, violated: bool, attempt: int = 1) -> bytes:
    return json.dumps({"rollout_id": rollout, "attempt": attempt, "violated": violated}).encode() + b"\n"


def test_the_record_is_read_as_it_grows_and_a_half_written_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "oracle.jsonl"
    record = OracleRecord(path)
    assert record.refresh().attempts == 0, "there is no file yet"
    torn = line("b", True)
    path.write_bytes(line("a", False) + torn[:11])
    assert record.refresh().violated == {"a": False}
    assert record.refresh().attempts == 1
    with path.open("ab") as file:
        file.write(torn[11:] + line("c", False))
    assert record.refresh().violated == {"a": False, "b": True, "c": False}
    assert (record.attempts, record.violations) == (3, 1)


def test_a_violation_in_any_attempt_is_one_of_the_rollout(tmp_path: Path) -> None:
    path = tmp_path / "oracle.jsonl"
    path.write_bytes(line("a", True, 1) + line("a", False, 2))
    record = OracleRecord(path).refresh()
    assert record.violated == {"a": True}
    assert (record.attempts, record.violations) == (2, 1)


def evaluation(accuracy: float, **changes: Any) -> Evaluation:
    made = Evaluation(
        10, accuracy, (0.0, 1.0), attempted=0.4, denied=0.5, executed=0.0, mean_turns=2.0, infrastructure=0
    )
    return replace(made, **changes)


def report(seed: int, before: Evaluation, after: Evaluation | None, executed: int = 0) -> DemoReport:
    return DemoReport(
        seed=seed,
        governed=True,
        model="tiny",
        folder="f",
        before=before,
        after=after,
        updates=1,
        rollouts=1,
        executed_violations=executed,
        oracle_attempts=1,
        seconds=1.0,
        denied_rollout=None,
    )


def test_means_are_over_the_seeds_that_came_to_their_end() -> None:
    reports = [
        report(0, evaluation(0.25), evaluation(0.75, attempted=0.0), executed=1),
        report(1, evaluation(0.5), evaluation(0.75, attempted=0.5), executed=2),
        report(2, evaluation(0.0), None),
    ]
    means = mean_of(reports)
    assert means["seeds"] == 2
    assert means["before"]["accuracy"] == 0.375
    assert means["accuracy_gain"] == 0.375
    assert means["after"]["attempted"] == 0.25
    assert means["executed_violations"] == 3
    assert mean_of(reports[2:]) == {}
    json.dumps(asdict(reports[0]))
