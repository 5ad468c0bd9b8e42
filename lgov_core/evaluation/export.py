"""Hands a checkpoint on: as a transformers folder, or as an adapter that PEFT loads."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from safetensors import SafetensorError

from lgov_core._util.files import atomic_folder
from lgov_core.audit import default_signer
from lgov_core.audit.lineage import EXPORT, LINEAGE_FILE, attest, read_attestation, read_lineage
from lgov_core.audit.signing import Signer
from lgov_core.errors import TrainError
from lgov_core.evaluation.model import TrainedModel
from lgov_core.train.loop.lineage import code_facts
from lgov_core.train.loop.run_files import file_sha256

Form = Literal["transformers", "peft"]
FORMS: Final[tuple[Form, ...]] = ("transformers", "peft")


def export(trained: TrainedModel, folder: Path, form: Form = "transformers", *, signer: Signer | None = None) -> Path:
    """Writes ``folder`` atomically: a model with its tokenizer, or the adapters alone.

    A checkpoint with a lineage passes it on, with a statement about the folder's files (signed by ``signer``, or the
    audit record's key), for `lgov audit verify`. Raises `TrainError` when the folder exists or cannot be written, or no
    adapters were trained.
    """
    if form == "peft" and not trained.adapters:
        raise TrainError(
            f"{trained.path} holds all weights of a model, no adapters", hint="export it with --format transformers"
        )
    if folder.exists():
        raise TrainError(f"{folder} is there already", hint="name a new folder")
    try:
        with atomic_folder(folder) as partial:
            if form == "transformers":
                trained.model.save(partial)
            else:
                config = trained.policy.module.peft_config["default"]
                config.base_model_name_or_path = trained.base
                trained.policy.module.save_pretrained(partial)
            if trained.lineage is not None:
                _state(trained, partial, form, signer or default_signer())
    except (OSError, SafetensorError) as error:
        raise TrainError(f"{folder} could not be written: {error}", hint="free some space") from error
    return folder


def _state(trained: TrainedModel, partial: Path, form: Form, signer: Signer | None) -> None:
    lines = read_lineage(trained.path)
    parent = read_attestation(lines[-1])
    stated = parent.statement["predicate"]
    predicate = {
        "step": stated["step"],
        "run_id": stated["run_id"],
        "parent": {"sha256": parent.sha256, "step": stated["step"], "weights_sha256": stated["weights"]["sha256"]},
        "start": stated["start"],
        "data": [],
        "policy": stated["policy"],
        "code": code_facts(),
        "weights": stated["weights"],
        "form": form,
    }
    files = {path.relative_to(partial).as_posix(): file_sha256(path) for path in partial.rglob("*") if path.is_file()}
    line = attest(files, EXPORT, predicate, signer)
    (partial / LINEAGE_FILE).write_text("\n".join([*lines, line]) + "\n", encoding="ascii")
