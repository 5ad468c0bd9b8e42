"""The parts of a training as processes of their own, so that each can be killed.

The server serves the model and trains it until ``FOLDER/enough`` is there; started again it goes on. It samples in its own
process, or with a vLLM that it starts: then adapters are trained, else all weights. The client runs the agent in two worker
processes. Both leave a log in the folder.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import torch
from episodes import Asker

from lgov_core import Client
from lgov_core.models import build_tiny, load_model
from lgov_core.server.recipe import RANK, algorithm_for
from lgov_core.server.training import ServerOptions, TrainingServer
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.loop.collecting import OpenStep
from lgov_core.train.loop.policy_model import adapter_policy, full_policy
from lgov_core.train.loop.training_run import TrainingRun
from lgov_core.train.settings import TrainSettings, load_train_settings

#: All but the first are paid the same every time, so each update meets a group that is alike, and collects others.
TASKS = [
    {"say": "hello"},
    {"say": "hello", "paid": 0.0},
    {"say": "hello", "paid": 1.0},
    {"say": "one two three", "paid": 1.0},
]
GROUPS, GROUP = 2, 4
POLICY = "version: 1\nname: open\nrules:\n  - {name: everything, use: allow}\n"

#: What worker processes are given; the endpoint may be away for as long as it takes to start again.
agent = Asker(max_retries=int(os.environ.get("KILLABLE_RETRIES", "0")))


def run_agent(resource: Any, task: Any) -> Any:
    return agent(resource, task)


def prepare(folder: Path) -> None:
    """What the parts need to find."""
    torch.set_num_threads(1)
    model = build_tiny(["hello", "one two three"], seed=0, hidden=64, layers=1, heads=2, intermediate=64)
    model.save(folder / "model")
    (folder / "policy.yaml").write_text(POLICY)


def settings(folder: Path, vllm: Path | None) -> TrainSettings:
    """Of a run that ends only when it is told to; ``vllm`` is the Python of an environment with vLLM."""
    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): str(folder / "model"), ("model", "dtype"): "float32", ("model", "max_new_tokens"): 4,
        ("training", "algorithm"): "dapo", ("training", "learning_rate"): 1e-3, ("training", "max_staleness"): 0,
        ("training", "batch_size"): GROUPS, ("training", "group_size"): GROUP, ("training", "max_extra_groups"): 2,
        ("training", "epochs"): 1_000_000, ("training", "checkpoint_every"): 3, ("runtime", "max_attempts"): 12,
    }  # fmt: skip
    if vllm is not None:
        flags |= {
            ("model", "engine"): "vllm", ("vllm", "python"): vllm, ("vllm", "context_tokens"): 256,
            ("vllm", "arguments"): ["--max-num-seqs", "16"],
        }  # fmt: skip
    return load_train_settings(flags=flags, environ={})


def server(folder: Path, port: int, vllm: Path | None) -> None:
    torch.set_num_threads(1)
    stop = threading.Event()

    def wait() -> None:
        while not (folder / "enough").exists():
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    resume = (folder / "server.json").exists()
    options = ServerOptions(port=port)
    with TrainingServer(settings(folder, vllm), folder=folder, options=options, resume=resume) as running:
        running.serve(stop)


def client(folder: Path, port: int, vllm: Path | None) -> None:
    working = Client(f"http://127.0.0.1:{port}", quiet=True, patience_s=300.0)
    working.upload_data(TASKS)
    name, policy, audit = f"{Path(__file__)}:run_agent", folder / "policy.yaml", folder / "audit.sqlite"
    working.train(name, nworkers=8, workers=2, policy=policy, audit=audit)


def left(folder: Path) -> set[str]:
    """The rollouts of the update that was being collected when the run was ended."""
    return {one for path in (folder / "open").glob("step-*.jsonl") for one in OpenStep(path).rollout_ids()}


def replay(folder: Path, into: Path, vllm: Path | None) -> list[tuple[int, str]]:
    """Makes all updates of a run again from its batches alone, with nothing else of it: step and weights of each."""

    class Nowhere:
        weights_version = 0

        def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
            return version or 1

        def pause(self) -> None: ...

        def resume(self) -> None: ...

    torch.set_num_threads(1)
    into.mkdir()
    os.symlink(folder / "transitions", into / "transitions")
    module, update = load_model(folder / "model").module, algorithm_for(settings(folder, vllm)).update
    policy = full_policy(module) if vllm is None else adapter_policy(module, rank=RANK)
    learner = PolicyUpdate(policy.module, update, reference=policy.reference, reference_mode=policy.reference_mode)
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
    # What the worker processes of the client find modules by.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1] / "train"), *filter(None, sys.path)])
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["KILLABLE_RETRIES"] = "0" if vllm is None else "20"  # a vLLM takes a minute to start
    {"server": server, "client": client}[name](folder, port, vllm)
