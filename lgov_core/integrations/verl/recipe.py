"""From the settings of a run to a job on verl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import SettingsError
from lgov_core.gateway.server import is_loopback
from lgov_core.integrations.verl.hydra_config import check_overrides
from lgov_core.integrations.verl.job import VerlJob, VerlUpdate
from lgov_core.integrations.verl.serving import coordinator_options
from lgov_core.models.load import model_place
from lgov_core.server.recipe import algorithm_for
from lgov_core.train.algorithms.config import UpdateConfig
from lgov_core.train.algorithms.registry import REINFORCEMENT, algorithm_name
from lgov_core.train.settings import TrainSettings

_FORMS: Final[Mapping[str, Any]] = {"clip": "clip", "sequence": "gspo", "cispo": "cispo", "plain": "plain"}
_AS_IN_UPDATE: Final = ("clip_low", "clip_high", "kl", "entropy", "epochs", "max_grad_norm")
#: A bound that never applies: verl cannot switch the second bound off.
_NO_DUAL_CLIP: Final = 1e9


def verl_job(settings: TrainSettings, *, run_id: str, folder: Path, tasks: int, port: int) -> VerlJob:
    """The job for the given tasks. The server listens on ``port`` of this machine unless the section ``verl`` says where.

    Raises `SettingsError` for a key that there is not, and for what verl cannot do.
    """
    section, training = settings.verl, settings.training
    if settings.model.name is None:
        raise SettingsError("no model is named", hint="--model FOLDER, model.name, or LIGHTNING_MODEL_PATH")
    if settings.model.engine != "embedded":
        raise SettingsError(
            "verl keeps its own servers", hint="leave model.engine out; verl.server names vllm or sglang"
        )
    if training.max_staleness:
        raise SettingsError("on verl each step waits for its rollouts", hint="leave max_staleness out")
    if training.max_extra_groups:
        raise SettingsError("on verl no groups are collected in place of alike ones", hint="leave max_extra_groups out")
    if training.policies or training.curriculum:
        raise SettingsError(
            "training.policies and training.curriculum are for the backend torch", hint="leave --backend verl out"
        )
    algorithm = algorithm_name(training.algorithm)
    chosen = algorithm_for(settings)
    batch = min(training.batch_size, tasks)
    steps = training.epochs * (tasks // batch)
    host, asked_port = listening(settings, port)
    secret = section.key_secret_file
    if not is_loopback(host) and secret is None:
        raise SettingsError(
            f"{host} can be reached from other machines and no keys are required", hint="give verl.key_secret_file"
        )
    check_overrides(section.overrides)
    return VerlJob(
        run_id=run_id,
        folder=folder,
        model=model_place(settings.model.name),
        store=str(folder / "store.sqlite"),
        **coordinator_options(
            host=host,
            port=asked_port,
            algorithm=algorithm,
            timeout_s=settings.runtime.timeout_s,
            max_attempts=settings.runtime.max_attempts,
            key_secret_file=None if secret is None else Path(secret).absolute(),
        ),
        steps=steps if training.steps is None else min(steps, training.steps),
        tasks_per_step=batch,
        group=training.group_size,
        seed=training.seed,
        agents=training.agents,
        credit=chosen.credit,
        update=verl_update(algorithm, chosen.update, settings),
        verl=section,
        reply_tokens=settings.model.max_new_tokens,
        tool_format=settings.model.tool_format,
        served_as=settings.model.served_as,
        checkpoint_every=training.checkpoint_every,
    )


def listening(settings: TrainSettings, port: int) -> tuple[str, int]:
    """Where the server listens: ``verl.listen``, or the given port of this machine. Raises `SettingsError`."""
    listen = settings.verl.listen
    if listen is None:
        return "127.0.0.1", port
    host, _, number = listen.rpartition(":")
    if not host or not number.isdigit():
        raise SettingsError(f"verl.listen is {listen!r}", hint="write an address and a port, as 0.0.0.0:8321")
    return host, int(number)


def verl_update(name: str, update: UpdateConfig, settings: TrainSettings) -> VerlUpdate:
    """What of the algorithm ``name`` verl executes. Raises `SettingsError` for what it cannot."""
    if update.critic:
        raise SettingsError(
            f"{name} trains a critic beside the policy, which lgov does not do on verl",
            hint=f"--backend torch, or one of {', '.join(one for one in REINFORCEMENT if one != name)}",
        )
    form = update.loss
    if form not in _FORMS:
        raise SettingsError(
            f"{name} has the loss {form}, which verl does not know", hint=f"verl has {', '.join(_FORMS)}"
        )
    if form == "plain" and (update.epochs > 1 or settings.verl.mini_batches > 1):
        raise SettingsError(f"{name} makes one step an update: nothing corrects for a second", hint="update_epochs: 1")
    rank = settings.model.lora_rank or 0
    return VerlUpdate(
        learning_rate=settings.training.learning_rate or (1e-5 if rank else 1e-6),
        loss=_FORMS[form],
        dual_clip=update.dual_clip or _NO_DUAL_CLIP,
        lora_rank=rank,
        **{name: getattr(update, name) for name in _AS_IN_UPDATE},
    )
