"""The commands of evidence work, and the pages of results say what their committed results say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slow import slow

pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("matplotlib", reason='needs the extra "train"')
pytest.importorskip("starlette", reason='needs the extra "gateway"')
pytest.importorskip("langchain", reason='needs the extra "langchain"')

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "evidence"
EVERY = ("governance", "credit", "air", "horizon", "defaults")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
CLEAN["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])


def measured(name: str, folder: Path) -> dict[str, Any]:
    """What the command writes when it is only to show that it works."""
    command = [sys.executable, str(FOLDER / "main.py"), name, "--quick", "--jobs", "0", "--folder", str(folder)]
    done = subprocess.run(
        command, cwd=folder.parent, env=CLEAN, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / f"{name}.json").read_text())
    assert (folder / f"{name}.png").stat().st_size > 1000
    assert result["evidence"] == name
    assert result["quick"] is True
    assert result["seeds"] == [0]
    assert {"command", "commit", "date", "python", "platform", "versions", "settings", "runs"} <= result.keys()
    assert {"lgov", "torch", "transformers"} <= result["versions"].keys()
    assert "| " in done.stdout
    return result


def check_interval(value: dict[str, float]) -> None:
    assert value["low"] <= value["mean"] + 1e-9
    assert value["mean"] <= value["high"] + 1e-9
    assert value["n"] > 0


@pytest.fixture(scope="module")
def governance(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a short run, and its result."""
    folder = tmp_path_factory.mktemp("governance") / "runs"
    return folder, measured("governance", folder)


@slow
def test_governance_trains_three_ways_and_nothing_is_executed_where_policies_block(
    governance: tuple[Path, dict[str, Any]],
) -> None:
    _, result = governance
    assert list(result["arms"]) == ["governed", "ungoverned", "no_penalty"]
    assert result["executed_in_governed_runs"] == 0
    for arm in ("governed", "no_penalty"):
        assert result["arms"][arm]["executed_in_all"] == 0
    for arm, found in result["arms"].items():
        (run,) = result["runs"][arm]
        assert found["rollouts"] == run["attempts"] == 14  # 4 questions before and after, 2 tasks of 3 rollouts
        assert found["rollouts_in_training"] == 6
        assert (run["attempts_deployed"], run["executed_deployed"]) == (8, 0)
        for moment in ("before", "after", "deployed"):
            assert len(run["questions"][moment]) == 4
            assert set(run["questions"][moment]) <= set("RCwv-")
            for value in found[moment].values():
                check_interval(value)
    assert [pair["moment"] for pair in result["differences"]] == ["after", "after", "deployed", "deployed"]
    for pair in result["differences"]:
        check_interval(pair["accuracy"])
    assert set(result["accuracy_not_below"]) == {"after", "deployed"}


@slow
def test_what_is_deployed_is_the_model_that_training_ended_with(
    governance: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    code = f"""
from dataclasses import replace
from pathlib import Path
import governance, torch
from lgov_core.models import load_model
from lgov_core.train.loop.checkpoint import latest_checkpoint, save_checkpoint

runs, folder = Path({str(governance[0])!r}), Path({str(tmp_path)!r})
(run,) = runs.glob("governed-seed0-*/")
ended = latest_checkpoint(run / "checkpoints")
moved = {{name: value + 0.01 for name, value in ended.weights.items()}}  # so short a training may change nothing
save_checkpoint(folder / "checkpoints", replace(ended, weights=moved))
report = governance._deploy(0, folder, runs / "warm-seed0", True)
deployed = load_model(str(folder / "trained")).module.state_dict()
print(report.before.rollouts, report.updates, all(torch.equal(deployed[name], value) for name, value in moved.items()))
"""
    assert inside(code).split() == ["4", "0", "True"]


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("credit", ["identical", "return_to_go", "gigpo"]),
        ("air", ["off", "shaped", "progress", "naive"]),
    ],
)
def test_walks_are_trained_with_each_arm_from_the_same_start(name: str, arms: list[str], tmp_path: Path) -> None:
    result = measured(name, tmp_path / "runs")
    assert list(result["runs"]) == arms
    assert result["steps"] == [0, 1, 2]
    for arm in arms:
        (run,) = result["runs"][arm]
        assert [point["step"] for point in run["curve"]] == [0, 1, 2]
        for point in run["curve"]:
            assert {len(point[key]) for key in ("rooms", "out", "turns", "looks", "air")} == {4}
        for value in (*result["curves"][arm], result["area"][arm], result["end"][arm]):
            check_interval(value)
    if name == "air":
        for arm in ("off", "shaped", "progress"):
            earned = [value for point in result["runs"][arm][0]["curve"] for value in point["air"]]
            assert earned == pytest.approx([0.0] * len(earned), abs=1e-3), "what is shaped is taken back"


