"""A run that is killed: no update is lost, none is made twice, and the weights are those of a run that was left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("pyarrow", reason='needs the extra "train"')

from update_twins import MOMENTS, Shelf, batch, killed_step, make_run, train  # noqa: E402

from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.train.loop.checkpoint import best_checkpoint, complete_checkpoints, find_checkpoint  # noqa: E402
from lgov_core.train.loop.run_files import (  # noqa: E402
    read_batch,
    read_metrics,
    train_lines,
)
from lgov_core.train.loop.training_run import TrainingRun  # noqa: E402
from lgov_core.transitions import Transition, read_parquet, write_parquet  # noqa: E402

STEPS = 5
PROGRAM = Path(__file__).with_name("update_twins.py")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The lines of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("alone")
    run = make_run(folder)
    train(run, STEPS)
    return read_metrics(folder / "metrics.jsonl")


def outcome(lines: list[dict[str, Any]]) -> list[tuple[int, str, float]]:
    return [(line["step"], line["weights_sha256"], line["loss"]) for line in lines if line["phase"] == "train"]


def test_every_update_has_one_line_a_batch_and_other_weights(alone: list[dict[str, Any]], tmp_path: Path) -> None:
    run = make_run(tmp_path)
    train(run, STEPS)
    assert outcome(read_metrics(tmp_path / "metrics.jsonl")) == outcome(alone)
    assert [line["step"] for line in alone] == [1, 2, 3, 4, 5]
    assert len({line["weights_sha256"] for line in alone}) == STEPS
    assert [line["weights_version"] for line in alone] == [1, 2, 3, 4, 5]
    for step in range(1, STEPS + 1):
        found = read_batch(tmp_path / "transitions", step)
        assert found is not None
        assert tuple(found[1]) == batch(step)
        assert found[0].figures == {"mean_return": float(step % 4), "learns_from_version": step - 1}
    assert [path.name for path in complete_checkpoints(tmp_path / "checkpoints")] == ["step-000003"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of runs of which each was killed at one of the moments."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(PROGRAM), str(folder), str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.stdout.split() == ["-9"] * len(MOMENTS), done.stderr
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_comes_to_the_same_weights(
    moment: str, alone: list[dict[str, Any]], killed: Path
) -> None:
    tmp_path, step = killed / str(MOMENTS.index(moment)), killed_step(moment)
    acknowledged = outcome(read_metrics(tmp_path / "metrics.jsonl"))
    assert acknowledged == outcome(alone)[: step - 1]
    if moment == "at the line":  # the line itself may be torn too
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"phase": "tra')

    run = make_run(tmp_path)
    resumed = run.resume()
    lost_batch = moment in ("before the batch", "in the batch")
    assert resumed.step == (step - 1 if lost_batch else step)
    assert resumed.acknowledged == step - 1
    assert resumed.differing == 0
    train(run, STEPS)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert outcome(lines) == outcome(alone)
    versions = [line["weights_version"] for line in lines if line["phase"] == "train" and "weights_version" in line]
    assert versions == sorted(set(versions)), "a number never stands for two sets of weights"


def test_what_is_published_after_a_resume_are_the_weights_of_the_last_update(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    train(first, 4)
    second = make_run(tmp_path)
    resumed = second.resume(used_version=7)
    assert (resumed.checkpoint, resumed.step, resumed.replayed, resumed.acknowledged) == (3, 4, 1, 1)
    assert isinstance(first.engine, Shelf)
    assert isinstance(second.engine, Shelf)
    assert all(torch.equal(second.engine.served[name], first.engine.served[name]) for name in first.engine.served)
    assert second.engine.weights_version == 4, "the same weights, so the same version"
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert lines[-1] == {
        "phase": "resume",
        "step": 4,
        "run_id": "run",
        "checkpoint": 3,
        "replayed": 1,
        "acknowledged": 1,
        "differing": 0,
    }


def test_other_settings_after_a_kill_are_shown_and_get_versions_of_their_own(tmp_path: Path) -> None:
    train(make_run(tmp_path, checkpoint_every=100), 2)
    run = make_run(tmp_path, checkpoint_every=100)
    learner: Any = run.learner
    learner.config = replace(learner.config, learning_rate=1e-3)
    resumed = run.resume(used_version=7)
    assert (resumed.replayed, resumed.acknowledged, resumed.differing) == (2, 2, 2)
    assert run.engine.weights_version == 8


def test_an_update_that_fails_is_taken_back_and_not_tried_for_ever(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    train(run, 1)
    poisoned = [_infinite(one) for one in batch(2)]
    with pytest.raises(TrainError, match="not finite"):
        run.learn(poisoned)
    assert run.done == 1
    assert read_batch(tmp_path / "transitions", 2) is None
    again = make_run(tmp_path)
    assert again.resume().step == 1
    again.learn(batch(2))
    phases = [(line["phase"], line["step"]) for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert phases == [("train", 1), ("failed_update", 2), ("resume", 1), ("train", 2)]


def test_an_engine_is_paused_while_weights_are_updated_also_where_that_fails(tmp_path: Path) -> None:
    run = make_run(tmp_path, pause_updates=True)
    shelf = run.engine
    assert isinstance(shelf, Shelf)
    train(run, 1)
    assert shelf.log == ["pause", "resume", "publish"]
    with pytest.raises(TrainError, match="not finite"):
        run.learn([_infinite(transition) for transition in batch(2)])
    assert shelf.log[3:] == ["pause", "resume"]


def _infinite(one: Transition) -> Transition:
    from dataclasses import replace

    return replace(one, advantages=(float("inf"),) * 3)


def test_an_update_that_is_interrupted_in_the_middle_is_in_no_checkpoint(
    alone: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = make_run(tmp_path, checkpoint_every=100)
    train(run, 1)
    steps = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.learn(batch(2), None, interrupt)
    assert steps >= 2, "the first of its two optimiser steps was made"
    assert run.checkpoint() is None
    assert complete_checkpoints(run.checkpoints) == []
    with pytest.raises(TrainError, match="resume"):
        run.learn(batch(2))
    again = make_run(tmp_path, checkpoint_every=100)
    assert again.resume().step == 2
    assert outcome(read_metrics(tmp_path / "metrics.jsonl")) == outcome(alone)[:2]


def test_a_batch_that_was_changed_is_not_trained_on(tmp_path: Path) -> None:
    train(make_run(tmp_path, checkpoint_every=100), 2)
    write_parquet(batch(9), tmp_path / "transitions" / "step-000002.parquet")
    with pytest.raises(TrainError, match=r"step-000002\.parquet is not the data"):
        make_run(tmp_path).resume()


def test_the_best_is_kept_beside_the_newest(tmp_path: Path) -> None:
    run = make_run(tmp_path, checkpoint_every=1, keep=1)
    train(run, 5)  # mean returns 1, 2, 3, 0, 1

    def kept() -> list[str]:
        return [path.name for path in complete_checkpoints(run.checkpoints)]

    assert kept() == ["step-000003", "step-000005"]
    best = best_checkpoint(run.checkpoints)
    assert best is not None
    assert (best.step, best.what, best.score) == (3, "mean_return", 2.0), "the mean of the last returns"
    assert find_checkpoint(tmp_path / "best").name == "step-000003"
    assert find_checkpoint(tmp_path / "last") == find_checkpoint(tmp_path) == run.checkpoints / "step-000005"
    # A measure that the caller takes counts for more than the returns of training.
    assert run.score("accuracy", 0.5)
    train(run, 6)
    assert not run.score("accuracy", 0.4)
    assert not run.score("accuracy", float("nan"))
    assert kept() == ["step-000005", "step-000006"]
    with pytest.raises(TrainError, match="no checkpoint"):
        find_checkpoint(tmp_path / "elsewhere")


def test_a_file_that_is_no_batch_of_this_version_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from lgov_core.errors import TransitionError

    path = write_parquet(batch(1), tmp_path / "one.parquet")
    assert tuple(read_parquet(path)) == batch(1)
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "schema_version", pa.array([99] * len(table), pa.int32())), path)
    with pytest.raises(TransitionError, match="schema version 99"):
        read_parquet(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(TransitionError, match="cannot be read"):
        read_parquet(path)


def test_lines_that_are_torn_are_passed_over_and_wrong_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"phase": "train", "step": 1}\n{"phase": "train", "st')
    assert read_metrics(path) == [{"phase": "train", "step": 1}]
    path.write_text(
        '{"phase": "train", "step": 2}\n{"phase": "train", "step": 1}\n{"phase": "train", "step": 2, "x": 1}\n'
    )
    assert train_lines(read_metrics(path)) == [
        {"phase": "train", "step": 1},
        {"phase": "train", "step": 2, "x": 1},
    ]
    path.write_text("[]\n")
    with pytest.raises(TrainError, match=r"metrics\.jsonl:1"):
        read_metrics(path)
    path.write_text("{]\n")
    with pytest.raises(TrainError, match=r"metrics\.jsonl:1"):
        read_metrics(path)


def test_numbers_that_json_has_no_form_for_are_null(tmp_path: Path) -> None:
    run: TrainingRun = make_run(tmp_path)
    run.metrics.add("note", 0, {"a": float("nan"), "b": [float("inf"), 1.0], "phase": "other"})
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
        "phase": "note",
        "step": 0,
        "a": None,
        "b": [None, 1.0],
    }
