"""A small part of ``python -m tests.doctor``: real trainings with a fault each, which the doctor names, and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("pyarrow", reason='needs the extra "train"')

from lgov_core.train.loop.run_files import read_metrics, train_lines  # noqa: E402
from tests.doctor.kinds import KINDS  # noqa: E402
from tests.doctor.trainings import Named, Training, examined, run  # noqa: E402
from tests.doctor.world import TOPICS, Episode, teach  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that half knows the sounds of animals."""
    return teach(tmp_path_factory.mktemp("models") / "taught", ["sounds"], seed=3, steps=80)


def named(training: Training, model: Path, folder: Path) -> Named:
    run(training, folder / "run", model)
    return examined(folder / "run", folder / "view")


def test_a_training_that_learns_has_no_finding(model: Path, tmp_path: Path) -> None:
    found = named(Training("sounds", 2, "dr_grpo", updates=4), model, tmp_path)
    assert (found.updates, found.last) == (4, frozenset())


@pytest.mark.parametrize(
    ("name", "updates", "warned"),
    [
        ("the reward is the length of the reply", 3, None),
        ("the seed is fixed", 4, "replies-equal"),
        ("the optimiser has copies of the weights", 3, "weights-frozen"),
        ("prompts are longer than the context", 2, "prompts-too-long"),
    ],
)
def test_a_planted_fault_is_named(name: str, updates: int, warned: str | None, model: Path, tmp_path: Path) -> None:
    kind = KINDS[name]
    training = Training("sounds", 3, "grpo", tool=kind.tool, updates=updates)
    kind.plant(training)
    found = named(training, model, tmp_path)
    assert found.last & kind.names, found
    assert min(step for name, step in found.first.items() if name in kind.names) <= updates
    last = train_lines(read_metrics(tmp_path / "run" / "metrics.jsonl"))[-1]
    assert warned is None or warned in last["warnings"], "the training itself warns of this"
    assert "no-model-call" not in found.last, "a prompt that is refused is a model call"


def test_held_out_tasks_that_are_trained_on_are_named(model: Path, tmp_path: Path) -> None:
    training = Training("sounds", 3, "grpo", updates=1)
    KINDS["the test set is in the training"].plant(training)
    training.updates = 1
    assert "test-tasks-trained-on" in named(training, model, tmp_path).last


def in_form(episode: Episode) -> float:
    """Pays any answer of the topic: most replies of the taught model earn it."""
    return float(bool({*TOPICS["sounds"][1].values()} & {*episode.reply.replace(":", " ").split()}))


@pytest.mark.parametrize("stops", [True, False])
def test_a_collapse_ends_the_training_and_is_told_unless_it_is_to_go_on(
    stops: bool, model: Path, tmp_path: Path
) -> None:
    servers: list[Any] = []
    training = Training("sounds", 3, "grpo", updates=5, grade=in_form, tamper=servers.append)
    training.settings = {"batch_size": 8, "learning_rate": 0.05, "kl_coef": 0.0, "stop_on_collapse": stops}
    training.settings["checkpoint_every"] = 1
    found = named(training, model, tmp_path)
    lines = train_lines(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert "policy-collapsed" not in lines[2].get("warnings", {}), "three updates since the best are too few to say"
    assert lines[3]["warnings"]["policy-collapsed"].startswith(
        "the policy has collapsed: in the last 3 updates it earned"
    )
    assert len(lines) == (4 if stops else 5)
    assert "policy-collapsed" in found.last
    note = servers[0].coordinator.run.note
    best = json.loads((tmp_path / "run" / "checkpoints" / "best.json").read_text())
    assert note.startswith("ended after update 4: the policy has collapsed" if stops else ""), note
    assert best["step"] == 1
    assert note.endswith("the best checkpoint is that of update 1") is stops


@pytest.mark.parametrize("name", ["the reward is sparse", "the reward is random", "nothing is learnt"])
def test_a_training_that_does_not_learn_has_not_collapsed(name: str, model: Path, tmp_path: Path) -> None:
    training = Training("sounds", 5, "grpo", updates=8)
    KINDS[name].plant(training)
    training.updates = 8
    assert "policy-collapsed" not in named(training, model, tmp_path).first