def test_each_length_of_the_corridor_is_trained_with_each_arm_and_compared_by_itself(tmp_path: Path) -> None:
    result = measured("horizon", tmp_path / "runs")
    arms = ["identical", "return_to_go", "shaped"]
    assert list(result["runs"]) == [f"{turns}-{arm}" for turns in (4, 8, 16) for arm in arms]
    for turns, length in result["lengths"].items():
        assert length["steps"] == [0, 1, 2]
        for arm in arms:
            (run,) = result["runs"][f"{turns}-{arm}"]
            assert max(most for point in run["curve"] for most in point["turns"]) == int(turns)
            for value in (*length["curves"][arm], length["area"][arm], length["end"][arm]):
                check_interval(value)
    earned = [value for point in result["runs"]["16-shaped"][0]["curve"] for value in point["air"]]
    assert earned == pytest.approx([0.0] * len(earned), abs=1e-3), "what is shaped is taken back"


def inside(code: str) -> str:
    """What a program in the folder of the evidence prints."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{code}"]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_defaults_are_chosen_on_some_families_and_judged_on_others(tmp_path: Path) -> None:
    result = measured("defaults", tmp_path / "runs")
    assert set(result["developed"]) == {"today", "updates"}
    assert result["chosen"] in result["developed"]
    assert set(result["judged"]) == {"today", result["chosen"]}
    assert not set(result["developed"]["today"]) & set(result["judged"]["today"]) - {"all"}
    assert not set(result["seeds"]) & set(result["judging_seeds"])
    for runs in result["runs"].values():
        for run in runs:
            assert len(run["before"]) == len(run["after"]) == 4
    check_interval(result["difference"])


def test_the_rule_chooses_the_highest_mean_gain_that_harms_no_family() -> None:
    code = """
from defaults import choose
bad, none, some, more = [-0.5, -0.4] * 20, [-0.5, 0.5] * 20, [0.1, 0.2] * 20, [0.8, 0.9] * 20
gains = {"today": {"a": none, "b": none}, "rises": {"a": some, "b": none}, "harms": {"a": more, "b": bad}}
print(choose(gains), choose({"today": {"a": bad}, "other": {"a": bad}}))
"""
    assert inside(code).split() == ["rises", "today"]


def test_each_family_can_be_played_well_and_is_played_badly_by_chance() -> None:
    code = """
import json, random
from families import FAMILIES, tasks_of
for name, family in FAMILIES.items():
    chance = random.Random(name)
    train, held_out = tasks_of(family, 0, 32)
    best = [family.play(task, lambda messages, agent: family.right(task, messages)) for task in held_out]
    worst = [family.play(task, lambda messages, agent: family.guess(chance, task, messages)) for task in held_out]
    texts = [{json.dumps({**task, "number": 0}) for task in tasks} for tasks in (train, held_out)]
    print(min(best), sum(worst) / 32, len(texts[0] | texts[1]))
"""
    lines = [line.split() for line in inside(code).splitlines()]
    assert len(lines) == 10
    for best, worst, different in lines:
        assert float(best) == 1.0
        assert float(worst) < 0.6
        assert different == "64", "no task is trained on and held out"


def test_the_page_shows_the_committed_results() -> None:
    same = "import page; text = page.PAGE.read_text(encoding='utf-8'); print(page.filled(text) == text)"
    assert inside(same).strip() == "True", "python evidence/main.py page"
    same = "import page; text = page.SHORT_PAGE.read_text(encoding='utf-8'); print(page.with_overview(text) == text)"
    assert inside(same).strip() == "True", "python evidence/main.py page"
    text = (ROOT / "evidence/results/README.md").read_text(encoding="utf-8")
    for name in EVERY:
        assert f"<!-- results: {name} -->" in text


@pytest.mark.parametrize("name", EVERY)
def test_a_committed_result_says_where_it_comes_from(name: str) -> None:
    path = FOLDER / "results" / f"{name}.json"
    if not path.exists():
        pytest.skip("no result is committed")
    result = json.loads(path.read_text())
    assert result["quick"] is False
    assert not result["commit"].endswith("-changed")
    assert len(result.get("judging_seeds", result["seeds"])) >= 3
    assert (ROOT / f"docs/evidence/{name}.png").exists()
    if name == "governance":
        assert result["executed_in_governed_runs"] == 0


def test_intervals_hold_what_is_known_of_them() -> None:
    # One value in every place has no spread; a paired difference is smaller than the spread of its sides.
    code = """
