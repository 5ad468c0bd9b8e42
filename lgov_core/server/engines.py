"""The engine that samples for a training, and the policy model that fits it: embedded, or a vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgov_core.errors import SettingsError
from lgov_core.gateway.protocol import ANY_MODEL, Engine, EngineControl
from lgov_core.models import LanguageModel, model_source
from lgov_core.server.recipe import RANK, adapter_rank, policy_for
from lgov_core.train.algorithms.config import UpdateConfig
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.engines.policy_engine import PolicyEngine
from lgov_core.train.engines.vllm_engine import open_vllm
from lgov_core.train.engines.vllm_server import VllmOptions
from lgov_core.train.loop.agents import adapter_policy
from lgov_core.train.loop.joint import JointControl, JointUpdate, joint_policy
from lgov_core.train.loop.policy_model import PolicyModel, full_policy
from lgov_core.train.loop.training_run import Learner
from lgov_core.train.sections import VllmSection
from lgov_core.train.settings import TrainSettings


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
