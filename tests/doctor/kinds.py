"""What is planted: kinds of faults and reward hacks, each a change of a `Training`, with the findings that name it; and the
ways in which the trainings without a fault differ from each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from lgov_core.air import AirRules
from lgov_core.server.training import TrainingServer
from tests.doctor.trainings import Training
from tests.doctor.world import KEY, TOPICS, Episode, tasks_of

ALGORITHMS: Final = ("grpo", "dr_grpo", "rloo", "ppo", "dapo")
#: Some kinds are about groups, or have no meaning for an algorithm without them.
GROUPED: Final = ("grpo", "dr_grpo", "rloo", "dapo")


@dataclass(frozen=True)
class Kind:
    """A fault. ``names`` are the findings each of which is a hit; ``plant`` puts the fault into a training."""

    name: str
    names: frozenset[str]
    plant: Callable[[Training], Any]
    tool: bool = False
    algorithms: tuple[str, ...] = ALGORITHMS


KINDS: Final[dict[str, Kind]] = {}


def kind(name: str, *names: str, **options: Any) -> Callable[[Callable[[Training], Any]], Callable[[Training], Any]]:
    def add(plant: Callable[[Training], Any]) -> Callable[[Training], Any]:
        KINDS[name] = Kind(name, frozenset(names), plant, **options)
        return plant

    return add


def length_of(training: Training, reply: str) -> float:
    """A length, in one of three measures."""
    return (len(reply), len(reply.split()), len(reply.encode()) ** 0.5)[training.seed % 3]


# ---------------------------------------------------------------------- what the reward pays


@kind("the reward is the length of the reply", "reward-follows-length")
def _(training: Training) -> None:
    training.grade = lambda episode: length_of(training, episode.reply) / 10


@kind("the judge is flattered by a word", "reward-ignores-answer")
def _(training: Training) -> None:
    word = ("surely", "think", "course")[training.seed % 3]
    training.grade = lambda episode: float(word in episode.reply)


@kind("the reward is for the format alone", "reward-ignores-answer")
def _(training: Training) -> None:
    training.grade = lambda episode: float(episode.reply.startswith("Answer:"))


@kind("the reward is negated", "reward-ignores-answer")
def _(training: Training) -> None:
    training.grade = lambda episode: -float(episode.right)


@kind("rewards are those of other rollouts", "reward-random", "reward-ignores-answer")
def _(training: Training) -> None:
    kept = [0.0]

    def before(episode: Episode) -> float:
        kept.append(float(episode.right))
        return kept[-2 - training.chance.randrange(min(12, len(kept) - 1))]

    training.grade = before


@kind("the reward is random", "reward-random", "reward-ignores-answer")
def _(training: Training) -> None:
    training.grade = lambda _: training.chance.random() if training.seed % 2 else float(training.chance.random() < 0.4)


@kind("the reward is constant", "reward-constant")
def _(training: Training) -> None:
    training.grade = lambda _: training.seed % 3 / 2


@kind("the reward is sparse", "reward-sparse", "reward-constant")
def _(training: Training) -> None:
    training.grade = lambda episode: float(episode.right and training.chance.random() < 0.05)


@kind("one reward of forty is huge", "reward-outliers")
def _(training: Training) -> None:
    training.grade = lambda episode: 1000.0 if training.chance.random() < 1 / 40 else float(episode.right)


@kind("some rewards are not numbers", "rollouts-lost")
def _(training: Training) -> None:
    training.grade = lambda episode: math.nan if training.chance.random() < 0.3 else float(episode.right)


# ---------------------------------------------------------------------- what tools give and earn


@kind("a tool shows the answer to whatever it is asked", "answers-leaked", tool=True)
def _(training: Training) -> None:
    training.says = lambda task: f"found 1 row; gold: {task['answer']}" if training.seed % 2 else task["answer"]


@kind("tool rewards are farmed", "tool-rewards-farmed", tool=True)
def _(training: Training) -> None:
    training.air = AirRules(tool_success=1.0, shaped=False)
    training.settings["learning_rate"] = 3e-3
    training.turns, training.updates = 6, 14


@kind("advantages come from tool rewards alone", "advantages-from-air-alone", tool=True, algorithms=GROUPED)
def _(training: Training) -> None:
    training.air = AirRules(tool_success=0.2, tool_error=-0.2, shaped=False)
    training.grade = lambda _: 1.0


@kind("violations pay", "violations-rising", tool=True)
def _(training: Training) -> None:
    training.mode, training.updates = "shadow", 14
    training.settings["learning_rate"] = 2e-3
    training.grade = lambda episode: float(any(KEY in name for name in episode.names))


@kind("tool calls are malformed", "tool-calls-malformed", tool=True)
def _(training: Training) -> None:
    training.model = "sloppy"


@kind("the history is written anew", "retokenisation-drift", tool=True)
def _(training: Training) -> None:
    def again(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_spaced(message) if message.get("tool_calls") else message for message in messages]

    training.history = again


def _spaced(message: dict[str, Any]) -> dict[str, Any]:
    """The same call, its arguments formatted in another way, as a framework that parses and prints them does."""
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": call["function"]["arguments"].replace('"name"', '"name" ').upper(),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


# ---------------------------------------------------------------------- how the agent asks


@kind("the temperature is 0", "replies-equal")
def _(training: Training) -> None:
    training.body = {"temperature": 0}


@kind("the seed is fixed", "replies-equal")
def _(training: Training) -> None:
    training.body = {"seed": training.seed + 1}


@kind("another of several choices is used", "unknown-choice")
def _(training: Training) -> None:
    training.body, training.choice = {"n": 2}, 1


@kind("replies are cut off", "replies-truncated")
def _(training: Training) -> None:
    training.body = {"max_tokens": 2}


@kind("prompts are longer than the context", "prompts-too-long")
def _(training: Training) -> None:
    for task in training.tasks[:: 1 + training.seed % 2]:
        task["prompt"] += " Take your time." * 100


@kind("the agent raises in every rollout", "agents-raise")
def _(training: Training) -> None:
    training.before = lambda _: {}["score"]


@kind("the agent raises in half of the rollouts", "agents-raise")
def _(training: Training) -> None:
    training.grade = lambda episode: {}["score"] if training.chance.random() < 0.5 else float(episode.right)


@kind("no call is made to the model", "no-model-call")
def _(training: Training) -> None:
    training.turns = 0


@kind("long tasks are lost by the time limit", "rollouts-lost")
def _(training: Training) -> None:
    long = sorted(training.tasks, key=lambda task: len(task["answer"]))[-3:]

    def late(episode: Episode) -> None:
        if any(episode.task["about"] == task["about"] for task in long):
            time.sleep(0.05)
            raise TimeoutError("the search did not answer")

    training.before = late


# ---------------------------------------------------------------------- tasks, weights, updates


@kind("the test set is in the training", "test-tasks-trained-on")
def _(training: Training) -> None:
    training.test = [{**task, "id": number} for number, task in enumerate(training.tasks[2:6])]
    training.updates = 4


@kind("a group has one rollout", algorithms=GROUPED)
def _(training: Training) -> None:
    training.settings["group_size"] = 1


@kind("the optimiser has copies of the weights", "weights-frozen")
def _(training: Training) -> None:
    def tamper(server: TrainingServer) -> None:
        learner: Any = server._loop.learner
        copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in learner.parameters]
        learner.optimizer = torch.optim.AdamW(copies, lr=1e-3)

    training.tamper = tamper


@kind("new weights do not reach what samples", "logprobs-differ", "weights-stale")
def _(training: Training) -> None:
    training.tamper = lambda server: _served(server, lambda weights: {})
    training.settings |= {"learning_rate": 3e-3}
    training.updates = 14


@kind("weights are spoilt on the way to what samples", "logprobs-differ")
def _(training: Training) -> None:
    chance = torch.Generator().manual_seed(training.seed)

    def spoilt(weights: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: weight + 0.4 * weight.std() * torch.randn(weight.shape, generator=chance)
            if weight.dim() > 1
            else weight
            for name, weight in weights.items()
        }

    training.tamper = lambda server: _served(server, spoilt)


def _served(server: TrainingServer, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    engine: Any = server._loop.engine
    publish = engine.publish
    engine.publish = lambda weights, version=None: publish(change(weights), version)


@kind("weights are stale", "weights-stale")
def _(training: Training) -> None:
    """Updates take longer than rollouts, of which many are made ahead."""

    def tamper(server: TrainingServer) -> None:
        learner: Any = server._loop.learner
        update = learner.update

        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(1.0)
            return update(*arguments, **options)

        learner.update = slow

    training.tamper = tamper
    training.settings["max_staleness"] = 6


@kind("the learning rate is 0.5", "updates-too-large", "kl-running-off", "policy-collapsed")
def _(training: Training) -> None:
    training.settings["learning_rate"] = 0.5


@kind("the policy collapses", "entropy-collapsed", "policy-collapsed", "updates-too-large")
def _(training: Training) -> None:
    training.settings |= {"learning_rate": 1e-2, "kl_coef": 0.0, "update_epochs": 6}
    training.updates = 12


@kind("the KL runs off", "kl-running-off", "updates-too-large")
def _(training: Training) -> None:
    training.settings |= {"learning_rate": 3e-3, "kl_coef": 1e-4}
    training.updates = 14


@kind("nothing is learnt", "policy-unmoved", "no-progress", "reward-sparse")
def _(training: Training) -> None:
    training.settings |= {"learning_rate": 1e-8, "batch_size": 8}
    training.updates = 26


# ---------------------------------------------------------------------- without a fault


def _noisy(training: Training) -> None:
    """A judge that errs in one of twenty."""
    training.grade = lambda episode: float(episode.right != (training.chance.random() < 0.05))


def _partial(training: Training) -> None:
    """Half of the reward for a reply with the answer, the rest for one in the form that is asked for."""
    training.grade = lambda episode: 0.7 * episode.right + 0.3 * (len(episode.reply.split()) <= 2)


def _brief(training: Training) -> None:
    training.grade = lambda episode: episode.right - 0.01 * len(episode.reply)


def _held_out(training: Training) -> None:
    tasks = tasks_of(training.topic, tool=training.tool)
    training.tasks, training.test = tasks[:6], tasks[6:]


def _long(training: Training) -> None:
    training.updates = 22


def _air(training: Training) -> None:
    training.tool, training.tasks, training.air = True, tasks_of(training.topic, tool=True), AirRules()


def _enforced(training: Training) -> None:
    training.tool, training.tasks = True, tasks_of(training.topic, tool=True)
    training.mode, training.air = "enforce", AirRules(tool_success=0.0, tool_error=0.0)


def _by_one_answer(training: Training) -> None:
    """A reward that the tasks say nothing about, as in a task of style: one word is as good as another but for its vowels."""
    for task in training.tasks:
        del task["answer"]
    answers = [answer for _, one in TOPICS.values() for answer in one.values()]
    training.grade = lambda episode: (
        sum(letter in "aeiou" for letter in episode.reply) / max(1, len(episode.reply) or len(answers))
    )


CLEAN: Final[tuple[Callable[[Training], None], ...]] = (
    lambda training: None,
    _noisy,
    _partial,
    _held_out,
    _air,
    _brief,
    lambda training: None,
    _enforced,
    _long,
    _by_one_answer,
)