import json
from intervals import difference, interval
first = [[1.0, 0.0, 1.0, 1.0] * 20, [1.0, 1.0, 0.0, 0.0] * 20, [0.0, 1.0, 1.0, None] * 20]
second = [[None if value is None else value - 0.25 for value in row] for row in first]
print(json.dumps([interval([[0.5] * 9] * 3), interval(first), difference(first, second)]))
"""
    same, spread, gap = json.loads(inside(code))
    assert (same["mean"], same["low"], same["high"], same["n"]) == (0.5, 0.5, 0.5, 27)
    assert spread["mean"] == pytest.approx((0.75 + 0.5 + 2 / 3) / 3, abs=1e-3)
    assert spread["low"] < spread["mean"] - 0.05
    assert spread["high"] > spread["mean"] + 0.05
    assert spread["n"] == 220
    assert (gap["mean"], gap["low"], gap["high"]) == (0.25, 0.25, 0.25)


def test_a_difference_that_could_have_been_seen_is_seen_four_times_of_five() -> None:
    # Five seeds whose differences spread by 1 around a true difference of that size: a t-test shows it with 80 % probability.
    code = """
import numpy as np
from intervals import detectable
normal = [-1.2649, -0.6325, 0.0, 0.6325, 1.2649]  # standard deviation 1
size = detectable([[value] for value in normal], [[0.0]] * 5)
drawn = np.random.default_rng(7).normal(size, 1, (100_000, 5))
t = drawn.mean(axis=1) / (drawn.std(axis=1, ddof=1) / 5**0.5)
print((t > 2.7764).mean(), detectable([[1.0]], [[0.0]]))
"""
    power, of_one_seed = inside(code).split()
    assert float(power) == pytest.approx(0.8, abs=0.05)
    assert of_one_seed == "None"


@pytest.mark.parametrize(("seeds", "spread"), [(3, 0.1), (5, 0.1)])
def test_with_few_seeds_a_difference_is_shown_more_often_than_it_should_be(seeds: int, spread: float) -> None:
    # Seeds differ around a true difference of 0, and so do their 256 questions: the page says how often one is "shown".
    code = f"""
import numpy as np
from intervals import interval, verdict
chance, shown = np.random.default_rng(1), 0
for _ in range(400):
    values = [chance.normal(chance.normal(0, {spread}), 0.55, 256) for _ in range({seeds})]
    shown += verdict(interval(values, draws=500)) != "no difference shown"
print(shown / 400)
"""
    assert 0.07 < float(inside(code)) < 0.22


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in (["credit", "--jobs", "-1"], ["credit", "--seeds", "0"], ["sql"], []):
        done = subprocess.run(
            [sys.executable, str(FOLDER / "main.py"), *wrong], env=CLEAN, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    assert "settings" in done.stderr


def test_a_command_that_was_interrupted_repeats_no_finished_run_of_the_same_code(tmp_path: Path) -> None:
    code = f"""
import types
from pathlib import Path
import evidence

done = []
probe = sys.modules["probe"] = types.ModuleType("probe")
probe.warm = lambda seed, folder, quick: done.append(f"warm {{seed}}")
probe.one = lambda arm, seed, folder, warm, quick: done.append(f"{{arm}} {{seed}}") or {{"seed": seed}}

def again(commit, settings, seeds=(0, 1)):
    done.clear()
    evidence._commit = lambda: commit
    options = evidence.Options("probe", seeds, False, 0, Path({str(tmp_path)!r}), Path({str(tmp_path)!r}))
    evidence.run_all(options, ["a", "b"], settings)
    return len(done)

print(again("one", {{"n": 1}}, (0,)), again("one", {{"n": 1}}), again("one", {{"n": 1}}), again("one", {{"n": 2}}),
      again("two", {{"n": 2}}), again("two-changed", {{"n": 2}}), again("two-changed", {{"n": 2}}))
"""
    assert inside(code).split() == ["3", "3", "0", "6", "6", "6", "6"]
