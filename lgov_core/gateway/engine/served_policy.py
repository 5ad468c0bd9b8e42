"""One of the policies that an embedded engine serves on one model, as a trainer needs it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from lgov_core.gateway.engine.decode_worker import DecodeWorker
    from lgov_core.gateway.engine.lora import LoraAdapters


class ServedPolicy:
    """Publishes the weights of one policy, and pauses it alone. Made by `EmbeddedEngine.policy`; callable from any thread."""

    def __init__(self, name: str, worker: DecodeWorker, adapters: LoraAdapters) -> None:
        self.name = name
        self._worker = worker
        self._adapters = adapters

    @property
    def weights_version(self) -> int:
        """The version of its weights in use: 0 until some are published."""
        return self._worker.versions[self.name]

    def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Replaces all weights of the policy; returns the version now served.

        ``state_dict`` maps ``LAYER.lora_A.weight`` (float [rank, in]) and ``LAYER.lora_B.weight`` (float [out, rank], its
        factor included) to tensors, for any of the model's linear layers; PEFT's own names do too. An empty mapping makes
        it the model itself. Its running calls are finished with the old weights, waiting ones are answered with the new; calls
        of other policies go on meanwhile. Otherwise as `EmbeddedEngine.publish`.
        """
        return self._worker.between(lambda: self._swap(state_dict, version), self.name)

    def pause(self) -> AbstractContextManager[None]:
        """Within it no call of this policy is decoded: those that run are finished first, new ones wait."""
        return self._worker.paused(self.name)

    def _swap(self, state_dict: Mapping[str, torch.Tensor], version: int | None) -> int:
        new_version = self._worker.risen(self.name, version)
        self._adapters.put(self.name, self._adapters.check(self.name, state_dict))
        self._worker.forget(self.name)
        self._worker.versions[self.name] = new_version
        return new_version
