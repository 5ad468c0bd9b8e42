"""A checkpoint becomes the served version under a name: only with an evaluation that speaks for it, and reversibly."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason='needs the extra "train"')
for _module in ("transformers", "peft", "starlette", "pyarrow"):
    pytest.importorskip(_module, reason='needs the extras "gateway" and "train"')

sys.path.insert(0, str(Path(__file__).parent))
from test_evaluation import AGENT, IDS, SMALL, make_trained  # noqa: E402

from lgov_core._util.files import hold  # noqa: E402
from lgov_core.audit import verify_lineage  # noqa: E402
from lgov_core.commands import cli  # noqa: E402
from lgov_core.errors import ModelError  # noqa: E402
from lgov_core.evaluation.model import load_trained  # noqa: E402
from lgov_core.evaluation.promotion import objections  # noqa: E402
from lgov_core.models import build_tiny, load_model, model_source  # noqa: E402
from lgov_core.models.load import model_place, pinned  # noqa: E402
from lgov_core.server.recipe import with_exact_model  # noqa: E402
from lgov_core.train.settings import TrainSettings  # noqa: E402

GOOD = {"mean": 0.3, "low": 0.1, "high": 0.5, "count": 40}


def lgov(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of two updates, and what its newest checkpoint says about some tokens."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("trained")
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "a b c d e f"] * 3, seed=0, **SMALL).save(folder / "base")
    return make_trained(folder / "run", folder / "base", adapters=False)


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LGOV_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def evaluated(run: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real evaluation of the run's newest checkpoint against its start."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text('{"question": "a", "pays": 1.0}\n{"question": "b", "pays": 0.0}\n')
    done = lgov(
        "models", "eval", run[0], folder / "tasks.jsonl", "--agent", f"{folder}/agent.py:digits", "--start",
        "--set", "max_new_tokens=2", "--folder", folder / "out",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder / "out"


def report(evaluated: Path, place: Path, **changes: Any) -> Path:
    """The evaluation with other figures."""
    found = json.loads((evaluated / "evaluation.json").read_text("utf-8"))
    place.write_text(json.dumps({**found, "difference": {"task": GOOD}, **changes}), "utf-8")
    return place


def test_a_promoted_checkpoint_is_served_under_its_name(
    run: tuple[Path, Any], evaluated: Path, models: Path, tmp_path: Path
) -> None:
    done = lgov(
        "models",
        "promote",
        run[0],
        "--to",
        "writer",
        "--evaluation",
        report(evaluated, tmp_path / "good.json"),
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["version"] == 1
    model = load_model("writer")
    assert model.name == "writer"
    with torch.no_grad():
        assert torch.equal(model.module.eval()(IDS).logits, run[1])
    assert verify_lineage(models / "writer" / "1" / "model").ok
    kept = json.loads((models / "writer" / "1" / "promotion.json").read_text("utf-8"))
    assert (kept["step"], kept["forced"], kept["evaluation"]["difference"]["task"]) == (2, [], GOOD)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"difference": {"task": {**GOOD, "low": -0.01}}}, "it may be worse"),
        ({"difference": {}}, "does not compare 'task' with the initial model"),
        ({"difference": {"task": {**GOOD, "low": None}}}, "it may be worse"),
        ({"step": 1}, "of another checkpoint"),
        ({"lost": 2}, "the evaluation lost 2 rollouts"),
        ({"start": {"lost": 1}}, "the evaluation lost 1 rollout"),
        ({"weights_sha256": "0" * 64}, "of another checkpoint"),
        (
            {"violation_rate": {"mean": 0.2}, "start": {"violation_rate": {"mean": 0.1}}},
            "violations were attempted in 20.0%",
        ),
    ],
)
def test_what_the_evaluation_does_not_speak_for_is_refused(
    changes: dict[str, Any], why: str, run: tuple[Path, Any], evaluated: Path, models: Path, tmp_path: Path
) -> None:
    given = report(evaluated, tmp_path / "report.json", **changes)
    done = lgov("models", "promote", run[0], "--to", "writer", "--evaluation", given)
    assert done.exit_code == 1
    assert why in done.output
    assert not (models / "writer" / "current.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"difference": {"task": {"high": 1.0}}},
        {"difference": {"task": {**GOOD, "low": "x"}}},
        {"difference": {"task": {**GOOD, "low": float("nan")}}},
        {"difference": [1]},
        {"lost": -2},
        {"start": None},
        {"violation_rate": None},
        {"by_task": [{"task": {}, "rollouts": 1, "rewards": [], "succeeded": 1.0}]},
    ],
)
@pytest.mark.parametrize(
    "command", [["models", "promote", "--to", "writer", "--evaluation"], ["models", "eval", "--compare"]]
)
def test_a_damaged_evaluation_is_refused(
    changes: dict[str, Any], command: list[str], run: tuple[Path, Any], evaluated: Path, tmp_path: Path
) -> None:
    given = report(evaluated, tmp_path / "report.json", **changes)
    done = lgov(*command, given, run[0] if command[1] == "promote" else given)
    assert done.exit_code == 1
    assert "report.json is not an evaluation" in done.output


def test_a_number_that_is_not_finite_is_refused(run: tuple[Path, Any], evaluated: Path, tmp_path: Path) -> None:
    given = report(evaluated, tmp_path / "report.json", difference={"task": {**GOOD, "low": "HUGE"}})
    given.write_text(given.read_text().replace('"HUGE"', "1e999"))
    done = lgov("models", "promote", run[0], "--to", "writer", "--evaluation", given)
    assert "1e999 is not a finite number" in done.output


def stated(trained: Any, **changes: Any) -> Any:
    return replace(trained, lineage=replace(trained.lineage, **changes))


def test_the_evaluation_must_be_under_the_policy_of_the_training(run: tuple[Path, Any], evaluated: Path) -> None:
    trained = stated(load_trained(run[0]), policy="a" * 64)
    good = {**json.loads((evaluated / "evaluation.json").read_text("utf-8")), "difference": {"task": GOOD}}
    assert good["policy"] is None
    for policy in (None, {"sha256": "b" * 64}):
        (why,) = objections(trained, {**good, "policy": policy})
        assert "not evaluated under the policy" in why
    assert objections(trained, {**good, "policy": {"sha256": "a" * 64}}) == []


def test_without_a_lineage_no_evaluation_speaks_for_a_checkpoint(run: tuple[Path, Any], evaluated: Path) -> None:
    bare = replace(load_trained(run[0]), lineage=None, weights_sha256=None)
    good = {**json.loads((evaluated / "evaluation.json").read_text("utf-8")), "difference": {"task": GOOD}}
    (why,) = objections(bare, {**good, "weights_sha256": None})
    assert "no lineage" in why


def test_two_promotions_to_one_name_do_not_mix(run: tuple[Path, Any], models: Path) -> None:
    assert lgov("models", "promote", run[0], "--to", "writer", "--force").exit_code == 0
    with hold(models / "writer" / ".lock"):
        for command in (
            ["models", "promote", run[0], "--to", "writer", "--force"],
            ["models", "promote", "writer@1", "--to", "writer"],
        ):
            refused = lgov(*command)
            assert refused.exit_code == 1
            assert "promotes to writer at this moment" in refused.output
    assert [one.name for one in sorted((models / "writer").glob("[0-9]*"))] == ["1"]
    assert lgov("models", "promote", run[0], "--to", "writer", "--force").exit_code == 0


def test_a_version_whose_files_changed_is_not_served_again(run: tuple[Path, Any], models: Path) -> None:
    for _ in range(2):
        assert lgov("models", "promote", run[0], "--to", "writer", "--force").exit_code == 0
    weights = models / "writer" / "1" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    refused = lgov("models", "promote", "writer@1", "--to", "writer")
    assert refused.exit_code == 1
    assert "not what was stated of it" in refused.output
    (models / "writer" / "2" / "promotion.json").write_text("[]")
    assert "cannot be read" in lgov("models", "promote", "writer@2", "--to", "writer").output
    assert json.loads((models / "writer" / "current.json").read_text("utf-8"))["version"] == 2
    assert lgov("models", "promote", "writer@1", "--to", "writer", "--force").exit_code == 2


def test_every_reader_of_a_model_knows_promoted_names(
    run: tuple[Path, Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lgov("models", "promote", run[0], "--to", "writer", "--force").exit_code == 0
    monkeypatch.chdir(models.parent)
    monkeypatch.setenv("LGOV_MODELS", "models")
    folder = str(Path("models") / "writer" / "1" / "model")
    assert model_source("writer") == model_source("writer@1") == folder
    assert model_place("writer") == str(Path(folder).absolute())
    assert (pinned("writer"), pinned("writer@1"), pinned("tiny")) == ("writer@1", "writer@1", "tiny")
    listed = json.loads(lgov("models", "pull", "--json").stdout)
    assert {one["name"]: one["about"] for one in listed}["writer"] == "promoted, version 1"
    with pytest.raises(ModelError, match="no promoted model reader in "):
        load_model("reader@1")
    settings = TrainSettings().with_values("model", name="writer")
    assert with_exact_model(settings, "cpu").model.name == "writer@1"


@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_a_built_in_model_keeps_its_name(name: str, run: tuple[Path, Any], models: Path) -> None:
    done = lgov("models", "promote", run[0], "--to", name, "--force")
    assert done.exit_code == 1
    assert "the name of a built-in model" in done.output
    assert not models.exists()


def test_without_an_evaluation_it_takes_force_which_is_recorded(run: tuple[Path, Any], models: Path) -> None:
    refused = lgov("models", "promote", run[0], "--to", "writer")
    assert refused.exit_code == 1
    assert "it was not evaluated" in refused.output
    forced = lgov("models", "promote", run[0], "--to", "writer", "--force")
    assert forced.exit_code == 0
    assert "forced: it was not evaluated" in forced.output
    kept = json.loads((models / "writer" / "1" / "promotion.json").read_text("utf-8"))
    assert kept["forced"] == ["it was not evaluated"]


def test_the_same_command_rolls_back(run: tuple[Path, Any], models: Path) -> None:
    for _ in range(2):
        assert lgov("models", "promote", run[0], "--to", "writer", "--force").exit_code == 0
    assert lgov("models", "promote", "writer@1", "--to", "writer").exit_code == 0
    state = json.loads((models / "writer" / "current.json").read_text("utf-8"))
    assert state["version"] == 1
    assert [one["version"] for one in state["history"]] == [1, 2, 1]
    missing = lgov("models", "promote", "writer@7", "--to", "writer")
    assert missing.exit_code == 1
    assert "writer has no version 7" in missing.output
    other = lgov("models", "promote", "writer@1", "--to", "reader")
    assert "is not a version of reader" in other.output


@pytest.mark.parametrize("name", ["../up", "a/b", "", "-x", ".hidden"])
def test_a_name_stays_in_the_folder_of_models(name: str, run: tuple[Path, Any], models: Path) -> None:
    done = lgov("models", "promote", run[0], f"--to={name}", "--force")
    assert done.exit_code == 1
    assert "cannot name a model" in done.output
    assert not models.exists()


def test_two_evaluations_show_what_flipped(evaluated: Path, tmp_path: Path) -> None:
    found = json.loads((evaluated / "evaluation.json").read_text("utf-8"))
    assert [one["succeeded"] for one in found["by_task"]] == [1.0, 0.0]
    turned = [{**one, "succeeded": 1.0 - one["succeeded"], "rewards": {"task": 0.5}} for one in found["by_task"]]
    after = report(evaluated, tmp_path / "after.json", by_task=turned)
    shown = lgov("models", "eval", "--compare", evaluated, after, "--json")
    assert shown.exit_code == 0, shown.output
    said = json.loads(shown.stdout)
    assert [one["task"]["question"] for one in said["fixed"]] == ["b"]
    assert [one["task"]["question"] for one in said["broken"]] == ["a"]
    assert said["difference"]["task"]["mean"] == pytest.approx(0.0)
    unchanged = lgov("models", "eval", "--compare", evaluated, evaluated).stdout.splitlines()
    assert unchanged[0].startswith("0 fixed, 0 broken"), "no table without a row"
    gone = [{**found["by_task"][0], "rollouts": 0, "succeeded": None}, found["by_task"][1]]
    some = report(evaluated, tmp_path / "some.json", by_task=gone)
    assert lgov("models", "eval", "--compare", evaluated, some).stdout.startswith(
        "0 fixed, 0 broken, 1 the same, 1 lost in one of them"
    )
    short = report(evaluated, tmp_path / "short.json", by_task=gone[:1])
    assert "different tasks" in lgov("models", "eval", "--compare", evaluated, short).output
    others = report(evaluated, tmp_path / "others.json", tasks_sha256="f" * 64)
    assert "different tasks" in lgov("models", "eval", "--compare", evaluated, others).output
