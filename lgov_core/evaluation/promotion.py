"""Hands a checkpoint on: as a transformers folder, as an adapter that PEFT loads, or as the version served under a name.

What is promoted keeps its lineage and its evaluation.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from safetensors import SafetensorError

from lgov_core._util.files import HeldByAnother, atomic_folder, atomic_write, hold
from lgov_core.audit import default_signer
from lgov_core.audit.lineage import EXPORT, LINEAGE_FILE, attest, read_attestation, read_lineage, verify_lineage
from lgov_core.audit.signing import Signer
from lgov_core.errors import TrainError, counted
from lgov_core.evaluation.model import TrainedModel
from lgov_core.models.load import CURRENT_FILE, MODEL_FOLDER, check_name, promoted_state
from lgov_core.models.smollm2 import SMOLLM2, SMOLLM2_ON_THE_HUB
from lgov_core.train.loop.lineage import code_facts
from lgov_core.train.loop.run_files import file_sha256

Form = Literal["transformers", "peft"]
FORMS: Final[tuple[Form, ...]] = ("transformers", "peft")


def export(trained: TrainedModel, folder: Path, form: Form = "transformers", *, signer: Signer | None = None) -> Path:
    """Writes ``folder`` atomically: a model or the adapters alone, and the tokenizer.

    Its chat template writes tools as they were written in training. Adapters name their base model as other machines know
    it: by its name on the hub, or by the last part of its folder.

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
                trained.policy.module.save_pretrained(partial)
                about = partial / "adapter_config.json"
                elsewhere = {"base_model_name_or_path": _name_elsewhere(trained.base)}  # PEFT would ask the hub for it
                about.write_text(json.dumps({**json.loads(about.read_text("utf-8")), **elsewhere}, indent=2), "utf-8")
            trained.model.export_tokenizer(partial)
            if trained.lineage is not None:
                _state(trained, partial, form, signer or default_signer())
    except (OSError, SafetensorError) as error:
        raise TrainError(f"{folder} could not be written: {error}", hint="free some space") from error
    return folder


def _name_elsewhere(base: str) -> str:
    if base == SMOLLM2:
        return SMOLLM2_ON_THE_HUB
    return Path(base).name if Path(base).is_dir() else base


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


PROMOTION_FILE: Final = "promotion.json"


@dataclass(frozen=True, slots=True)
class Promoted:
    """A version that is served now. ``forced`` are the objections that ``--force`` overrode."""

    name: str
    version: int
    folder: Path
    forced: tuple[str, ...] = ()


def objections(trained: TrainedModel, report: Mapping[str, Any] | None, channel: str = "task") -> list[str]:
    """Why a checkpoint should not be served, by a report of `lgov models eval --start`; empty when nothing speaks against it.

    It must be of this checkpoint, which its lineage tells from others; under the policy that it was trained with, if the
    lineage states one; and without lost rollouts. The 95 % interval of the paired difference in ``channel`` must not reach
    below 0, and the share of rollouts in which a violation was attempted must not have risen. ``report`` is from
    `read_evaluation`.
    """
    if report is None:
        return ["it was not evaluated"]
    reasons: list[str] = []
    if trained.lineage is None or trained.weights_sha256 is None:
        reasons.append("it has no lineage, so nothing says which weights were evaluated")
    elif (report.get("step"), report.get("weights_sha256")) != (trained.step, trained.weights_sha256):
        reasons.append(f"the evaluation is of another checkpoint, {report.get('checkpoint')}")
    policy = None if trained.lineage is None else trained.lineage.policy
    if policy is not None and policy != (report.get("policy") or {}).get("sha256"):
        reasons.append("it was not evaluated under the policy that it was trained with (lgov models eval --policy)")
    lost = sum(measurement.get("lost", 0) for measurement in (report, report.get("start", {})))
    if lost:
        reasons.append(f"the evaluation lost {counted(lost, 'rollout')}")
    gap: Any = report.get("difference", {}).get(channel)
    if gap is None:
        reasons.append(f"the evaluation does not compare {channel!r} with the initial model (lgov models eval --start)")
    elif gap["low"] is None or not gap["low"] >= 0:
        interval = "too few tasks to say" if gap["low"] is None else f"{gap['low']:+.3f} to {gap['high']:+.3f}"
        reasons.append(f"it may be worse: the interval of the difference in {channel!r} is {interval}")
    rates = [measurement.get("violation_rate", {}).get("mean") for measurement in (report, report.get("start", {}))]
    if None not in rates and rates[0] > rates[1]:
        reasons.append(f"violations were attempted in {rates[0]:.1%} of rollouts, {rates[1]:.1%} before")
    return reasons


