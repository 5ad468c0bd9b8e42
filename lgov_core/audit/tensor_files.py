"""Reads what a file of safetensors holds, with nothing but the standard library.

The format (https://github.com/huggingface/safetensors): eight bytes, little-endian, give the length of a header in JSON,
which maps each tensor's name to its ``dtype``, ``shape`` and ``data_offsets``; then come the bytes of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import AuditError

_LONGEST_HEADER: Final = 100_000_000
_PORTION: Final = 1 << 20


def tensor_head(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    """The prefix of a tensor's bytes when it is hashed: two different tensors never have the same prefix and bytes."""
    return json.dumps([name, dtype, list(shape)], separators=(",", ":")).encode() + b"\0"


def tensors_sha256(*paths: str | os.PathLike[str]) -> str:
    """The SHA-256 (hex) over all tensors in the files, in the order of their names: `tensor_head` and the bytes of each.

    It says what the weights are, whatever else the files hold, in whatever order, and over how many files they are spread.
    Raises `AuditError` when a file cannot be read or is not whole.
    """
    whole = hashlib.sha256()
    path: str | os.PathLike[str] = ""
    try:
        found: list[tuple[str, str, list[int], int, int, str | os.PathLike[str]]] = []
        for path in paths:
            found += [(*tensor, path) for tensor in _tensors(path)]
        for name, dtype, shape, first, last, path in sorted(found, key=lambda one: one[:5]):
            whole.update(tensor_head(name, dtype, shape))
            with open(path, "rb") as file:
                file.seek(first)
                while first < last:
                    portion = file.read(min(last - first, _PORTION))
                    if not portion:
                        raise ValueError(f"it ends within tensor {name!r}")
                    whole.update(portion)
                    first += len(portion)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise AuditError(f"{os.fspath(path)} cannot be read as safetensors: {error}") from error
    return whole.hexdigest()


def folder_sha256(folder: str | os.PathLike[str]) -> str | None:
    """As `tensors_sha256`, of the weights in a model's folder; None without a folder or safetensors in it."""
    files = sorted(Path(folder).glob("*.safetensors"))
    return tensors_sha256(*files) if files else None


def _tensors(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, list[int], int, int]]:
    """Of each tensor in a file: name, type, shape, position of its first byte and of the byte after its last."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 0 < size <= _LONGEST_HEADER:
            raise ValueError("it has no header")
        header: dict[str, Any] = json.loads(file.read(size))
    for name, stated in header.items():
        if name == "__metadata__":
            continue
        first, last = (int(offset) for offset in stated["data_offsets"])
        if not 0 <= first <= last:
            raise ValueError(f"tensor {name!r} has offsets {first} to {last}")
        yield name, str(stated["dtype"]), [int(one) for one in stated["shape"]], 8 + size + first, 8 + size + last
