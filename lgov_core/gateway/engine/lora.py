"""Several policies on one model: low-rank additions to its linear layers, chosen for each sequence of a batch.

A layer's output for a sequence is W·x + B·(A·x) with the A and B of that sequence's policy (LoRA: Hu et al. 2021, arXiv
2106.09685, section 4.1); the layer's W is computed once for the whole batch. This is what a PEFT model computes, so a
trainer's log-probabilities and the served ones agree. Imports torch; import it only where it is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lgov_core.errors import ModelError

#: What a weight of an addition is called after the name of its layer.
A, B = "lora_A.weight", "lora_B.weight"

_Pair = tuple[torch.Tensor, torch.Tensor]
#: A policy, and the rows of a batch that it writes (None: all).
_Share = tuple[str, torch.Tensor | None]


class _Chosen(threading.local):
    """Which policies write the rows of the forward pass that this thread is running."""

    shares: Sequence[_Share] = ()


class _Hook:
    """Adds the low-rank product to the output of one linear layer. A copy of the module adds nothing."""

    def __init__(self, chosen: _Chosen | None = None) -> None:
        self.chosen = chosen or _Chosen()
        self.pairs: dict[str, _Pair] = {}

    def __deepcopy__(self, memo: Any) -> _Hook:
        return _Hook()

    def __reduce__(self) -> Any:
        return _Hook, ()

    def __call__(self, layer: Any, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor | None:
        for policy, rows in self.chosen.shares:
            pair = self.pairs.get(policy)
            if pair is None:
                continue
            down, up = pair
            x = arguments[0] if rows is None else arguments[0][rows]
            more = torch.nn.functional.linear(torch.nn.functional.linear(x.to(down.dtype), down), up)
            output = (
                (output + more).to(output.dtype) if rows is None else output.index_add(0, rows, more.to(output.dtype))
            )
        return output


class LoraAdapters:
    """The named policies of one module. Weights are changed by one thread, which is also the one that decodes."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._chosen = _Chosen()
        self._layers = {
            name: layer for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear) and name
        }
        self._hooks: dict[str, _Hook] = {}

    def check(self, policy: str, weights: Mapping[str, torch.Tensor]) -> dict[str, _Pair]:
        """The pairs of ``weights`` by layer, checked. Raises `ModelError` for what does not fit the module."""
        pairs: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in weights.items():
            plain = name.removeprefix("base_model.model.")
            kind = A if plain.endswith(f".{A}") else B
            layer = plain.removesuffix(f".{kind}")
            if layer == plain or layer not in self._layers:
                raise ModelError(
                    f"a weight of policy {policy!r} fits no linear layer: {name!r}",
                    hint=f"they are named like '{next(iter(self._layers))}.{A}'",
                )
            if not bool(torch.isfinite(tensor).all()):
                raise ModelError(
                    f"published {name!r} of policy {policy!r} holds values that are not finite",
                    hint="the update diverged",
                )
            pairs.setdefault(layer, {})[kind] = tensor
        checked: dict[str, _Pair] = {}
        for layer, pair in pairs.items():
            weight: torch.Tensor = self._layers[layer].weight
            if len(pair) < 2:
                raise ModelError(f"policy {policy!r} has only one of the two weights of layer {layer!r}")
            down, up = pair[A], pair[B]
            rank = down.shape[0]
            if down.shape != (rank, weight.shape[1]) or up.shape != (weight.shape[0], rank):
                raise ModelError(
                    f"the weights of policy {policy!r} for layer {layer!r} are {tuple(down.shape)} and "
                    f"{tuple(up.shape)}; the layer is {tuple(weight.shape)}"
                )
            checked[layer] = (down.detach().to(weight.device).clone(), up.detach().to(weight.device).clone())
        return checked

    def put(self, policy: str, pairs: Mapping[str, _Pair]) -> None:
        """Replaces all weights of a policy; none makes it the model itself."""
        for hook in self._hooks.values():
            hook.pairs.pop(policy, None)
        for layer, pair in pairs.items():
            hook = self._hooks.get(layer)
            if hook is None:
                hook = self._hooks[layer] = _Hook(self._chosen)
                self._layers[layer].register_forward_hook(hook)
            hook.pairs[policy] = pair

    @contextmanager
    def writing(self, policies: Sequence[str]) -> Generator[None]:
        """Within it a forward pass of this thread is computed with the policy of each of its rows ("": none)."""
        rows: dict[str, list[int]] = {}
        for row, policy in enumerate(policies):
            rows.setdefault(policy, []).append(row)
        device = next(self._module.parameters()).device
        self._chosen.shares = [
            (policy, None if len(places) == len(policies) else torch.tensor(places, device=device))
            for policy, places in rows.items()
            if policy
        ]
        try:
            yield
        finally:
            self._chosen.shares = ()
