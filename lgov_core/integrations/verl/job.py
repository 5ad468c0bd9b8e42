"""A training job on verl: values only, which travel to the node where rollouts are made. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from lgov_core.errors import TrainError
from lgov_core.train.bounds import Bound, bounded, check_bounds
from lgov_core.train.sections import VerlSection
from lgov_core.types import Attempt, CreditRules, Rollout


@dataclass(frozen=True, slots=True)
class VerlUpdate:
    """How verl changes the weights. What each call is worth is not said here: that is `CreditRules`, computed by lgov.

    ``loss`` is the policy-gradient form: ``clip`` (PPO's, with ``clip_low`` and ``clip_high``), ``gspo`` (the ratio of whole
    sequences), ``cispo``, or ``plain`` (no ratio: right for one step of the optimiser, so ``epochs`` and the job's
    ``mini_batches`` must be 1). ``dual_clip`` bounds the loss of tokens of negative advantage at that many times the
    advantage (above 1). ``kl`` is the weight of the KL to the first weights (0: no reference model is kept), ``entropy`` that
    of the entropy bonus. ``epochs`` passes are made over the rows of a step. ``warmup_steps`` and ``schedule`` shape the
    learning rate. ``lora_rank`` 0 trains all weights; else adapters on every linear layer, with alpha twice the rank.
    """

    learning_rate: float = bounded(1e-6, above=0.0)
    loss: Literal["clip", "gspo", "cispo", "plain"] = "clip"
    clip_low: float = bounded(0.2, least=0.0)
    clip_high: float = bounded(0.28, least=0.0)
    dual_clip: float = bounded(10.0, above=1.0)
    kl: float = bounded(0.0, least=0.0)
    entropy: float = bounded(0.0, least=0.0)
    epochs: int = bounded(1, least=1)
    max_grad_norm: float = bounded(1.0, above=0.0)
    weight_decay: float = bounded(0.0, least=0.0)
    warmup_steps: int = bounded(0, least=0)
    schedule: Literal["constant", "cosine"] = "constant"
    lora_rank: int = bounded(0, least=0)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class VerlJob:
    """One training job.

    ``model`` is a transformers folder or a hub name; every node must find it there. ``folder`` gets everything that the
    job writes, ``store`` is the trace store of its rollouts; both are of the node on which the job is started. ``host`` is
    ``module:function`` of the `lgov_core.integrations.verl.manager.Host`, ``options`` what it is given, as JSON values.
    Each of the ``steps`` takes ``tasks_per_step`` tasks, runs ``group`` rollouts of each and updates the weights. ``agents``
    are globs for the names of those whose calls are trained on (none: all).

    ``verl`` is the section of the settings: the cluster, the servers, and how an update is divided. A reply has at most
    ``reply_tokens`` tokens. ``tool_format`` and ``served_as`` are as in the settings of a run. ``checkpoint_every`` steps a
    checkpoint is written (0: only the last).

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
    verl: VerlSection = field(default_factory=VerlSection)
    reply_tokens: int = bounded(1024, least=1)
    tool_format: str | None = None
    served_as: str | None = None
    checkpoint_every: int = 10
    stated: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_bounds(self)
        check_bounds(self.verl)
        verl, gpus = self.verl, self.verl.nodes * self.verl.gpus
        if self.group < self.credit.min_group:
            hint = f"{self.credit.min_group} or more rollouts of a task can be compared"
            raise TrainError(f"VerlJob.group is {self.group}", hint=hint)
        if verl.context_tokens <= self.reply_tokens:
            raise TrainError(
                f"context_tokens {verl.context_tokens} leave no room for a prompt beside reply_tokens {self.reply_tokens}"
            )
        if self.tasks_per_step % verl.mini_batches:
            raise TrainError(f"{verl.mini_batches} mini_batches cannot be made of {self.tasks_per_step} tasks_per_step")
        if verl.context_tokens > verl.tokens_per_gpu:
            raise TrainError(
                f"a conversation of {verl.context_tokens} tokens does not fit tokens_per_gpu {verl.tokens_per_gpu}",
                hint="raise tokens_per_gpu, or lower context_tokens",
            )
        if gpus % verl.tensor_parallel:
            raise TrainError(
                f"tensor_parallel {verl.tensor_parallel} does not divide {gpus} GPUs",
                hint="one server takes tensor_parallel GPUs",
            )
        if self.update.loss == "plain" and (self.update.epochs > 1 or verl.mini_batches > 1):
            raise TrainError("a loss without a ratio is made in one step", hint="epochs and mini_batches of 1")

    def as_dict(self) -> dict[str, Any]:
        """The job as plain JSON values; `from_dict` reads them."""
        verl = {**asdict(self.verl), "overrides": list(self.verl.overrides)}
        return {**asdict(self), "folder": str(self.folder), "agents": list(self.agents), "verl": verl}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VerlJob:
        """A job as `as_dict` wrote it."""
        verl: dict[str, Any] = {**values["verl"], "overrides": tuple(values["verl"]["overrides"])}
        arguments: dict[str, Any] = {
            **values,
            "folder": Path(values["folder"]),
            "agents": tuple(values["agents"]),
            "credit": CreditRules(**values["credit"]),
            "update": VerlUpdate(**values["update"]),
            "verl": VerlSection(**verl),
        }
        return cls(**arguments)


class Host(Protocol):
    """Serves the weights under training to agents, and has rollouts run. For the thread of verl's task runner.

    Made by a function ``open_host(job, engine, store)`` that `VerlJob.host` names, in the process of the task runner. The
    store is open as long as the host is; the host serves ``engine``.
    """

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[Attempt]:
        """See `lgov_core.train.loop.loop.Collector`."""
        ...

    def report(self, figures: Mapping[str, Any]) -> None:
        """The figures of a step whose rollouts are there, ``step`` (from 1) among them.

        Of a step that is made again, after its job was killed, they come again.
        """
        ...

    def close(self) -> None:
        """Ends what it started."""
        ...
