"""The trained copy of a model: which parameters learn, what the reference is, and what the engine is given."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lgov_core.errors import TrainError


@dataclass(frozen=True, slots=True)
class PolicyModel:
    """A module under training.

    ``module`` is trained in place; ``reference`` or ``reference_mode`` gives the weights it started from (see
    `PolicyUpdate`). ``served`` returns the weights by the names of the serving module.
    """

    module: Any
    served: Callable[[], Mapping[str, torch.Tensor]]
    reference: Any | None = None
    reference_mode: Callable[[], contextlib.AbstractContextManager[Any]] | None = None

    def trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained parameters themselves, by name."""
        return ((name, value) for name, value in self.module.named_parameters() if value.requires_grad)

    def weights(self) -> dict[str, torch.Tensor]:
        """The trained parameters, copied, by name."""
        return {name: value.detach().clone() for name, value in self.trained()}

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Puts trained parameters back. Raises `TrainError` when the names do not fit."""
        own = dict(self.trained())
        if own.keys() != weights.keys():
            odd = sorted(own.keys() ^ weights.keys())[:3]
            raise TrainError(f"the weights are not of this model (differing names: {', '.join(odd)})")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(weights[name])


def full_policy(serving: Any) -> PolicyModel:
    """All parameters of a copy of ``serving`` learn; the reference is another copy.

    Both are float32: a step is smaller than what bfloat16 tells apart.
    """
    module = copy.deepcopy(serving).float()
    module.requires_grad_(True)
    reference = copy.deepcopy(serving).float().eval().requires_grad_(False)
    return PolicyModel(module, lambda: {k: v.detach().clone() for k, v in module.state_dict().items()}, reference)


def lora_policy(serving: Any, *, rank: int = 16, seed: int = 0) -> PolicyModel:
    """Low-rank adapters on every linear layer of a copy of ``serving`` learn; the reference is the copy without them.

    The engine is given merged weights: W + (alpha / rank) · B·A with alpha = 2 · rank (LoRA: Hu et al. 2021,
    arXiv 2106.09685, section 4.1), added in the dtype of W. Needs the extra ``train`` (peft).
    """
    torch.manual_seed(seed)
    module = with_adapters(copy.deepcopy(serving), rank)

    def served() -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return {
                f"{name}.weight": layer.base_layer.weight + layer.get_delta_weight("default")
                for name, layer in adapters_of(module)
            }

    return PolicyModel(module, served, reference_mode=module.disable_adapter)


def adapter_policy(serving: Any, *, rank: int = 16, seed: int = 0) -> PolicyModel:
    """LoRA adapters on every linear layer of ``serving`` learn; the reference is ``serving`` without them.

    ``serving``, the module of an embedded engine, is shared and frozen, not copied: any number of agents costs one
    model. Only the adapters are served, by `ServedPolicy.publish` (Hu et al. 2021, arXiv 2106.09685, section 4.1, alpha
    = 2 · rank). torch's global random state is unchanged. Needs the extra ``train`` (peft).
    """
    shared: dict[int, Any] = {id(parameter): parameter for parameter in serving.parameters()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = with_adapters(copy.deepcopy(serving, shared), rank)

    def served() -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for name, layer in adapters_of(module):
            tensors[f"{name}.lora_A.weight"] = layer.lora_A["default"].weight.detach().clone()
            tensors[f"{name}.lora_B.weight"] = layer.lora_B["default"].weight.detach() * layer.scaling["default"]
        return tensors

    return PolicyModel(module, served, reference_mode=module.disable_adapter)


def with_adapters(module: Any, rank: int) -> Any:
    """``module`` as a PEFT model with LoRA adapters on every linear layer, alpha = 2 · rank; torch's random state is used."""
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        module, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )


def adapters_of(module: Any) -> Iterator[tuple[str, Any]]:
    """The layers of a PEFT model that have adapters, by their names in the model inside."""
    for name, layer in module.get_base_model().named_modules():
        if hasattr(layer, "get_delta_weight") and hasattr(layer, "base_layer"):
            yield name, layer
