"""Real trainings in this process: a training server, its endpoint, a client with an agent in threads; and the doctor's word.

A `Training` says how one goes; a fault is planted by changing one of its fields.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lgov_core import Client
from lgov_core.air import AirRules, RuleSet
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from lgov_core.client.workers import Done, ThreadWorkers, Workers
from lgov_core.errors import LgovError
from lgov_core.governor import Governor
from lgov_core.policies import load_policies
from lgov_core.server.local import serving
from lgov_core.server.recipe import algorithm_for
from lgov_core.server.training import TrainingServer
from lgov_core.train.diagnosis import examine
from lgov_core.train.settings import load_train_settings
from lgov_core.types import Outcome, Reward
from tests.doctor.world import FIND, KEY, Episode, Message, post, tasks_of, use_find

WORKERS = 12
#: Rules for the tool; the second objects to the name that has all answers, and is left out unless a training has a mode.
RULES: Sequence[Mapping[str, Any]] = (
    {"name": "tools", "use": "tool", "with": {"allow": ["find"]}},
    {"name": "no key", "use": "deny", "when": {"field": "arguments.name", "eq": KEY}, "severity": "high"},
)


def paid_if_right(episode: Episode) -> float:
    """The honest reward."""
    return float(episode.right)


@dataclass
class Training:
    """One training. ``settings`` are keys of the section ``training``; ``body`` is added to each request.

    ``grade`` is given the episode and returns the task reward, or rewards by channel. ``before`` is called when a rollout
    begins. ``history`` are the messages as the agent sends them. ``says`` is what the tool says, by task. ``mode`` is that of
    the policy, if there is one. ``tamper`` changes the server before the training.
    """

    topic: str
    seed: int
    algorithm: str = "grpo"
    tool: bool = False
    updates: int = 10
    tasks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    test: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    model: str = "taught"
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    choice: int = 0
    turns: int = 4
    air: AirRules | None = None
    mode: str | None = None
    grade: Callable[[Episode], Any] = paid_if_right
    before: Callable[[Episode], Any] = lambda episode: None
    history: Callable[[list[Message]], list[Message]] = lambda messages: messages
    says: Callable[[Mapping[str, Any]], str | None] = lambda task: None
    tamper: Callable[[TrainingServer], Any] = lambda server: None

    def __post_init__(self) -> None:
        self.tasks = self.tasks or tasks_of(self.topic, tool=self.tool)
        self.chance = random.Random(self.seed)
        self.lock = threading.Lock()
        self.right: list[tuple[str, bool]] = []


def run(training: Training, folder: Path, model: Path) -> str | None:
    """Trains in ``folder``; returns the error that ended the training, or None."""
    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): str(model), ("model", "max_new_tokens"): 24, ("runtime", "max_attempts"): 1,
        ("training", "algorithm"): training.algorithm, ("training", "seed"): training.seed, ("training", "batch_size"): 4,
        ("training", "group_size"): 6, ("training", "learning_rate"): 3e-4, ("training", "kl_coef"): 0.1,
        ("training", "steps"): training.updates, ("training", "epochs"): 100, ("training", "max_extra_groups"): 0,
    }  # fmt: skip
    flags |= {("training", name): value for name, value in training.settings.items()}
    if training.algorithm == "ppo":
        flags["training", "max_extra_groups"] = None
    rules = list(RULES) if training.mode else [RULES[0]]
    policies = load_policies({"version": 1, "mode": training.mode or "enforce", "rules": rules})
    try:
        settings = load_train_settings(flags=flags, environ={})
        algorithm = None
        if training.air is not None and not training.air.shaped:  # nothing holds these rewards, so they can be farmed
            own = algorithm_for(settings)
            algorithm = replace(own, credit=replace(own.credit, air_cap=None))
        with (
            serving(settings, folder, algorithm=algorithm) as server,
            contextlib.closing(Governor(policies)) as governor,
        ):
            training.tamper(server)
            client = Client(server.url, quiet=True, exit_on_interrupt=False, first_hand=server.first_hand_key)
            client.upload_data(training.tasks, training.test or None)

            def opened(things: contextlib.ExitStack, done: Done) -> Workers:
                cap = {} if training.air is None or training.air.shaped else {"cap": 100.0}
                rules = None if training.air is None else RuleSet(base=training.air, **cap)
                runner = AgentRunner(
                    lambda resource, task: _rolled(training, governor, resource, task),
                    endpoint=server.url, governor=governor, rules=rules, instrument=False, content=True,
                )  # fmt: skip
                things.callback(runner.close)
                return ThreadWorkers(runner, WORKERS, done)

            client.train_with(opened)
    except LgovError as error:
        return str(error)
    return None


def _rolled(training: Training, governor: Governor, resource: Resource, task: Task) -> Report:
    """The agent: asks, uses the tool as often as the model likes, and grades."""
    episode = Episode(task)
    training.before(episode)
    messages: list[Message] = [{"role": "user", "content": task["prompt"]}]
    tools = {"tools": [FIND]} if training.tool else {}
    for _ in range(training.turns):
        body = {"model": "any", "messages": training.history(messages), **tools, **training.body}
        reply = post(resource.model_api, body)["choices"][training.choice]["message"]
        messages.append({name: value for name, value in reply.items() if value is not None})
        calls: Sequence[Mapping[str, Any]] = reply.get("tool_calls") or ()
        if not calls:
            episode.replies.append(reply.get("content") or "")
            break
        for call in calls:
            said = use_find(governor, call, task, training.says(task))
            episode.names.append(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    with training.lock:
        training.right.append((resource.rollout_id, episode.right))
        value = training.grade(episode)
    channels: Mapping[str, float] = value if isinstance(value, Mapping) else {"task": value}
    rewards = tuple(Reward(reward, channel, source="agent") for channel, reward in channels.items())
    outcome = Outcome.SUCCEEDED if channels["task"] > 0 else Outcome.FAILED
    return Report(outcome, rewards, result={"right": episode.right})


# ---------------------------------------------------------------------- the doctor's word


@dataclass(frozen=True)
class Named:
    """What the doctor says of a training: by finding the update after which it was first named; updates made in all."""

    first: Mapping[str, int]
    last: frozenset[str]
    updates: int


def examined(folder: Path, view: Path) -> Named:
    """Examines a run as it was after each of its updates, and as it is. ``view`` gets what there was then."""
    if not (folder / "metrics.jsonl").exists():
        return Named({}, frozenset(), 0)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = max((line["step"] for line in lines if line["phase"] == "train"), default=0)
    first: dict[str, int] = {}
    for step in range(1, updates):
        view.mkdir(parents=True, exist_ok=True)
        (view / "transitions").mkdir(exist_ok=True)
        kept = [line for line in lines if line["step"] <= step]
        (view / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
        for suffix in (".parquet", ".json"):
            name = f"transitions/step-{step:06d}{suffix}"
            (view / name).symlink_to(folder / name)
        for name in ("store.sqlite", "data"):
            if not (view / name).exists():
                (view / name).symlink_to(folder / name)
        for finding in examine(view).findings:
            first.setdefault(finding.name, step)
    last = frozenset(finding.name for finding in examine(folder).findings)
    for name in last:
        first.setdefault(name, max(updates, 1))
    return Named(first, last, updates)
