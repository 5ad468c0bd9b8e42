"""``lgov train --algorithm sft``: supervised fine-tuning on recorded rollouts that earned enough and broke no rule."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from lgov_core._util.files import atomic_folder, atomic_write
from lgov_core.errors import SettingsError, TrainError
from lgov_core.models import LanguageModel
from lgov_core.server.recipe import device_for, load, policy_for, with_exact_model
from lgov_core.store import open_store
from lgov_core.train.algorithms.algorithms import SupervisedConfig
from lgov_core.train.algorithms.supervised import Imitated, choose, imitation_rows, mean_loss, supervised
from lgov_core.train.layout.rows import TrainRow
from lgov_core.train.settings import TrainingJob
from lgov_core.transitions import Selection, make_transitions, read_store
from lgov_core.transitions.messages import Keep, denied_attempts
from lgov_core.types import Outcome

#: Where the model that was trained is left: a transformers folder.
MODEL_FOLDER: Final = "model"
_BATCH: Final = 32
_LEARNING_RATE: Final = 1e-4
_TOKENS: Final = 2048


def run_sft(job: TrainingJob) -> Mapping[str, Any]:
    """Trains on the store ``job.traces`` and leaves a model in ``model/`` of the folder, which `lgov serve` can serve.

    ``training.epochs`` passes over the rows, ``training.batch_size`` of them to a step, ``training.steps`` steps at most.
    Returns the counts of what was kept and left out, and the mean loss per token before and after, on what was trained
    on and on the tasks held out. Raises `SettingsError` and `TrainError`; nothing is written then but what was chosen.
    """
    if job.traces is None:
        raise SettingsError("there are no recorded rollouts to learn from", hint="--traces STORE")
    try:
        return _trained(job)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing of it is kept, run the same command again") from None


def _trained(job: TrainingJob) -> Mapping[str, Any]:
    target = job.folder / MODEL_FOLDER
    if target.exists():
        raise SettingsError(f"{target} is there already", hint="choose another --folder")
    chosen = _chosen(job)
    training = job.settings.training
    device = device_for(None)
    settings = with_exact_model(job.settings, device)
    # The model that is written: it is not rounded, whatever passes compute in.
    model = load(settings, device, "float32")
    rows, apart = imitation_rows(chosen.transitions), imitation_rows(chosen.held_out)
    _require_vocabulary(model, [*rows, *apart])
    policy = policy_for(job.settings, model)
    tokens = training.tokens_per_batch or _TOKENS
    batch = training.batch_size or _BATCH
    steps = training.epochs * math.ceil(len(rows) / batch)
    config = SupervisedConfig(
        steps=steps if training.steps is None else min(steps, training.steps),
        batch=min(batch, len(rows)),
        learning_rate=training.learning_rate or _LEARNING_RATE,
        max_grad_norm=training.max_grad_norm or 1.0,
        tokens_per_pass=tokens,
        precision="bfloat16" if settings.model.dtype == "bfloat16" else "float32",
    )
    policy.module.eval()
    before = mean_loss(policy.module, rows, tokens), mean_loss(policy.module, apart, tokens)
    job.say(f"{len(rows)} rows of {chosen.kept} attempts, {config.steps} steps; everything goes to {job.folder}")
    supervised(policy.module, _Draw(rows, training.seed), config, lambda *at: _progress(job, *at))
    after = mean_loss(policy.module, rows, tokens), mean_loss(policy.module, apart, tokens)
    if not all(math.isfinite(loss) for loss in after if loss is not None):
        raise TrainError("the loss is not a number after the last step", hint="lower training.learning_rate")
    report = {
        "model": str(target),
        "kept_attempts": chosen.kept,
        "left_out": dict(chosen.left_out),
        "rows": len(rows),
        "held_out_rows": len(apart),
        "steps": config.steps,
        "loss": [before[0], after[0]],
        "held_out_loss": [before[1], after[1]],
    }
    about = {**report, "traces": str(job.traces), "settings": job.settings.as_json()}
    _save(model, dict(policy.served()), target, json.dumps(about, indent=2) + "\n")
    return report


class _Draw:
    """Rows in an order of its own for each pass over them; the same for the same seed."""

    def __init__(self, rows: list[TrainRow], seed: int) -> None:
        self._rows, self._chance = rows, random.Random(f"sft/{seed}")
        self._left: list[TrainRow] = []

    def __call__(self, count: int) -> list[TrainRow]:
        if not self._left:
            self._left = self._chance.sample(self._rows, len(self._rows))
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn


def _chosen(job: TrainingJob) -> Imitated:
    section = job.settings.sft
    try:
        outcomes = frozenset(Outcome(name) for name in section.outcomes)
    except ValueError as error:
        raise SettingsError(f"sft.outcomes: {error}", hint=f"there are {', '.join(Outcome)}") from error
    source = str(job.traces)
    if "://" not in source and not Path(source).exists():
        raise SettingsError(f"there is no store {source}", hint="check the path given to --traces")
    with contextlib.closing(open_store(source)) as store:
        records = read_store(store)
    selection = Selection(agents=job.settings.training.agents, held_out=section.include_held_out)
    data = make_transitions(records, selection, need_logprobs=False)
    keep = Keep(outcomes, section.min_reward, section.dimension, section.compliant)
    chosen = choose(
        data,
        keep,
        denied=denied_attempts(records.spans),
        top_share=section.top_share,
        held_out=section.held_out,
        seed=job.settings.training.seed,
    )
    measuring = {
        rollout.rollout_id for rollout in records.rollouts if rollout.held_out and not section.include_held_out
    }
    attempts = sum(attempt.rollout_id in measuring for attempt in records.attempts)
    left_out = {**chosen.left_out, **({"held_out": attempts} if attempts else {})}
    if not chosen.transitions:
        why = ", ".join(f"{name}: {count}" for name, count in left_out.items()) or "no call has token ids"
        raise TrainError(
            f"nothing in {source} is worth imitating ({why})",
            hint="record rollouts to train on, or take those that measured the model: --include-held-out"
            if left_out.keys() == {"held_out"}
            else "lower sft.min_reward, or record more",
        )
    return replace(chosen, left_out=left_out)


def _require_vocabulary(model: LanguageModel, rows: list[TrainRow]) -> None:
    embeddings: Any = model.module.get_input_embeddings()
    size = embeddings.weight.shape[0]
    largest = max(max(row.ids) for row in rows)
    if largest >= size:
        raise TrainError(
            f"the rollouts hold token {largest}, and {model.name} knows {size}",
            hint="train the model that wrote them: token ids of another one mean something else",
        )


def _progress(job: TrainingJob, step: int, steps: int, loss: float) -> None:
    if step in (1, steps) or step % max(1, steps // 10) == 0:
        job.say(f"step {step} of {steps}, loss {loss:.4f}")


def _save(model: LanguageModel, served: dict[str, torch.Tensor], target: Path, about: str) -> None:
    """Puts the trained weights into ``model`` and writes it, under its name only when it and what is said of it are whole."""
    own = model.module.state_dict()
    unknown = sorted(served.keys() - own.keys())
    if unknown:
        raise TrainError(f"the trained weights do not fit the model ({unknown[0]})")
    with torch.no_grad():
        for name, value in served.items():
            own[name].copy_(value)
    with atomic_folder(target) as partial:
        model.save(partial)
        atomic_write(target.with_name("sft.json"), about.encode())
