"""A training job on verl: values only, which travel to the node where rollouts are made; and verl's own settings for it.

`settings` needs no verl, `composed` does. Importing this module loads nothing heavy.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import Meta

from lgov_core.errors import SettingsError, TrainError
from lgov_core.train.sections import FINITE, Above0, AtLeast0, Count, VerlSection, Whole, check_values
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

    learning_rate: Above0 = 1e-6
    loss: Literal["clip", "gspo", "cispo", "plain"] = "clip"
    clip_low: AtLeast0 = 0.2
    clip_high: AtLeast0 = 0.28
    dual_clip: Annotated[float, Meta(gt=1.0, le=FINITE)] = 10.0
    kl: AtLeast0 = 0.0
    entropy: AtLeast0 = 0.0
    epochs: Count = 1
    max_grad_norm: Above0 = 1.0
    weight_decay: AtLeast0 = 0.0
    warmup_steps: Whole = 0
    schedule: Literal["constant", "cosine"] = "constant"
    lora_rank: Whole = 0

    def __post_init__(self) -> None:
        check_values(self)


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
    steps: Count
    tasks_per_step: Count = 16
    group: Count = 8
    seed: int = 0
    agents: tuple[str, ...] = ()
    credit: CreditRules = field(default_factory=CreditRules)
    update: VerlUpdate = field(default_factory=VerlUpdate)
    verl: VerlSection = field(default_factory=VerlSection)
    reply_tokens: Count = 1024
    tool_format: str | None = None
    served_as: str | None = None
    checkpoint_every: int = 10
    stated: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_values(self)
        check_values(self.verl)
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


#: The class that verl asks for rollouts, and the estimator that passes on lgov's advantages.
MANAGER = "lgov_core.integrations.verl.manager.GovernedRollouts"
ESTIMATOR = "lgov_precomputed"

#: The class that verl calls after each checkpoint, for ``trainer.checkpoint_callback_class``.
CALLBACK: Final = "lgov_core.integrations.verl.checkpoints.Sealed"

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_LOSSES = {"clip": "vanilla", "gspo": "gspo", "cispo": "cispo", "plain": "gpg"}

#: What no override may touch, with what says it instead: a job would learn something else than it says, or could not be
#: resumed. A name covers everything below it.
_OWNED: Final[Mapping[str, str]] = {
    "training.algorithm": "algorithm {actor}.policy_loss {actor}.loss_agg_mode {actor}.loss_scale_factor {actor}.clip_ratio"
    " {actor}.clip_ratio_low {actor}.clip_ratio_high {actor}.clip_ratio_c {actor}.kl_loss_type",
    "training.batch_size": "data.train_batch_size data.gen_batch_size",
    "training.group_size": "{rollout}.n",
    "training.kl_coef": "{actor}.use_kl_loss {actor}.kl_loss_coef",
    "training.update_epochs": "{actor}.ppo_epochs",
    "training.epochs": "trainer.total_epochs",
    "training.steps": "trainer.total_training_steps",
    "training.seed": "data.seed data.shuffle data.sampler",
    "training.checkpoint_every": "trainer.save_freq {actor}.checkpoint",
    "data.train": "data.train_files",
    "model.name": "{model}.path",
    "model.lora_rank": "{model}.lora_rank {model}.lora_alpha {model}.lora_adapter_path {model}.target_modules"
    " {model}.target_parameters {model}.exclude_modules",
    "verl.temperature": "{rollout}.temperature {rollout}.top_p {rollout}.top_k",
    "verl.mini_batches": "{actor}.ppo_mini_batch_size",
    "--folder": "trainer.default_local_dir",
    "--resume": "trainer.resume_mode trainer.resume_from_path",
    "the config file": "lgov",
    "the reward of the agent": "reward",
    "nothing: credit needs them": "{rollout}.calculate_log_probs",
    "nothing: these are lgov's rollouts": "{rollout}.agent.agent_loop_manager_class",
    "nothing: lgov's rollouts need it": "trainer.use_v1",
    "nothing: each step waits for its rollouts": "trainer.v1",
    "nothing: no critic is trained on verl": "critic trainer.critic_warmup",
    "nothing: no teacher is asked": "distillation",
    "nothing: the run must be able to continue": "trainer.del_local_ckpt_after_load",
    "nothing: it states what a checkpoint was made of": "trainer.checkpoint_callback_class",
}
_OVERRIDE = re.compile(r"\s*(?:\+\+|\+|~)?\s*([^=@:\s]+)")


def tasks_file(folder: Path) -> Path:
    """Where the tasks are, as verl's dataset reads them."""
    return folder / "tasks.parquet"


