"""A training whose calls a vLLM answers (one that follows its protocol): what it publishes, records and counts."""

from __future__ import annotations

import errno
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from lgov_core import Client
from lgov_core._util import files as atomic_file
from lgov_core._util.files import sync_file
from lgov_core.errors import LgovError, SettingsError
from lgov_core.models import load_model
from lgov_core.server.local import serving
from lgov_core.store import open_store
from lgov_core.train.loop.run_files import read_metrics, train_lines
from lgov_core.train.settings import TrainSettings, load_train_settings
from tests.pair.conftest import settings
from tests.pair.pair_agents import ask, say
from tests.train.fake_vllm import environment_of

TASKS = [{"question": "digits 1"}, {"question": "digits 2"}]


def with_vllm(model: Path, python: Path, rank: int = 4, **more: Any) -> TrainSettings:
    found = settings(model, **{"steps": 3, "learning_rate": 1e-3, **more})
    return found.with_values("model", engine="vllm", lora_rank=rank).with_values("vllm", python=python)


def unequal(resource: Any, task: Any) -> float:
    """A reward that depends on the rollout alone."""
    ask(resource, task.question)
    return float(sum(map(ord, resource.rollout_id)) % 3)


def test_every_update_is_a_version_that_calls_are_answered_with(model_folder: Path, tmp_path: Path) -> None:
    given = with_vllm(model_folder, environment_of(tmp_path))
    with serving(given, tmp_path / "run") as server:
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        result = client.train(unequal, nworkers=2, workers="threads")
        assert result.updates == 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["weights_version"] for line in lines if line["phase"] == "train"] == [1, 2, 3]
    assert {(line["vllm_restarts"], line["vllm_calls_lost"]) for line in lines if line["phase"] == "train"} == {(0, 0)}
    store = open_store(tmp_path / "run" / "store.sqlite")
    calls = list(store.calls())
    store.close()
    assert len(calls) == 24
    assert {call.engine for call in calls} == {"vllm"}
    assert {call.weights_version for call in calls} <= {0, 1, 2}, "at most one version behind"
    assert 0 in {call.weights_version for call in calls}
    asked = [line.split(" ")[1] for line in (tmp_path / "log").read_text().splitlines() if line.startswith("call")]
    for call, name in zip(sorted(calls, key=lambda one: one.started_at), asked, strict=True):
        assert name.endswith(f"@{call.weights_version}") or not call.weights_version


def pair(resource: Any, task: Any) -> float:
    say(resource, "checker", say(resource, "writer", task.question))
    return unequal(resource, task)


@pytest.mark.parametrize("frozen", [False, True], ids=["both learn", "one is frozen"])
def test_policies_have_adapters_of_their_own(model_folder: Path, tmp_path: Path, frozen: bool) -> None:
    policies = {"writer": None, "checker": "frozen" if frozen else None}
    given = with_vllm(model_folder, environment_of(tmp_path), policies=policies, steps=2, max_staleness=0)
    with serving(given, tmp_path / "run") as server:
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        assert client.train(pair, nworkers=2, workers="threads").updates == 2
        calls = list(server.store.calls())
    learned = {"writer"} if frozen else {"writer", "checker"}
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["policies"].keys() == learned for line in lines if line["phase"] == "train")
    log = (tmp_path / "log").read_text().splitlines()
    loads = Counter(line.split(" ")[1].partition("-")[0] for line in log if line.startswith("load"))
    assert loads == dict.fromkeys(learned, 2)
    found = {(call.agent, call.model, call.weights_version) for call in calls}
    assert found == {(name, name, number) for name in policies for number in (0, *((1,) if name in learned else ()))}
    asked = {re.sub("-[0-9a-f]{8}", "", line.split(" ")[1]) for line in log if line.startswith("call")}
    assert {name for name in asked if "@" in name} == {f"{name}@1" for name in learned}
    arguments = json.loads((tmp_path / "arguments").read_text())
    assert arguments[arguments.index("--max-loras") + 1] == str(2 * len(learned))


def test_all_weights_are_trained_and_vllm_sleeps_meanwhile(model_folder: Path, tmp_path: Path) -> None:
    given = with_vllm(model_folder, environment_of(tmp_path), rank=0, steps=2).with_values("vllm", sleep=True)
    assert given.max_staleness == 0
    with serving(given, tmp_path / "run") as server:
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        assert client.train(unequal, nworkers=2, workers="threads").updates == 2
        assert sorted(call.weights_version or 0 for call in server.store.calls()) == [0] * 8 + [1] * 8
    log = (tmp_path / "log").read_text().splitlines()
    controls = [line for line in log if line.startswith("/")]
    assert controls == ["/sleep?level=1", "/wake_up", "/pause?mode=wait", "/collective_rpc", "/resume"] * 2
    assert "--enable-lora" not in json.loads((tmp_path / "arguments").read_text())
    (published,) = (tmp_path / "run" / "all_weights").iterdir()
    assert load_file(published / "model.safetensors").keys() == load_model(model_folder).module.state_dict().keys()


def test_a_full_disk_fails_the_run_and_a_resume_makes_the_update_again(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        if path.parent.name == ".2.partial":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync_file(path)

    given = with_vllm(model_folder, environment_of(tmp_path), max_staleness=0)
    with serving(given, tmp_path / "run") as server, monkeypatch.context() as patched:
        patched.setattr(atomic_file, "sync_file", full)
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        with pytest.raises(LgovError, match=r"version 2 cannot be written to .*No space left"):
            client.train(unequal, nworkers=2, workers="threads")
        with pytest.raises(LgovError, match="update 2 was interrupted"):
            client.train(unequal, nworkers=2, workers="threads")
        versions = [call.weights_version for call in sorted(server.store.calls(), key=lambda one: one.started_at)]
        assert versions == [0] * 8 + [1] * 16, "the version before is still served"
    assert train_steps(tmp_path) == [1]
    with serving(given, tmp_path / "run", resume=True) as server:
        assert server.updates == 2, "made again from its batch"
        client = Client(server.url, quiet=True)
        client.upload_data(TASKS)
        assert client.train(unequal, nworkers=2, workers="threads").updates > 0
    steps = train_steps(tmp_path)
    assert steps == [*range(1, len(steps) + 1)]
    assert len(steps) >= 3


def train_steps(folder: Path) -> list[int]:
    return [line["step"] for line in train_lines(read_metrics(folder / "run" / "metrics.jsonl"))]


def test_settings_that_do_not_go_together_are_refused(model_folder: Path, tmp_path: Path) -> None:
    python = environment_of(tmp_path)
    attached = with_vllm(model_folder, python, rank=0).with_values("model", engine_url="http://127.0.0.1:1")
    with (
        pytest.raises(SettingsError, match=r"all weights .* are published to a vLLM that lgov starts"),
        serving(attached, tmp_path / "run"),
    ):
        pass
    embedded = settings(model_folder).with_values("model", engine_url="http://127.0.0.1:1")
    with pytest.raises(SettingsError, match=r"model.engine_url is given"), serving(embedded, tmp_path / "other"):
        pass


@pytest.mark.parametrize(
    ("flags", "staleness"),
    [({}, 0), ({("model", "engine"): "vllm"}, 1), ({("model", "engine"): "vllm", ("training", "max_staleness"): 0}, 0)],
)
def test_with_vllm_rollouts_go_on_while_the_model_is_updated(flags: Any, staleness: int) -> None:
    assert load_train_settings(flags=flags, environ={}).max_staleness == staleness
