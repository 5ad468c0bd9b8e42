"""verl on a machine without accelerators, for tests: a platform `cpu`, and servers that sample with transformers.

verl loads this module into every process of a job by ``VERL_USE_EXTERNAL_MODULES=verl_on_cpu``; the servers are added by
``actor_rollout_ref.model.external_lib=verl_on_cpu_servers``. It replaces CUDA; everything else (trainer, Ray, FSDP2,
TransferQueue, the transport of the weights, and the servers where vLLM samples) is verl's own.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry

_GIB = 1 << 30


class _Properties:
    multi_processor_count = 1
    total_memory = 16 * _GIB
    name = "cpu"


def _device_module() -> types.ModuleType:
    """What ``torch.cuda`` is for CUDA, as far as verl asks."""
    module = types.ModuleType("verl_on_cpu_device")

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def zero(*_: Any, **__: Any) -> int:
        return 0

    names: dict[str, Any] = {
        "current_device": zero,
        "device_count": lambda: 1,
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "get_device_properties": lambda *_, **__: _Properties(),
        "get_device_name": lambda *_, **__: "cpu",
        "mem_get_info": lambda *_, **__: (16 * _GIB, 16 * _GIB),
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "device": contextlib.nullcontext,
    }
    names |= dict.fromkeys(
        ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "current_stream", "ipc_collect"),
        nothing,
    )
    names |= dict.fromkeys(("manual_seed", "manual_seed_all"), nothing)
    names |= dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), zero)
    for name, value in names.items():
        setattr(module, name, value)
    return module


_DEVICE = _device_module()


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, message: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # Ray is told of one: vLLM's server looks for those of the workers

    def ray_resource_options(self, num_gpus: float) -> dict[str, float]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def _allow_gloo_for_both() -> None:
    """verl names a backend for the CPU and one for the device; where both are the CPU, torch wants it said once."""
    init = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


_allow_gloo_for_both()
