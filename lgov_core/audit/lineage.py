"""Where a checkpoint comes from, step by step, and whether it is still what was stated then.

``lineage.jsonl`` in a checkpoint's folder holds one statement a line, oldest first: one for every checkpoint that this one
follows from, and at last its own. Each names the SHA-256 of the statement before it (``parent``), so that what signs the last
covers them all. The predicate of a checkpoint (`CHECKPOINT`) has

- ``step``, ``run_id``, ``seed``, ``settings``, ``created``;
- ``parent``: ``sha256`` of its statement, its ``step`` and ``weights_sha256``; null for the first;
- ``start``: ``model``, ``weights_sha256`` (null where the files of a model were not at hand) and ``step`` of what the first
  statement began with;
- ``data``: for each update since the parent ``step``, ``sha256`` of its transitions' file, and how many there are;
- ``policy``: ``sha256`` and ``mode`` of the rules in force while the data was made, null where the trainer did not know them;
- ``code``: versions, and the SHA-256 of lgov's own source;
- ``weights``: the ``file`` they are in (a list where they are in several), and ``sha256`` over their tensors
  (`lgov_core.audit.lineage`).

An export (`EXPORT`) is stated in the same way, with the checkpoint as its parent. Needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

from lgov_core.audit.entry import canonical
from lgov_core.audit.signing import Signer
from lgov_core.audit.verify import Ed25519PublicKey, public_key
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
        tensors: list[tuple[str, str, list[int], int, int, str | os.PathLike[str]]] = []
        for path in paths:
            tensors += [(*tensor, path) for tensor in _tensors(path)]
        for name, dtype, shape, first, last, path in sorted(tensors, key=lambda tensor: tensor[:5]):
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
        yield (
            name,
            str(stated["dtype"]),
            [int(dimension) for dimension in stated["shape"]],
            8 + size + first,
            8 + size + last,
        )


STATEMENT: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"


@dataclass(frozen=True, slots=True)
class Attestation:
    """A statement as it is read back. ``payload`` are its bytes, ``key`` the public key (32 bytes) that signed it, or None.

    The signature has been checked; whether the key is one to be trusted has not.
    """

    statement: Mapping[str, Any]
    payload: bytes
    key: bytes | None

    @property
    def sha256(self) -> str:
        """The SHA-256 (hex) of the payload: by which a later statement names this one."""
        return hashlib.sha256(self.payload).hexdigest()


def attest(files: Mapping[str, str], predicate_type: str, predicate: Mapping[str, Any], signer: Signer | None) -> str:
    """A statement about ``files`` (name to SHA-256 in hex) as one line of JSON without its line feed.

    With ``signer`` it is a DSSE envelope; without, the statement itself, which proves nothing to those who do not trust
    its keeper. Raises what the signer raises.
    """
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": files[name]}} for name in sorted(files)],
        "predicateType": predicate_type,
        "predicate": dict(predicate),
    }
    payload = canonical(statement)
    if signer is None:
        return payload
    signature = signer.sign(_signed(payload.encode()))
    return canonical(
        {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload.encode()).decode(),
            "signatures": [{"keyid": signer.public.hex(), "sig": base64.b64encode(signature).decode()}],
        }
    )


def read_attestation(line: str) -> Attestation:
    """The statement in a line that `attest` wrote. Raises `AuditError` when it is none, or its signature is wrong."""
    try:
        document: Any = json.loads(line)
        key: bytes | None = None
        payload = line.encode()
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
        if "payload" in document:
            if document["payloadType"] != PAYLOAD_TYPE:
                raise ValueError(f"its payload is {document['payloadType']!r}")
            payload = base64.b64decode(document["payload"], validate=True)
            (signed,) = document["signatures"]
            key = bytes.fromhex(signed["keyid"])
            if not Ed25519PublicKey(key).verify(_signed(payload), base64.b64decode(signed["sig"], validate=True)):
                raise ValueError("its signature is wrong")
            document = json.loads(payload)
        if document["_type"] != STATEMENT or not isinstance(document["predicate"], dict):
            raise ValueError("it is not an in-toto statement")
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error) as error:
        what = f"there is no {error}" if isinstance(error, LookupError) else str(error)
        raise AuditError(f"the statement cannot be read: {what}") from error
    return Attestation(document, payload, key)


def _signed(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


LINEAGE_FILE: Final = "lineage.jsonl"
CHECKPOINT: Final = "urn:lgov:attestation:checkpoint:v1"
EXPORT: Final = "urn:lgov:attestation:export:v1"
#: Where in a run's folder the folders are that have a lineage: of checkpoints made here, and of those that verl made.
FOLDERS: Final = ("checkpoints/step-*", "checkpoints/global_step_*/actor/huggingface")


@dataclass(frozen=True, slots=True)
class LineageReport:
    """The result of `verify_lineage`; ``problem`` says what is wrong when not ``ok``.

    ``signed`` of the ``statements`` have a signature of their own; ``covered``: the last one has, which covers all before
    it. ``key`` is its public key (hex), ``key_trusted`` whether it was compared with a given one. ``batches`` counts the
    updates that the chain names, ``batches_checked`` those whose data was found and is as stated. ``begins_after`` is the
    step before the first that is stated. ``usage``: nothing was checked, because the key that was given is not one.
    """

    ok: bool
    path: str
    step: int | None = None
    run_id: str | None = None
    statements: int = 0
    signed: int = 0
    covered: bool = False
    key: str | None = None
    key_trusted: bool = False
    batches: int = 0
    batches_checked: int = 0
    begins_after: int = 0
    policy: str | None = None
    problem: str | None = None
    usage: bool = False


def read_lineage(folder: Path) -> list[str]:
    """The lines of the lineage in ``folder``. Raises `AuditError` when there is none, or it cannot be read."""
    try:
        lines = (folder / LINEAGE_FILE).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{folder / LINEAGE_FILE} cannot be read: {error}"
        raise AuditError(problem, hint="name a checkpoint's folder") from error
    if not lines:
        raise AuditError(f"{folder / LINEAGE_FILE} is empty")
    return lines


def verify_lineage(
    folder: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | bytes | None = None,
    require_signed: bool = False,
    batches: str | os.PathLike[str] | None = None,
) -> LineageReport:
    """Checks a checkpoint's (or an export's) folder against its lineage; only reads. Raises nothing.

    Every file is the one stated and no other is there; the weights are those stated; each statement follows from the one
    before it, without an update missing or twice; signatures are right. ``key`` (32 bytes, hex, or a file that holds it) is
    the one that must have signed: then the last statement must be signed, and none by another. ``require_signed`` asks for
    a signature of any key. The data of the updates is looked for in ``batches`` (the ``transitions`` folder of the run that
    the checkpoint lies in, unless given; `FOLDERS` says how deep); what is there must be what was stated.
    """
    path = Path(folder)
    report = LineageReport(False, str(path))
    try:
        trusted = None if key is None else public_key(key)
    except ValueError as error:
        return replace(report, problem=str(error), usage=True)
    try:
        chain: list[Attestation] = []
        for number, line in enumerate(read_lineage(path), 1):
            try:
                chain.append(read_attestation(line))
            except AuditError as error:
                raise AuditError(f"{LINEAGE_FILE}:{number}: {error.message}") from error
        last = chain[-1]
        report = replace(
            report,
            statements=len(chain),
            signed=sum(attestation.key is not None for attestation in chain),
            covered=last.key is not None,
            key=None if last.key is None else last.key.hex(),
            step=last.statement["predicate"].get("step"),
            run_id=last.statement["predicate"].get("run_id"),
        )
        _keys(chain, trusted, require_signed)
        report = replace(report, key_trusted=trusted is not None)
        data = _chain(chain)
        _files(path, last)
        batches_folder = _batches_of(path.resolve()) if batches is None else Path(batches)
        report = replace(report, batches=len(data), batches_checked=_data(data, batches_folder))
        first = chain[0].statement["predicate"]
        policy = last.statement["predicate"].get("policy") or {}
        return replace(report, ok=True, begins_after=first["start"]["step"], policy=policy.get("sha256"))
    except AuditError as error:
        return replace(report, problem=error.message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return replace(report, problem=f"a statement lacks what it must say: {error}")


def in_words(report: LineageReport) -> str:
    """The report for people: what is right, and what was not proved."""
    if not report.ok:
        return f"BROKEN {report.path}: {report.problem}"
    begun = f", from step {report.begins_after}" if report.begins_after else ""
    lines = [f"ok: {report.path}, step {report.step} of run {report.run_id}, {report.statements} statements{begun}"]
    if not report.covered:
        lines.append("NOT SIGNED: whoever can write the folder can write it anew, statements and all")
    elif report.key_trusted:
        lines.append(f"signed with the given key; {report.signed} of the statements have a signature of their own")
    else:
        lines.append(f"the key {report.key} was not compared with one that you trust: give --key")
    lines.append(f"the data of {report.batches_checked} of {report.batches} updates was found, and is as stated")
    if missing := report.batches - report.batches_checked:
        lines.append(f"the data of {missing} updates was not found, and so not compared")
    if report.policy is None:
        lines.append("which policy was in force is not stated")
    return "\n".join(lines)


def _keys(chain: Sequence[Attestation], trusted: bytes | None, require_signed: bool) -> None:
    for number, attestation in enumerate(chain, 1):
        if trusted is not None and attestation.key not in (None, trusted):
            raise AuditError(
                f"statement {number} is signed with the key {attestation.key.hex()}, not with the one given"
            )
    if (require_signed or trusted is not None) and chain[-1].key is None:
        raise AuditError("its last statement is not signed")


def _chain(chain: Sequence[Attestation]) -> list[tuple[int, str]]:
    """Checks that each statement follows from the one before; the data of all, as step and SHA-256."""
    data: list[tuple[int, str]] = []
    before: Attestation | None = None
    for number, attestation in enumerate(chain, 1):
        kind, predicate = attestation.statement.get("predicateType"), attestation.statement["predicate"]
        if kind not in (CHECKPOINT, EXPORT) or (kind == EXPORT and (number < len(chain) or before is None)):
            raise AuditError(f"statement {number} is of the type {kind!r}, which has no place there")
        parent = predicate["parent"]
        if before is None:
            if parent is not None:
                raise AuditError("its first statement follows from one that is not there: the chain was cut")
            done = int(predicate["start"]["step"])
        else:
            earlier = before.statement["predicate"]
            named = (parent or {}).get("sha256"), (parent or {}).get("step"), (parent or {}).get("weights_sha256")
            if named != (before.sha256, earlier["step"], earlier["weights"]["sha256"]):
                raise AuditError(f"statement {number} does not follow from the one before it")
            if predicate["run_id"] != earlier["run_id"]:
                raise AuditError(f"statement {number} is of another run than the one before it")
            done = int(earlier["step"])
        steps = [int(update["step"]) for update in predicate["data"]]
        if steps != list(range(done + 1, int(predicate["step"]) + 1)):
            raise AuditError(
                f"statement {number}: its updates are {steps}, after step {done} and up to {predicate['step']}"
            )
        data += [(int(update["step"]), str(update["sha256"])) for update in predicate["data"]]
        before = attestation
    return data


def _files(folder: Path, last: Attestation) -> None:
    """Checks that the folder holds the files stated, and no other; and that the tensors are those stated."""
    stated = {str(subject["name"]): str(subject["digest"]["sha256"]) for subject in last.statement["subject"]}
    if not stated or len(stated) != len(last.statement["subject"]):
        raise AuditError("the statement names no file, or one file twice")
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} - {LINEAGE_FILE}
    if missing := sorted(stated.keys() - there):
        raise AuditError(f"{missing[0]} is stated and not there")
    if more := sorted(there - stated.keys()):
        raise AuditError(f"{more[0]} is there and no statement names it")
    for name, sha256 in sorted(stated.items()):
        if (actual := _file_sha256(folder / name)) != sha256:
            raise AuditError(f"{name} was changed: its SHA-256 is {actual}, stated is {sha256}")
    weights: dict[str, Any] = last.statement["predicate"]["weights"]
    names = [weights["file"]] if isinstance(weights["file"], str) else weights["file"]
    if last.statement["predicateType"] == CHECKPOINT:
        if not names or not stated.keys() >= set(names):
            raise AuditError("the files that the weights are in are not among those stated")
        if tensors_sha256(*(folder / name for name in names)) != weights["sha256"]:
            raise AuditError(f"the weights in {', '.join(names)} are not those stated")


def _batches_of(folder: Path) -> Path:
    """The transitions of the run that a checkpoint's folder lies in."""
    depths = [len(PurePath(pattern).parts) for pattern in FOLDERS if folder.match(pattern)]
    return folder.parents[depths[0] - 1 if depths else 1] / "transitions"


def _data(data: Sequence[tuple[int, str]], folder: Path) -> int:
    """How many updates' data is there; raises `AuditError` for one that is not what was stated."""
    present = 0
    for step, sha256 in data:
        path = folder / f"step-{step:06d}.parquet"
        if path.exists():
            if _file_sha256(path) != sha256:
                raise AuditError(f"{path} was changed: it is not the data that update {step} was made of")
            present += 1
    return present


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AuditError(f"{path} cannot be read: {error}") from error
