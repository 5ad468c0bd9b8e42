"""Settings of a training run: what is read from where, and what is refused, by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lgov_core.errors import SettingsError
from lgov_core.train.algorithms.algorithms import BACKENDS, OTHERS, REINFORCEMENT, algorithm_name, find_run
from lgov_core.train.settings import load_train_settings

#: As the document on training writes it.
DOCUMENTED = """\
# config.yaml
model:
  name: "meta-llama/Llama-3.2-3B-Instruct"

training:
  algorithm: "grpo"
  learning_rate: 5e-7
  batch_size: 256
  group_size: 8
  kl_coef: 0.001
  epochs: 1

runtime:
  nworkers: 8
  auto_instrumentation: true
  air_enabled: true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_the_documented_file_is_read(tmp_path: Path) -> None:
    settings = load_train_settings(written(tmp_path, DOCUMENTED), environ={})
    assert settings.model.name == "meta-llama/Llama-3.2-3B-Instruct"
    assert settings.training.learning_rate == 5e-7  # which YAML 1.1 reads as text
    assert (settings.training.batch_size, settings.training.group_size, settings.training.kl_coef) == (256, 8, 0.001)
    assert (settings.runtime.nworkers, settings.runtime.auto_instrumentation) == (8, True)


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "model: {name: of-the-file}\ntraining: {algorithm: ppo, seed: 3}\n")
    environ = {"LIGHTNING_MODEL_PATH": "of-the-variable", "LIGHTNING_RL_ALGORITHM": "rloo"}
    settings = load_train_settings(
        path, flags={("model", "name"): "of-the-flag", ("training", "seed"): None}, environ=environ
    )
    assert (settings.model.name, settings.training.algorithm, settings.training.seed) == ("of-the-flag", "rloo", 3)


def test_paths_in_the_file_are_relative_to_it(tmp_path: Path) -> None:
    settings = load_train_settings(written(tmp_path, "data: {train: tasks.jsonl}\n"), environ={})
    assert settings.data.train == tmp_path / "tasks.jsonl"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("training:\n  learning_rat: 1e-4\n", 2, "did you mean learning_rate?"),
        ("trainng:\n  epochs: 1\n", 1, "did you mean training?"),
        ("training:\n  epochs: 1\n  batch_size: many\n", 3, "a whole number at least 1"),
        ("training:\n  batch_size: 0\n", 2, "at least 1"),
        ("training:\n  learning_rate: 0\n", 2, "a number above 0"),
        ("training:\n  discount: 1.5\n", 2, "at most 1"),
        ("training:\n  epochs: true\n", 2, "a whole number"),
        ("runtime:\n  air_enabled: 1\n", 2, "true or false"),
        ("runtime:\n  workers: fibers\n", 2, "one of processes, threads"),
        ("model: smollm2\n", 1, "write keys below model:"),
        ("training:\n  epochs: 1\n  epochs: 2\n", 3, "given twice"),
        ("training:\n  epochs: [1\n", 3, "not YAML"),
        ("- training\n", 0, "not a mapping"),
    ],
    ids=range(13),
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_train_settings(path, environ={})
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ")


def test_a_variable_and_a_flag_are_named_when_they_are_wrong() -> None:
    with pytest.raises(SettingsError, match=r"^--epochs: training\.epochs must be a whole number at least 1, not 0"):
        load_train_settings(flags={("training", "epochs"): 0}, environ={})
    with pytest.raises(SettingsError, match=r"there is no file /no/such\.yaml"):
        load_train_settings("/no/such.yaml", environ={})


@pytest.mark.parametrize(
    ("given", "meant"),
    [("GRPO", "grpo"), ("Dr.GRPO", "dr_grpo"), ("dr-grpo", "dr_grpo"), ("REINFORCE++", "reinforce++"), ("sft", "sft")],
)
def test_algorithms_are_known_under_the_spellings_in_use(given: str, meant: str) -> None:
    assert algorithm_name(given) == meant


def test_unknown_algorithms_and_backends_name_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"did you mean grpo\?"):
        algorithm_name("grop")
    with pytest.raises(SettingsError, match=r"did you mean torch\?"):
        find_run("grpo", "touch")


def test_the_tables_have_no_name_twice() -> None:
    assert not set(REINFORCEMENT) & set(OTHERS)
    assert set(BACKENDS) == {"torch", "verl"}
