"""The policy update: rows with advantages in, better weights out.

The loss of a trained token with advantage A, weight w, log-probability l, recorded log-probability l₀ and entropy H is

    w · u · f(l, l₀, A)  +  w · β · k3(l, l_ref)  -  w · η · H

f is one of the forms of `lgov_core.train.algorithms.losses`, β ``kl``, η ``entropy``, and u the correction of tokens
that older weights
sampled (1 for all others). A and w come from `assign_credit`; nothing here decides what a turn is worth.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lgov_core.errors import TrainError
from lgov_core.train.algorithms.algorithms import MOST_MOVED, UpdateConfig
from lgov_core.train.algorithms.losses import importance_weights, kl_to_reference, policy_loss, value_loss
from lgov_core.train.algorithms.passes import (
    TokenColumns,
    ValueHead,
    call_starts,
    check_finite,
    columns_of,
    explained_variance,
    fresh_rows,
    split_rows,
    with_values,
)
from lgov_core.train.layout.layouts import Layout, layout_for
from lgov_core.train.layout.rows import TrainRow, autocast, base_model, head_scores, memory_errors
from lgov_core.transitions import CreditRules, TransitionSet, assign_credit


@dataclass(frozen=True, slots=True)
class UpdateMetrics:
    """The effect of one update. Means are over trained tokens.

    Of the first epoch: ``loss``, ``kl`` (to the reference, k3; None where there is none), ``entropy`` (the mean of -log p over
    the tokens that were sampled; None where nothing was trained), ``grad_norm`` (before clipping) and ``logprob_drift``, the
    mean absolute difference between recorded and recomputed log-probabilities before the first step, of tokens that are not
    stale. Of the last: ``clip_fraction`` and ``moved``, how far the policy was from where the update began before each step
    (k3, nats a token).

    ``steps`` counts the optimiser's steps, ``learning_rate`` is that of this update. ``stale_tokens`` were sampled by older
    weights than those at the start; ``importance`` is the mean weight that the corrected ones got, and ``dropped_tokens``
    were too old to be trained on. With a critic, ``value_loss``, and ``explained_variance``: what part of the variance of
    its targets it had foreseen (1 is all; 0 no better than their mean). ``tokens_run`` is on how many tokens, padding
    included, one pass over the rows runs the model; ``tokens_saved`` how many fewer those are than the prompts and replies
    of all calls, each by itself.
    """

    rows: int = 0
    tokens: int = 0
    loss: float = 0.0
    kl: float | None = None
    entropy: float | None = None
    clip_fraction: float = 0.0
    grad_norm: float = 0.0
    logprob_drift: float = 0.0
    moved: float = 0.0
    steps: int = 0
    learning_rate: float = 0.0
    stale_tokens: int = 0
    importance: float = 1.0
    dropped_tokens: int = 0
    value_loss: float = 0.0
    explained_variance: float = 0.0
    tokens_run: int = 0
    tokens_saved: int = 0


class Sums(defaultdict[str, float]):
    """Numbers of several passes, added up; 0 for a name that was not added."""

    def __init__(self) -> None:
        super().__init__(float)

    def add(self, values: Mapping[str, float]) -> None:
        """Adds the numbers of one pass."""
        for name, value in values.items():
            self[name] += value

    def mean(self, name: str, over: str = "tokens") -> float:
        """The sum of ``name`` divided by that of ``over``."""
        return self[name] / max(self[over], 1.0)


Tensor = torch.Tensor


class PolicyUpdate:
    """Updates ``module`` in place. Not safe to call from several threads.

    ``reference`` gives the reference log-probabilities: a context manager factory under which ``module`` *is* the reference
    (for LoRA: adapters switched off), or another module. It may be None only with ``kl`` 0. ``layout`` says how tokens are
    laid out for a pass (None: as ``config.packing`` says). The same rows and settings give the same weights (on a GPU up to
    the order in which it adds).
    """

    def __init__(
        self,
        module: Any,
        config: UpdateConfig,
        *,
        reference: Any | None = None,
        reference_mode: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
        layout: Layout | None = None,
    ) -> None:
        if config.kl > 0 and reference is None and reference_mode is None:
            raise TrainError("kl > 0 needs a reference model", hint="pass reference= or reference_mode=, or set kl=0")
        self.module = module
        self.config = config
        self.reference = reference
        self.reference_mode = reference_mode
        self.layout: Layout = layout or layout_for(config.packing, module)
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.device = self.parameters[0].device
        self.updates = 0
        #: How many updates are to be made; replaces ``config.total_steps``.
        self.planned: int | None = None
        self.rate_left = 1.0  # of the learning rate, after updates that were too large
        self.head: ValueHead | None = None
        groups = [{"params": self.parameters, "lr": config.learning_rate, "weight_decay": config.weight_decay}]
        if config.critic:
            width = int(base_model(module).get_output_embeddings().weight.shape[1])
            self.head = ValueHead(width, config.value_width, seed=config.seed).to(self.device)
            groups.append({"params": list(self.head.parameters()), "lr": config.value_rate, "weight_decay": 0.0})
        self.optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2))
        self._order = torch.Generator().manual_seed(config.seed)

    def credit(self, data: TransitionSet, rules: CreditRules) -> TransitionSet:
        """`assign_credit` by ``rules``, after the critic, where there is one, has said what it expects of each turn."""
        if self.head is None or not data.transitions:
            return assign_credit(data, rules)
        tokens = self.config.tokens_per_batch
        with memory_errors(tokens) as doing, self._autocast():
            doing.append("what the critic says")
            valued = with_values(self.head, self.module, self.layout, data.transitions, tokens)
        return assign_credit(replace(data, transitions=valued), rules)

    def update(
        self,
        rows: Sequence[TrainRow],
        progress: Callable[[int, int], None] | None = None,
        *,
        version: int | None = None,
    ) -> UpdateMetrics:
        """One update on ``rows``. Rows whose advantages are all 0 are left out, unless there is a critic to learn from them.

        ``version`` is that of the weights as they are now: calls of earlier ones are corrected (None: of no call is known
        that it was sampled by other weights). ``progress(done, total)`` is called after every forward pass that learns.
        Nothing happens where there is nothing to learn from. Raises `TrainError` for advantages, weights or log-probabilities
        that are not finite, when the loss or gradient is not finite, when the policy is more than ``max_kl`` from the
        reference, and when memory does not suffice (naming the setting to lower). The weights are then as they were before
        the step that failed.
        """
        config = self.config
        kept, dropped = fresh_rows(rows, version, config.drop_older_than)
        if self.head is None:
            kept = [row for row in kept if row.informative]
        if not kept:
            return UpdateMetrics(dropped_tokens=dropped)
        check_finite(kept)
        rate = config.rate_at(self.updates, self.planned) * self.rate_left
        for group, full in zip(self.optimizer.param_groups, (config.learning_rate, config.value_rate), strict=False):
            group["lr"] = full * rate
        try:
            with memory_errors(config.tokens_per_batch) as doing:
                metrics = self._run(kept, version, doing, progress or (lambda done, total: None))
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        if metrics.moved > MOST_MOVED:
            self.rate_left /= 2
        saved = sum(row.called for row in kept) - metrics.tokens_run
        return replace(
            metrics,
            rows=len(kept),
            learning_rate=config.learning_rate * rate,
            dropped_tokens=dropped,
            tokens_saved=saved,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on beside the weights: tensors and plain values only."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "rate_left": self.rate_left,
            "order": self._order.get_state(),
            "head": None if self.head is None else self.head.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave. Raises `TrainError` when it is not of such an update."""
        try:
            if (state["head"] is None) != (self.head is None):
                raise ValueError("one has a critic, the other has none")
            self.optimizer.load_state_dict(dict(state["optimizer"]))
            if self.head is not None:
                self.head.load_state_dict(dict(state["head"]))
            self._order.set_state(state["order"].cpu())
            self.updates, self.rate_left = int(state["updates"]), float(state.get("rate_left", 1.0))
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise TrainError(
                f"the optimiser's state does not fit: {error}", hint="it was saved by an update with other settings"
            ) from error

    def _run(
        self, rows: Sequence[TrainRow], version: int | None, doing: list[str], progress: Callable[[int, int], None]
    ) -> UpdateMetrics:
        config = self.config
        parts: list[tuple[float, list[_Pass]]] = []
        work = 0
        for minibatch in split_rows(rows, config.minibatches, self._order):
            batches = self.layout.batches(minibatch.rows, config.tokens_per_batch)
            work += self.layout.work(batches)
            parts.append((minibatch.scale, [self._pass(batch, version, doing) for batch in batches]))
        passes_of_all = [pass_ for _, every in parts for pass_ in every]
        done, total, steps = 0, sum(len(passes) for _, passes in parts) * config.epochs, 0
        before, first, last = Sums(), Sums(), Sums()
        for epoch in range(config.epochs):
            last = Sums()
            for number in torch.randperm(len(parts), generator=self._order).tolist():
                scale, passes = parts[number]
                self.optimizer.zero_grad(set_to_none=True)
                sums = Sums()
                calls = sum(len(call_starts(pass_.rows)[1]) for pass_ in passes)
                for pass_ in passes:
                    doing.append(pass_.words)
                    sums.add(self._backward(pass_, scale, calls))
                    done += 1
                    progress(done, total)
                doing.append("the optimiser's step")
                sums.add({"norm": self._checked(sums), "parts": 1.0})
                last.add(sums)
                if steps == 0:
                    before = sums
                if epoch == 0:
                    first.add(sums)
                if config.stop_kl is not None and sums.mean("moved") > config.stop_kl:
                    return replace(self._metrics(passes_of_all, before, first, last, steps), tokens_run=work)
                self.optimizer.step()
                steps += 1
        return replace(self._metrics(passes_of_all, before, first, last, steps), tokens_run=work)

    def _pass(self, rows: Sequence[TrainRow], version: int | None, doing: list[str]) -> _Pass:
        """Computes what does not change while the update continues: columns, reference, and the correction of older tokens."""
        config = self.config
        doing.append(f"a pass of {len(rows)} rows, {sum(len(row.ids) for row in rows)} tokens, without gradient")
        columns = columns_of(rows, version, self.device)
        reference, factor = None, torch.ones_like(columns.old)
        corrected = torch.full_like(columns.stale, config.correction == "always")
        if config.correction == "stale":
            corrected = columns.stale
        with torch.no_grad(), self._autocast():
            if config.kl > 0:
                mode = self.reference_mode() if self.reference_mode is not None else contextlib.nullcontext()
                module = self.reference if self.reference is not None else self.module
                with mode:
                    reference = self.layout.logprobs(module, rows)
            if bool(corrected.any()):
                now = self.layout.logprobs(self.module, rows)
                factor = torch.where(corrected, importance_weights(now, columns.old, config.importance_cap), factor)
                columns = replace(columns, base=torch.where(corrected, now, columns.old))
        return _Pass(rows, columns, reference, factor, corrected)

    def _backward(self, pass_: _Pass, scale: float, calls: int) -> dict[str, float]:
        """Adds the gradient of one pass; returns sums over its tokens."""
        config, columns = self.config, pass_.columns
        with self._autocast():
            if self.head is None and config.entropy == 0:
                logprobs, entropy, states = self.layout.logprobs(self.module, pass_.rows), None, None
            else:
                states = self.layout.states(self.module, pass_.rows)
                logprobs, entropy = head_scores(self.module, states, pass_.rows, entropy=config.entropy > 0)
        policy = policy_loss(config, logprobs, columns.base, columns.advantages, columns.sequences)
        weights = columns.weights * scale
        loss = (policy.loss * weights * pass_.factor).sum()
        kl = torch.zeros_like(logprobs)
        if pass_.reference is not None:
            kl = kl_to_reference(logprobs, pass_.reference)
            loss = loss + config.kl * (kl * weights).sum()
        if entropy is not None:
            loss = loss - config.entropy * (entropy * weights).sum()
        sums: dict[str, float] = {}
        total = loss
        if self.head is not None and states is not None:
            critic = self._value_loss(self.head, states, pass_.rows) / max(calls, 1)
            total = loss + critic
            sums["value_loss"] = float(critic.detach())
        total.backward()
        with torch.no_grad():
            gap = logprobs - columns.base
            return sums | {
                "loss": float(loss),
                "tokens": float(len(logprobs)),
                "kl": float(kl.sum()),
                "entropy": float(-logprobs.sum()),
                "clipped": float(policy.clipped.sum()),
                "drift": float((logprobs - columns.old).abs()[~columns.stale].sum()),
                "fresh": float((~columns.stale).sum()),
                "moved": float(kl_to_reference(torch.zeros_like(gap), gap).sum()),
            }

    def _value_loss(self, head: ValueHead, states: Tensor, rows: Sequence[TrainRow]) -> Tensor:
        starts, calls = call_starts(rows)
        values = head(states[torch.tensor(starts, dtype=torch.long, device=states.device)])
        before = torch.tensor([call.value or 0.0 for call in calls], device=values.device)
        targets = torch.tensor([call.target or 0.0 for call in calls], device=values.device)
        return value_loss(values, before, targets, self.config.value_clip)[0].sum()

    def _checked(self, sums: Sums) -> float:
        """The norm of the policy's gradient, which is clipped. Raises `TrainError` for what must not become a step."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm))
        own = 0.0
        if self.head is not None:
            own = float(torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.config.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(own) and math.isfinite(sums["loss"])):
            raise TrainError(
                f"the update is not finite (loss {sums['loss']}, gradient norm {norm})",
                hint="lower the learning rate; the weights before this step are kept",
            )
        if sums.mean("kl") > self.config.max_kl:
            raise TrainError(
                f"the policy is {sums.mean('kl'):.3g} nats a token from its reference, more than max_kl {self.config.max_kl:g}",
                hint="lower the learning rate or raise kl, and resume from an earlier checkpoint; the weights are kept",
            )
        return norm

    def _metrics(self, passes: Sequence[_Pass], before: Sums, first: Sums, last: Sums, steps: int) -> UpdateMetrics:
        """``before`` are the sums of the first mini-batch, ``first`` and ``last`` those of the first and last epoch."""
        factors = [value for pass_ in passes for value in pass_.factor[pass_.corrected].tolist()]
        return UpdateMetrics(
            tokens=int(first["tokens"]),
            loss=first.mean("loss", "parts"),
            kl=first.mean("kl") if self.config.kl > 0 else None,
            entropy=first.mean("entropy"),
            clip_fraction=last.mean("clipped"),
            grad_norm=first.mean("norm", "parts"),
            logprob_drift=before.mean("drift", "fresh"),
            moved=last.mean("moved"),
            steps=steps,
            stale_tokens=sum(int(pass_.columns.stale.sum()) for pass_ in passes),
            importance=sum(factors) / len(factors) if factors else 1.0,
            value_loss=first.mean("value_loss", "parts"),
            explained_variance=explained_variance([call for pass_ in passes for call in call_starts(pass_.rows)[1]]),
        )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.device.type, self.config.precision)


@dataclass(frozen=True, slots=True)
class _Pass:
    rows: Sequence[TrainRow]
    columns: TokenColumns
    reference: Tensor | None
    factor: Tensor
    corrected: Tensor

    @property
    def words(self) -> str:
        return f"a pass of {len(self.rows)} rows, {sum(len(row.ids) for row in self.rows)} tokens"
