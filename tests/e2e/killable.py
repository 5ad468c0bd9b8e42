"""The parts of a training run as processes of their own, so that each can be killed.

The endpoint serves the model with the newest weights in ``FOLDER/served``, and takes newer ones as they come; it samples in
its own process, or with a vLLM that it starts. The trainer trains until ``FOLDER/enough`` is there, with two workers; started
again it goes on. With vLLM adapters are trained, else all weights. Both leave a log in the folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import torch

from lgov_core._util.atomic_file import atomic_write
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel, build_tiny, load_model
from lgov_core.store import open_store
from lgov_core.train.algorithms.config import UpdateConfig
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.engines.vllm_engine import open_vllm
from lgov_core.train.engines.vllm_options import VllmOptions
from lgov_core.train.loop.agents import adapter_policy
from lgov_core.train.loop.checkpoint import load_weights, save_weights
from lgov_core.train.loop.loop import Task, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel, full_policy
from lgov_core.train.loop.training_run import Publisher, TrainingRun
from lgov_core.train.workers.jobs import JobResult, WorkerConfig
from lgov_core.train.workers.pool import WorkerPool

#: The second is paid the same every time, so that other groups are collected in its place: one such first, then another.
TASKS = [Task("hello", {"say": "hello"}), Task("lost", {"say": "hello", "paid": 0.0})]
FURTHER = [Task("won", {"say": "hello", "paid": 1.0}), Task("count", {"say": "one two three"})]
GROUP = 4
RANK = 8
POLICY = "version: 1\nname: open\nrules:\n  - {name: everything, use: allow}\n"


def prepare(folder: Path) -> None:
    """What both processes need to find."""
    torch.set_num_threads(1)
    model = build_tiny(["hello", "one two three"], seed=0, hidden=64, layers=1, heads=2, intermediate=64)
    model.save(folder / "model")
    (folder / "served").mkdir()
    (folder / "policy.yaml").write_text(POLICY)


def learning(model: LanguageModel, vllm: Path | None) -> tuple[PolicyModel, PolicyUpdate]:
    policy = full_policy(model.module) if vllm is None else adapter_policy(model.module, rank=RANK)
    config = UpdateConfig(learning_rate=1e-3)
    learner = PolicyUpdate(policy.module, config, reference=policy.reference, reference_mode=policy.reference_mode)
    return policy, learner


@contextlib.contextmanager
def sampling(folder: Path, vllm: Path | None) -> Generator[tuple[Engine, Publisher]]:
    """What answers calls, and what takes its weights; ``vllm`` is the Python of an environment with vLLM."""
    model = load_model(folder / "model")
    if vllm is None:
        engine = EmbeddedEngine(model, max_new_tokens=4, threads=1)
        yield engine, engine
        return
    options = VllmOptions(vllm, context_tokens=256, rank=RANK, cpu=True, arguments=("--max-num-seqs", "16"))
    with open_vllm(model, str(folder / "model"), folder / "vllm", options, max_new_tokens=4) as engine:
        yield engine, engine.policy


class ServedFolder:
    """Publishes through a folder that the endpoint watches: an endpoint that was killed finds there what it has to serve."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def weights_version(self) -> int:
        return max(versions(self.folder), default=0)

    def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        chosen = self.weights_version + 1 if version is None else version
        save_weights(self.folder, chosen, {name: value.contiguous() for name, value in state_dict.items()})
        while serving(self.folder) < chosen:
            time.sleep(0.05)
        return chosen


def versions(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("version-")) for path in folder.glob("version-*.safetensors"))


def serving(folder: Path) -> int:
    """The version that the endpoint said it serves; one that is started again never serves less."""
    said = folder / "now"
    return int(said.read_text()) if said.exists() else 0


def endpoint(folder: Path, port: int, vllm: Path | None) -> None:
    torch.set_num_threads(1)
    with closing(open_store(str(folder / "store.sqlite"))) as store, sampling(folder, vllm) as (engine, publisher):
        take_newest(folder / "served", publisher)  # before a call can be made with older ones
        with EndpointServer([engine], store, port=port):
            while True:
                take_newest(folder / "served", publisher)
                time.sleep(0.02)


def take_newest(served: Path, publisher: Publisher) -> None:
    newest = max(versions(served), default=0)
    if newest > publisher.weights_version:
        publisher.publish(load_weights(served, newest) or {}, newest)
        atomic_write(served / "now", str(newest).encode())


def trainer(folder: Path, port: int, vllm: Path | None) -> None:
    torch.set_num_threads(1)
    policy, learner = learning(load_model(folder / "model"), vllm)
    config = WorkerConfig(
        factory="episodes:make_asker",
        options={"max_retries": 0 if vllm is None else 20},  # a vLLM takes a minute to start, with the endpoint
        policy=str(folder / "policy.yaml"),
        audit=str(folder / "audit.sqlite"),
        store=str(folder / "store.sqlite"),
        endpoint=f"http://127.0.0.1:{port}/v1",
    )
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        store.fail_open_attempts("the trainer was killed")
        options: dict[str, Any] = {"workers": 2, "max_attempts": 6, "retry_delay_s": 0.5, "log_dir": folder / "logs"}
        with WorkerPool(config, store, **options) as pool:
            loop = TrainingLoop(
                run_id="run",
                policy=policy,
                learner=learner,
                engine=ServedFolder(folder / "served"),
                store=store,
                pool=pool,
                folder=folder,
                checkpoint_every=3,
                max_extra_groups=len(FURTHER),
            )
            loop.resume()
            while not (folder / "enough").exists():
                loop.iterate(TASKS, GROUP, figures=_figures, further=FURTHER)
            loop.checkpoint()


def _figures(results: Any) -> dict[str, Any]:
    given: list[JobResult] = list(results)
    return {"attempts": sum(result.job.attempt for result in given)}


def replay(folder: Path, into: Path, vllm: Path | None) -> list[tuple[int, str]]:
    """Makes all updates of a run again from its batches alone, with nothing else of it: step and weights of each."""

    class Nowhere:
        weights_version = 0

        def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
            return version or 1

    torch.set_num_threads(1)
    into.mkdir()
    os.symlink(folder / "transitions", into / "transitions")
    policy, learner = learning(load_model(folder / "model"), vllm)
    run = TrainingRun(run_id="run", policy=policy, learner=learner, engine=Nowhere(), folder=into)
    run.resume()
    lines = run.metrics.lines()
    return [(line["step"], line["weights_sha256"]) for line in lines if line["phase"] == "train"]


def run(name: str, folder: Path, port: int, vllm: Path | None) -> None:
    """The whole life of a part, in a process of its own."""
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for variable in [one for one in os.environ if one.startswith(("OPENAI_", "LGOV_", "PYTEST"))]:
        del os.environ[variable]
    # What the workers that the trainer starts find modules by.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1] / "train"), *filter(None, sys.path)])
    os.environ["OMP_NUM_THREADS"] = "1"
    {"endpoint": endpoint, "trainer": trainer}[name](folder, port, vllm)
