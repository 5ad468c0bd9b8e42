"""One seed of a setting: warm start, fixed tasks, gate, updates, the same fixed tasks again; everything governed."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import lgov_core
from lgov_core.demo.progress import Display
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel
from lgov_core.reward import AirRules
from lgov_core.store import open_store
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.loop.loop import Task, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel, full_policy, lora_policy
from lgov_core.train.workers.jobs import WorkerConfig
from lgov_core.train.workers.pool import WorkerPool
from lgov_core.transitions import Selection
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

    Raises `GateError` where the plan is gated and the warm start does not pass.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(plan.threads)
    # The workers import the episodes from here; the agents are imported by those.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    world = setting.make_world(folder, seed, {**options, "model": plan.model, "frozen_model": FROZEN})
    sources = (Path(inspect.getfile(setting.make_world)).parent, HERE / "setting.py", HERE / "warm.py", *_LIBRARY)
    with display.stage(f"{setting.name} warm start", plan.warm_steps) as stage:
        model, spent = warm_model(
            world, plan, folder.parent, sources, lambda step, _steps, loss: stage.to(step, f"loss {loss:.2f}")
        )
    began, cpu_began = time.monotonic(), _cpu_seconds()
    policy = full_policy(model.module) if plan.model == "tiny" else lora_policy(model.module, rank=16, seed=seed)
    first = policy.weights()
    engine = EmbeddedEngine(model, max_batch=plan.max_batch, max_new_tokens=plan.max_new_tokens, seed=seed)
    engines = [engine]
    if setting.frozen:
        engines.append(_frozen(model, plan, seed))
    with contextlib.closing(open_store(str(folder / "store.sqlite"))) as store:
        with EndpointServer(engines, store) as server:
            config = WorkerConfig(
                factory=setting.factory,
                options=world.options,
                policy=str(setting.policy),
                audit=str(folder / "audit.sqlite"),
                store=str(folder / "store.sqlite"),
                endpoint=f"{server.url}/v1",
                air=asdict(AirRules(shaped=plan.shaped)),
                timeout_s=600.0,
            )
            with WorkerPool(config, store, concurrency=plan.concurrency, log_dir=folder / "logs") as pool:
                loop = TrainingLoop(
                    run_id=f"{setting.name}-seed{seed}",
                    policy=policy,
                    learner=PolicyUpdate(
                        policy.module, plan.update, reference=policy.reference, reference_mode=policy.reference_mode
                    ),
                    engine=engine,
                    store=store,
                    pool=pool,
                    folder=folder,
                    selection=Selection(agents=setting.trained),
                    checkpoint_every=plan.updates,
                )
                figures = _Session(setting, world, plan, seed, loop, display).run()
        calls = _calls(store)
    return {
        "seed": seed,
        **figures,
        "calls": calls,
        "trained_transitions": _trained(folder),
        "largest_weight_change": _largest_change(first, policy),
        "warm_start": spent,
        "seconds": round(time.monotonic() - began + spent["seconds"], 1),
        "cpu_seconds": round(_cpu_seconds() - cpu_began + spent["cpu_seconds"], 1),
    }


#: What is kept of the metrics of each update.
_KEPT = ("rows", "tokens", "kl", "entropy", "clip_fraction", "logprob_drift", "moved", "grad_norm", "steps")


class _Session:
    """The part of a run in which everything is up."""

    def __init__(
        self, setting: Setting, world: World, plan: Plan, seed: int, loop: TrainingLoop, display: Display
    ) -> None:
        self.setting, self.world, self.plan, self.seed = setting, world, plan, seed
        self.loop, self.display = loop, display

    def run(self) -> dict[str, Any]:
        before = self._fixed("before")
        passed = gate(before)
        self.display.say(f"{self.setting.name}, seed {self.seed}, {gate_text(passed, before)}")
        if self.plan.gated and not passed["passed"]:
            raise GateError(
                f"{self.setting.name}: {gate_text(passed, before)}\nnothing was trained: change its plan or log"
            )
        training: list[dict[str, Any]] = []
        with self.display.stage(f"{self.setting.name} train", self.plan.updates) as stage:
            while self.loop.done < self.plan.updates:
                training.append(self._update(stage.detail))
                stage.to(self.loop.done, f"score {training[-1]['score']:.2f}")
        return {"gate": passed, "before": before, "training": training, "after": self._fixed("after")}

    def _update(self, progress: Any) -> dict[str, Any]:
        chance = random.Random(f"{self.seed}/{self.loop.done}")
        tasks = [Task(f"u{self.loop.done}-{n}", self.world.draw_task(chance, "train")) for n in range(self.plan.tasks)]
        iteration = self.loop.iterate(tasks, self.plan.group, progress)
        found = measure(iteration.results)
        del found["scores"]  # of other tasks at each update: they are compared with nothing
        update = asdict(iteration.update)
        kept = {name: update[name] for name in _KEPT}
        return {
            "updates": self.loop.done,
            **found,
            **kept,
            **iteration.groups,
            "diagnostics": dict(iteration.diagnostics),
        }

    def _fixed(self, moment: str) -> dict[str, dict[str, Any]]:
        """The fixed tasks of each split: the same ones before training and after it, sampled as in training."""
        found: dict[str, dict[str, Any]] = {}
        for split in ("train", *self.plan.judged):
            fixed = split == "train"
            count = self.plan.fixed_tasks if fixed else self.plan.held_out_tasks
            group = self.plan.fixed_group if fixed else self.plan.held_out_group
            chance = random.Random(f"fixed/{split}/{self.seed}")
            drawn = _different_tasks(self.world, chance, split, count)
            tasks = [Task(f"{moment}-{split}-{n}", task) for n, task in enumerate(drawn)]
            with self.display.stage(f"{self.setting.name} {split} {moment}", len(tasks) * group) as stage:
                found[split] = measure(self.loop.collect(tasks, group, lambda done, _total, to=stage.to: to(done)))
                stage.to(len(tasks) * group, f"score {found[split]['score']:.3f}")
        return found


def _different_tasks(world: World, chance: random.Random, split: str, count: int) -> list[Mapping[str, Any]]:
    """``count`` tasks, each once; as many as there are where there are fewer. A repeat would be counted as another task."""
    found: dict[str, Mapping[str, Any]] = {}
    for _ in range(20 * count):
        task = world.draw_task(chance, split)
        found.setdefault(json.dumps(task, sort_keys=True), task)
        if len(found) == count:
            break
    return list(found.values())


def _frozen(model: LanguageModel, plan: Plan, seed: int) -> EmbeddedEngine:
    """The weights as they are now, under a name of their own; nobody publishes to it."""
    kept = replace(model, module=copy.deepcopy(model.module), name=FROZEN)
    return EmbeddedEngine(kept, max_batch=plan.max_batch, max_new_tokens=plan.max_new_tokens, seed=seed, name=FROZEN)


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


def _largest_change(first: dict[str, torch.Tensor], policy: PolicyModel) -> float:
    """The largest change of a trained weight."""
    return max(float((value - first[name]).abs().max()) for name, value in policy.weights().items())


def _cpu_seconds() -> float:
    """What this process and its ended children have used so far."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
