"""States what each checkpoint was made of: data, policy, code, settings, seed and the checkpoint before."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import lgov_core
from lgov_core._util.files import atomic_write
from lgov_core.audit.lineage import (
    CHECKPOINT,
    LINEAGE_FILE,
    attest,
    read_attestation,
    read_lineage,
    tensor_head,
    tensors_sha256,
)
from lgov_core.audit.signing import Signer
from lgov_core.errors import TrainError
from lgov_core.policies import load_policy_file
from lgov_core.train.loop.checkpoint import WEIGHTS_FILE, Checkpoint, complete_checkpoints, step_of
from lgov_core.train.loop.run_files import file_sha256, finite, read_record

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


_PACKAGES = ("torch", "transformers", "peft", "safetensors", "verl", "ray")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that are true of a whole run.

    ``model`` is where training began, ``start_sha256`` its weights (`weights_digest` of all of them; None if unknown).
    ``settings`` are JSON values, ``policy`` is `policy_facts` (None: the trainer does not know the rules).
    """

    run_id: str
    model: str
    start_sha256: str | None
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    policy: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Writes the statements of one run. ``signer`` None leaves them unsigned. `seal` belongs to the thread of the run."""

    facts: Facts
    folder: Path
    signer: Signer | None = None

    def seal(self, partial: Path, checkpoint: Checkpoint) -> None:
        """Writes ``lineage.jsonl`` into a checkpoint's folder: the chain of the checkpoint before, and its own
        statement.

        Raises `TrainError` when the data of an update is not on record, `AuditError` for an unreadable chain, and what
        the signer raises: the checkpoint is then not written.
        """
        # Statements begin where the first sealed checkpoint's parent is: without one, at the last that has none.
        step = checkpoint.step
        earlier = [step_of(path) for path in complete_checkpoints(self.folder / "checkpoints") if step_of(path) < step]
        self.state(partial, step, [WEIGHTS_FILE], self._before(step), begin=max(earlier, default=0))

    def state(self, folder: Path, step: int, weights: Sequence[str], before: Sequence[str], *, begin: int = 0) -> None:
        """Writes ``lineage.jsonl`` into ``folder`` atomically: the lines ``before``, and a statement of all files
        there.

        ``weights`` names the safetensors files. Without lines before, the statement begins after step ``begin``. Raises
        as `seal`, and `OSError`.
        """
        parent = read_attestation(before[-1]) if before else None
        parent_predicate = None if parent is None else parent.statement["predicate"]
        done = begin if parent_predicate is None else int(parent_predicate["step"])
        predicate = {
            "step": step,
            "run_id": self.facts.run_id,
            "seed": self.facts.seed,
            "settings": finite(dict(self.facts.settings)),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "parent": None
            if parent is None or parent_predicate is None
            else {
                "sha256": parent.sha256,
                "step": parent_predicate["step"],
                "weights_sha256": parent_predicate["weights"]["sha256"],
            },
            "start": {"model": self.facts.model, "weights_sha256": self.facts.start_sha256, "step": done}
            if parent_predicate is None
            else parent_predicate["start"],
            "data": [self._data(number) for number in range(done + 1, step + 1)],
            "policy": self.facts.policy,
            "code": code_facts(),
            "weights": {
                "file": weights[0] if len(weights) == 1 else list(weights),
                "sha256": tensors_sha256(*(folder / name for name in weights)),
            },
        }
        paths = [path for path in folder.rglob("*") if path.is_file()]
        files = {path.relative_to(folder).as_posix(): file_sha256(path) for path in paths}
        files.pop(LINEAGE_FILE, None)
        line = attest(files, CHECKPOINT, predicate, self.signer)
        atomic_write(folder / LINEAGE_FILE, ("\n".join([*before, line]) + "\n").encode("ascii"))

    def _before(self, step: int) -> list[str]:
        """The lines of the newest checkpoint before ``step``; none when there is no such checkpoint, or it has none."""
        for path in reversed(complete_checkpoints(self.folder / "checkpoints")):
            if step_of(path) > step or not (path / LINEAGE_FILE).exists():
                continue
            lines = read_lineage(path)
            return lines[:-1] if step_of(path) == step else lines
        return []

    def _data(self, step: int) -> dict[str, Any]:
        record = read_record(self.folder / "transitions", step)
        if record is None:
            raise TrainError(f"the batch of update {step} is not on record, so nothing can be stated of it")
        return {"step": step, "sha256": record.sha256, "transitions": record.transitions}


def policy_facts(path: str | Path, *, shadow: bool = False) -> dict[str, Any]:
    """The digest and the mode of the rules in a policy file, as a statement gives them. Raises `PolicyError`."""
    policies = load_policy_file(str(path))
    if shadow:
        policies = policies.in_shadow()
    return {"sha256": policies.digest, "mode": policies.mode, "file": Path(path).name}


@functools.cache
def code_facts() -> Mapping[str, Any]:
    """Which code runs: versions, and the SHA-256 over the names and contents of lgov's own source files."""
    whole = hashlib.sha256()
    root = Path(lgov_core.__file__).parent
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        whole.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    facts: dict[str, Any] = {
        "lgov": lgov_core.__version__,
        "lgov_core_sha256": whole.hexdigest(),
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return facts
