"""Weights that a vLLM serves: adapters, each version under a name of its own, or all weights, replaced between calls."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lgov_core._util.files import atomic_folder
from lgov_core.errors import ModelError, TrainError, UpstreamError
from lgov_core.train.engines.vllm_server import Vllm, ask, attempts


@dataclass(frozen=True, slots=True)
class Version:
    """Weights with a number, vLLM's name for them, and the folder they are loaded from (None: the model itself)."""

    number: int
    name: str
    folder: Path | None


class VllmPolicy:
    """One LoRA policy on a vLLM, as an `EngineControl`.

    Each version is a PEFT folder below ``folder``, which the server must be able to read, and has a name of its own in vLLM;
    version 0 is the model itself. A call is of exactly one version and ends with it; an old version is unloaded, and its folder
    removed, when its last call has ended. After a restart of the server the current version is loaded before any call.
    `pause` is of the whole server, so of all its policies.
    """

    def __init__(self, server: Vllm, folder: Path, *, name: str = "policy") -> None:
        self.server = server
        # Of this process only: adapters that another run left in a server are never asked for.
        self._name = f"{name}-{secrets.token_hex(4)}"
        self._folder = folder.absolute()
        self._publishing = threading.Lock()
        self._lock = threading.Lock()
        self._current = Version(0, server.base, None)
        self._versions: dict[int, Version] = {}
        self._running: Counter[int] = Counter()
        shutil.rmtree(folder, ignore_errors=True)
        server.on_start(self.reload)

    @property
    def current(self) -> Version:
        """The version that new calls are answered with."""
        return self._current

    @property
    def weights_version(self) -> int:
        """The version that new calls are answered with."""
        return self._current.number

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """Serves new weights; returns their version. Blocks until they are loaded; running calls go on with theirs.

        ``weights`` is as for `lgov_core.gateway.engine.embedded.ServedPolicy.publish`; ``version`` must rise (default:
        by one). Raises `ModelError` for weights that are not adapters or not finite and a version that does not rise,
        `TrainError` when they cannot be written or loaded; the version before is then still served.
        """
        from safetensors import SafetensorError

        with self._publishing:
            number = self._current.number + 1 if version is None else version
            if number <= self._current.number:
                raise ModelError(f"version {number} of policy {self._name!r} is not above {self._current.number}")
            folder = self._folder / str(number)
            try:
                self._write(folder, weights)
            except (OSError, SafetensorError) as error:
                raise TrainError(
                    f"version {number} cannot be written to {folder}: {error}",
                    hint="free some space and resume: the update is made again",
                ) from error
            new_version = Version(number, self._name_of(number), folder)
            try:
                self._switch(new_version)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self.drop_unused()
            return number

    def pause(self) -> None:
        """Holds the calls of the server, which then sleeps where it was started to. Raises `UpstreamError`."""
        self.server.pause()

    def resume(self) -> None:
        """Ends one pause. Raises `UpstreamError` when the server does not wake up."""
        self.server.resume()

    def reload(self) -> None:
        """Loads the current version into a server that has lost it. Raises `UpstreamError` where that fails."""
        with self._lock:
            current = self._current
        if current.folder is None:
            return
        try:
            failure = self._load(current)
        except OSError as error:
            failure = str(error)
        if failure:
            raise UpstreamError(f"vLLM could not load version {current.number} again: {failure}", status=503)

    def check(self) -> None:
        """Raises `UpstreamError` when no call can be answered."""

    @contextlib.contextmanager
    def call(self) -> Generator[Version]:
        """The version that a call is answered with; it stays loaded within the block."""
        with self._lock:
            version = self._current
            self._running[version.number] += 1
        try:
            yield version
        finally:
            with self._lock:
                self._running[version.number] -= 1

    def unused(self) -> bool:
        """Returns whether a version is loaded that no call needs any more."""
        with self._lock:
            return any(self._idle(number) for number in self._versions)

    def drop_unused(self) -> None:
        """Unloads old versions without calls. The folder goes last: vLLM reads it again after it evicted an adapter."""
        with self._lock:
            gone = [self._versions.pop(number) for number in [*self._versions] if self._idle(number)]
        for version in gone:
            with contextlib.suppress(OSError):  # a server that is down has unloaded it
                self._unload(version)
            if version.folder is not None:
                shutil.rmtree(version.folder, ignore_errors=True)

    def _idle(self, number: int) -> bool:
        return number != self._current.number and not self._running[number]

    def _switch(self, version: Version) -> None:
        """Loads a version and makes it the current one, in a server that has not been lost meanwhile."""
        failure = ""
        for generation in attempts(self.server):
            try:
                failure = self._load(version)
            except OSError as error:
                failure = str(error)
                continue
            with self._lock:  # a server that was started after this has loaded what is current then
                if not failure and self.server.generation == generation:
                    self._versions[version.number] = self._current = version
                    return
            if failure:
                break
        raise TrainError(f"vLLM does not load version {version.number}: {failure or 'it was lost each time'}")

    def _name_of(self, number: int) -> str:
        return f"{self._name}@{number}"

    def _write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Writes what `_load` reads. Raises `ModelError` and `OSError`."""
        _write_adapter(folder, weights, self.server.base)

    def _unload(self, version: Version) -> None:
        ask(self.server, "/v1/unload_lora_adapter", {"lora_name": version.name})

    def _load(self, version: Version) -> str:
        """Why vLLM does not load it; "" when it did. Raises `OSError` when it does not answer, or fails (5xx)."""
        body = {"lora_name": version.name, "lora_path": str(version.folder)}
        status, text = ask(self.server, "/v1/load_lora_adapter", body)
        if status >= 500:
            raise OSError(f"{status}: {text[:300]}")
        # By this name there are only these weights.
        return "" if status == 200 or "already" in text else f"{status}: {text[:300]}"


def _write_adapter(folder: Path, weights: Mapping[str, torch.Tensor], base: str) -> None:
    """A PEFT folder of ``LAYER.lora_A.weight`` and ``LAYER.lora_B.weight``. Raises `ModelError` and `OSError`."""
    from safetensors.torch import save_file

    tensors = {f"base_model.model.{name.removeprefix('base_model.model.')}": tensor for name, tensor in weights.items()}
    strange = [name for name in tensors if not name.endswith((".lora_A.weight", ".lora_B.weight"))]
    if strange or not tensors:
        raise ModelError(
            f"vLLM is published adapters only, and {strange[0]!r} is none" if strange else "there are no weights",
            hint="train adapters: model.lora_rank above 0",
        )
    _check_finite(tensors)
    ranks = {tensor.shape[0] for name, tensor in tensors.items() if name.endswith("lora_A.weight")}
    if len(ranks) != 1:
        raise ModelError(f"the adapters have different ranks: {', '.join(map(str, sorted(ranks)))}")
    (rank,) = ranks
    about: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,  # the factor is in lora_B
        "bias": "none",
        "target_modules": sorted({name.rsplit(".", 3)[-3] for name in tensors}),
    }
    with atomic_folder(folder) as partial:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            partial / "adapter_model.safetensors",
        )
        (partial / "adapter_config.json").write_text(json.dumps(about))


def _check_finite(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises `ModelError` for weights that an update has spoilt."""
    spoilt = next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None)
    if spoilt is not None:
        raise ModelError(f"published {spoilt!r} holds values that are not finite", hint="the update diverged")


