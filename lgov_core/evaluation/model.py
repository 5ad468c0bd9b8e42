"""A checkpoint as a model: where training began, and the trained weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from lgov_core.audit.lineage import (
    LINEAGE_FILE,
    LineageReport,
    folder_sha256,
    read_attestation,
    read_lineage,
    verify_lineage,
)
from lgov_core.errors import TrainError
from lgov_core.models import LanguageModel, load_model
from lgov_core.models.load import dtype_for, model_place
from lgov_core.train.algorithms.algorithms import find_foreign_checkpoint
from lgov_core.train.loop.checkpoint import find_checkpoint, read_checkpoint
from lgov_core.train.loop.lineage import weights_digest
from lgov_core.train.loop.policy_model import PolicyModel, full_policy, lora_policy


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A loaded checkpoint. ``model`` serves the trained weights; ``policy`` holds them as they were trained.

    ``base`` names where training began, ``started`` its weights (by ``model``'s names; only those that training
    changes). ``lineage`` is the result of checking the statements, ``weights_sha256`` the digest of the trained weights
    that they give; None without any. ``max_new_tokens`` is the bound of a reply in training, None where it is not stated.
    """

    path: Path
    step: int
    model: LanguageModel
    policy: PolicyModel
    base: str
    started: Mapping[str, torch.Tensor]
    lineage: LineageReport | None
    weights_sha256: str | None = None
    max_new_tokens: int | None = None

    @property
    def adapters(self) -> bool:
        """True where low-rank adapters were trained, and not all weights."""
        return hasattr(self.policy.module, "peft_config")


def load_trained(
    path: Path, *, base: str | None = None, device: str = "cpu", policy: str | None = None
) -> TrainedModel:
    """The checkpoint that ``path`` names (`find_checkpoint`, `find_foreign_checkpoint`), on the model it was trained
    from.

    Its statements are checked first, and the model against them. ``base`` names the model where none is stated, or it
    has moved. ``policy`` is the one to load of several (``training.policies``). Raises `TrainError` for a broken lineage,
    another model or none, or weights that do not fit; `ModelError` when the model cannot be loaded.
    """
    whole = find_foreign_checkpoint(path)
    if whole is not None:
        return _of_whole_model(whole, base, device)
    folder = find_checkpoint(path)
    report, predicate = _stated(folder)
    name, model = _base(folder, folder.parent.parent, predicate, base, device)
    own: dict[str, torch.Tensor] = model.module.state_dict()
    _require_start(folder, predicate, name, weights_digest(own.items()))
    checkpoint = read_checkpoint(folder)
    weights = _weights_of(checkpoint.weights, folder, policy)
    trained = policy_of(model.module, weights)
    try:
        trained.load(weights)
    except RuntimeError as error:
        raise TrainError(f"the weights of {folder} do not fit {name}: {error}") from error
    served = trained.served()
    started = {key: own[key].detach().clone() for key in served}
    serve(model, served)
    return TrainedModel(
        folder,
        checkpoint.step,
        model,
        trained,
        name,
        started,
        report,
        _weights_sha256(predicate),
        _max_new_tokens(predicate),
    )


def _weights_of(weights: Mapping[str, torch.Tensor], folder: Path, policy: str | None) -> Mapping[str, torch.Tensor]:
    """The weights of one policy; all, where the checkpoint is of one."""
    several = sorted({name.partition(".")[0] for name in weights if ".base_model." in name})
    if policy is None and several:
        raise TrainError(
            f"{folder} holds the policies {', '.join(several)}", hint="lgov export CHECKPOINT FOLDER --adapter NAME"
        )
    if policy is None:
        return weights
    if policy not in several:
        raise TrainError(f"{folder} holds no policy {policy!r}", hint=f"it has: {', '.join(several) or 'one, unnamed'}")
    return {
        name.removeprefix(f"{policy}."): tensor for name, tensor in weights.items() if name.startswith(f"{policy}.")
    }


