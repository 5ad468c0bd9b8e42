"""One seed of a setting: warm start, fixed tasks, gate, updates, the same fixed tasks again; everything governed."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lgov_core
from lgov_core import Client
from lgov_core.demo.report import Recorded
from lgov_core.demo.run import Display
from lgov_core.errors import TrainError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.models import load_model
from lgov_core.server.local import serving
from lgov_core.server.recipe import RANK
from lgov_core.server.training import TrainingServer
from lgov_core.store import TraceStore, open_store
from lgov_core.train.algorithms.algorithms import algorithm
from lgov_core.train.loop.checkpoint import find_checkpoint, read_checkpoint
from lgov_core.train.loop.policy_model import full_policy, lora_policy
from lgov_core.train.loop.run_files import read_metrics
from lgov_core.train.settings import TrainSettings, load_train_settings
from lgov_core.transitions import CreditRules
from lgov_core.types import Attempt
from settings.episodes import SHAPED
from settings.measure import gate, gate_text, measure
from settings.plan import Plan
from settings.setting import HERE, Setting, World
from settings.warm import warm_model

#: Under this name the endpoint serves the weights that a run began with, to agents that are not trained.
FROZEN = "frozen"
#: Parts of the library, beside the setting itself, on which a warm start depends.
_LIBRARY = tuple(
    Path(lgov_core.__path__[0]) / name
    for name in ("models", "train/algorithms", "train/layout", "train/loop/policy_model.py")
)


class GateError(Exception):
    """The warm start is not good enough to train on."""


def run_seed(setting: Setting, plan: Plan, seed: int, folder: Path, display: Display, options: Any) -> dict[str, Any]:
    """Runs one seed to its end and returns its figures as JSON values. ``folder`` keeps the store and the audit record.

    A run that was interrupted in ``folder`` is continued: its seconds are then those of the last part. Raises `GateError`
    where the plan is gated and the warm start does not pass.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "begun.txt").open("a") as begun:
        begun.write(f"{time.time():.0f}\n")
    torch.set_num_threads(plan.threads)
    # The worker processes import the episodes from here; the agents are imported by those.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    os.environ[SHAPED] = str(int(plan.shaped))
    world = setting.make_world(folder, seed, {**options, "frozen_model": FROZEN})
    sources = (Path(inspect.getfile(setting.make_world)).parent, HERE / "setting.py", HERE / "warm.py", *_LIBRARY)
    with display.stage(f"{setting.name} warm start", plan.warm_steps) as stage:
        warm, spent = warm_model(
            world, plan, folder.parent, sources, lambda step, _steps, loss: stage.to(step, f"loss {loss:.2f}")
        )
    began, cpu_began = time.monotonic(), _cpu_seconds()
    session = _Session(setting, world, plan, seed, folder, display)
    session.train(warm)
    with contextlib.closing(open_store(str(folder / "store.sqlite"))) as store:
        figures, calls = session.figures(store), _calls(store)
    return {
        "seed": seed,
        **figures,
        "calls": calls,
        "trained_transitions": _trained(folder),
        "interruptions": len((folder / "begun.txt").read_text().splitlines()) - 1,
        "largest_weight_change": _largest_change(warm, plan, seed, folder),
        "warm_start": spent,
        "seconds": round(time.monotonic() - began + spent["seconds"], 1),
        "cpu_seconds": round(_cpu_seconds() - cpu_began + spent["cpu_seconds"], 1),
    }


#: What is kept of the metrics of each update.
_KEPT = (
    *("rows", "tokens", "kl", "entropy", "clip_fraction", "logprob_drift", "moved", "grad_norm", "steps"),
    *("groups", "groups_informative", "groups_alike", "groups_replaced", "note", "diagnostics"),
)


