"""What verl's task runner serves to clients, and what the settings of a run become for verl. No verl is needed."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pair_agents
import pytest
import torch

from lgov_core.client import Client
from lgov_core.client.wire import PROTOCOL, PROTOCOL_HEADER
from lgov_core.errors import SettingsError, TrainError
from lgov_core.gateway.protocol import ANY_MODEL
from lgov_core.gateway.token_engine import Generated, TokenEngine, TokenPrompt
from lgov_core.integrations.verl.job import VerlJob
from lgov_core.integrations.verl.training import CoordinatorHost, coordinator_options, keep_tasks, verl_job
from lgov_core.models import LanguageModel, load_model
from lgov_core.server.recipe import algorithm_for
from lgov_core.store import open_store
from lgov_core.train.loop.run_files import MetricsLog
from lgov_core.train.settings import TrainSettings, load_train_settings
from lgov_core.types import Rollout


class Weights:
    """A server of tokens on a real model, as verl's are: it knows the version of its weights."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.version = 0
        self.random = torch.Generator().manual_seed(0)

    async def __call__(self, prompt: TokenPrompt) -> Generated:
        ids, logprobs = list(prompt.prompt_ids), []
        for _ in range(prompt.max_tokens):
            with torch.no_grad():
                row = self.model.module(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(row.exp(), 1, generator=self.random)))
            logprobs.append(float(row[ids[-1]]))
            if ids[-1] in self.model.eos_ids:
                break
        return Generated(tuple(ids[len(prompt.prompt_ids) :]), tuple(logprobs), self.version)


@pytest.fixture
def weights(model_folder: Path) -> Weights:
    torch.set_num_threads(1)
    return Weights(load_model(model_folder))


@pytest.fixture
def host(model_folder: Path, weights: Weights, tmp_path: Path) -> Iterator[CoordinatorHost]:
    hosted = coordinator_options(host="127.0.0.1", port=0, algorithm="grpo", timeout_s=60.0, max_attempts=2)
    job = VerlJob(
        run_id="run", folder=tmp_path, model=str(model_folder), store=str(tmp_path / "store.sqlite"), steps=2, **hosted
    )
    keep_tasks(tmp_path, [{"question": "digits please"}])
    text = load_model(model_folder, weights=False)
    with contextlib.closing(open_store(job.store)) as store:
        made = CoordinatorHost(job, TokenEngine(text, weights, also=(ANY_MODEL,), max_new_tokens=4), store)
        assert isinstance(made, CoordinatorHost)
        with contextlib.closing(made):
            yield made


def rollouts(step: int) -> list[Rollout]:
    given: Any = {"task": {"question": "digits please"}, "mode": "train"}
    return [Rollout(f"ro-{step}-{number}", f"task-{number % 2}", "run", given) for number in range(4)]


def test_a_client_runs_what_verl_asks_for_and_is_told_when_it_is_done(
    host: CoordinatorHost, weights: Weights, tmp_path: Path
) -> None:
    results: dict[str, Any] = {}

    def client() -> None:
        mine = Client(host.url, quiet=True)
        try:
            results["client"] = mine.train(pair_agents.digits, nworkers=2)
        except BaseException:
            mine.stop()  # or the test would wait for it
            raise

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    for step in (1, 2):
        found = host.collect_rollouts(rollouts(step))
        assert [result.rollout_id for result in found] == [one.rollout_id for one in rollouts(step)]
        assert [(result.outcome.trainable, result.error) for result in found] == [(True, None)] * 4
        weights.version += 1
        host.report({"phase": "train", "step": step, "reward": step / 10})
    thread.join(timeout=60)
    assert results["client"].curves["reward"] == [0.1, 0.2]
    with contextlib.closing(open_store(str(tmp_path / "store.sqlite"))) as store:
        versions = {call.rollout_id: call.weights_version for call in store.calls()}
    assert versions == {one.rollout_id: step - 1 for step in (1, 2) for one in rollouts(step)}


def test_a_client_can_stop_the_job(host: CoordinatorHost) -> None:
    def stop(done: int, total: int) -> None:
        Client(host.url, quiet=True).stop()

    with pytest.raises(TrainError, match="a client asked for the training to stop"):
        host.collect_rollouts(rollouts(1), stop)