class VllmWeights(VllmPolicy):
    """All weights of the model on a vLLM, as an `EngineControl`.

    ``source`` is what the server was started with, and version 0. There is one copy of the weights, so a version is loaded
    when the calls of the one before have ended; new calls wait meanwhile, and each is of exactly one version. When a version
    cannot be loaded the one before is loaded again; where that fails too, no call is answered any more.
    """

    def __init__(self, server: Vllm, folder: Path, source: str) -> None:
        super().__init__(server, folder)
        self._current = Version(0, server.base, Path(source))
        self._unknown: str | None = None

    def publish(self, weights: Mapping[str, torch.Tensor], version: int | None = None) -> int:
        """As `VllmPolicy.publish`; ``weights`` has all weights by the names of the model's own."""
        return super().publish(weights, version)

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

    def _write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        from safetensors.torch import save_file

        if not weights:
            raise ModelError("there are no weights")
        _check_finite(weights)
        with atomic_folder(folder) as partial:
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
            save_file(tensors, partial / "model.safetensors")

    def _name_of(self, number: int) -> str:
        return self.server.base

    def _switch(self, version: Version) -> None:
        self.server.gate.close()
        try:
            super()._switch(version)
        except BaseException as error:
            self._unknown = str(error) or type(error).__name__
            self.reload()
            raise
        finally:
            self.server.gate.open()

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
