"""From settings to what executes them: device, policy model, credit rules, update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgov_core.errors import SettingsError
from lgov_core.gateway.protocol import ANY_MODEL, Engine, EngineControl
from lgov_core.models import LanguageModel, load_model, model_source
from lgov_core.models.load import SMALL, dtype_for, pinned
from lgov_core.train.algorithms.algorithms import (
    OTHERS,
    Algorithm,
    UpdateConfig,
    algorithm,
    algorithm_name,
    read_parts,
)
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.engines.vllm_engine import PolicyEngine, open_vllm
from lgov_core.train.engines.vllm_server import VllmOptions
from lgov_core.train.loop.policy_model import PolicyModel, adapter_policy, full_policy, lora_policy
from lgov_core.train.loop.several_policies import JointControl, JointUpdate, joint_policy
from lgov_core.train.loop.training_run import Learner
from lgov_core.train.sections import VllmSection
from lgov_core.train.settings import TrainingJob, TrainSettings

#: The rank of adapters unless the settings say otherwise.
RANK = 16


def device_for(gpus: int | None) -> str:
    """The device for ``gpus`` GPUs (None: one if available). Raises `SettingsError` for more than there are."""
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = min(there, 1) if gpus is None else gpus
    if number > there:
        raise SettingsError(
            f"{number} GPUs are asked for, and {there or 'none'} can be used here", hint="--gpus 0 trains on the CPU"
        )
    if number > 1:
        raise SettingsError(
            f"{number} GPUs are asked for; this server trains on one", hint="lgov train --backend verl uses several"
        )
    return "cuda" if number else "cpu"


def agent_name_of(job: TrainingJob) -> str:
    """The agent that a job names. Raises `SettingsError` for none."""
    if job.agent is None:
        raise SettingsError("no agent is named", hint="--agent module:function, or --agent file.py:function")
    return job.agent


def task_file(job: TrainingJob) -> Path:
    """The file of the tasks to train on. Raises `SettingsError` for none."""
    if job.settings.data.train is None:
        raise SettingsError("there are no tasks", hint="--tasks train.jsonl, or data.train in the config file")
    return job.settings.data.train


def client_options(settings: TrainSettings, folder: Path) -> dict[str, Any]:
    """The options of `Client.train` that the settings give. Raises `SettingsError` for threads that are to be confined."""
    runtime = settings.runtime
    if runtime.workers == "threads":
        runtime.refuse_confinement()
    return {
        "nworkers": runtime.nworkers,
        "workers": "confined" if runtime.confine else runtime.workers or "processes",
        "policy": runtime.policy,
        "audit": folder / "audit.db" if runtime.policy or runtime.confine else None,
        "air_enabled": runtime.air_enabled,
        "auto_instrumentation": runtime.auto_instrumentation,
    }


def with_exact_model(settings: TrainSettings, device: str) -> TrainSettings:
    """``settings`` with the version of a promoted model, and a ``model.dtype`` that is not auto.

    Raises `SettingsError` when no model is named, and `ModelError`.
    """
    name = pinned(_model_name(settings))
    return settings.with_values("model", name=name, dtype=dtype_for(name, settings.model.dtype, device))


def load(settings: TrainSettings, device: str, dtype: str | None = None) -> LanguageModel:
    """The model that is served and trained, in ``model.dtype`` unless another is given. Raises as `with_exact_model`."""
    name, section = _model_name(settings), settings.model
    dtype = dtype_for(name, section.dtype if dtype is None else dtype, device)
    return load_model(name, dtype=dtype, tool_format=section.tool_format, device=device)


def _model_name(settings: TrainSettings) -> str:
    if settings.model.name is None:
        raise SettingsError("no model is named", hint="--model smollm2, model.name, or LIGHTNING_MODEL_PATH")
    return settings.model.name


def adapter_rank(settings: TrainSettings, model: LanguageModel) -> int:
    """The rank of the adapters that are trained; 0: all weights are, by default those of a small model."""
    rank = settings.model.lora_rank
    if rank is None:
        small = settings.model.engine == "embedded" and model.module.num_parameters() < SMALL
        rank = 0 if small else RANK
    return rank


def policy_for(settings: TrainSettings, model: LanguageModel) -> PolicyModel:
    """The copy of the model that learns: all of it, or adapters."""
    rank = adapter_rank(settings, model)
    return full_policy(model.module) if rank == 0 else lora_policy(model.module, rank=rank, seed=settings.training.seed)


#: The rate of a small model all of whose weights learn, unless the settings name one: docs/evidence/results.md (defaults).
_SMALL_RATE: Mapping[str, Any] = {"learning_rate": 1e-3, "schedule": "linear", "total_steps": 1}


def algorithm_for(settings: TrainSettings, model: LanguageModel | None = None) -> Algorithm:
    """How rewards become advantages, and what an update does with them: the algorithm, with what the settings change.

    The rate is that of a large model where ``model`` is None. Raises `SettingsError` for an algorithm that needs no agents.
    """
    training = settings.training
    name = algorithm_name(training.algorithm)
    if name in OTHERS:
        raise SettingsError(
            f"{name} learns from recorded traces, not from agents at work",
            hint=f"lgov train --algorithm {name} --traces STORE",
        )
    chosen: dict[str, Any] = {
        "learning_rate": training.learning_rate,
        "epochs": training.update_epochs,
        "kl": training.kl_coef,
        "max_grad_norm": training.max_grad_norm,
        "tokens_per_batch": training.tokens_per_batch,
        "packing": training.packing,
        "discount": training.discount,
        "precision": "bfloat16" if settings.model.dtype == "bfloat16" else "float32",
    }
    chosen = {key: value for key, value in chosen.items() if value is not None} | read_parts(training)[0]
    if model is not None and training.learning_rate is None:
        whole = adapter_rank(settings, model) == 0 and model.module.num_parameters() < SMALL
        chosen = {**(_SMALL_RATE if whole else {}), **chosen}
    return algorithm(name, seed=training.seed, **chosen)


def extra_groups_for(settings: TrainSettings, chosen: Algorithm) -> int:
    """How many groups an update may collect in place of alike ones. Raises `SettingsError` where none can be alike, and for
    groups of one rollout where rollouts of a group are compared.
    """
    training = settings.training
    if training.group_size == 1 and chosen.credit.compares_groups:
        raise SettingsError(
            f"training.group_size is 1, and {chosen.name} compares the rollouts of a group: nothing would be learnt",
            hint="set it to 4 or more, or choose an algorithm such as ppo or reinforce++",
        )
    if training.max_extra_groups is None:
        return chosen.extra_groups * training.update_tasks
    if training.max_extra_groups and not chosen.credit.compares_groups:
        raise SettingsError(
            f"training.max_extra_groups is {training.max_extra_groups}, and {chosen.name} compares no groups",
            hint="leave it out, or choose an algorithm such as dapo or grpo",
        )
    return training.max_extra_groups


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parts that a training samples with: ``policy`` learns, ``engine`` answers calls, ``control`` has its weights.

    ``figures`` returns JSON values for the line of each update. ``policies`` are the parts of a `joint_policy`, by name.
    """

    engine: Engine
    control: EngineControl
    policy: PolicyModel
    figures: Callable[[], Mapping[str, Any]] = dict
    policies: Mapping[str, PolicyModel] = field(default_factory=dict[str, PolicyModel])

    def learner(self, config: UpdateConfig) -> Learner:
        """Returns the learner that updates ``policy``."""
        if self.policies:
            return JointUpdate({name: _update(policy, config) for name, policy in self.policies.items()})
        return _update(self.policy, config)


