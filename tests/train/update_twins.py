"""A run of updates on made-up batches, the same for everybody.

``python update_twins.py FOLDER STEPS``: runs it once for each of `MOMENTS`, in ``FOLDER/0`` and so on, and each time it is
killed at that moment; writes the exit status of each.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from lgov_core.train.algorithms.algorithms import UpdateConfig
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.loop import training_run
from lgov_core.train.loop.policy_model import full_policy
from lgov_core.train.loop.training_run import TrainingRun
from lgov_core.transitions import Transition, TransitionSet, assign_credit
from lgov_core.types import Outcome

MOMENTS = (
    "before the batch",
    "in the batch",
    "in the update",
    "at the publication",
    "in the checkpoint",
    "at the line",
)


class Shelf:
    """Publishes by keeping what it was given; ``log`` has what it was asked for."""

    def __init__(self) -> None:
        self.weights_version = 0
        self.log: list[str] = []
        self.served: Mapping[str, torch.Tensor] = {}

    def pause(self) -> None:
        self.log.append("pause")

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        self.log.append("publish")
        self.weights_version = self.weights_version + 1 if version is None else version
        self.served = dict(weights)
        return self.weights_version

    def resume(self) -> None:
        self.log.append("resume")


def batch(step: int) -> tuple[Transition, ...]:
    """Two tasks with three rollouts of two turns each."""
    chance = random.Random(step)
    found: list[Transition] = []
    for task in range(2):
        for rollout in range(3):
            context = [1, 2, 3 + task]
            for turn in range(2):
                reply = [chance.randrange(1, 20) for _ in range(3)]
                found.append(
                    Transition(
                        run_id="run",
                        weights_version=step - 1,
                        model="m",
                        task_id=f"s{step}-t{task}",
                        rollout_id=f"s{step}-t{task}-r{rollout}",
                        attempt=1,
                        turn=turn,
                        response_id=f"s{step}-t{task}-r{rollout}-{turn}",
                        agent="a",
                        prompt_ids=tuple(context),
                        response_ids=tuple(reply),
                        response_mask=(1, 1, 1),
                        logprobs=tuple(-chance.uniform(2.5, 3.5) for _ in reply),
                        temperature=0.7,
                        finish_reason="stop",
                        outcome=Outcome.SUCCEEDED,
                        rewards={"task": chance.random(), "air": chance.choice((-0.05, 0.05))},
                    )
                )
                context += [*reply, 5]
    return assign_credit(TransitionSet(tuple(found))).transitions


def make_run(folder: Path, *, checkpoint_every: int = 3, **options: Any) -> TrainingRun:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    policy = full_policy(transformers.LlamaForCausalLM(config).eval())
    learner = PolicyUpdate(policy.module, UpdateConfig(learning_rate=1e-2), reference=policy.reference)
    return TrainingRun(
        run_id="run",
        policy=policy,
        learner=learner,
        engine=Shelf(),
        folder=folder,
        checkpoint_every=checkpoint_every,
        **options,
    )


def train(run: TrainingRun, steps: int) -> None:
    while run.done < steps:
        step = run.done + 1
        run.learn(batch(step), {"mean_return": float(step % 4)})


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, when: Callable[[], bool]) -> None:
    real = getattr(owner, name)

    def doomed(*args: Any, **kwargs: Any) -> Any:
        if when():
            _die()
        return real(*args, **kwargs)

    setattr(owner, name, doomed)


def arm(run: TrainingRun, moment: str, step: int) -> None:
    """Makes the process die at that moment of that step."""

    def now() -> bool:
        return run.done + 1 == step

    def just_done() -> bool:
        return run.done == step

    if moment == "before the batch":
        _before(training_run, "write_batch", now)
    elif moment == "in the batch":
        import lgov_core.train.loop.run_files as record

        _before(record, "atomic_write", now)
    elif moment == "in the update":
        _before(run.learner.optimizer, "step", now)  # type: ignore[attr-defined]
    elif moment == "at the publication":
        _before(run.engine, "publish", just_done)
    elif moment == "in the checkpoint":
        from lgov_core._util import files as atomic_file

        _before(atomic_file, "sync_folder", just_done)
    elif moment == "at the line":
        _before(run.metrics, "add", just_done)
    else:
        raise ValueError(moment)


def main() -> None:
    root, steps = Path(sys.argv[1]), int(sys.argv[2])
    # One process loads torch, and has no threads yet: a copy of it dies at each moment.
    for number, moment in enumerate(MOMENTS):
        child = os.fork()
        if child == 0:
            run = make_run(root / str(number))
            run.resume()
            arm(run, moment, killed_step(moment))
            train(run, steps)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def killed_step(moment: str) -> int:
    """The step in which a run dies; a checkpoint is written in every third one."""
    return 3 if moment == "in the checkpoint" else 2


if __name__ == "__main__":
    main()
