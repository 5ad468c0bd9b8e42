"""``lgov demo --verify`` on a real recorded run, unchanged and tampered with."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lgov_core.errors import TrainError
from lgov_core.evaluation.verification import ServedWeights, verify_run
from lgov_core.models import load_model
from lgov_core.train.loop.checkpoint import load_weights, save_weights
from tests.evaluation.verify_helpers import (
    CALL,
    calls_of,
    logprobs_of,
    query,
    record,
    some_call,
    verified,
    verify,
    warmed_up,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["all", "adapters"], ids=["all parameters", "low-rank adapters"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, and its warm start beside it."""
    base = tmp_path_factory.mktemp("demo")
    run = base / "seed0-governed"
    run.mkdir()
    warmed_up().save(base / "seed0-warm")
    record(run, base / "seed0-warm", request.param)
    return run


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the run folder that may be damaged."""
    return Path(shutil.copytree(recorded, tmp_path / "seed0-governed"))


def test_a_run_as_it_was_recorded_passes(recorded: Path) -> None:
    calls = calls_of(recorded)
    versions = [call.weights_version for call in calls]
    assert {*versions} == {0, 1, 2}
    assert sum(bool(call.tool_call_ids) for call in calls) >= 3, "the model was to call tools"
    model = load_model(str(recorded.parent / "seed0-warm"))
    prompts = [model.decode(list(call.prompt_ids or ())) for call in calls]
    assert any(CALL in prompt for prompt in prompts), "a reply was to be repeated as it was written"
    assert CALL not in prompts[-1], "the new engine was to render the reply from its JSON"
    assert CALL.replace("  ", " ") in prompts[-1]

    found = verified(recorded, status=0)
    unkept = versions.count(2)
    assert found["passed"] is True
    assert found["calls"] == found["recorded"] == found["decoded_ok"] == len(calls)
    assert (found["decoded_bad"], found["mismatched"], found["findings"]) == (0, 0, [])
    assert (found["checked"], found["unchecked"]) == (len(calls) - unkept, unkept)
    assert found["tolerance"] == 1e-3
    assert found["max_logprob_diff"] < 1e-4
    assert [(one["version"], one["calls"], one["checked"]) for one in found["versions"]] == [
        (version, count, count * (version != 2)) for version in (0, 1, 2) for count in [versions.count(version)]
    ]

    text = verify(recorded)
    assert text.exit_code == 0
    assert f"log-probabilities of {len(calls) - unkept} checked, 0 mismatched, {unkept} unchecked" in text.stdout


def test_one_logprob_that_was_changed_is_found(run: Path) -> None:
    call = some_call(run)
    logprobs = logprobs_of(run, call)
    logprobs[len(logprobs) // 2] -= 0.002
    query(run, "UPDATE calls SET logprobs = ? WHERE response_id = ?", logprobs.tobytes(), call)

    found = verified(run, status=1)
    assert (found["decoded_bad"], found["mismatched"]) == (0, 1)
    (finding,) = found["findings"]
    assert (finding["response_id"], finding["weights_version"], finding["attempt"]) == (call, 1, 1)
    assert finding["logprob_diff"] == pytest.approx(0.002, rel=0.05)
    assert found["max_logprob_diff"] == finding["logprob_diff"]
    text = verify(run)
    assert text.exit_code == 1
    assert f"rollout {finding['rollout_id']} attempt 1 call {call} (weights 1)" in text.stdout
    assert verify_run(run, tolerance=0.01).passed


@pytest.mark.parametrize("logprob", [float("nan"), float("inf"), None])
def test_logprobs_that_are_not_finite_do_not_pass(run: Path, logprob: float | None) -> None:
    call = some_call(run)
    damaged = None if logprob is None else array("d", [logprob] * len(logprobs_of(run, call))).tobytes()
    query(run, "UPDATE calls SET logprobs = ? WHERE response_id = ?", damaged, call)
    found = verified(run, status=1)
    assert (found["mismatched"], found["findings"][0]["response_id"]) == (1, call)


@pytest.mark.parametrize("column", ["prompt_rest", "response_ids"])
def test_one_token_that_was_changed_is_found(run: Path, column: str) -> None:
    call = some_call(run)
    ((blob,),) = query(run, f"SELECT {column} FROM calls WHERE response_id = ?", call)
    ids = array("i", blob)
    ids[len(ids) // 2] = ids[len(ids) // 2] + 1 if ids[len(ids) // 2] < 200 else ids[len(ids) // 2] - 1
    query(run, f"UPDATE calls SET {column} = ? WHERE response_id = ?", ids.tobytes(), call)
    found = verified(run, status=1)
    assert (found["decoded_bad"], found["findings"][0]["response_id"]) == (1, call)


@pytest.mark.parametrize("column", ["prompt_rest", "response_ids"])
@pytest.mark.parametrize("odd", [10**6, -1])
def test_a_token_outside_the_vocabulary_is_found(run: Path, column: str, odd: int) -> None:
    call = some_call(run)
    ((blob,),) = query(run, f"SELECT {column} FROM calls WHERE response_id = ?", call)
    ids = array("i", [odd, *array("i", blob)[1:]])
    query(run, f"UPDATE calls SET {column} = ? WHERE response_id = ?", ids.tobytes(), call)
    found = verified(run, status=1)
    assert (found["decoded_bad"], found["mismatched"], found["findings"][0]["response_id"]) == (1, 1, call)


def change(run: Path, call: str, column: str, path: str, value: Any) -> None:
    query(run, f"UPDATE calls SET {column} = json_set({column}, ?, ?) WHERE response_id = ?", path, value, call)


@pytest.mark.parametrize(
    ("column", "path", "value"),
    [
        ("response", "$.choices[0].message.content", "There are 8."),
        ("response", "$.choices[0].finish_reason", "content_filter"),
        ("response", "$.choices", "none"),
        ("request", "$.messages[0].content", "Answer from memory."),
        ("request", "$.messages[1].role", "system"),
        ("request", "$.messages", "none"),
    ],
)
def test_text_that_was_changed_is_found(run: Path, column: str, path: str, value: str) -> None:
    call = some_call(run)
    change(run, call, column, path, value)
    found = verified(run, status=1)
    assert (found["decoded_bad"], found["mismatched"]) == (1, 0)
    assert found["findings"][0]["response_id"] == call


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("function.arguments", '{"query": "DROP TABLE staff"}'),
        ("function.name", "run"),
        ("id", "call_other"),
    ],
)
def test_a_tool_call_that_was_changed_is_found(run: Path, path: str, value: str) -> None:
    ((call,), *_) = query(run, "SELECT response_id FROM calls WHERE tool_call_ids != '[]' ORDER BY seq")
    change(run, call, "response", f"$.choices[0].message.tool_calls[0].{path}", value)
    found = verified(run, status=1)
    assert call in {finding["response_id"] for finding in found["findings"]}


def test_other_weights_than_those_served_are_found(run: Path) -> None:
    weights = load_weights(run / "weights", 1)
    assert weights is not None
    name = max(weights, key=lambda name: weights[name].numel())
    weights[name] += 0.05
    save_weights(run / "weights", 1, weights)
    found = verified(run, status=1)
    counts = {one["version"]: one["mismatched"] for one in found["versions"]}
    assert (counts[0], counts[2], found["decoded_bad"]) == (0, 0, 0)
    assert counts[1] > 0


def test_calls_of_missing_weights_are_unchecked_and_do_not_pass(run: Path) -> None:
    (run / "weights" / "version-000001.safetensors").unlink()
    found = verified(run, status=0)
    assert [one["unchecked"] == one["calls"] for one in found["versions"]] == [False, True, True]
    query(run, "DELETE FROM calls WHERE weights_version = 0")
    found = verified(run, status=1)
    assert (found["checked"], found["decoded_bad"], found["mismatched"]) == (0, 0, 0)
    assert found["unchecked"] == found["calls"] > 0
    assert "nothing is proved" in verify(run).stdout


def test_a_call_of_unknown_weights_is_unchecked(run: Path) -> None:
    query(run, "UPDATE calls SET weights_version = NULL WHERE response_id = ?", some_call(run))
    found = verified(run, status=0)
    assert found["versions"][0] == {
        "version": None, "calls": 1, "checked": 0, "unchecked": 1, "mismatched": 0, "max_logprob_diff": 0.0
    }  # fmt: skip


def test_a_run_without_calls_proves_nothing(run: Path) -> None:
    query(run, "DELETE FROM calls")
    assert verified(run, status=1)["recorded"] == 0


def test_weights_of_another_model_are_refused(run: Path) -> None:
    save_weights(run / "weights", 1, {"odd.weight": torch.zeros(2)})
    result = verify(run)
    assert result.exit_code == 1
    assert "not of this model" in result.stderr


def test_a_limit_takes_calls_from_all_over_the_run(run: Path) -> None:
    all_calls = verified(run, status=0)["calls"]
    found = verify_run(run, limit=all_calls // 2).as_json()
    assert (found["calls"], found["recorded"]) == (all_calls // 2, all_calls)
    assert [one["version"] for one in found["versions"]] == [0, 1, 2]
    assert verify_run(run, limit=10 * all_calls).as_json()["calls"] == all_calls


def test_versions_of_weights_can_be_loaded_in_any_order(recorded: Path) -> None:
    base = str(recorded.parent / "seed0-warm")
    module = load_model(base).module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    served = ServedWeights(recorded, base, module)

    def changed() -> bool:
        return any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())

    for version, differs in ((1, True), (0, False), (1, True), (1, True), (0, False)):
        assert served.at(version) is module
        assert changed() is differs
    assert served.at(2) is None


def test_a_run_that_was_moved_with_its_warm_start_is_verified(run: Path, recorded: Path) -> None:
    shutil.copytree(recorded.parent / "seed0-warm", run.parent / "seed0-warm")
    start = json.loads((run / "server.json").read_text())
    (run / "server.json").write_text(json.dumps({**start, "model": "/no/such/place/seed0-warm"}))
    verified(run, status=0)
    shutil.rmtree(run.parent / "seed0-warm")
    result = verify(run)
    assert result.exit_code == 2
    assert "is gone" in result.stderr


def test_a_folder_that_is_not_a_run_is_a_usage_error(run: Path, tmp_path: Path) -> None:
    result = verify(tmp_path)
    assert result.exit_code == 2
    assert "seed0-governed" in result.stderr, "the run in the folder is named"
    assert verify(tmp_path / "missing").exit_code == 2
    (run / "server.json").write_text("{}")
    assert verify(run).exit_code == 2
    (run / "store.sqlite").unlink()
    assert verify(run).exit_code == 2
    assert not (run / "store.sqlite").exists()


def test_weights_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    assert load_weights(folder, 3) is None
    weights = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor([1.5], dtype=torch.bfloat16)}
    assert save_weights(folder, 3, weights) == folder / "version-000003.safetensors"
    assert load_weights(folder, 4) is None
    for _ in range(2):
        again = load_weights(folder, 3)
        assert again is not None
        assert again.keys() == weights.keys()
        assert all(torch.equal(again[name], weights[name]) for name in weights)
        shared = torch.zeros(4)
        with pytest.raises(TrainError, match="could not be written"):
            save_weights(folder, 3, {"a": shared, "b": shared})
    assert [path.name for path in folder.iterdir()] == ["version-000003.safetensors"]
    (folder / "version-000003.safetensors").write_bytes(b"half")
    with pytest.raises(TrainError, match="cannot be read"):
        load_weights(folder, 3)
    with pytest.raises(TrainError, match="could not be written"):
        save_weights(folder / "version-000003.safetensors", 1, weights)
