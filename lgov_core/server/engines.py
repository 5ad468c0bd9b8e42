"""The engine that samples for a training, and the policy model that fits it: embedded, or a vLLM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgov_core.errors import SettingsError
from lgov_core.gateway.protocol import ANY_MODEL, Engine
from lgov_core.models import LanguageModel, model_source
from lgov_core.server.policy_engine import PolicyEngine
from lgov_core.server.recipe import adapter_rank, policy_for
from lgov_core.train.engines.vllm_engine import open_vllm
from lgov_core.train.engines.vllm_server import VllmOptions
from lgov_core.train.loop.agents import adapter_policy
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.training_run import Publisher
from lgov_core.train.settings import TrainSettings, VllmSection


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a training samples with: ``policy`` learns, ``publisher`` serves its weights, ``engine`` answers calls.

    ``figures`` returns JSON values for the line of each update.
    """

    engine: Engine
    publisher: Publisher
    policy: PolicyModel
    figures: Callable[[], Mapping[str, Any]] = dict


def open_engine(settings: TrainSettings, model: LanguageModel, folder: Path, opened: contextlib.ExitStack) -> Sampling:
    """The engine that the settings name, for ``model``; what it starts is closed with ``opened``. Raises `LgovError`."""
    given = settings.model
    if given.engine == "embedded":
        if given.engine_url is not None:
            raise SettingsError("model.engine_url is given without an engine there", hint="--engine vllm")
        engine = PolicyEngine(
            model, max_batch=given.max_batch, max_new_tokens=given.max_new_tokens, seed=settings.training.seed
        )
        engine.served_as = given.served_as
        return Sampling(engine, engine, policy_for(settings, model))
    rank = adapter_rank(settings, model)
    if rank == 0:
        raise SettingsError(
            "the engine vllm is published adapters only, and model.lora_rank is 0",
            hint="leave it out, or set it to 16",
        )
    names = [] if given.served_as is None else [given.served_as]
    vllm = opened.enter_context(
        open_vllm(
            model,
            model_source(str(given.name)),
            folder,
            vllm_options(settings.vllm, dtype=given.dtype, rank=rank),
            url=given.engine_url,
            also=(*names, ANY_MODEL),
            max_new_tokens=given.max_new_tokens,
        )
    )
    policy = adapter_policy(model.module, rank=rank, seed=settings.training.seed)
    return Sampling(vllm, vllm.policy, policy, vllm.figures)


def vllm_options(given: VllmSection, *, dtype: str, rank: int = 16) -> VllmOptions:
    """How vLLM is started: without compiling on a machine that has no GPU, where that takes longer than it saves."""
    import torch

    return VllmOptions(
        given.python,
        dtype=given.dtype or dtype,
        gpu_memory=given.gpu_memory,
        context_tokens=given.context_tokens,
        rank=rank,
        start_s=given.start_s,
        eager=not torch.cuda.is_available(),
        arguments=given.arguments,
    )