class _Session:
    """One seed: a training server, a client that runs the agents for it, and the figures of what they left."""

    def __init__(self, setting: Setting, world: World, plan: Plan, seed: int, folder: Path, display: Display) -> None:
        self.setting, self.world, self.plan, self.seed = setting, world, plan, seed
        self.folder, self.display = folder, display
        #: The fixed tasks of each split, every one as often as it has rollouts: the same before training and after it.
        self.fixed = [
            {"split": split, "number": number, **self._task(work)}
            for split in ("train", *plan.judged)
            for number, work in enumerate(self._fixed_work(split))
            for _ in range(plan.fixed_group if split == "train" else plan.held_out_group)
        ]

    def train(self, warm: Path) -> None:
        """Serves the model of ``warm`` and runs the agents until it is trained."""
        plan = self.plan
        chosen = replace(algorithm("grpo"), credit=CreditRules(), update=plan.update)
        engines = [_frozen(warm, plan, self.seed)] if self.setting.frozen else []
        resume = (self.folder / "server.json").exists()
        with serving(self._settings(warm), self.folder, resume=resume, algorithm=chosen, engines=engines) as server:
            if server.is_complete:
                return
            client = Client(server.url, exit_on_interrupt=False)
            if not server.coordinator.tasks.of("train"):
                client.upload_data([self._task(work) for work in self._training_work()], self.fixed)
            with self._gate(server) as passed:
                try:
                    client.train(
                        self.setting.agent,
                        nworkers=plan.concurrency,
                        workers=1,
                        policy=self.setting.policy,
                        audit=self.folder / "audit.sqlite",
                    )
                except TrainError:
                    if passed():
                        raise
                    raise GateError(
                        f"{self.setting.name}: the warm start is not good enough: change its plan or log"
                    ) from None

    def figures(self, store: TraceStore) -> dict[str, Any]:
        """What the store and the metrics say of the run."""
        recorded = Recorded(self.folder, store, evaluated=len(self.fixed))
        lines = [line for line in read_metrics(self.folder / "metrics.jsonl") if line["phase"] == "train"]
        training: list[dict[str, Any]] = []
        for line in lines:
            found = measure(recorded.batch(line["step"]))
            del found["scores"]  # of other tasks at each update: they are compared with nothing
            training.append({"updates": line["step"], **found, **{name: line[name] for name in _KEPT if name in line}})
        before = self._by_split(recorded, 0)
        return {"gate": gate(before), "before": before, "training": training, "after": self._by_split(recorded, -1)}

    def _by_split(self, recorded: Recorded, number: int) -> dict[str, dict[str, Any]]:
        attempts: dict[str, list[Attempt]] = {}
        for task, attempt in zip(self.fixed, recorded.evaluations[number], strict=True):
            if attempt is not None:
                name = f"{task['split']}-{task['number']}"
                attempts.setdefault(task["split"], []).append(replace(attempt, task_id=name))
        return {split: measure(found) for split, found in attempts.items()}

    @contextlib.contextmanager
    def _gate(self, server: TrainingServer) -> Generator[Callable[[], bool]]:
        """Stops a training whose warm start does not pass, once the fixed tasks were run; says whether it passed."""
        over = threading.Event()
        passed = [True]

        def watch() -> None:
            while not over.wait(1.0):
                recorded = Recorded(self.folder, server.store, evaluated=len(self.fixed))
                if recorded.evaluations and all(one and one.outcome for one in recorded.evaluations[0]):
                    before = self._by_split(recorded, 0)
                    said = gate(before)
                    self.display.say(f"{self.setting.name}, seed {self.seed}, {gate_text(said, before)}")
                    if self.plan.gated and not said["passed"]:
                        passed[0] = False
                        Client(server.url, quiet=True).stop()
                    return

        thread = threading.Thread(target=watch, name="evidence-gate", daemon=True)
        thread.start()
        try:
            yield lambda: passed[0]
        finally:
            over.set()
            thread.join()

    def _settings(self, warm: Path) -> TrainSettings:
        plan = self.plan
        flags: dict[tuple[str, str], Any] = {
            ("model", "name"): str(warm.resolve()),
            ("model", "dtype"): "float32",
            ("model", "tool_format"): "compact",
            ("model", "lora_rank"): 0 if plan.model == "tiny" else RANK,
            ("model", "max_batch"): plan.max_batch,
            ("model", "max_new_tokens"): plan.max_new_tokens,
            ("training", "steps"): plan.updates,
            ("training", "batch_size"): plan.tasks,
            ("training", "group_size"): plan.group,
            ("training", "checkpoint_every"): plan.updates,
            ("training", "agents"): list(self.setting.trained),
            ("training", "seed"): self.seed,
            ("runtime", "timeout_s"): 600.0,
            ("runtime", "policy"): self.setting.policy,
        }
        return load_train_settings(flags=flags, environ={})

    def _task(self, work: Mapping[str, Any]) -> dict[str, Any]:
        return {"work": dict(work), "options": dict(self.world.options)}

    def _training_work(self) -> list[Mapping[str, Any]]:
        """The tasks of all updates, each in one of them."""
        chances = (random.Random(f"{self.seed}/{update}") for update in range(self.plan.updates))
        return [self.world.draw_task(chance, "train") for chance in chances for _ in range(self.plan.tasks)]

    def _fixed_work(self, split: str) -> list[Mapping[str, Any]]:
        count = self.plan.fixed_tasks if split == "train" else self.plan.held_out_tasks
        return _different_tasks(self.world, random.Random(f"fixed/{split}/{self.seed}"), split, count)


