"""How a model computes: in float32, or bfloat16 where that is faster, and how its threads wait for each other."""

from __future__ import annotations

import os
from typing import Any, Final

from lgov_core.errors import ModelError
from lgov_core.models.load import load_model

#: A model with fewer parameters is small: converting numbers, or dividing work among threads, costs it more than it gains.
SMALL: Final = 10_000_000


def dtype_for(name_or_path: str | os.PathLike[str], dtype: str, device: str) -> str:
    """``dtype``; for ``auto`` bfloat16 where the device computes with it and the model is not small, else float32.

    Raises `ModelError` when the model is not there.
    """
    if dtype != "auto":
        return dtype
    if not computes_bfloat16(device):
        return "float32"
    return "float32" if load_model(name_or_path, weights=False).module.num_parameters() < SMALL else "bfloat16"


def computes_bfloat16(device: str) -> bool:
    """Returns whether a device of that type computes with bfloat16 itself; elsewhere bfloat16 is slower than float32.

    Raises `ModelError` without the extra ``train``.
    """
    try:
        import torch
    except ImportError as error:
        raise ModelError(f"models need {error.name}", hint="pip install 'lgov[train]'") from error

    if device == "cuda":
        return torch.cuda.is_bf16_supported()
    if device == "cpu":
        capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))
    return device == "mps"


def wait_without_spinning() -> None:
    """Has OpenMP's threads sleep while they wait, unless the environment says otherwise. For before torch is imported.

    Beside other programs a thread that spins keeps the one that it waits for from the processor: decoding is then several
    times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
