"""Statements about files: in-toto Statement v1, in a DSSE envelope where there is a key, in the open where there is none.

A statement says what some files are (``subject``: names and SHA-256) and how they came to be (``predicate``, of the type that
``predicateType`` names). In-toto: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. DSSE:
https://github.com/secure-systems-lab/dsse/blob/master/protocol.md; what is signed is
``"DSSEv1" SP LEN(type) SP type SP LEN(payload) SP payload``, with Ed25519, by the key that signs audit records.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lgov_core.audit.entry import canonical
from lgov_core.audit.heads import Signer
from lgov_core.audit.verify import Ed25519PublicKey
from lgov_core.errors import AuditError

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
        said: Any = json.loads(line)
        key: bytes | None = None
        payload = line.encode()
        if not isinstance(said, dict):
            raise ValueError("it is not a JSON object")
        if "payload" in said:
            if said["payloadType"] != PAYLOAD_TYPE:
                raise ValueError(f"its payload is {said['payloadType']!r}")
            payload = base64.b64decode(said["payload"], validate=True)
            (signed,) = said["signatures"]
            key = bytes.fromhex(signed["keyid"])
            if not Ed25519PublicKey(key).verify(_signed(payload), base64.b64decode(signed["sig"], validate=True)):
                raise ValueError("its signature is wrong")
            said = json.loads(payload)
        if said["_type"] != STATEMENT or not isinstance(said["predicate"], dict):
            raise ValueError("it is not an in-toto statement")
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error) as error:
        what = f"there is no {error}" if isinstance(error, LookupError) else str(error)
        raise AuditError(f"the statement cannot be read: {what}") from error
    return Attestation(said, payload, key)


def _signed(payload: bytes) -> bytes:
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
