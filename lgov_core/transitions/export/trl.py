"""Rollouts in the form that TRL's ``rollout_func`` returns them (TRL 1.x, ``GRPOTrainer``; its row is one rollout)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lgov_core.transitions.tokens.chains import make_chains
from lgov_core.transitions.transition_set import TransitionSet, by_rollout, line_of


@dataclass(frozen=True, slots=True)
class TrlRollouts:
    """Columns of equal length, one place a rollout, and how many rollouts have no place for which reason.

    ``columns``: ``prompt_ids`` (the first prompt), ``completion_ids`` (all that follows), ``env_mask`` (of the completion's
    length; 1 = the model's own token, 0 = a tool's or the surroundings'), ``logprobs`` (same length, 0.0 where the mask
    is 0), and what reward functions get as further fields: ``task_id``, ``rollout_id``, ``held_out`` and, for
    every dimension that occurs, ``reward_{dimension}`` (the rollout's sum, 0.0 where it earned none).
    """

    columns: dict[str, list[Any]]
    left_out: Counter[str] = field(default_factory=Counter[str])


def trl_rollouts(data: TransitionSet) -> TrlRollouts:
    """The rollouts that are one sequence of tokens.

    TRL has one row and one number a rollout: a rollout of several chains (other agents, a rewritten context) has no
    place in it and is counted as ``several_chains``, one without log-probabilities as ``no_logprobs``; rewards of single
    turns are summed, since TRL cannot tell turns apart. Choices that an attempt set aside are not in its row.
    """
    found: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for (rollout_id, _), turns in by_rollout(data.transitions).items():
        chains = make_chains(line_of(turns))
        if len(chains) != 1:
            left_out["several_chains"] += 1
            continue
        row = chains[0].as_row()
        if row["logprobs"] is None:
            left_out["no_logprobs"] += 1
            continue
        found.append(
            {
                "prompt_ids": row["prompt_ids"],
                "completion_ids": row["response_ids"],
                "env_mask": row["response_mask"],
                "logprobs": row["logprobs"],
                "task_id": row["task_id"],
                "rollout_id": rollout_id,
                "held_out": row["held_out"],
                **{f"reward_{name}": value for name, value in row["rewards"].items()},
            }
        )
    fixed = ("prompt_ids", "completion_ids", "env_mask", "logprobs", "task_id", "rollout_id", "held_out")
    earned = sorted({name for row in found for name in row} - {*fixed})
    columns = {name: [row[name] for row in found] for name in fixed}
    return TrlRollouts(columns | {name: [row.get(name, 0.0) for row in found] for name in earned}, left_out)
