"""A checkpoint says where it comes from; whatever is changed afterwards, in it or behind it, shows."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("cryptography", reason='needs the extra "sign"')

from safetensors.torch import load_file, save_file  # noqa: E402
from update_twins import batch, make_run, train  # noqa: E402

from lgov_core.audit import SigningKey, make_key, verify_lineage  # noqa: E402
from lgov_core.audit.lineage import (  # noqa: E402  # noqa: E402
    CHECKPOINT,
    LINEAGE_FILE,
    attest,
    in_words,
    read_attestation,
    tensors_sha256,
)
from lgov_core.commands import cli  # noqa: E402
from lgov_core.errors import AuditError  # noqa: E402
from lgov_core.train.loop.lineage import (  # noqa: E402
    Facts,
    Lineage,
    policy_facts,
    weights_digest,
)
from lgov_core.transitions import write_parquet  # noqa: E402

POLICY = "version: 1\nname: open\nrules:\n  - {name: everything, use: allow}\n"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return make_key(tmp_path_factory.mktemp("keys") / "audit.key")


def train_sealed(folder: Path, signer: SigningKey | None, steps: int = 5) -> Path:
    rules = folder.with_suffix(".yaml")
    rules.write_text(POLICY)
    facts = Facts("run", "tiny", "0" * 64, seed=3, settings={"learning_rate": 0.01}, policy=policy_facts(rules))
    lineage = Lineage(facts, folder=folder, signer=signer)
    run = make_run(folder, checkpoint_every=2, seal=lineage.seal)
    run.resume()
    train(run, steps)
    run.checkpoint()
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> dict[bool, Path]:
    """A run of five updates with checkpoints after 2, 4 and 5, signed and not."""
    base = tmp_path_factory.mktemp("sealed")
    return {signed: train_sealed(base / str(signed), key if signed else None) for signed in (True, False)}


@pytest.fixture
def run(trained: dict[bool, Path], tmp_path: Path) -> Path:
    """A copy of the signed run, to be spoilt."""
    return Path(shutil.copytree(trained[True], tmp_path / "run"))


def last(run: Path) -> Path:
    return run / "checkpoints" / "step-000005"


def lines_of(run: Path) -> list[str]:
    return (last(run) / LINEAGE_FILE).read_text().splitlines()


def restate(run: Path, number: int, change: Callable[[dict[str, Any]], None], signer: SigningKey | None) -> None:
    """Changes a statement and signs it anew, as somebody with that key could."""
    lines = lines_of(run)
    said = read_attestation(lines[number]).statement
    predicate = json.loads(json.dumps(said["predicate"]))
    change(predicate)
    files = {one["name"]: one["digest"]["sha256"] for one in said["subject"]}
    lines[number] = attest(files, said["predicateType"], predicate, signer)
    (last(run) / LINEAGE_FILE).write_text("\n".join(lines) + "\n")


def test_a_signed_checkpoint_says_what_it_was_made_of(run: Path, key: SigningKey) -> None:
    report = verify_lineage(last(run), key=key.public, require_signed=True)
    assert report.ok, report.problem
    assert (report.step, report.run_id, report.statements, report.signed) == (5, "run", 3, 3)
    assert (report.covered, report.key_trusted, report.key) == (True, True, key.public.hex())
    assert (report.batches, report.batches_checked, report.begins_after) == (5, 5, 0)
    statement = read_attestation(lines_of(run)[-1]).statement
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == CHECKPOINT
    assert {one["name"] for one in statement["subject"]} == {"weights.safetensors", "state.pt", "extra.json"}
    predicate = statement["predicate"]
    assert (predicate["seed"], predicate["settings"]) == (3, {"learning_rate": 0.01})
    assert len(predicate["policy"]["sha256"]) == 64
    assert predicate["policy"]["mode"] == "enforce"
    assert [update["step"] for update in predicate["data"]] == [5]
    assert predicate["parent"]["step"] == 4
    assert predicate["start"] == {"model": "tiny", "weights_sha256": "0" * 64, "step": 0}
    assert len(predicate["code"]["lgov_core_sha256"]) == 64
    assert predicate["weights"]["sha256"] == weights_digest(load_file(last(run) / "weights.safetensors").items())


def test_the_envelope_is_what_dsse_says(run: Path, key: SigningKey) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    envelope = json.loads(lines_of(run)[-1])
    payload = base64.b64decode(envelope["payload"])
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    signed = b"DSSEv1 28 application/vnd.in-toto+json " + str(len(payload)).encode() + b" " + payload
    (signature,) = envelope["signatures"]
    Ed25519PublicKey.from_public_bytes(key.public).verify(base64.b64decode(signature["sig"]), signed)


def test_an_unsigned_checkpoint_is_checked_and_said_to_be_unsigned(trained: dict[bool, Path], key: SigningKey) -> None:
    report = verify_lineage(last(trained[False]))
    assert report.ok, report.problem
    assert not report.covered
    assert "NOT SIGNED" in in_words(report)
    for options in ({"require_signed": True}, {"key": key.public}):
        report = verify_lineage(last(trained[False]), **options)  # type: ignore[arg-type]
        assert not report.ok
        assert "not signed" in (report.problem or "")


def change_weights(run: Path) -> None:
    path = last(run) / "weights.safetensors"
    weights = load_file(path)
    name = sorted(weights)[0]
    weights[name].view(-1)[0] += 1e-7
    save_file(weights, path)


def flip_last_byte(run: Path) -> None:
    path = last(run) / "state.pt"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def add_file(run: Path) -> None:
    (last(run) / "model.safetensors").write_bytes(b"")


def drop_file(run: Path) -> None:
    (last(run) / "extra.json").unlink()


def change_statement(run: Path) -> None:
    lines = lines_of(run)
    envelope = json.loads(lines[-1])
    said = json.loads(base64.b64decode(envelope["payload"]))
    said["predicate"]["policy"]["sha256"] = "f" * 64
    envelope["payload"] = base64.b64encode(json.dumps(said).encode()).decode()
    (last(run) / LINEAGE_FILE).write_text("\n".join([*lines[:-1], json.dumps(envelope)]) + "\n")


def cut_first(run: Path) -> None:
    (last(run) / LINEAGE_FILE).write_text("\n".join(lines_of(run)[1:]) + "\n")


def cut_middle(run: Path) -> None:
    lines = lines_of(run)
    (last(run) / LINEAGE_FILE).write_text("\n".join([lines[0], lines[2]]) + "\n")


def change_data(run: Path) -> None:
    write_parquet(batch(9), run / "transitions" / "step-000003.parquet")


def drop_lineage(run: Path) -> None:
    (last(run) / LINEAGE_FILE).unlink()


def empty_lineage(run: Path) -> None:
    (last(run) / LINEAGE_FILE).write_text("{}\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (change_weights, "weights.safetensors was changed"),
        (flip_last_byte, "state.pt was changed"),
        (add_file, "model.safetensors is there and no statement names it"),
        (drop_file, "extra.json is stated and not there"),
        (change_statement, "lineage.jsonl:3: the statement cannot be read: its signature is wrong"),
        (cut_first, "the chain was cut"),
        (cut_middle, "statement 2 does not follow"),
        (change_data, "step-000003.parquet was changed"),
        (drop_lineage, "cannot be read"),
        (empty_lineage, "lineage.jsonl:1"),
    ],
)
def test_what_was_changed_shows(spoil: Callable[[Path], None], said: str, run: Path, key: SigningKey) -> None:
    spoil(run)
    report = verify_lineage(last(run), key=key.public)
    assert not report.ok
    assert said in (report.problem or "")
    shown = CliRunner().invoke(cli, ["audit", "verify", str(last(run)), "--key", key.public.hex()])
    assert shown.exit_code == 4
    assert said in shown.output
    assert "BROKEN" in shown.output


def test_a_statement_made_anew_by_who_has_the_key_must_still_follow(run: Path, key: SigningKey) -> None:
    restate(run, 1, lambda said: said.update(seed=4), key)
    report = verify_lineage(last(run), key=key.public)
    assert report.problem == "statement 3 does not follow from the one before it"


@pytest.mark.parametrize("steps", [[], [5, 5], [4, 5], [6]])
def test_an_update_that_is_missing_or_stated_twice_shows(steps: list[int], run: Path, key: SigningKey) -> None:
    restate(run, 2, lambda said: said.update(data=[{**said["data"][0], "step": step} for step in steps]), key)
    assert "its updates are" in (verify_lineage(last(run)).problem or "")


def test_other_weights_than_the_chain_says_show(run: Path, key: SigningKey) -> None:
    restate(run, 2, lambda said: said["weights"].update(sha256="f" * 64), key)
    assert "the weights in weights.safetensors are not those stated" in (verify_lineage(last(run)).problem or "")


def test_an_unknown_key_shows(run: Path, tmp_path: Path, key: SigningKey) -> None:
    other = make_key(tmp_path / "other.key")
    report = verify_lineage(last(run), key=tmp_path / "other.key.pub")
    assert "not with the one given" in (report.problem or "")
    # Without a key to compare with, any will do, and the report says so.
    restate(run, 2, lambda said: None, other)
    report = verify_lineage(last(run))
    assert report.ok
    assert not report.key_trusted
    assert "give --key" in in_words(report)
    assert not verify_lineage(last(run), key=key.public).ok
    report = verify_lineage(last(run), key="no key")
    assert report.usage
    assert CliRunner().invoke(cli, ["audit", "verify", str(last(run)), "--key", "no key"]).exit_code == 2


def test_data_that_is_elsewhere_is_said_not_to_be_compared(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(last(run), tmp_path / "elsewhere" / "copy"))
    report = verify_lineage(alone)
    assert report.ok, report.problem
    assert (report.batches, report.batches_checked) == (5, 0)
    assert "the data of 5 updates was not found" in in_words(report)
    assert verify_lineage(alone, batches=run / "transitions").batches_checked == 5


def test_a_run_is_verified_with_all_its_checkpoints(run: Path, key: SigningKey) -> None:
    public = key.public.hex()  # step 2 is the best one
    shown = CliRunner().invoke(cli, ["audit", "verify", str(run), "--key", public, "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    assert [(one["step"], one["ok"]) for one in found["checkpoints"]] == [(2, True), (4, True), (5, True)]
    drop_lineage(run)
    assert CliRunner().invoke(cli, ["audit", "verify", str(run), "--key", public]).exit_code == 4
    assert CliRunner().invoke(cli, ["audit", "verify", str(run), "--head", "x"]).exit_code == 2


def test_the_chain_goes_on_after_a_resume_and_from_a_run_that_was_not_sealed(tmp_path: Path, key: SigningKey) -> None:
    train(make_run(tmp_path, checkpoint_every=2), 3)
    train_sealed(tmp_path, key, steps=4)
    train_sealed(tmp_path, key, steps=5)
    report = verify_lineage(last(tmp_path), key=key.public)
    assert report.ok, report.problem
    assert (report.statements, report.begins_after, report.batches) == (2, 2, 3)


def test_a_digest_of_tensors_is_that_of_their_file(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "empty": torch.zeros(0),
        "long": torch.arange(4).reshape(2, 2).t().contiguous(),
    }
    save_file(tensors, tmp_path / "one.safetensors", metadata={"format": "pt"})
    found = tensors_sha256(tmp_path / "one.safetensors")
    assert found == weights_digest(tensors.items())
    tensors["b"] = tensors["b"].reshape(3, 2)
    assert found != weights_digest(tensors.items())
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "one.safetensors").read_bytes()[:-3])
    with pytest.raises(AuditError, match="it ends within tensor"):
        tensors_sha256(tmp_path / "half.safetensors")
    (tmp_path / "none.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(AuditError, match="no header"):
        tensors_sha256(tmp_path / "none.safetensors")