def progress(host: CoordinatorHost) -> dict[str, Any]:
    asked = urllib.request.Request(f"{host.url}/train/progress?after=0", headers={PROTOCOL_HEADER: str(PROTOCOL)})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def test_a_job_that_goes_on_tells_its_earlier_figures_once(
    host: CoordinatorHost, model_folder: Path, tmp_path: Path
) -> None:
    """Killed with step 1 acknowledged; step 1 is made again, its figures are told again, and nobody reads them twice."""
    first = progress(host)
    host.close()
    MetricsLog(tmp_path / "metrics.jsonl").add("train", 1, {"reward": 0.25})
    hosted = coordinator_options(host="127.0.0.1", port=0, algorithm="grpo", timeout_s=60.0, max_attempts=2)
    job = VerlJob(
        run_id="run", folder=tmp_path, model=str(model_folder), store=str(tmp_path / "store.sqlite"), steps=2, **hosted
    )
    text = load_model(model_folder, weights=False)
    with contextlib.closing(open_store(job.store)) as store:
        again = CoordinatorHost(job, TokenEngine(text, Weights(text), also=(ANY_MODEL,), max_new_tokens=4), store)
        with contextlib.closing(again):
            for step in (1, 2):
                again.report({"phase": "train", "step": step, "reward": 0.25 * step})
            found = progress(again)
    assert [line["reward"] for line in found["metrics"]] == [0.25, 0.5]
    assert (found["run"], found["state"]) == (first["run"], "done"), "who waited for the run finds it again"


# ---------------------------------------------------------------------- settings


def settings(text: str, folder: Path) -> TrainSettings:
    path = folder / "config.yaml"
    path.write_text(text)
    return load_train_settings(path, flags={("model", "name"): str(folder)}, environ={})


def made(text: str, folder: Path, tasks: int = 100) -> VerlJob:
    return verl_job(settings(text, folder), run_id="run", folder=folder, tasks=tasks, port=4321)


def test_the_settings_of_a_run_become_a_job(tmp_path: Path) -> None:
    job = made(
        """
model: {max_new_tokens: 100, lora_rank: 8}
training: {algorithm: grpo, batch_size: 30, group_size: 4, epochs: 2, learning_rate: 3e-5, kl_coef: 0.1, agents: [writer]}
runtime: {timeout_s: 50, max_attempts: 5}
verl:
  nodes: 2
  gpus: 4
  tensor_parallel: 2
  context_tokens: 2000
  mini_batches: 3
  max_ratio_weight: null
  listen: 0.0.0.0:8321
  key_secret_file: /run/secret
  overrides: ["trainer.logger=[console]"]
""",
        tmp_path,
    )
    assert (job.tasks_per_step, job.group, job.steps) == (30, 4, 6), "2 passes over 100 tasks, 3 whole batches each"
    assert (job.reply_tokens, job.verl.context_tokens, job.agents) == (100, 2000, ("writer",))
    assert (job.update.learning_rate, job.update.kl, job.update.lora_rank) == (3e-5, 0.1, 8)
    assert (job.verl.mini_batches, job.verl.max_ratio_weight, job.update.loss) == (3, None, "clip")
    assert (job.verl.nodes, job.verl.gpus, job.verl.tensor_parallel) == (2, 4, 2)
    assert job.credit == algorithm_for(settings("training: {algorithm: grpo}", tmp_path)).credit, (
        "credit is the algorithm's, as with every other backend"
    )
    assert (job.options["host"], job.options["port"]) == ("0.0.0.0", 8321)
    assert job.options["key_secret_file"] == "/run/secret"
    assert (job.options["timeout_s"], job.options["max_attempts"]) == (50.0, 5)
    assert job.verl.overrides == ("trainer.logger=[console]",)
    assert job.model == str(tmp_path.resolve())
    assert VerlJob.from_dict(job.as_dict()) == job


def test_left_to_themselves(tmp_path: Path) -> None:
    job = made("training: {algorithm: rloo}", tmp_path, tasks=20)
    assert (job.tasks_per_step, job.steps) == (20, 1), "a batch is never larger than the tasks"
    assert (job.options["host"], job.options["port"]) == ("127.0.0.1", 4321)
    assert (job.update.loss, job.update.epochs, job.update.learning_rate) == ("plain", 1, 1e-6)
    assert made("training: {algorithm: gspo}", tmp_path).update.loss == "gspo"
    assert made("training: {algorithm: cispo}", tmp_path).update.loss == "cispo"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("verl: {gpu: 2}", r"there is no setting verl.gpu \(did you mean gpus\?\)"),
        ("verl: {gpus: two}", "verl.gpus must be a whole number at least 1, not 'two'"),
        ("verl: {offload: 1}", "verl.offload must be true or false, not 1"),
        ("verl: {overrides: [1]}", "verl.overrides must be a list of texts, not .1."),
        ("verl: {listen: '0.0.0.0:8321'}", "0.0.0.0 can be reached from other machines and no keys"),
        ("verl: {listen: anywhere}", "verl.listen is 'anywhere'"),
        ("training: {algorithm: ppo}", "ppo trains a critic"),
        ("training: {algorithm: rloo, update_epochs: 2}", "rloo makes one step an update"),
        ("training: {max_staleness: 1}", "on verl each step waits for its rollouts"),
        ("training: {max_extra_groups: 4}", "on verl no groups are collected in place of alike ones"),
    ],
)
def test_what_verl_is_not_asked_for(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=says):
        made(text, tmp_path)
