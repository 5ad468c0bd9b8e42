"""What verl's ``core_algos`` says of random numbers, as JSON: the reference of `test_references.py`.

    python tests/train/verl_reference.py > tests/train/reference_verl.json

Needs verl (extra ``verl``). The numbers are committed, so that the comparison runs where verl is not installed.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

ROLLOUTS, LONGEST = 12, 7
LOW, HIGH, DUAL = 0.2, 0.28, 3.0
#: The clip range of the sequence form: wider than GSPO's own, so that random ratios fall on both sides of it.
SEQUENCE_LOW, SEQUENCE_HIGH = 0.05, 0.1
CAP, VALUE_CLIP, DISCOUNT, LAMBDA = 2.0, 0.2, 0.9, 0.8
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


def inputs() -> dict[str, Any]:
    """Random rollouts of one reply each, in three groups of four; every number is one that float32 holds."""
    random = np.random.default_rng(20)

    def numbers(*shape: int, scale: float = 1.0) -> Any:
        return (random.standard_normal(shape) * scale).astype(np.float32).astype(float).round(4).tolist()

    return {
        "groups": [str(number // 4) for number in range(ROLLOUTS)],
        "lengths": random.integers(1, LONGEST + 1, ROLLOUTS).tolist(),
        "task": numbers(ROLLOUTS),
        "air": numbers(ROLLOUTS, scale=0.05),
        "rewards": numbers(ROLLOUTS, LONGEST),
        "values": numbers(ROLLOUTS, LONGEST),
        "predictions": numbers(ROLLOUTS, LONGEST),
        "old": (-np.abs(numbers(ROLLOUTS, LONGEST))).tolist(),
        "new": (-np.abs(numbers(ROLLOUTS, LONGEST))).tolist(),
        "reference": (-np.abs(numbers(ROLLOUTS, LONGEST))).tolist(),
        "advantages": numbers(ROLLOUTS, LONGEST),
        "logits": numbers(3, 5, scale=2.0),
    }


def outputs(given: dict[str, Any]) -> dict[str, Any]:
    """What verl makes of ``given``."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo import core_algos as verl
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.utils.torch_functional import entropy_from_logits
    from verl.workers.config import ActorConfig

    lengths = torch.tensor(given["lengths"])
    mask = (torch.arange(LONGEST)[None, :] < lengths[:, None]).float()
    groups = np.array(given["groups"])

    def tensor(name: str) -> Any:
        return torch.tensor(given[name], dtype=torch.float32)

    def final(name: str) -> Any:
        """A reward on the last token of each reply."""
        placed = torch.zeros(ROLLOUTS, LONGEST)
        placed[torch.arange(ROLLOUTS), lengths - 1] = tensor(name)
        return placed

    scores = final("task") + final("air")
    channels = {name: np.array(given[name], dtype=np.float32) for name in ("task", "air")}
    batch = {
        "prompts": torch.zeros(ROLLOUTS, 2),
        "attention_mask": torch.cat([torch.ones(ROLLOUTS, 2), mask], 1).long(),
    }
    advantages = {
        "grpo": verl.compute_grpo_outcome_advantage(scores, mask, groups),
        "dr_grpo": verl.compute_grpo_outcome_advantage(scores, mask, groups, norm_adv_by_std_in_grpo=False),
        "rloo": verl.compute_rloo_outcome_advantage(scores, mask, groups),
        "reinforce++": verl.compute_reinforce_plus_plus_outcome_advantage(
            scores, mask, config=OmegaConf.create({"gamma": 1.0})
        ),
        "reinforce++ with a group's mean": verl.compute_reinforce_plus_plus_baseline_outcome_advantage(
            scores, mask, groups
        ),
        "gdpo": verl.compute_gdpo_outcome_advantage(
            scores,
            mask,
            groups,
            config=OmegaConf.create({"gdpo_reward_keys": ["task", "air"], "gdpo_reward_weights": [1.0, 0.5]}),
            non_tensor_batch=channels,
            batch=batch,
        ),
        # Each token stands for a turn: a rollout of as many turns.
        "gae": verl.compute_gae_advantage_return(tensor("rewards"), tensor("values"), mask, DISCOUNT, LAMBDA),
    }
    found: dict[str, Any] = {
        "advantages": {name: (pair[0] * mask).tolist() for name, pair in advantages.items()},
        "gae returns": (advantages["gae"][1] * mask).tolist(),
    }

    def actor(low: float, high: float) -> Any:
        return ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=low,
            clip_ratio_high=high,
            clip_ratio_c=DUAL,
        )

    losses: dict[str, Any] = {}
    for name, form, config in (
        ("clip", "vanilla", actor(LOW, HIGH)),
        ("sequence", "gspo", actor(SEQUENCE_LOW, SEQUENCE_HIGH)),
        ("cispo", "cispo", actor(LOW, HIGH)),
        ("plain", "gpg", actor(LOW, HIGH)),
    ):
        for mode in MODES:
            logprobs = tensor("new").requires_grad_(True)
            loss, _ = verl.get_policy_loss_fn(form)(
                tensor("old"), logprobs, tensor("advantages"), mask, loss_agg_mode=mode, config=config
            )
            loss.backward()
            losses[f"{name}, {mode}"] = {"loss": float(loss.detach()), "gradient": (logprobs.grad * mask).tolist()}
    found["losses"] = losses
    found["kl"] = (verl.kl_penalty(tensor("new"), tensor("reference"), "low_var_kl") * mask).tolist()
    found["value loss"] = float(
        verl.compute_value_loss(tensor("predictions"), tensor("rewards"), tensor("values"), mask, VALUE_CLIP)[0]
    )
    found["importance"] = compute_rollout_correction_weights(tensor("new") - tensor("old"), mask, "token", CAP)[
        0
    ].tolist()
    found["entropy"] = entropy_from_logits(tensor("logits")).tolist()
    return found


def main() -> None:
    """Prints inputs, outputs and versions."""
    given = inputs()
    versions = {name: version(name) for name in ("verl", "torch", "numpy")}
    print(json.dumps({"versions": versions, "inputs": given, "outputs": outputs(given)}, indent=None))


if __name__ == "__main__":
    main()
