"""What an algorithm's name makes of rollouts is the same on verl as here: verl's own functions, given the settings it gets.

Without Ray: the configuration is composed by verl's Hydra files, advantages go through verl's estimators, and the loss is
the one that verl finds by that configuration.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# By distribution: this folder itself would be found as a package of that name.
try:
    importlib.metadata.version("verl")
except importlib.metadata.PackageNotFoundError:
    pytest.skip("needs verl: make test-verl", allow_module_level=True)

import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.config import omega_conf_to_dataclass

from lgov_core.integrations.verl import manager
from lgov_core.integrations.verl.job import VerlJob, composed
from lgov_core.integrations.verl.rows import queue_rows
from lgov_core.integrations.verl.training import verl_job
from lgov_core.train.algorithms import losses
from lgov_core.train.algorithms.algorithms import REINFORCEMENT, algorithm
from lgov_core.train.settings import load_train_settings
from lgov_core.transitions import TransitionSet, assign_credit
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import Outcome

assert manager.ESTIMATOR, "importing it registers the estimator"
NAMES = [name for name in REINFORCEMENT if name != "ppo"]
TASKS, GROUP = 2, 4


def made(name: str, folder: Path) -> VerlJob:
    path = folder / "config.yaml"
    path.write_text(f"training: {{batch_size: {TASKS}, group_size: {GROUP}}}\nverl: {{context_tokens: 64}}")
    given = {("model", "name"): str(folder), ("model", "max_new_tokens"): 8, ("training", "algorithm"): name}
    return verl_job(
        load_train_settings(path, flags=given, environ={}), run_id="run", folder=folder, tasks=TASKS, port=1
    )


def rollouts() -> TransitionSet:
    """Two tasks, four rollouts each; two calls a rollout, of which every other rollout rebuilds its context."""
    chance = torch.Generator().manual_seed(1)

    def drawn(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(10, 99, (count,), generator=chance).tolist())

    turns: list[Transition] = []
    for number in range(TASKS * GROUP):
        ids = (1, 2)
        for turn in range(2):
            reply = drawn(1 + (number + turn) % 3)
            turns.append(
                Transition(
                    run_id="run",
                    weights_version=3,
                    model="m",
                    task_id=f"task-{number // GROUP}",
                    rollout_id=f"r{number}",
                    attempt=1,
                    turn=turn,
                    response_id=f"r{number}-{turn}",
                    agent="clerk",
                    prompt_ids=ids,
                    response_ids=reply,
                    response_mask=(1,) * len(reply),
                    logprobs=tuple((-0.1 - 2 * torch.rand(len(reply), generator=chance)).tolist()),
                    temperature=1.0,
                    finish_reason="stop",
                    outcome=Outcome.SUCCEEDED,
                    rewards={"task": float(torch.rand(1, generator=chance)), "compliance": -0.5 * (number % 3 == turn)},
                )
            )
            ids = (*ids, *reply, 5) if number % 2 else (7, 8 + turn)
    return TransitionSet(tuple(turns))


def nudged(transitions: tuple[Transition, ...]) -> dict[tuple[str, int, int], float]:
    """New log-probabilities, by rollout, turn and token: far enough from the old ones to meet every clip range."""
    chance = torch.Generator().manual_seed(2)
    return {
        (one.rollout_id, one.turn, place): value + float(torch.randn(1, generator=chance)) * 0.6
        for one in transitions
        for place, value in enumerate(one.logprobs or ())
    }


def here(name: str, transitions: tuple[Transition, ...]) -> dict[tuple[str, int, int], float]:
    """The gradient of every token's log-probability, by the losses of the backend torch."""
    new = nudged(transitions)
    keys = list(new)
    logprobs = torch.tensor(list(new.values()), dtype=torch.float64, requires_grad=True)
    old = torch.tensor([value for one in transitions for value in one.logprobs or ()], dtype=torch.float64)
    advantages = torch.tensor([value for one in transitions for value in one.advantages or ()], dtype=torch.float64)
    weights = torch.tensor([one.loss_weight for one in transitions for _ in one.response_ids], dtype=torch.float64)
    calls = torch.tensor([number for number, one in enumerate(transitions) for _ in one.response_ids])
    found = losses.policy_loss(algorithm(name).update, logprobs, old, advantages, calls)
    (found.loss * weights).sum().backward()
    assert logprobs.grad is not None
    return dict(zip(keys, logprobs.grad.tolist(), strict=True))


