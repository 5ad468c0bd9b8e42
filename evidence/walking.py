"""One training run on the corridor, by a training server and its client; the agent is light and runs in threads."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from corridor import POLICY, SIGNS, SYSTEM, TOOLS, TURNS, Corridor, draw_signs, logged_walk, walk

from lgov_core import Client
from lgov_core.air import AirPlugin, AirRules, RuleSet
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from lgov_core.client.workers import Done, ThreadWorkers
from lgov_core.demo.report import Recorded, kept
from lgov_core.demo.warm_start import conversation_rows
from lgov_core.governor import Governor
from lgov_core.instrumentation import arun_flow
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.models import build_tiny
from lgov_core.policies import load_policy_file
from lgov_core.server.local import serving
from lgov_core.store import TraceStore, open_store
from lgov_core.train.algorithms.algorithms import SupervisedConfig, UpdateConfig, algorithm
from lgov_core.train.algorithms.supervised import supervised
from lgov_core.train.settings import TrainSettings, load_train_settings
from lgov_core.transitions import CreditRules
from lgov_core.types import Action, Attempt, Outcome, Point, Reward


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
    turns: int = TURNS


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


class Walker:
    """The agent as `Client.train` runs it, governed by a governor of its own. Attempts may run in several threads."""

    def __init__(self, url: str, arm: Arm, walks: Walks, folder: Path) -> None:
        from openai import OpenAI

        self.walks = walks
        path = folder / "policy.yaml"
        path.write_text(POLICY)
        rules = RuleSet(base=arm.air, cap=arm.cap)
        if arm.rules == "progress":
            progress_rules(rules)
        paid = arm.air is not None or arm.rules is not None
        self.governor = Governor(load_policy_file(str(path)), plugins=[AirPlugin(rules)] if paid else [])
        self.model = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)

    def close(self) -> None:
        self.model.close()
        self.governor.close()

    async def __call__(self, resource: Resource, task: Task) -> Report:
        corridor = Corridor(tuple(task.signs), turns=self.walks.turns)
        counts = {"turns": 0, "looks": 0, "locked": 0}
        rewards: list[Reward] = []
        headers = {
            "x-lgov-rollout-id": resource.rollout_id,
            "x-lgov-attempt": str(resource.attempt),
            "x-lgov-agent": "walker",
        }
        last = ""

        async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
            nonlocal last
            body: Any = {"model": resource.model, "messages": messages, "tools": TOOLS, "temperature": 1.0}
            reply = self.model.chat.completions.create(**body, extra_headers=headers)  # the thread is this walk's alone
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
            result = await arun_flow(tool_flow(GovernedToolCall(self.governor, action), tool.run, tool.read))
            counts["looks"] += name == "look" and result.ran
            counts["locked"] += tool.failed
            if corridor.rooms > before and self.walks.each_room:
                rewards.append(Reward(1 / self.walks.rooms, "task", response_id=last))
            return result.denial or str(result.result)

        await walk(corridor, ask, run)
        rewards.append(Reward(0.0 if self.walks.each_room else float(corridor.out), "task"))
        outcome = Outcome.SUCCEEDED if corridor.out else Outcome.FAILED
        return Report(outcome, tuple(rewards), result={"rooms": corridor.rooms, "out": corridor.out, **counts})


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
    for message in (message for _ in range(200) for message in logged_walk(chance, walks.rooms, walks.turns)):
        corpus.append(str(message.get("content") or ""))
        for call in message.get("tool_calls", ()):
            corpus.append(f"@{call['function']['name']} {' '.join(json.loads(call['function']['arguments']).values())}")
    model = build_tiny(
        corpus, seed=seed, hidden=walks.hidden, layers=walks.layers, intermediate=3 * walks.hidden, deviation=0.02
    )
    config = SupervisedConfig(steps=walks.warm_steps, batch=16, learning_rate=4e-3)

    logged = (logged_walk(chance, walks.rooms, walks.turns) for _ in range(walks.logged))
    log = [row for messages in logged for row in conversation_rows(model, messages, TOOLS)]

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
    config = UpdateConfig(learning_rate=walks.learning_rate, epochs=walks.epochs, kl=0.01, tokens_per_batch=4096)
    chosen = replace(algorithm("grpo"), credit=arm.credit, update=config)
    held_out = _tasks(f"held-out-{seed}", "held_out", walks.held_out, walks.rooms)
    with serving(_settings(walks, seed, warm), folder, algorithm=chosen) as server:
        walker = Walker(server.url, arm, walks, folder)

        def open_workers(opened: contextlib.ExitStack, done: Done) -> ThreadWorkers:
            runner = AgentRunner(walker, endpoint=server.url, governor=walker.governor, instrument=False)
            opened.callback(runner.close)
            return ThreadWorkers(runner, walks.tasks * walks.group, done)

        client = Client(server.url, quiet=True)
        batches = (
            _tasks(f"train-{seed}-{update}", "train", walks.tasks, walks.rooms) for update in range(walks.iterations)
        )
        client.upload_data([task for batch in batches for task in batch], held_out)
        with contextlib.closing(walker):
            result = client.train_with(open_workers)
    steps = [line["step"] for line in result.metrics if line["phase"] == "test"]
    with contextlib.closing(open_store(str(folder / "store.sqlite"))) as store:
        evaluations = Recorded(folder, store, evaluated=walks.held_out).evaluations
        curve = [_point(step, attempts, store) for step, attempts in zip(steps, evaluations, strict=True)]
    return {"seed": seed, "curve": curve, "seconds": round(time.monotonic() - began, 1)}


def _settings(walks: Walks, seed: int, warm: Path) -> TrainSettings:
    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): str(warm.resolve()),
        ("model", "dtype"): "float32",
        ("model", "tool_format"): "compact",
        ("model", "lora_rank"): 0,
        ("model", "max_batch"): 128,
        ("model", "max_new_tokens"): 12,
        ("training", "steps"): walks.iterations,
        ("training", "batch_size"): walks.tasks,
        ("training", "group_size"): walks.group,
        ("training", "evaluate_every"): walks.every,
        ("training", "checkpoint_every"): walks.iterations,
        ("training", "seed"): seed,
    }
    return load_train_settings(flags=flags, environ={})


def _point(step: int, attempts: Sequence[Attempt | None], store: TraceStore) -> dict[str, Any]:
    """Held-out walks at one moment, each in its place: so that two arms can be compared walk by walk.

    ``air`` is what a walk earned in that dimension, taken-back rewards included.
    """
    walks = [attempt for attempt in attempts if attempt is not None]
    if errors := [attempt.error for attempt in walks if attempt.error]:
        raise RuntimeError(f"{len(errors)} of {len(walks)} walks ended with an error, the first: {errors[0]}")
    air = dict.fromkeys((attempt.rollout_id for attempt in walks), 0.0)
    for reward in store.rewards(list(air)):
        if reward.dimension == "air":
            air[str(reward.rollout_id)] += reward.value
    return {
        "step": step,
        **{name: [int(kept(attempt).get(name, 0)) for attempt in walks] for name in ("rooms", "out", "turns", "looks")},
        "air": [round(value, 4) for value in air.values()],
    }


def _tasks(name: str, split: str, count: int, rooms: int) -> list[dict[str, Any]]:
    chance = random.Random(name)
    return [{"signs": list(draw_signs(chance, split, rooms))} for _ in range(count)]


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