def _different_tasks(world: World, chance: random.Random, split: str, count: int) -> list[Mapping[str, Any]]:
    """``count`` tasks, each once; as many as there are where there are fewer. A repeat would be counted as another task."""
    found: dict[str, Mapping[str, Any]] = {}
    for _ in range(20 * count):
        task = world.draw_task(chance, split)
        found.setdefault(json.dumps(task, sort_keys=True), task)
        if len(found) == count:
            break
    return list(found.values())


def _frozen(warm: Path, plan: Plan, seed: int) -> EmbeddedEngine:
    """The weights that a run begins with, under a name of their own; nobody publishes to it."""
    model = replace(load_model(str(warm), dtype="float32", tool_format="compact"), name=FROZEN)
    engine = EmbeddedEngine(model, max_batch=plan.max_batch, max_new_tokens=plan.max_new_tokens, seed=seed)
    engine.name = FROZEN
    return engine


def _calls(store: Any) -> dict[str, Any]:
    """Recorded calls by agent: how many, of which models, and how many versions of the weights answered them."""
    counts: Counter[str] = Counter()
    models: dict[str, set[str]] = {}
    versions: dict[str, set[int | None]] = {}
    for one in store.calls():
        agent = str(one.agent)
        counts[agent] += 1
        models.setdefault(agent, set()).add(one.model)
        versions.setdefault(agent, set()).add(one.weights_version)
    return {
        agent: {"calls": counts[agent], "models": sorted(models[agent]), "weights_versions": len(versions[agent])}
        for agent in sorted(counts)
    }


def _trained(folder: Path) -> dict[str, int]:
    """The transitions that the updates were made on, by agent."""
    import pyarrow.parquet as parquet

    counts: Counter[str] = Counter()
    for path in sorted((folder / "transitions").glob("step-*.parquet")):
        counts.update(str(name) for name in parquet.read_table(path, columns=["agent"]).column("agent").to_pylist())
    return dict(counts)


def _largest_change(warm: Path, plan: Plan, seed: int, folder: Path) -> float:
    """The largest change of a trained weight."""
    module = load_model(str(warm), dtype="float32").module
    policy = full_policy(module) if plan.model == "tiny" else lora_policy(module, rank=RANK, seed=seed)
    first, last = policy.weights(), read_checkpoint(find_checkpoint(folder)).weights
    return max(float((value - first[name]).abs().max()) for name, value in last.items())


def _cpu_seconds() -> float:
    """What this process and its ended children have used so far."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