def check_overrides(overrides: Sequence[str]) -> None:
    """Raises `SettingsError` for an override of what lgov sets by the algorithm's name, or continues by."""
    for override in overrides:
        match = _OVERRIDE.match(override)
        name = (match.group(1) if match else override).replace("/", ".")
        for instead, names in _OWNED.items():
            for owned in names.format(actor=_ACTOR, rollout=_ROLLOUT, model=_MODEL).split():
                if name == owned or name.startswith(f"{owned}.") or owned.startswith(f"{name}."):
                    raise SettingsError(
                        f"the override {override!r} sets {owned}, which is lgov's", hint=f"set {instead}"
                    )


def settings(job: VerlJob, tasks: int, checkpoint: Path | None = None) -> dict[str, Any]:
    """The settings of verl by their dotted names, for a job with ``tasks`` tasks; a name with + is new to verl.

    verl resumes from ``checkpoint``, or begins with the first step.
    Raises `TrainError` for fewer tasks than one step takes.
    """
    if tasks < job.tasks_per_step:
        raise TrainError(
            f"there are {tasks} tasks, but a step takes {job.tasks_per_step}", hint="lower tasks_per_step, or give more"
        )
    epochs = -(-job.steps * job.tasks_per_step // (tasks - tasks % job.tasks_per_step)) + 1
    return {
        **_data(job),
        **_trainer(job, epochs),
        "trainer.resume_mode": "disable" if checkpoint is None else "resume_path",
        "trainer.resume_from_path": None if checkpoint is None else str(checkpoint),
        "trainer.checkpoint_callback_class": CALLBACK,
        **_actor(job),
        **_update(job),
        **_servers(job),
        # Advantages are computed by lgov, so verl's discounts, baselines and deviations stay unset.
        "algorithm.adv_estimator": ESTIMATOR,
        "algorithm.use_kl_in_reward": False,
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class": MANAGER,
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": job.verl.nodes,
        # Where verl's own figures go; Ray's processes do not see what this one has in its environment.
        "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH": str(job.folder / "verl.jsonl"),
        **({} if job.verl.address is None else {"+ray_kwargs.ray_init.address": job.verl.address}),
    }


def overrides(job: VerlJob, tasks: int, checkpoint: Path | None = None) -> list[str]:
    """`settings` as Hydra's command line writes them, then the job's own overrides. Raises as `check_overrides`."""
    check_overrides(job.verl.overrides)
    own = settings(job, tasks, checkpoint)
    return [f"{name}={_written(value)}" for name, value in own.items()] + list(job.verl.overrides)


def composed(job: VerlJob, tasks: int, checkpoint: Path | None = None) -> Any:
    """The whole configuration of verl (an OmegaConf ``DictConfig``), with the job itself under ``lgov``.

    Raises `TrainError` for an override that verl does not know, and `SettingsError` as `check_overrides`.
    """
    import verl
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict

    folder = Path(verl.__file__).parent / "trainer" / "config"
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config: Any = compose("ppo_trainer", overrides=overrides(job, tasks, checkpoint))
    except HydraException as error:
        raise TrainError(
            f"verl does not take these settings: {str(error).splitlines()[0]}",
            hint="check the overrides, and that verl is 0.9",
        ) from error
    with open_dict(config):
        config.lgov = OmegaConf.create(job.as_dict())
    return config


def _data(job: VerlJob) -> Mapping[str, Any]:
    return {
        "data.train_files": str(tasks_file(job.folder)),
        "data.val_files": str(tasks_file(job.folder)),
        "data.train_batch_size": job.tasks_per_step,
        "data.max_prompt_length": job.verl.context_tokens - job.reply_tokens,
        "data.max_response_length": job.reply_tokens,
        "data.seed": job.seed,
        "data.dataloader_num_workers": 0,
    }


def _trainer(job: VerlJob, epochs: int) -> Mapping[str, Any]:
    return {
        "trainer.project_name": "lgov",
        "trainer.experiment_name": job.run_id,
        "trainer.logger": ["console", "file"],
        "trainer.nnodes": job.verl.nodes,
        "trainer.n_gpus_per_node": job.verl.gpus,
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.total_epochs": epochs,
        "trainer.total_training_steps": job.steps,
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": job.checkpoint_every or job.steps,
        "trainer.default_local_dir": str(job.folder / "checkpoints"),
        "trainer.max_actor_ckpt_to_keep": 2,
    }


def _actor(job: VerlJob) -> Mapping[str, Any]:
    update, verl = job.update, job.verl
    return {
        f"{_MODEL}.path": job.model,
        f"{_MODEL}.lora_rank": update.lora_rank,
        f"{_MODEL}.lora_alpha": 2 * update.lora_rank,
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.ppo_mini_batch_size": job.tasks_per_step // verl.mini_batches,
        f"{_ACTOR}.ppo_epochs": update.epochs,
        f"{_ACTOR}.data_loader_seed": job.seed,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": verl.tokens_per_gpu,
        f"{_ACTOR}.fsdp_config.param_offload": verl.offload,
        f"{_ACTOR}.fsdp_config.optimizer_offload": verl.offload,
        f"{_ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{_ACTOR}.checkpoint.load_contents": ["model", "optimizer", "extra"],
    }


def _update(job: VerlJob) -> Mapping[str, Any]:
    update, verl = job.update, job.verl
    correction = "algorithm.rollout_correction"
    return {
        f"{_ACTOR}.loss_agg_mode": "token-mean",  # loss weights are in the advantages: see rows.py
        f"{_ACTOR}.policy_loss.loss_mode": _LOSSES[update.loss],
        f"{_ACTOR}.clip_ratio_low": update.clip_low,
        f"{_ACTOR}.clip_ratio_high": update.clip_high,
        f"{_ACTOR}.clip_ratio_c": update.dual_clip,
        f"{_ACTOR}.use_kl_loss": update.kl > 0,
        f"{_ACTOR}.kl_loss_coef": update.kl,
        f"{_ACTOR}.kl_loss_type": "low_var_kl",
        f"{_ACTOR}.entropy_coeff": update.entropy,
        f"{_ACTOR}.optim.lr": update.learning_rate,
        f"{_ACTOR}.optim.lr_warmup_steps": update.warmup_steps,
        f"{_ACTOR}.optim.lr_scheduler_type": update.schedule,
        f"{_ACTOR}.optim.weight_decay": update.weight_decay,
        f"{_ACTOR}.optim.clip_grad": update.max_grad_norm,
        f"{correction}.bypass_mode": not verl.recompute,
        f"{correction}.rollout_is": "token" if verl.max_ratio_weight is not None else None,
        f"{correction}.rollout_is_threshold": verl.max_ratio_weight or 2.0,
    }


def _servers(job: VerlJob) -> Mapping[str, Any]:
    verl = job.verl
    return {
        f"{_ROLLOUT}.name": verl.server,
        # With adapters the servers load the model themselves, and are sent the adapters only.
        f"{_ROLLOUT}.load_format": "auto" if job.update.lora_rank else "dummy",
        f"{_ROLLOUT}.n": job.group,
        f"{_ROLLOUT}.temperature": verl.temperature,
        f"{_ROLLOUT}.top_p": 1.0,
        f"{_ROLLOUT}.tensor_model_parallel_size": verl.tensor_parallel,
        f"{_ROLLOUT}.gpu_memory_utilization": verl.gpu_memory,
        f"{_ROLLOUT}.max_model_len": verl.context_tokens,
        f"{_ROLLOUT}.calculate_log_probs": True,
        f"{_ROLLOUT}.seed": job.seed,
    }


def _written(value: Any) -> str:
    """A value as Hydra's grammar reads it."""
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)
