"""Keys of the audit record, and the verifier by itself."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lgov_core.audit import make_key
from lgov_core.audit.verify import Ed25519PublicKey
from lgov_core.errors import AuditError
from tests.audit.audit_proof_parts import VERIFIER, Signed, make_signed


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return make_signed(tmp_path_factory.mktemp("signed"))


RFC_8032 = [  # section 7.1: secret key, public key, message, signature
    ("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
     "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"),
    ("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
     "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"),
    ("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
     "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"),
]  # fmt: skip


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_the_verifiers_own_ed25519_on_the_vectors_of_the_rfc(
    secret: str, public: str, message: str, signature: str
) -> None:
    key = Ed25519PublicKey(bytes.fromhex(public))
    text, sig = bytes.fromhex(message), bytes.fromhex(signature)
    assert Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).sign(text) == sig
    assert key.verify(text, sig)
    assert not key.verify(text + b"x", sig)
    assert not key.verify(text, sig[:-1] + bytes([sig[-1] ^ 1]))
    order = 2**252 + 27742317777372353535851937790883648493
    too_large = (int.from_bytes(sig[32:], "little") + order).to_bytes(32, "little")
    assert not key.verify(text, sig[:32] + too_large)


def test_the_verifiers_own_ed25519_agrees_with_cryptography() -> None:
    rng = random.Random(7)
    for size in range(40):
        secret = Ed25519PrivateKey.from_private_bytes(rng.randbytes(32))
        message = rng.randbytes(size)
        signature = bytearray(secret.sign(message))
        key = Ed25519PublicKey(secret.public_key().public_bytes_raw())
        assert key.verify(message, bytes(signature))
        signature[rng.randrange(64)] ^= 1 << rng.randrange(8)
        assert not key.verify(message, bytes(signature))


def test_keys_are_private_and_never_replaced(tmp_path: Path) -> None:
    from lgov_core.audit import load_key

    path = tmp_path / "keys" / "audit.key"
    made = make_key(path)
    assert load_key(path).public == made.public
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    with pytest.raises(AuditError, match="already"):
        make_key(path)
    os.chmod(path, 0o644)
    with pytest.raises(AuditError, match="others may read"):
        load_key(path)
    (tmp_path / "junk").write_text("hello")
    os.chmod(tmp_path / "junk", 0o600)
    for wrong in (tmp_path / "junk", tmp_path / "absent"):
        with pytest.raises(AuditError):
            load_key(wrong)


def test_a_copy_of_the_verifier_runs_without_lgov(signed: Signed, tmp_path: Path) -> None:
    script = tmp_path / "verify.py"
    shutil.copy(VERIFIER, script)
    command = [
        sys.executable,
        "-I",
        "-S",
        str(script),
        str(signed.path),
        "--key",
        signed.key.public.hex(),
        "--head",
        str(signed.heads),
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["signed"] == 72
    broken = subprocess.run(
        [*command[:4], str(signed.older), *command[5:]], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert broken.returncode == 4
    assert "BROKEN" in broken.stdout