def places(transitions: tuple[Transition, ...], apart: bool) -> list[list[tuple[str, int, int] | None]]:
    """Which token stands where in the rows: the rows' responses, with None for what the model did not write."""
    rows: list[list[tuple[str, int, int] | None]] = []
    for one in transitions:
        tokens: list[tuple[str, int, int] | None] = [
            (one.rollout_id, one.turn, place) for place in range(len(one.response_ids))
        ]
        extends = one.turn > 0 and int(one.rollout_id[1:]) % 2 == 1 and not apart
        if extends:
            rows[-1] += [None, *tokens]
        else:
            rows.append(tokens)
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_every_token_is_the_algorithms(name: str, tmp_path: Path) -> None:
    job = made(name, tmp_path)
    config = composed(job, TASKS)
    transitions = assign_credit(rollouts(), job.credit).transitions
    sessions = {f"r{number}": (f"uid-{number // GROUP}", number % GROUP) for number in range(TASKS * GROUP)}
    apart = job.update.loss == "gspo"
    rows = queue_rows(transitions, sessions, temperature=1.0, context_tokens=64, apart=apart).rows
    where = places(transitions, apart)
    assert [len(row.response_ids) for row in rows] == [len(row) for row in where]

    width = max(len(row.response_ids) for row in rows)

    def padded(values: Any) -> torch.Tensor:
        return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in values])

    mask = padded([row.response_mask for row in rows])
    data = DataProto(
        batch=TensorDict(
            {"token_level_rewards": padded([row.advantages for row in rows]), "response_mask": mask}, len(rows)
        )
    )
    data = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[row.key for row in rows],
        adv_estimator=config.algorithm.adv_estimator,
        gamma=config.algorithm.gamma,
        lam=config.algorithm.lam,
        num_repeat=config.actor_rollout_ref.rollout.n,
        config=config.algorithm,
    )
    new = nudged(transitions)
    logprobs = padded([[new[key] if key else 0.0 for key in row] for row in where]).requires_grad_(True)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=padded([row.logprobs for row in rows]),
        log_prob=logprobs,
        advantages=data.batch["advantages"],
        response_mask=mask.bool(),
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
    )
    loss.backward()
    assert logprobs.grad is not None
    found = {
        key: float(logprobs.grad[at][place]) for at, row in enumerate(where) for place, key in enumerate(row) if key
    }
    expected = here(name, transitions)
    assert found.keys() == expected.keys()
    assert max(map(abs, expected.values())) > 1e-3
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    if name in ("grpo", "dr_grpo", "dapo", "gspo", "gdpo", "reinforce++"):
        assert 0 in expected.values(), "some token was clipped, or nothing was compared"


@pytest.mark.parametrize("name", NAMES)
def test_the_kl_is_the_algorithms_and_no_critic_is_made(name: str, tmp_path: Path) -> None:
    config = composed(made(name, tmp_path), TASKS)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    weight = algorithm(name).update.kl
    assert (need_reference_policy(config), actor.use_kl_loss) == (weight > 0, weight > 0)
    assert actor.kl_loss_coef == weight
    assert not need_critic(config)
    new, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -0.5]])
    theirs = agg_loss(
        loss_mat=kl_penalty(new, reference, actor.kl_loss_type),
        loss_mask=torch.ones(1, 2),
        loss_agg_mode=actor.loss_agg_mode,
    )
    assert float(theirs) == pytest.approx(float(losses.kl_to_reference(new, reference).mean()))


@pytest.mark.parametrize("rows", [1, TASKS * GROUP, TASKS * GROUP + 1, 5 * TASKS * GROUP])
def test_however_many_rows_there_are_verl_makes_one_step_of_them(rows: int, tmp_path: Path) -> None:
    job = made("gspo", tmp_path)
    config = composed(job, TASKS)
    rollouts_of_verl: Any = object.__new__(manager.GovernedRollouts)
    rollouts_of_verl.job, rollouts_of_verl._config = job, config
    rollouts_of_verl._one_update_of(rows)
    trainer: Any = SimpleNamespace(use_critic=False, config=config, global_steps=1)
    padded_to = PPOTrainer._get_required_batch_multiple(trainer, 1)
    assert padded_to >= rows, "verl pads up to a whole mini-batch, and makes a step of each"
