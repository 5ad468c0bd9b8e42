"""A checkpoint as a model: what training began with, and the weights that came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lgov_core.audit.attestation import read_attestation
from lgov_core.audit.lineage import LINEAGE_FILE, LineageReport, read_lineage, verify_lineage
from lgov_core.errors import TrainError
from lgov_core.models import LanguageModel, load_model
from lgov_core.train.checkpoint import find_checkpoint, read_checkpoint
from lgov_core.train.policy_model import PolicyModel, full_policy, lora_policy
from lgov_core.train.weights_digest import weights_digest


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A checkpoint that was loaded. ``model`` serves the trained weights; ``policy`` holds them as they were trained.

    ``base`` is the name or folder of what training began with, ``started`` its own weights (by the names of ``model``'s module;
    only those that training changes). ``lineage`` is what was found when the statements were checked; None without any.
    """

    path: Path
    step: int
    model: LanguageModel
    policy: PolicyModel
    base: str
    started: Mapping[str, torch.Tensor]
    lineage: LineageReport | None

    @property
    def adapters(self) -> bool:
        """Whether low-rank adapters were trained, and not all weights."""
        return hasattr(self.policy.module, "peft_config")


def load_trained(path: Path, *, base: str | None = None, device: str = "cpu") -> TrainedModel:
    """The checkpoint that ``path`` names (see `find_checkpoint`), on the model that it was trained from.

    The statements that come with it are checked first, and the model against them. ``base`` names the model where nothing is
    stated, or where it has moved. Raises `TrainError` when the lineage is broken, the model is another one or not named, or the
    weights do not fit it; `ModelError` when the model cannot be loaded.
    """
    folder = find_checkpoint(path)
    report, said = _stated(folder)
    settings: Any = said.get("settings", {}).get("model")
    chosen: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {}
    name = base or said.get("start", {}).get("model")
    if name is None:
        raise TrainError(f"{folder} does not say from which model it was trained", hint="name it with --model")
    beside = folder.parent.parent.parent / Path(name).name
    if base is None and Path(name).is_absolute() and not Path(name).exists() and beside.is_dir():
        name = str(beside)  # a run that was moved still has its beginning beside it
    model = load_model(
        name, dtype=chosen.get("dtype") or "float32", tool_format=chosen.get("tool_format"), device=device
    )
    own: dict[str, torch.Tensor] = model.module.state_dict()
    stated = said.get("start", {}).get("weights_sha256")
    if stated is not None and weights_digest(own.items()) != stated:
        raise TrainError(
            f"{name} is not the model that {folder.name} was trained from: its weights are others",
            hint="name the right one with --model",
        )
    checkpoint = read_checkpoint(folder)
    rank = _rank(checkpoint.weights)
    policy = full_policy(model.module) if rank is None else lora_policy(model.module, rank=rank)
    try:
        policy.load(checkpoint.weights)
    except RuntimeError as error:
        raise TrainError(f"the weights of {folder} do not fit {name}: {error}") from error
    served = policy.served()
    started = {key: own[key].detach().clone() for key in served}
    serve(model, served)
    return TrainedModel(folder, checkpoint.step, model, policy, name, started, report)


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


def _rank(weights: Mapping[str, torch.Tensor]) -> int | None:
    """The rank of adapters; None when the weights are those of a whole model."""
    ranks = {value.shape[0] for name, value in weights.items() if ".lora_A." in name}
    return max(ranks) if ranks else None
