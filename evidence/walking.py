"""One training run on the corridor: endpoint, store, governor, transitions, credit and update are those of any run.

Only the worker processes are missing: the agent is light, so its rollouts are tasks of an event loop in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from corridor import POLICY, SIGNS, SYSTEM, TOOLS, Corridor, draw_signs, logged_walk, walk

from lgov_core.demo.prepare import conversation_rows
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation import arun_flow
from lgov_core.instrumentation.tool_call import ToolReading, tool_flow
from lgov_core.models import LanguageModel, build_tiny, load_model
from lgov_core.policies import load_policy_file
from lgov_core.reward import AirPlugin, AirRules, RuleSet
from lgov_core.scope import RolloutScope
from lgov_core.store import TraceStore, open_store
from lgov_core.train.algorithms.config import SupervisedConfig, UpdateConfig
from lgov_core.train.algorithms.supervised import supervised
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.loop.loop import Task, TrainingLoop
from lgov_core.train.loop.policy_model import full_policy
from lgov_core.train.workers.jobs import Job, JobResult
from lgov_core.transitions import CreditRules
from lgov_core.types import Action, Outcome, Point, Reward, Rollout


@dataclass(frozen=True)
class Walks:
    """How a model is warmed up and trained.

    ``each_room`` pays each room its share of 1, else 1 is paid for being out in time.
    """

    each_room: bool
    rooms: int
    iterations: int = 20
    tasks: int = 6
    group: int = 8
    held_out: int = 64
    every: int = 4
    warm_steps: int = 400
    logged: int = 400
    learning_rate: float = 1e-3
    epochs: int = 4
    hidden: int = 64
    layers: int = 2


@dataclass(frozen=True)
class Arm:
    """What is compared: the credit, and what tool calls are paid. ``cap`` bounds what an attempt is paid."""

    credit: CreditRules = field(default_factory=CreditRules)
    air: AirRules | None = None
    cap: float | None = 1.0
    rules: str | None = None


def progress_rules(rules: RuleSet) -> None:
    """A rule as a user writes one: what leads into a room that was not seen before is worth 0.25."""

    @rules.on_tool_success("open", milestone=lambda output: output)
    def new_room() -> float:
        return 0.25


class RewardSink:
    """Writes what is paid into the store. Decisions are not written: a walk has nothing that could be denied."""

    def __init__(self, store: TraceStore) -> None:
        self.store = store

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, Reward):
            self.store.add_rewards((event,))


class Harness:
    """Stands where worker processes stand in a larger run: governs each walk and says how it ended."""

    def __init__(self, folder: Path, store: TraceStore, url: str, arm: Arm, walks: Walks) -> None:
        from openai import AsyncOpenAI

        self.store, self.walks = store, walks
        path = folder / "policy.yaml"
        path.write_text(POLICY)
        policies = load_policy_file(str(path))
        rules = RuleSet(base=arm.air, cap=arm.cap)
        if arm.rules == "progress":
            progress_rules(rules)
        plugins: list[object] = [RewardSink(store)]
        if arm.air is not None or arm.rules is not None:
            plugins.append(AirPlugin(rules))
        self.governor = Governor(policies, plugins=plugins)
        self.runner = asyncio.Runner()
        self.model = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)

    def close(self) -> None:
        self.runner.run(self.model.close())
        self.runner.close()
        self.governor.close()

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """Rollouts that cannot be run again after a restart: none is ever restarted here."""
        return set()

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Any = None, keep: Callable[[JobResult], None] | None = None
    ) -> list[JobResult]:
        """Adds rollouts to the store and runs them side by side; results in their order."""
        self.store.add_rollouts(rollouts)
        jobs = [Job(rollout.rollout_id, rollout.task_id, 1, rollout.input) for rollout in rollouts]

        async def every() -> list[JobResult]:
            return list(await asyncio.gather(*map(self.attempt, jobs)))

        results = self.runner.run(every())
        for result in results if keep is not None else ():
            keep(result)
        return results

    async def attempt(self, job: Job) -> JobResult:
        self.store.start_attempt(job.rollout_id, job.attempt)
        corridor = Corridor(tuple(job.task["signs"]))
        counts = {"turns": 0, "looks": 0, "locked": 0}
        rewards: list[Reward] = []
        headers = {"x-lgov-rollout-id": job.rollout_id, "x-lgov-attempt": str(job.attempt), "x-lgov-agent": "walker"}
        last = ""

        async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
            nonlocal last
            body: Any = {"model": "tiny", "messages": messages, "tools": TOOLS, "temperature": 1.0}
            reply = await self.model.chat.completions.create(**body, extra_headers=headers)
            counts["turns"] += 1
            last = reply.id
            return reply.choices[0].message.to_dict()

        async def run(name: str, text: str, call_id: str) -> str:
            try:
                arguments = json.loads(text)
            except ValueError:
                arguments = {}
            before = corridor.rooms
            action = Action(Point.PRE_TOOL_CALL, name, arguments=arguments, agent="walker", call_id=call_id)
            tool = _Tool(corridor, name)
            result = await arun_flow(tool_flow(self.governor, action, tool.run, tool.read))
            counts["looks"] += name == "look" and result.ran
            counts["locked"] += tool.failed
            if corridor.rooms > before and self.walks.each_room:
                rewards.append(Reward(1 / self.walks.rooms, "task", job.rollout_id, job.attempt, response_id=last))
            return result.denial or str(result.result)

        async with self.governor.arollout(RolloutScope(job.rollout_id, job.attempt, task_id=job.task_id)):
            await walk(corridor, ask, run)
        final = 0.0 if self.walks.each_room else float(corridor.out)
        rewards.append(Reward(final, "task", job.rollout_id, job.attempt))
        outcome = Outcome.SUCCEEDED if corridor.out else Outcome.FAILED
        result = {"rooms": corridor.rooms, "out": corridor.out, **counts}
        self.store.finish_attempt(job.rollout_id, job.attempt, outcome, result=result, rewards=rewards)
        return JobResult(job, outcome, result)


class _Tool:
    """One call of a tool on its way."""

    def __init__(self, corridor: Corridor, name: str) -> None:
        self.corridor, self.name, self.failed = corridor, name, False

    async def run(self, arguments: Mapping[str, Any]) -> str:
        try:
            return self.corridor.do(self.name, arguments)
        except ValueError as error:
            self.failed = True
            return f"Error: {error}"

    def read(self, text: str) -> ToolReading:
        return ToolReading(text, "error" if self.failed else "ok")


def warm_up(walks: Walks, seed: int, folder: Path) -> None:
    """Makes the model of a seed and warms it up on the log, so that it walks, clumsily. Every arm begins with it."""
    chance = random.Random(f"log/{seed}")
    corpus = [str(SYSTEM["content"]), *SIGNS]
    for message in (message for _ in range(200) for message in logged_walk(chance, walks.rooms)):
        corpus.append(str(message.get("content") or ""))
        for call in message.get("tool_calls", ()):
            corpus.append(f"@{call['function']['name']} {' '.join(json.loads(call['function']['arguments']).values())}")
    model = build_tiny(
        corpus, seed=seed, hidden=walks.hidden, layers=walks.layers, intermediate=3 * walks.hidden, deviation=0.02
    )
    config = SupervisedConfig(steps=walks.warm_steps, batch=16, learning_rate=4e-3)

    log = [
        row for _ in range(walks.logged) for row in conversation_rows(model, logged_walk(chance, walks.rooms), TOOLS)
    ]

    def draw(count: int) -> list[Any]:
        return chance.sample(log, count)

    supervised(model.module, draw, config)
    model.save(folder)


def train(walks: Walks, arm: Arm, seed: int, folder: Path, warm: Path) -> dict[str, Any]:
    """One run: held-out walks before, while and after it learns. Sampled at temperature 1."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    model: LanguageModel = load_model(str(warm), dtype="float32", tool_format="compact")
    policy = full_policy(model.module)
    engine = EmbeddedEngine(model, max_batch=128, max_new_tokens=12, threads=1, seed=seed)
    config = UpdateConfig(learning_rate=walks.learning_rate, epochs=walks.epochs, kl=0.01, tokens_per_batch=4096)
    curve: list[dict[str, Any]] = []
    with (
        contextlib.closing(open_store(str(folder / "store.sqlite"))) as store,
        EndpointServer([engine], store) as server,
    ):
        harness = Harness(folder, store, server.base_url, arm, walks)
        with contextlib.closing(harness):
            loop = TrainingLoop(
                run_id=f"walk-seed{seed}",
                policy=policy,
                learner=PolicyUpdate(policy.module, config, reference=policy.reference),
                engine=engine,
                store=store,
                pool=harness,
                folder=folder,
                credit=arm.credit,
                checkpoint_every=10**9,
            )
            held_out = _tasks(f"held-out-{seed}", "held_out", walks.held_out, walks.rooms)
            while True:
                if loop.done % walks.every == 0 or loop.done == walks.iterations:
                    asked = [replace(task, task_id=f"step{loop.done}-{task.task_id}") for task in held_out]
                    curve.append(_point(loop.done, loop.collect(asked, 1), store))
                if loop.done == walks.iterations:
                    break
                loop.iterate(_tasks(f"train-{seed}-{loop.done}", "train", walks.tasks, walks.rooms), walks.group)
    return {"seed": seed, "curve": curve, "seconds": round(time.monotonic() - began, 1)}


