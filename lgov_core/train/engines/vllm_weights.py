"""All weights of the model that a vLLM serves, replaced between calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lgov_core._util.atomic_file import atomic_folder
from lgov_core.errors import ModelError, UpstreamError
from lgov_core.train.engines.vllm_calls import Vllm, ask
from lgov_core.train.engines.vllm_policy import Version, VllmPolicy, check_finite

if TYPE_CHECKING:
    import torch


class VllmWeights(VllmPolicy):
    """Publishes all weights of the model, as the `Publisher` of a training loop. Callable from any thread.

    ``source`` is what the server was started with, and version 0. There is one copy of the weights, so a version is loaded
    when the calls of the one before have ended; new calls wait meanwhile, and each is of exactly one version. When a version
    cannot be loaded the one before is loaded again; where that fails too, no call is answered any more.
    """

    def __init__(self, server: Vllm, folder: Path, source: str) -> None:
        super().__init__(server, folder)
        self._current = Version(0, server.base, Path(source))
        self._unknown: str | None = None

    def publish(self, state_dict: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """As `VllmPolicy.publish`; ``state_dict`` has all weights by the names of the model's own."""
        return super().publish(state_dict, version)

    def reload(self) -> None:
        """Loads the current version into a server that was started again."""
        super().reload()
        self._unknown = None

    def check(self) -> None:
        """Raises `UpstreamError` when it is not known which weights the server has."""
        if self._unknown is not None:
            raise UpstreamError(
                f"vLLM has weights of no version: {self._unknown}", status=503, hint="resume the training"
            )

    def _write(self, folder: Path, state_dict: Mapping[str, torch.Tensor]) -> None:
        from safetensors.torch import save_file

        if not state_dict:
            raise ModelError("there are no weights")
        check_finite(state_dict)
        with atomic_folder(folder) as partial:
            tensors = {name: one.detach().cpu().contiguous() for name, one in state_dict.items()}
            save_file(tensors, partial / "model.safetensors")

    def _name_of(self, number: int) -> str:
        return self.server.base

    def _switch(self, made: Version) -> None:
        with self.server.gate.closed():
            try:
                super()._switch(made)
            except BaseException as error:
                self._unknown = str(error) or type(error).__name__
                self.reload()
                raise

    def _load(self, version: Version) -> str:
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(version.folder)}}
        steps = (
            ("/pause?mode=wait", {}),  # also drops the keys and values of other weights
            ("/collective_rpc", load),
            ("/resume", {}),
        )
        for where, body in steps:
            status, text = ask(self.server, where, body)
            if status >= 500:
                raise OSError(f"{where}: {status}: {text[:300]}")
            if status != 200:
                return f"{where}: {status}: {text[:300]}"
        return ""

    def _unload(self, version: Version) -> None:
        """Does nothing: the next version has replaced it."""
