"""Figures of a step, their intervals, and TensorBoard's scalars of them."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import pytest

from lgov_core.errors import TrainError
from lgov_core.integrations.verl.rows import batch_figures
from lgov_core.train.loop.collecting import UsableSteps
from lgov_core.train.loop.figures import (
    earned_figures,
    grouped_interval,
    mean_interval,
    share_interval,
    step_figures,
    t_quantile,
)
from lgov_core.train.loop.run_files import flat, read_metrics
from lgov_core.transitions import CreditRules, DataFinding, Diagnostic, Transition, TransitionSet
from lgov_core.types import Attempt, Outcome


def turn(group: str, rollout: str, number: int, reply: int, **rewards: float) -> Transition:
    return Transition(
        run_id="run",
        weights_version=0,
        model="m",
        task_id=group,
        rollout_id=rollout,
        attempt=1,
        turn=number,
        response_id=f"{rollout}-{number}",
        agent=None,
        prompt_ids=(1,),
        response_ids=(2,) * reply,
        response_mask=(1,) * reply,
        logprobs=(-1.0,) * reply,
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.SUCCEEDED,
        rewards=rewards,
    )


def result(task: str, rollout: str, outcome: Outcome = Outcome.SUCCEEDED, **counts: int) -> Attempt:
    return Attempt(rollout, 1, 0.0, 1.0, outcome, result={"counts": counts}, task_id=task)


TURNS = (
    turn("a", "a1", 0, 4, air=0.05),
    turn("a", "a1", 1, 2, task=1.0),
    turn("a", "a2", 0, 3, task=0.0, compliance=-0.5),
    turn("b", "b1", 0, 3, task=0.0),
)


def test_the_quantiles_are_those_of_the_tables() -> None:
    for freedom, value in ((1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert t_quantile(freedom) == pytest.approx(value, rel=2e-3)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    chance = random.Random(0)
    covered = 0
    for _ in range(2000):
        found = mean_interval([chance.gauss(3.0, 2.0) for _ in range(5)])
        covered += found.low <= 3.0 <= found.high
    assert 0.935 <= covered / 2000 <= 0.965


def test_rollouts_of_one_task_are_no_independent_values() -> None:
    together = grouped_interval({"a": [1.0] * 50, "b": [0.0] * 50, "c": [0.5] * 50})
    assert (together.mean, together.count) == (0.5, 3)
    assert together.high - together.low > 2
    alone = share_interval({f"t{n}": [n < 8] for n in range(10)})
    assert (alone.mean, alone.count) == (0.8, 10)
    assert (alone.low, alone.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Wilson
    for interval in (grouped_interval, share_interval):
        two = interval(
            {"a": [True] * 50, "b": [False] * 50} if interval is grouped_interval else {"a": [True], "b": [False]}
        )
        assert two.as_json() == {"mean": 0.5, "low": None, "high": None, "count": 2}, "too few to say"
    assert math.isnan(share_interval({}).mean)


def test_the_figures_of_a_step_by_hand() -> None:
    data = TransitionSet(TURNS, (Diagnostic(DataFinding.EXCLUDED_OUTCOME, "x", ""),))
    results = [result("a", "a1"), result("a", "a2"), result("b", "b1"), result("b", "b2", Outcome.INFRASTRUCTURE)]
    returns = {("a1", 1): 1.05, ("a2", 1): -0.5, ("b1", 1): 0.0}
    found = step_figures(data, results, returns=returns, dropped_spans=2)
    assert set(found["rewards"]) == {"air", "compliance", "task", "return"}
    assert found["rewards"]["task"]["mean"] == pytest.approx((0.5 + 0.0) / 2), "a task counts once"
    assert found["rewards"]["compliance"]["mean"] == pytest.approx(-0.125)
    assert found["rewards"]["return"]["mean"] == pytest.approx((0.275 + 0.0) / 2)
    assert found["rewards"]["task"]["low"] is None, "two tasks are too few to say"
    assert found["violation_rate"]["mean"] == pytest.approx(0.25), "by the penalties"
    assert found["response_tokens"] == 3.0
    assert found["turns"] == pytest.approx(4 / 3)
    assert found["diagnostics"] == {"excluded_outcome": 1}
    assert (found["lost_rollouts"], found["lost_attempts"], found["dropped_spans"]) == (1, 1, 2)
    third = Attempt("a1", 3, 0.0, 1.0, Outcome.FAILED, task_id="a")
    assert step_figures(data, [third], returns=returns)["lost_attempts"] == 2, "two tries came before it"
    counted = [result("a", "a1", violations=1), result("a", "a2", violations=1), result("b", "b1", violations=0)]
    found = step_figures(data, counted, returns=returns)
    assert found["violation_rate"]["mean"] == pytest.approx(0.5), "by what the governor counted"
    nothing = step_figures(TransitionSet(()), [], returns={})
    assert (nothing["rewards"], nothing["violation_rate"], nothing["turns"]) == ({}, None, None)
    json.dumps(found, allow_nan=False)


def test_what_rollouts_earned_by_hand() -> None:
    counted = [("a1", 1), ("a2", 1), ("b1", 2)]
    rewards = [
        (("a1", 1), "task", 1.0),
        (("a1", 1), "air", 0.05),
        (("a1", 1), "air", 0.05),
        (("b1", 1), "task", 5.0),
        (("b1", 2), "task", 0.5),
        (("b2", 1), "task", 7.0),
    ]
    results = [
        result("a", "a1", tool_calls=2),
        result("a", "a2", tool_calls=1, denied=1),
        result("b", "b1", Outcome.FAILED),
        result("b", "b2", Outcome.INFRASTRUCTURE, tool_calls=9),
    ]
    found = earned_figures(results, counted, rewards)
    assert found["reward"] == pytest.approx(0.5), (
        "an attempt without a reward earned 0, another attempt's is not its own"
    )
    assert found["reward_half_width"] is None, "three rollouts of two tasks are too few to say"
    third = earned_figures([*results, result("c", "c1")], [*counted, ("c1", 1)], [*rewards, (("c1", 1), "task", 0.8)])
    # The tasks' means are 0.5, 0.5 and 0.8.
    assert third["reward_half_width"] == pytest.approx(t_quantile(2) * math.sqrt(0.03 / 3))
    assert found["reward_air"] == pytest.approx(0.1 / 3)
    assert (found["usable"], found["rollouts"]) == (3, 4)
    assert found["outcomes"] == {"succeeded": 2, "failed": 1, "infrastructure": 1}
    assert found["counts"] == {"tool_calls": 3, "denied": 1}, "what the machines broke counts nothing"
    assert earned_figures([], [], []) == {"usable": 0, "rollouts": 0, "outcomes": {}, "counts": {}}


def test_the_figures_of_a_step_on_verl_by_hand() -> None:
    data = TransitionSet(TURNS, (Diagnostic(DataFinding.EXCLUDED_OUTCOME, "x", ""),))
    found = batch_figures(data, [result("a", "a1"), result("a", "a2"), result("b", "b1")], CreditRules())
    assert (found["usable"], found["rollouts"], found["transitions"]) == (3, 3, 4)
    assert found["reward"] == pytest.approx(1 / 3)
    assert found["reward_compliance"] == pytest.approx(-0.5 / 3)
    assert found["rewards"]["task"]["mean"] == pytest.approx(0.25), "there a task counts once"
    assert found["mean_return"] == pytest.approx((1.05 - 0.5 + 0.0) / 3)
    assert (found["weights_versions"], found["diagnostics"]) == ({"0": 4}, {"excluded_outcome": 1})
    json.dumps(found, allow_nan=False)


def test_steps_of_which_nothing_can_be_used_end_a_run() -> None:
    broken = [result("a", "a1", Outcome.INFRASTRUCTURE), result("a", "a2", Outcome.TIMEOUT)]
    steps = UsableSteps()
    steps.check(broken, used=0)
    steps.check([result("a", "a1"), *broken], used=1)
    steps.check(broken, used=0)
    with pytest.raises(TrainError, match="none of the last 2 rollouts could be used; 1 times: infrastructure"):
        steps.check(broken, used=0)
    silent = [result("a", "a1"), result("a", "a2")]
    with pytest.raises(TrainError, match=r"2 times: no model call was made through resource\.model_api"):
        steps.check(silent, used=0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = [{"phase": "before", "step": 0, "accuracy": 0.25}]
    for step in (1, 2, 2):
        figures = step_figures(TransitionSet(TURNS), [result("a", "a1")], returns={("a1", 1): 1.0})
        lines.append({"phase": "train", "step": step, "mean_return": step / 4, "kl": 0.5, "tokens_saved": 7, **figures})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_tensorboard_has_every_number_as_the_guide_writes_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason='needs the extra "train"')
    pytest.importorskip("tensorboard", reason='needs the extra "tensorboard"')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    guide = (Path(__file__).parents[2] / "docs/how-to/training.md").read_text()
    (program,) = re.findall(r"^```python\n(from pathlib.*?SummaryWriter.*?)^```", guide, re.M | re.S)
    run.rename(run.with_name("runs"))
    monkeypatch.chdir(run.with_name("runs").parent)
    (run.with_name("runs") / "one").mkdir()
    (run.with_name("runs") / "metrics.jsonl").rename(run.with_name("runs") / "one" / "metrics.jsonl")
    exec(program, {})
    scalars = EventAccumulator("runs/one/scalars")
    scalars.Reload()
    assert [(scalar.step, scalar.value) for scalar in scalars.Scalars("train/mean_return")][-2:] == [(2, 0.5), (2, 0.5)]
    assert [(scalar.step, scalar.value) for scalar in scalars.Scalars("before/accuracy")] == [(0, 0.25)]
    line = read_metrics(Path("runs/one/metrics.jsonl"))[1]
    names = {f"train/{name}" for name, _ in flat(line) if name not in ("step", "phase")}
    assert names <= set(scalars.Tags()["scalars"])