def _of_whole_model(folder: Path, base: str | None, device: str) -> TrainedModel:
    """The checkpoint with the transformers folder ``folder``, which holds the whole model: adapters are merged in it."""
    report, predicate = _stated(folder)
    name, model = _base(folder, folder.parents[3], predicate, base, device)
    _require_start(folder, predicate, name, folder_sha256(model_place(name)))
    own: dict[str, torch.Tensor] = model.module.state_dict()
    weights: dict[str, torch.Tensor] = {}
    try:
        for file in sorted(folder.glob("*.safetensors")):
            weights |= load_file(file)
        odd = sorted(weights.keys() - own.keys())
        if odd:
            raise TrainError(f"the weights of {folder} are not those of {name} (others: {', '.join(odd[:3])})")
        started = {key: own[key].detach().clone() for key in weights}
        serve(model, weights)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise TrainError(f"the weights of {folder} cannot be loaded into {name}: {error}") from error
    policy = PolicyModel(model.module, lambda: {key: value.detach().clone() for key, value in own.items()})
    return TrainedModel(
        folder,
        int(predicate["step"]),
        model,
        policy,
        name,
        started,
        report,
        _weights_sha256(predicate),
        _max_new_tokens(predicate),
    )


def _base(
    folder: Path, run: Path, predicate: Mapping[str, Any], base: str | None, device: str
) -> tuple[str, LanguageModel]:
    """Name and model of what a checkpoint of ``run`` was trained from."""
    chosen = _model_settings(predicate)
    name = base or predicate.get("start", {}).get("model")
    if name is None:
        raise TrainError(f"{folder} does not say from which model it was trained", hint="name it with --model")
    if base is None:
        name = moved_base(name, run)
    dtype = dtype_for(name, chosen.get("dtype") or "float32", device)
    return name, load_model(name, dtype=dtype, tool_format=chosen.get("tool_format"), device=device)


def moved_base(name: str, run: Path) -> str:
    """``name``, or where it is the path of a folder that is gone, one of that name beside ``run``, which was moved with it."""
    beside = run.parent / Path(name).name
    gone = Path(name).is_absolute() and not Path(name).exists()
    return str(beside) if gone and beside.is_dir() else name


def _require_start(folder: Path, predicate: Mapping[str, Any], name: str, digest: str | None) -> None:
    stated = predicate.get("start", {}).get("weights_sha256")
    if stated is not None and digest != stated:
        raise TrainError(
            f"{name} is not the model that {folder} was trained from: its weights are others",
            hint="name the right one with --model",
        )


def serve(model: LanguageModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Puts weights into a model that is not in use, by the names of its module's state."""
    model.module.load_state_dict(dict(weights), strict=False)


def _stated(folder: Path) -> tuple[LineageReport | None, Mapping[str, Any]]:
    if not (folder / LINEAGE_FILE).exists():
        return None, {}
    report = verify_lineage(folder)
    if not report.ok:
        raise TrainError(
            f"{folder} is not what was stated of it: {report.problem}", hint=f"see lgov audit verify {folder}"
        )
    return report, read_attestation(read_lineage(folder)[-1]).statement["predicate"]


def _model_settings(predicate: Mapping[str, Any]) -> Mapping[str, Any]:
    settings: Any = predicate.get("settings", {}).get("model")
    return settings if isinstance(settings, Mapping) else {}


def _max_new_tokens(predicate: Mapping[str, Any]) -> int | None:
    bound = _model_settings(predicate).get("max_new_tokens")
    return bound if isinstance(bound, int) else None


def _weights_sha256(predicate: Mapping[str, Any]) -> str | None:
    digest = predicate.get("weights", {}).get("sha256")
    return None if digest is None else str(digest)


def policy_of(module: Any, weights: Mapping[str, torch.Tensor]) -> PolicyModel:
    """A policy over ``module`` that can load ``weights``: adapters of their rank, or the whole model."""
    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A." in name}
    return lora_policy(module, rank=max(ranks)) if ranks else full_policy(module)
