"""Supervised fine-tuning: the recorded rollouts it learns from, and next-token cross-entropy on the assistant's tokens.

Imitated are rollouts that earned enough and broke no rule.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.algorithms.algorithms import SupervisedConfig
from lgov_core.train.layout.rows import TrainRow, autocast, batches_by_length, make_rows, row_logprobs
from lgov_core.transitions.messages import Keep, totals_of, unfit
from lgov_core.transitions.transition_set import Transition, TransitionSet, by_rollout


def supervised(
    module: Any,
    draw: Callable[[int], list[TrainRow]],
    config: SupervisedConfig,
    progress: Callable[[int, int, float], None] | None = None,
) -> float:
    """Trains ``module`` in place on rows from ``draw(count)``; returns the last loss (mean over trained tokens).

    ``progress(step, steps, loss)`` is called after every step. Raises `TrainError` when the loss is not finite.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=0.0)
    device = next(module.parameters()).device.type
    loss_value = 0.0
    module.train()
    for step in range(config.steps):
        rate = min(1.0, (step + 1) / 10) * (0.1 + 0.9 * (1 - step / config.steps))
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate
        rows = draw(config.batch)
        trained = sum(sum(row.mask) for row in rows)
        optimizer.zero_grad(set_to_none=True)
        loss_value = 0.0
        # Rows of like length together: padding would be most of the work. The gradient is that of one large batch.
        for batch in batches_by_length(rows, config.tokens_per_pass):
            with autocast(device, config.precision):
                logprobs = row_logprobs(module, batch)
            loss = -logprobs.sum() / trained
            loss.backward()
            loss_value += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        if loss_value != loss_value:
            raise TrainError("the warm start's loss is not a number", hint="lower its learning rate")
        if progress is not None:
            progress(step + 1, config.steps, loss_value)
    module.eval()
    return loss_value


@dataclass(frozen=True, slots=True)
class Imitated:
    """The imitated calls: ``transitions`` to train on and those of tasks ``held_out``; ``kept`` attempts are in the two.

    ``left_out`` counts attempts by the reason why they are not (``outcome``, ``not_compliant``, ``reward``,
    ``not_among_best``; for `lgov_core.server.sft` ``held_out`` too), as ``repeated`` the calls that say word for word what
    another one says to the same prompt, and as ``set_aside`` the choices that an attempt did not continue with.
    """

    transitions: tuple[Transition, ...]
    held_out: tuple[Transition, ...]
    kept: int
    left_out: Mapping[str, int]


def choose(
    data: TransitionSet,
    keep: Keep,
    *,
    denied: Mapping[tuple[str, int], Sequence[str]],
    top_share: float = 1.0,
    held_out: float = 0.0,
    seed: int = 0,
) -> Imitated:
    """The calls worth imitating. Pure, and the same for the same seed in whatever order the data came.

    Of the attempts of a task that ``keep`` accepts, the best ``top_share`` (rounded up, by the sum of rewards in
    ``keep.dimension``) are taken. The tasks held out are drawn by ``seed``; at least one task is trained on.
    """
    left_out: Counter[str] = Counter()
    by_task: dict[str, list[tuple[float, tuple[str, int], list[Transition]]]] = {}
    for key, turns in sorted(by_rollout(data.transitions).items()):
        reason = unfit(key, turns, keep, denied)
        if reason is not None:
            left_out[reason] += 1
            continue
        by_task.setdefault(turns[0].task_id, []).append((totals_of(turns).get(keep.dimension, 0.0), key, turns))
    tasks = sorted(by_task)
    out = min(round(held_out * len(tasks)), len(tasks) - 1) if tasks else 0
    apart = set(random.Random(f"held-out/{seed}").sample(tasks, out))
    chosen: dict[bool, list[Transition]] = {False: [], True: []}
    kept = 0
    for task in tasks:
        attempts = sorted(by_task[task], key=lambda attempt: (-attempt[0], attempt[1]))
        taken = math.ceil(top_share * len(attempts))
        left_out["not_among_best"] += len(attempts) - taken
        kept += taken
        seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        for _, _, turns in attempts[:taken]:
            for turn in turns:
                words = (turn.prompt_ids, turn.response_ids)
                if turn.set_aside:
                    left_out["set_aside"] += 1
                    continue
                if words in seen:
                    left_out["repeated"] += 1
                    continue
                seen.add(words)
                chosen[task in apart].append(turn)
    return Imitated(
        tuple(chosen[False]), tuple(chosen[True]), kept, {name: count for name, count in left_out.items() if count}
    )


def imitation_rows(transitions: Sequence[Transition]) -> list[TrainRow]:
    """Rows in which every token of a reply counts the same, those too that a demanded form decided: it is to be learnt. Nothing
    that was recorded about chance is used.
    """
    plain: list[Transition] = []
    for turn in transitions:
        if turn.prompt_ids and (count := len(turn.response_ids)):
            every = {"response_mask": (1,) * count, "advantages": (1.0,) * count, "logprobs": (0.0,) * count}
            plain.append(replace(turn, loss_weight=1.0, **every))
    return make_rows(plain)


def mean_loss(module: Any, rows: Sequence[TrainRow], tokens_per_pass: int) -> float | None:
    """Cross-entropy per trained token, in nats; None without rows."""
    trained = sum(row.trained for row in rows)
    if not trained:
        return None
    total = 0.0
    with torch.no_grad():
        for batch in batches_by_length(rows, tokens_per_pass):
            total -= float(row_logprobs(module, batch).sum())
    return total / trained
