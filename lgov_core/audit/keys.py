"""Ed25519 keys for the heads of an audit record, in files of their own."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lgov_core._util.private_file import open_to_others
from lgov_core.errors import AuditKeyError

SECRET: Final = "lgov-ed25519-secret:"
PUBLIC: Final = "lgov-ed25519-public:"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret key. ``public`` is the public key that goes with it, 32 bytes. May be used from several threads."""

    public: bytes
    _key: Any = field(repr=False, compare=False)

    def sign(self, message: bytes) -> bytes:
        """The signature of ``message``: 64 bytes, RFC 8032."""
        return self._key.sign(message)


def default_key_path() -> Path:
    """Where the key is looked for unless a path is given: in the user's folder for settings."""
    if sys.platform == "win32":
        base = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "lgov" / "audit.key"


def make_key(path: Path) -> SigningKey:
    """Makes a key: the secret one at ``path`` (mode 0600), the public one beside it with ``.pub``.

    Raises `AuditKeyError` when there is a file already: a lost key cannot be made again.
    """
    key = _ed25519().Ed25519PrivateKey.generate()
    made = SigningKey(key.public_key().public_bytes_raw(), key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{SECRET}{key.private_bytes_raw().hex()}\n")
        public_path(path).write_text(f"{PUBLIC}{made.public.hex()}\n", encoding="ascii")
    except FileExistsError as error:
        raise AuditKeyError(
            f"there is a key at {path} already", hint="choose another place; keep the old one"
        ) from error
    except OSError as error:
        raise AuditKeyError(f"the key {path} cannot be written: {error.strerror or error}") from error
    return made


def load_key(path: Path) -> SigningKey:
    """The secret key at ``path``.

    Raises `AuditKeyError` when it cannot be read, is something else, others may read it, or ``cryptography`` is missing.
    """
    try:
        if open_to_others(path):
            raise AuditKeyError(f"others may read the key {path}", hint=f"chmod 600 {path}, and think about a new one")
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AuditKeyError(
            f"the key {path} cannot be read: {error}", hint="make one with lgov audit keygen"
        ) from error
    if (secret := re.fullmatch(SECRET + "([0-9a-f]{64})", text)) is None:
        raise AuditKeyError(f"{path} holds no key of lgov", hint="make one with lgov audit keygen")
    key = _ed25519().Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret[1]))
    return SigningKey(key.public_key().public_bytes_raw(), key)


def default_signer(path: Path | None = None) -> SigningKey | None:
    """The key at ``path``; without one, the key at the default place, or None when there is none.

    Raises `AuditKeyError` as `load_key` does: a key that is there and cannot be used is not passed over.
    """
    if path is not None:
        return load_key(path)
    found = default_key_path()
    return load_key(found) if found.is_file() else None


def public_path(path: Path) -> Path:
    """Where the public key lies that goes with the secret one at ``path``."""
    return path.with_name(path.name + ".pub")


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise AuditKeyError("signing needs the package cryptography", hint='pip install "lgov[sign]"') from error
    return ed25519