def open_engine(settings: TrainSettings, model: LanguageModel, folder: Path, opened: contextlib.ExitStack) -> Sampling:
    """The engine that the settings name, for ``model``; what it starts is closed with ``opened``. Raises `LgovError`."""
    model_section, policies = settings.model, settings.training.policies
    if policies and model_section.lora_rank == 0:
        raise SettingsError(
            "training.policies are adapters, and model.lora_rank is 0", hint="leave it out, or set it to 16"
        )
    for name in {model.name, model_section.served_as} & policies.keys():
        raise SettingsError(f"the policy {name!r} has the name of the model itself", hint="choose another name for it")
    if model_section.engine == "embedded":
        if model_section.engine_url is not None:
            raise SettingsError("model.engine_url is given without an engine there", hint="--engine vllm")
        engine = PolicyEngine(
            model,
            max_batch=model_section.max_batch,
            max_new_tokens=model_section.max_new_tokens,
            seed=settings.training.seed,
            policies=tuple(policies),
        )
        engine.served_as, engine.routes = model_section.served_as, policies
        if policies:
            return _joint(settings, model, engine, {name: engine.policy(name) for name in policies})
        return Sampling(engine, engine, policy_for(settings, model))
    rank = adapter_rank(settings, model)
    names = [] if model_section.served_as is None else [model_section.served_as]
    trained = [name for name, section in policies.items() if not section.frozen]
    vllm = opened.enter_context(
        open_vllm(
            model,
            model_source(str(model_section.name)),
            folder,
            vllm_options(
                settings.vllm, model_section.dtype, rank=rank, policies=len(trained) or 1, url=model_section.engine_url
            ),
            also=(*names, ANY_MODEL),
            policies=policies,
            max_new_tokens=model_section.max_new_tokens,
        )
    )
    if policies:
        return _joint(settings, model, vllm, vllm.policies, vllm.figures)
    seed = settings.training.seed
    policy = adapter_policy(model.module, rank=rank, seed=seed) if rank else full_policy(model.module)
    return Sampling(vllm, vllm.policy, policy, vllm.figures)


def _joint(
    settings: TrainSettings,
    model: LanguageModel,
    engine: Engine,
    controls: Mapping[str, EngineControl],
    figures: Callable[[], Mapping[str, Any]] = dict,
) -> Sampling:
    """Adapters for each policy that is trained; the frozen ones are the model as it is."""
    rank, seed = settings.model.lora_rank, settings.training.seed
    names = [name for name, section in settings.training.policies.items() if not section.frozen]
    policies = {
        name: adapter_policy(model.module, rank=rank or RANK, seed=seed + number) for number, name in enumerate(names)
    }
    control = JointControl({name: controls[name] for name in names})
    return Sampling(engine, control, joint_policy(policies), figures, policies)


def _update(policy: PolicyModel, config: UpdateConfig) -> PolicyUpdate:
    return PolicyUpdate(policy.module, config, reference=policy.reference, reference_mode=policy.reference_mode)


def vllm_options(
    section: VllmSection, dtype: str, *, rank: int = 16, policies: int = 1, url: str | None = None
) -> VllmOptions:
    """How vLLM is started: without compiling on a machine that has no GPU, where that takes longer than it saves."""
    import torch

    gpu = torch.cuda.is_available()
    return VllmOptions(
        section.python,
        dtype=section.dtype or dtype,
        gpu_memory=section.gpu_memory,
        context_tokens=section.context_tokens,
        rank=rank,
        policies=policies,
        start_s=section.start_s,
        cpu=not gpu,
        sleep=section.sleep,
        # On a CPU vLLM refuses the argument; it then sleeps without freeing anything.
        arguments=("--enable-sleep-mode", *section.arguments) if section.sleep and gpu else section.arguments,
        url=url,
    )
