"""How a run stands, as clients see it: time left, figures in their places, also after the server was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lgov_core.client.client import TrainResult, time_left
from lgov_core.errors import TrainError
from lgov_core.server.run_state import RunState


def test_time_left_is_known_after_the_first_update(tmp_path: Path) -> None:
    run = RunState(tmp_path, first=0, steps=4)
    assert run.progress(0)["seconds_left"] is None
    run.at(1)
    assert run.progress(0)["seconds_left"] >= 0
    run.stage("rollouts", 3, 8)
    progress = run.progress(0)
    assert [progress[name] for name in ("state", "step", "steps", "done", "total")] == ["rollouts", 1, 4, 3, 8]
    run.at(4)
    assert run.progress(0)["seconds_left"] == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0 s left"), (59.6, "1 min 00 s left"), (61.0, "1 min 01 s left"), (3725.0, "1 h 02 min left")],
)
def test_time_left_in_words(seconds: float | None, text: str) -> None:
    assert time_left(seconds) == text


def test_a_run_is_found_again_with_its_figures_where_they_were(tmp_path: Path) -> None:
    lines = [{"phase": "train", "step": 1}, {"phase": "test", "step": 1}, {"phase": "train", "step": 2}]
    run = RunState(tmp_path, first=1, steps=3, skip=1)
    run.lines(lines)
    found = RunState.unfinished(tmp_path)
    assert found is not None
    assert (found.run_id, found.first, found.steps) == (run.run_id, 1, 3)
    found.lines(lines)
    assert found.progress(0)["metrics"] == run.progress(0)["metrics"] == lines[1:]
    assert found.progress(1)["metrics"] == lines[2:]
    assert found.tested(1)
    assert not found.tested(2)
    found.end("stopped")
    assert RunState.unfinished(tmp_path) is not None
    found.end("done")
    assert RunState.unfinished(tmp_path) is None


def test_a_failed_run_says_why_and_what_to_do(tmp_path: Path) -> None:
    run = RunState(tmp_path, first=0, steps=1)
    run.add({"phase": "train", "reward": float("nan"), "loss": 1.0})
    run.end("failed", TrainError("the loss is not finite", hint="lower the learning rate"))
    progress = run.progress(0)
    assert (progress["error"], progress["hint"]) == ("the loss is not finite", "lower the learning rate")
    assert progress["metrics"] == [{"phase": "train", "reward": None, "loss": 1.0}]
    assert run.ended


def test_curves_have_one_value_an_update_and_gaps_where_there_was_none() -> None:
    lines = [
        {"phase": "test", "reward": 0.5},
        {"phase": "train", "reward": 0.1, "kl": 1},
        {"phase": "train", "reward": 0.3},
    ]
    result = TrainResult("run", lines)
    assert result.curves["reward"] == [0.1, 0.3]
    assert result.curves["kl"][0] == 1.0
    assert result.curves["kl"][1] != result.curves["kl"][1]
    assert result.test_curves == {"reward": [0.5]}
    few = "(too few tasks for an interval)"
    assert str(result) == f"2 updates, training reward 0.100 -> 0.300 {few}, held-out reward 0.500 -> 0.500 {few}"
    more = [{"phase": "test", "reward": 0.75, "reward_half_width": 0.125}]
    assert str(TrainResult("run", lines[:1] + more)).endswith("held-out reward 0.500 -> 0.750 ± 0.125")
