"""Transitions as the rows that verl trains on: one row a chain, each token with its own advantage; and a step's figures. No
verl is needed.

verl computes advantages of its own from one score a row, or from the last row of a rollout. Here they are computed
before, by `lgov_core.transitions.assign_credit`, and handed to verl: a row's ``rm_scores`` hold the advantage of every
token, in fp32, and the registered estimator ``lgov_precomputed`` (`lgov_core.integrations.verl.manager`) hands them on
unchanged.

verl's loss is the mean over the tokens of a mini-batch (``token-mean``). A loss weight w of lgov is put into the
advantage as w x (trained tokens of the step): all clipped losses are linear in the size of the advantage, so that the
mean over all tokens is the weighted sum. Where every token counts the same, the factor is 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lgov_core.errors import TransitionError
from lgov_core.train.loop.figures import earned_figures, policy_figures
from lgov_core.transitions import CreditRules, TransitionSet
from lgov_core.transitions.tokens import Chain, make_chains
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import Attempt


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One chain as verl's TransferQueue takes it.

    ``key`` is ``{group}_{session}_{i}``: verl's id of the task, the rollout in it (from 0), the row in that (from 0).
    ``prompt_ids`` (int, length P) are all tokens before the first reply, ``response_ids`` (length R) all that follow;
    ``response_mask`` (R) is 1 where the model chose the token. ``logprobs`` (R) are those recorded and ``advantages`` (R)
    include the loss weight; both are 0.0 where the mask is 0. ``versions`` are the lowest and highest version of the
    weights that sampled it; ``turns`` how many replies it holds.
    """

    key: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    versions: tuple[int, int]
    turns: int


@dataclass(frozen=True, slots=True)
class QueueRows:
    """The rows of one step, and how many transitions were left out of them, by reason."""

    rows: tuple[QueueRow, ...]
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])


def queue_rows(
    transitions: Sequence[Transition],
    sessions: Mapping[str, tuple[str, int]],
    *,
    temperature: float,
    context_tokens: int,
    apart: bool = False,
    all_of_them: bool = True,
) -> QueueRows:
    """Rows for verl of transitions with credit.

    With ``apart`` each transition is a row of its own, for a loss that takes a row for one sequence. Without
    ``all_of_them`` rows whose advantages are all 0 are left out (``no_advantage``): where nothing but the advantages moves
    the weights, they cost time and no more.

    ``sessions`` gives each rollout's group and number in it. Left out are transitions sampled at another
    ``temperature`` (``other_temperature``), those longer than ``context_tokens`` (``too_long``), and those without a
    version of their weights (``unknown_weights``). Pure. Raises `TransitionError` for transitions without credit or
    log-probabilities.
    """
    left_out: Counter[str] = Counter()
    kept: list[Transition] = []
    for turn in transitions:
        if abs(turn.temperature - temperature) > 1e-6:
            left_out["other_temperature"] += 1
        elif len(turn.prompt_ids) + len(turn.response_ids) > context_tokens:
            left_out["too_long"] += 1
        elif turn.weights_version is None:
            left_out["unknown_weights"] += 1
        else:
            kept.append(turn)
    chains: list[tuple[str, Chain]] = []
    for chain in [chain for transition in kept for chain in make_chains([transition])] if apart else make_chains(kept):
        if not any(chain.mask):
            left_out["nothing_to_train_on"] += len(chain.links)
        elif not all_of_them and chain.advantages is not None and not any(chain.advantages):
            left_out["no_advantage"] += len(chain.links)
        else:
            group, session = sessions[chain.rollout_id]
            chains.append((f"{group}_{session}", chain))
    tokens = sum(sum(chain.mask) for _, chain in chains)
    counts: Counter[str] = Counter()
    rows: list[QueueRow] = []
    for name, chain in chains:
        rows.append(_row(chain, f"{name}_{counts[name]}", tokens))
        counts[name] += 1
    return QueueRows(tuple(rows), left_out)


def mini_batch_tasks(rows: int, *, group: int, mini_batches: int, shards: int) -> int:
    """The ``ppo_mini_batch_size`` with which verl makes at most ``mini_batches`` optimiser steps of the rows.

    It counts tasks: verl multiplies it by ``group``. verl keeps it for a whole job, and would make a second step of the
    surplus rows: with a mean over a few tokens, and without a ratio to correct for the first step. ``shards`` must
    divide a mini-batch.
    """
    least = math.ceil(rows / (mini_batches * group))
    divisor = shards // math.gcd(shards, group)
    return math.ceil(least / divisor) * divisor


def _row(chain: Chain, key: str, tokens: int) -> QueueRow:
    advantages, weights, logprobs = chain.advantages, chain.weights, chain.logprobs
    if advantages is None or weights is None or logprobs is None:
        missing = "log-probabilities" if logprobs is None else "credit"
        raise TransitionError(f"a turn of rollout {chain.rollout_id} has no {missing}, and verl needs it")
    at = chain.prompt_length
    versions = [link.transition.weights_version or 0 for link in chain.links]
    return QueueRow(
        key,
        tuple(chain.ids[:at]),
        tuple(chain.ids[at:]),
        chain.mask[at:],
        logprobs[at:],
        tuple(value * weight * tokens for value, weight in zip(advantages[at:], weights[at:], strict=True)),
        (min(versions), max(versions)),
        len(chain.links),
    )


def batch_figures(
    data: TransitionSet, results: Sequence[Attempt], rules: CreditRules, *, dropped_spans: int = 0
) -> dict[str, Any]:
    """`policy_figures` and `earned_figures` of a batch; ``weights_versions`` counts the calls of each version."""
    keys = list(dict.fromkeys((transition.rollout_id, transition.attempt) for transition in data.transitions))
    earned = (
        ((transition.rollout_id, transition.attempt), channel, value)
        for transition in data.transitions
        if not transition.set_aside
        for channel, value in transition.rewards.items()
    )
    return {
        **earned_figures(results, keys, earned),
        **policy_figures(data, results, rules, dropped_spans=dropped_spans),
        "transitions": len(data.transitions),
        "weights_versions": dict(Counter(str(transition.weights_version) for transition in data.transitions)),
    }
