"""One digest for a set of tensors, wherever they are: in memory or in a file of safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from lgov_core.audit.lineage import tensor_head

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def weights_digest(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The SHA-256 (hex) of named tensors, as `lgov_core.audit.lineage.tensors_sha256` gives it for a file of them.

    Names, types, shapes and every bit count; the order in which they come does not. One tensor at a time is copied to the
    CPU. Raises `KeyError` for a type that safetensors has no name for.
    """
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        whole.update(tensor_head(name, _DTYPES[tensor.dtype], tensor.shape))
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            whole.update(flat.view(torch.uint8).numpy().data)
    return whole.hexdigest()
