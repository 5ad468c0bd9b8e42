"""What a training job on verl is: values only, which travel to the node where rollouts are made. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lgov_core.errors import TrainError
from lgov_core.train.bounds import Bound, bounded, check_bounds
from lgov_core.types import CreditRules


@dataclass(frozen=True, slots=True)
class VerlUpdate:
    """How verl changes the weights. What each call is worth is not said here: that is `CreditRules`, computed by lgov.

    ``loss`` is the policy-gradient form: ``clip`` (PPO's, with ``clip_low`` and ``clip_high``), ``gspo`` (the ratio of whole
    sequences), ``cispo``, or ``plain`` (no ratio: right for one step of the optimiser, so ``epochs`` and ``mini_batches`` must
    be 1). ``dual_clip`` bounds the loss of tokens of negative advantage at that many times the advantage (above 1). ``kl`` is
    the weight of the KL to the first weights (0: no reference model is kept), ``entropy`` that of the entropy bonus.
    ``epochs`` passes are made over the rows of a step, in at most ``mini_batches`` optimiser steps each, however many rows it
    has. ``warmup_steps`` and ``schedule`` shape the learning rate. ``max_ratio_weight`` truncates the importance weight
    between the server that sampled and the trainer (None: no such correction). ``recompute`` False takes the server's
    log-probabilities for the old policy's and saves a forward pass (there is then no such correction either).
    ``lora_rank`` 0 trains all weights; else adapters on every linear layer, with alpha twice the rank.
    """

    learning_rate: float = bounded(1e-6, above=0.0)
    loss: Literal["clip", "gspo", "cispo", "plain"] = "clip"
    clip_low: float = bounded(0.2, least=0.0)
    clip_high: float = bounded(0.28, least=0.0)
    dual_clip: float = bounded(10.0, above=1.0)
    kl: float = bounded(0.0, least=0.0)
    entropy: float = bounded(0.0, least=0.0)
    epochs: int = bounded(1, least=1)
    mini_batches: int = bounded(1, least=1)
    max_grad_norm: float = bounded(1.0, above=0.0)
    weight_decay: float = bounded(0.0, least=0.0)
    warmup_steps: int = bounded(0, least=0)
    schedule: Literal["constant", "cosine"] = "constant"
    max_ratio_weight: float | None = 2.0
    recompute: bool = True
    lora_rank: int = bounded(0, least=0)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.loss == "plain" and (self.epochs > 1 or self.mini_batches > 1):
            raise TrainError("a loss without a ratio is made in one step", hint="epochs and mini_batches of 1")


@dataclass(frozen=True, slots=True)
class VerlCluster:
    """What the job runs on.

    ``nodes`` of ``gpus`` each hold trainer and servers together (verl's synchronous mode). ``server`` is verl's name of the
    servers: ``vllm`` or ``sglang``. ``tensor_parallel`` GPUs hold one server; ``gpu_memory`` is the share of a GPU's memory
    that it takes. ``address`` is that of a Ray cluster (None: one is started on this machine, or the one in
    ``RAY_ADDRESS`` is used). ``tokens_per_gpu`` bounds the tokens of one forward pass. ``offload`` keeps parameters and
    optimiser states in the memory of the CPU while they are not used.
    """

    nodes: int = bounded(1, least=1)
    gpus: int = bounded(1, least=1)
    server: str = "vllm"
    tensor_parallel: int = bounded(1, least=1)
    gpu_memory: float = bounded(0.5, above=0.0, below=1.0)
    address: str | None = None
    tokens_per_gpu: int = bounded(16384, least=1)
    offload: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.gpus * self.nodes % self.tensor_parallel:
            raise TrainError(
                f"tensor_parallel {self.tensor_parallel} does not divide {self.gpus * self.nodes} GPUs",
                hint="one server takes tensor_parallel GPUs",
            )


@dataclass(frozen=True, slots=True)
class VerlJob:
    """One training job.

    ``model`` is a transformers folder or a hub name; every node must find it there. ``folder`` gets everything that the
    job writes, ``store`` is the trace store of its rollouts; both are of the node on which the job is started. ``host`` is
    ``module:function`` of the `lgov_core.train.verl.hosts.Host`, ``options`` what it is given, as JSON values.
    Each of the ``steps`` takes ``tasks_per_step`` tasks, runs ``group`` rollouts of each and updates the weights. ``agents``
    are globs for the names of those whose calls are trained on (none: all).

    ``temperature`` is the one at which agents must sample: verl computes log-probabilities at one temperature only, and
    calls at another are left out and counted. A conversation has at most ``context_tokens`` tokens, a reply
    ``reply_tokens``. ``tool_format`` and ``served_as`` are as in the settings of a run. ``checkpoint_every`` steps a
    checkpoint is written (0: only the last). ``overrides`` are further settings of verl's own, as Hydra writes them
    (``trainer.logger=[console,wandb]``), and win, but for those that say what is learnt
    (`lgov_core.train.verl.hydra_config.check_overrides`).

    ``stated`` is what the statements of its checkpoints say of the run and the job does not: ``settings``, ``policy``,
    ``model`` and ``start_sha256`` as in `lgov_core.train.loop.lineage.Facts`, and ``key``, the path of the key that signs them
    (without: nothing does).

    Raises `TrainError` for a value without meaning.
    """

    run_id: str
    folder: Path
    model: str
    store: str
    host: str
    options: Mapping[str, Any]
    steps: int = field(metadata={"bound": Bound(least=1)})
    tasks_per_step: int = bounded(16, least=1)
    group: int = bounded(8, least=1)
    seed: int = 0
    agents: tuple[str, ...] = ()
    credit: CreditRules = field(default_factory=CreditRules)
    update: VerlUpdate = field(default_factory=VerlUpdate)
    cluster: VerlCluster = field(default_factory=VerlCluster)
    temperature: float = bounded(1.0, above=0.0)
    context_tokens: int = 8192
    reply_tokens: int = bounded(1024, least=1)
    tool_format: str | None = None
    served_as: str | None = None
    checkpoint_every: int = 10
    overrides: tuple[str, ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.group < self.credit.min_group:
            hint = f"{self.credit.min_group} or more rollouts of a task can be compared"
            raise TrainError(f"VerlJob.group is {self.group}", hint=hint)
        if self.context_tokens <= self.reply_tokens:
            raise TrainError(
                f"context_tokens {self.context_tokens} leave no room for a prompt beside reply_tokens {self.reply_tokens}"
            )
        if self.tasks_per_step % self.update.mini_batches:
            raise TrainError(
                f"{self.update.mini_batches} mini_batches cannot be made of {self.tasks_per_step} tasks_per_step"
            )
        if self.context_tokens > self.cluster.tokens_per_gpu:
            raise TrainError(
                f"a conversation of {self.context_tokens} tokens does not fit tokens_per_gpu {self.cluster.tokens_per_gpu}",
                hint="raise tokens_per_gpu, or lower context_tokens",
            )

    def as_dict(self) -> dict[str, Any]:
        """The job as plain JSON values; `from_dict` reads them."""
        lists = {"agents": list(self.agents), "overrides": list(self.overrides)}
        return {**asdict(self), "folder": str(self.folder), **lists}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VerlJob:
        """A job as `as_dict` wrote it."""
        given: dict[str, Any] = {
            **values,
            "folder": Path(values["folder"]),
            "agents": tuple(values["agents"]),
            "credit": CreditRules(**values["credit"]),
            "update": VerlUpdate(**values["update"]),
            "cluster": VerlCluster(**values["cluster"]),
            "overrides": tuple(values["overrides"]),
        }
        return cls(**given)
