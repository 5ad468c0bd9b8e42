"""Agents with policies of their own on one model, trained in the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.errors import SettingsError, TrainError
from lgov_core.evaluation.model import load_trained
from lgov_core.models import load_model
from lgov_core.server.local import serving
from lgov_core.server.training import TrainingServer
from lgov_core.train.loop.checkpoint import latest_checkpoint
from lgov_core.train.loop.run_files import read_metrics, train_lines
from lgov_core.train.settings import load_train_settings
from tests.pair.conftest import settings
from tests.pair.pair_agents import say

Serve = Callable[..., TrainingServer]
TASKS = [{"question": "digits please"}, {"question": "a b c"}]
BOTH = {"writer": {"agents": ["writer", "draft-*"]}, "checker": None}
ONE = {"writer": None, "checker": "frozen"}


def pair(resource: Any, task: Any) -> float:
    """A writer answers and a checker reads it; both are paid for digits."""
    draft = say(resource, "writer", task.question)
    verdict = say(resource, "checker", f"{task.question} {draft}")
    return sum(one.isdigit() for one in draft + verdict) / 8


def train(server: TrainingServer, agent: Any = pair) -> None:
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    client.train(agent)


def moved(folder: Path) -> dict[str, bool]:
    """Of each policy in the checkpoint whether it is another than the model: B is 0 at first."""
    found = latest_checkpoint(folder / "checkpoints")
    assert found is not None
    said: dict[str, bool] = {}
    for name, tensor in found.weights.items():
        if ".lora_B." in name:
            policy = name.partition(".")[0]
            said[policy] = said.get(policy, False) or bool(tensor.abs().sum())
    return said


def calls_by(server: TrainingServer) -> dict[tuple[str | None, str], set[int | None]]:
    found: dict[tuple[str | None, str], set[int | None]] = {}
    for call in server.store.calls():
        found.setdefault((call.agent, call.model), set()).add(call.weights_version)
    return found


def test_both_policies_change_in_one_step(serve: Serve, tmp_path: Path) -> None:
    server = serve(policies=BOTH, lora_rank=4, steps=2)
    train(server)
    assert moved(tmp_path / "run") == {"writer": True, "checker": True}
    assert calls_by(server) == {("writer", "writer"): {0, 1}, ("checker", "checker"): {0, 1}}
    first = train_lines(read_metrics(tmp_path / "run" / "metrics.jsonl"))[0]
    assert first["policies"]["writer"]["grad_norm"] > 0
    assert first["policies"]["checker"]["grad_norm"] > 0
    assert first["tokens"] == sum(one["tokens"] for one in first["policies"].values())
    assert first["logprob_drift"] < 1e-4, "each policy is recomputed with its own weights"


def test_a_frozen_policy_stays_what_the_model_is(serve: Serve, tmp_path: Path) -> None:
    server = serve(policies=ONE, lora_rank=4, steps=2)
    train(server)
    assert moved(tmp_path / "run") == {"writer": True}
    assert calls_by(server) == {("writer", "writer"): {0, 1}, ("checker", "checker"): {0}}
    lines = train_lines(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert all(set(line["policies"]) == {"writer"} for line in lines)
    assert all(line["turns"] == 1 for line in lines), "the checker's calls are not trained on"


def test_a_training_of_several_policies_goes_on(model_folder: Path, tmp_path: Path) -> None:
    chosen = settings(model_folder, policies=BOTH, lora_rank=4, steps=1)
    with serving(chosen, tmp_path / "run") as server:
        train(server)
    with serving(chosen, tmp_path / "run", resume=True) as server:
        assert server.updates == 1
        train(server)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines if line["phase"] == "train"] == [1, 2]
    assert [line["differing"] for line in lines if line["phase"] == "resume"] == [0]
    assert lines[-1]["logprob_drift"] < 1e-4, "what is served is what was resumed"


def test_an_agent_without_a_policy_is_refused(serve: Serve, tmp_path: Path) -> None:
    def stranger(resource: Any, task: Any) -> float:
        say(resource, "drafter", task.question)
        return 1.0

    server = serve(policies=BOTH, lora_rank=4, steps=1)
    train(server, stranger)
    (error,) = {attempt.error for attempt in server.store.attempts()}
    assert str(error).startswith("HTTPError: HTTP Error 400: Bad Request (pair_agents.py, line ")


def test_one_policy_of_a_checkpoint_is_loaded_by_name(serve: Serve, tmp_path: Path) -> None:
    train(serve(policies=BOTH, lora_rank=4, steps=1))
    with pytest.raises(TrainError, match="holds the policies checker, writer"):
        load_trained(tmp_path / "run")
    writer = load_trained(tmp_path / "run", policy="writer")
    checker = load_trained(tmp_path / "run", policy="checker")
    name = next(iter(writer.started))
    assert not writer.model.module.state_dict()[name].equal(checker.model.module.state_dict()[name])


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ({"a": "frozen", "b": "frozen"}, "all frozen"),
        ({"a.b": None}, "a.b is None"),
        ({"a": {"agent": ["x"]}}, "a is {'agent': ['x']}"),
        ({"a": {"agents": "x"}}, "a is {'agents': 'x'}"),
        ({"a": {"frozen": "yes"}}, "a is {'frozen': 'yes'}"),
        (["a"], "is ['a']"),
    ],
    ids=range(6),
)
def test_policies_that_mean_nothing(policies: Any, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_train_settings(flags={("training", "policies"): policies}, environ={})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"lora_rank": 0}, SettingsError),
        ({"lora_rank": 0, "engine": "vllm"}, SettingsError),
        ({"algorithm": "ppo"}, TrainError),
    ],
    ids=["all weights", "all weights in vllm", "a critic"],
)
def test_what_several_policies_cannot_have(serve: Serve, more: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"polic(y|ies)"):
        serve(policies=BOTH, **more)


@pytest.mark.parametrize("more", [{}, {"engine": "vllm"}])
def test_a_policy_has_another_name_than_the_model(serve: Serve, model_folder: Path, more: dict[str, Any]) -> None:
    for name in (load_model(model_folder).name, "best"):
        with pytest.raises(SettingsError, match=f"the policy '{name}' has the name of the model itself"):
            serve(policies={name: BOTH["writer"]}, lora_rank=4, served_as="best", **more)