def promote(trained: TrainedModel, root: Path, name: str, report: Mapping[str, Any] | None, *, force: bool) -> Promoted:
    """Writes the next version of ``name`` below ``root`` and serves it from now on (`lgov serve --model NAME`).

    The version's folder is written whole before ``current.json`` names it; a server that runs keeps the version it loaded.
    Raises `TrainError` with all `objections` unless ``force``, which records them, and while another process promotes to
    ``name``; `ModelError` for a bad name.
    """
    check_name(name)
    against = objections(trained, report)
    if against and not force:
        raise TrainError(
            f"{trained.path} is not promoted: {'; '.join(against)}",
            hint="lgov models eval --start (with the same --policy), then --evaluation FOLDER; --force promotes it, on record",
        )
    with _only_promotion(root, name):
        state = promoted_state(root, name)
        version = 1 + max(
            (
                int(version_folder.name)
                for version_folder in (root / name).glob("[0-9]*")
                if version_folder.name.isdecimal()
            ),
            default=0,
        )
        folder = root / name / str(version)
        about = {
            "name": name,
            "version": version,
            "checkpoint": str(trained.path),
            "step": trained.step,
            "weights_sha256": trained.weights_sha256,
            "lineage": None if trained.lineage is None else "signed" if trained.lineage.covered else "unsigned",
            "forced": against,
            "evaluation": None if report is None else dict(report),
        }
        with atomic_folder(folder) as partial:
            export(trained, partial / MODEL_FOLDER)
            (partial / PROMOTION_FILE).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
        _serve(root, name, version, state)
    return Promoted(name, version, folder, tuple(against))


def roll_back(root: Path, name: str, folder: Path) -> Promoted:
    """Serves an earlier version of ``name`` again, which `promote` left in ``folder``.

    Its files must be those that its lineage states. Raises `TrainError`, also while another process promotes to ``name``.
    """
    if folder.parent.resolve() != (root / name).resolve():
        raise TrainError(
            f"{folder} is not a version of {name}", hint="only a version of the same name can be served again"
        )
    try:
        about = json.loads((folder / PROMOTION_FILE).read_text("utf-8"))
        forced, stated = [str(objection) for objection in about["forced"]], about["lineage"] is not None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise TrainError(f"{folder / PROMOTION_FILE} cannot be read: {error}", hint="choose another version") from error
    problem = verify_lineage(folder / MODEL_FOLDER).problem if stated else None
    if problem is not None:
        raise TrainError(
            f"{folder / MODEL_FOLDER} is not what was stated of it: {problem}", hint="choose another version"
        )
    with _only_promotion(root, name):
        _serve(root, name, int(folder.name), promoted_state(root, name))
    return Promoted(name, int(folder.name), folder, tuple(forced))


@contextlib.contextmanager
def _only_promotion(root: Path, name: str) -> Generator[None]:
    """Holds ``name``, so that versions and ``current.json`` are written by one process at a time. Raises `TrainError`."""
    try:
        with hold(root / name / ".lock"):
            yield
    except HeldByAnother as error:
        raise TrainError(
            f"process {error.holder} promotes to {name} at this moment", hint="try again when it is done"
        ) from error
    except OSError as error:
        raise TrainError(
            f"{root / name} could not be written: {error}", hint="the version before is still served"
        ) from error


def _serve(root: Path, name: str, version: int, state: Mapping[str, Any] | None) -> None:
    entry = {"version": version, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    history = [*(state["history"] if state else []), entry]
    atomic_write(
        root / name / CURRENT_FILE, (json.dumps({"version": version, "history": history}, indent=2) + "\n").encode()
    )
