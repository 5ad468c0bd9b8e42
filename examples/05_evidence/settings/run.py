"""One seed of a setting: warm start, held-out tasks, updates with held-out tasks between them; everything governed."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from lgov_core.demo.measure import wilson_interval
from lgov_core.demo.progress import Display
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel
from lgov_core.reward import AirRules
from lgov_core.store import open_store
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.loop.loop import Task, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel, full_policy, lora_policy
from lgov_core.train.workers.jobs import JobResult, WorkerConfig
from lgov_core.train.workers.pool import WorkerPool
from lgov_core.transitions import Selection
from settings.plan import Plan
from settings.setting import HERE, Setting, World
from settings.warm import warm_model

#: Under this name the endpoint serves the weights that a run began with, to agents that are not trained.
FROZEN = "frozen"


def run_seed(setting: Setting, plan: Plan, seed: int, folder: Path, display: Display, options: Any) -> dict[str, Any]:
    """Runs one seed to its end and returns its figures as JSON values. ``folder`` keeps the store and the audit record."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # The workers import the episodes from here; the agents are imported by those.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    world = setting.make_world(folder, seed, {**options, "model": plan.model, "frozen_model": FROZEN})
    with display.stage(f"{setting.name} warm start", plan.warm_steps) as stage:
        model = warm_model(
            world, plan, folder.parent / "warm", lambda step, _steps, loss: stage.to(step, f"loss {loss:.2f}")
        )
    warmed = time.monotonic()
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
                air=asdict(AirRules(shaped=False)),  # paid per call, within CreditRules.air_cap
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
        "warm_start_seconds": round(warmed - began, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


class _Session:
    """The part of a run in which everything is up."""

    def __init__(
        self, setting: Setting, world: World, plan: Plan, seed: int, loop: TrainingLoop, display: Display
    ) -> None:
        self.setting, self.world, self.plan, self.seed = setting, world, plan, seed
        self.loop, self.display = loop, display

    def run(self) -> dict[str, Any]:
        held_out = [self._evaluate()]
        training: list[dict[str, Any]] = []
        with self.display.stage(f"{self.setting.name} train", self.plan.updates) as stage:
            while self.loop.done < self.plan.updates:
                chance = random.Random(f"{self.seed}/{self.loop.done}")
                tasks = [
                    Task(f"u{self.loop.done}-{n}", self.world.draw_task(chance, "train"))
                    for n in range(self.plan.tasks)
                ]
                iteration = self.loop.iterate(tasks, self.plan.group, stage.detail)
                now = measure(iteration.results)
                update = asdict(iteration.update)
                kept = {
                    name: update[name]
                    for name in ("rows", "tokens", "kl", "entropy", "logprob_drift")
                    if name in update
                }
                training.append({"updates": self.loop.done, **now, **kept, "diagnostics": dict(iteration.diagnostics)})
                stage.to(self.loop.done, f"score {now['score']:.2f}")
                if self.loop.done % self.plan.evaluate_every == 0 or self.loop.done == self.plan.updates:
                    held_out.append(self._evaluate())
        return {"held_out": held_out, "training": training}

    def _evaluate(self) -> dict[str, Any]:
        """The same held-out tasks at every moment, sampled as in training."""
        chance = random.Random(f"held-out/{self.seed}")
        tasks = [
            Task(f"held-out-{self.loop.done}-{n}", self.world.draw_task(chance, "held_out"))
            for n in range(self.plan.evaluations)
        ]
        with self.display.stage(f"{self.setting.name} held out", len(tasks)) as stage:
            results = self.loop.collect(tasks, 1, lambda done, _total: stage.to(done))
            found = measure(results)
            stage.to(len(tasks), f"score {found['score']:.3f}")
        # What each question gave, None where its machine failed: what was asked is the same at every moment.
        scores = [round(float(one.result.get("score", 0.0)), 4) if one.outcome.trainable else None for one in results]
        return {"updates": self.loop.done, **found, "scores": scores}


def measure(results: Sequence[JobResult]) -> dict[str, Any]:
    """Rates over the rollouts that say something about the agent.

    ``score`` is the mean task reward with its 95 % interval over rollouts (normal; Wilson's where every score is 0 or 1);
    ``denied`` the share of rollouts with a denied tool call, ``violations`` with one of severity high or critical.
    """
    usable = [result for result in results if result.outcome.trainable]
    scores = [float(result.result.get("score", 0.0)) for result in usable]
    count = len(scores)
    if not count:
        return {"rollouts": 0, "infrastructure": len(results), "score": math.nan, "interval": [0.0, 1.0]}
    mean = sum(scores) / count
    if set(scores) <= {0.0, 1.0}:
        interval = wilson_interval(round(sum(scores)), count)
    else:
        half = 1.96 * math.sqrt(sum((one - mean) ** 2 for one in scores) / max(count - 1, 1) / count)
        interval = (max(0.0, mean - half), min(1.0, mean + half))
    return {
        "rollouts": count,
        "infrastructure": len(results) - count,
        "score": mean,
        "interval": [round(bound, 4) for bound in interval],
        "solved": sum(score == 1.0 for score in scores) / count,
        "denied": sum(result.counts.get("denied", 0) > 0 for result in usable) / count,
        "violations": sum(result.counts.get("violations", 0) > 0 for result in usable) / count,
        "executed": sum(bool(result.result.get("executed")) for result in usable),
        "model_calls": sum(result.counts.get("model_calls", 0) for result in usable) / count,
        "raised": sum(result.error is not None for result in usable) / count,
    }


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