def _point(step: int, results: Sequence[JobResult], store: TraceStore) -> dict[str, Any]:
    """Held-out walks at one moment, each in its place: so that two arms can be compared walk by walk.

    ``air`` is what a walk earned in that dimension, taken-back rewards included.
    """
    air = dict.fromkeys((result.job.rollout_id for result in results), 0.0)
    for reward in store.rewards(list(air)):
        if reward.dimension == "air":
            air[str(reward.rollout_id)] += reward.value
    return {
        "step": step,
        **{name: [int(result.result[name]) for result in results] for name in ("rooms", "out", "turns", "looks")},
        "air": [round(value, 4) for value in air.values()],
    }


def _tasks(name: str, split: str, count: int, rooms: int) -> list[Task]:
    chance = random.Random(name)
    return [Task(f"{name}-{n}", {"signs": list(draw_signs(chance, split, rooms))}) for n in range(count)]


def as_values(walks: Walks) -> dict[str, Any]:
    """The settings as JSON values."""
    return asdict(walks)


def shares(runs: Sequence[Mapping[str, Any]], name: str, whole: float) -> list[list[list[float]]]:
    """By seed and evaluation, a number for each held-out walk."""
    return [[[value / whole for value in point[name]] for point in run["curve"]] for run in runs]


def after_the_first(values: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """By seed and walk, the mean over the evaluations after the first: those in which the arms can differ."""
    return [[sum(walk) / len(walk) for walk in zip(*seed[1:], strict=True)] for seed in values]


def draw_curves(result: Mapping[str, Any], path: Path, panels: Sequence[tuple[str, str]], title: str) -> None:
    """Learning curves with their intervals, a panel each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 4), layout="constrained", squeeze=False)
    for axis, (name, label) in zip(axes[0], panels, strict=True):
        for arm, points in result[name].items():
            axis.plot(result["steps"], [point["mean"] for point in points], marker="o", label=arm)
            low, high = [point["low"] for point in points], [point["high"] for point in points]
            axis.fill_between(result["steps"], low, high, alpha=0.15)
        axis.set(xlabel="updates", ylabel=label)
        axis.legend()
    figure.suptitle(f"{title}: {len(result['seeds'])} seeds, 95 % intervals")
    figure.savefig(path, dpi=100, metadata={"Software": ""})
    plt.close(figure)
