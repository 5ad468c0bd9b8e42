"""Keys that are bound to one rollout, or to one attempt at it.

A scoped key is an HMAC over what it is for. It needs no table: every process that holds the secret can issue keys and check
them. The agent under training gets such a key and can speak for its own attempt only; an admin key may speak for any.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lgov_core._util.files import open_to_others
from lgov_core.errors import EndpointError
from lgov_core.scope import RolloutScope

_PREFIX = "lgov_key_"
_ADMIN_PREFIX = "lgov_admin_"
_DOMAIN = b"lgov endpoint key 1\0"

_MIN_ADMIN_KEY = 16


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """The rights of a key's bearer: to speak for one rollout or attempt, or for any (``admin``), or nothing is known.

    ``attempt`` None is all attempts at its rollout. ``final_reward``: it may also give an attempt its final reward, not only
    events and rewards that name a call. ``expires_at`` is in Unix seconds, None for never.
    """

    rollout_id: str | None = None
    attempt: int | None = None
    admin: bool = False
    final_reward: bool = False
    expires_at: float | None = None

    @property
    def anonymous(self) -> bool:
        """True where no key says who it is."""
        return not self.admin and self.rollout_id is None

    @property
    def may_judge(self) -> bool:
        """True where it may give an attempt its final reward. Only a key of a rollout may be short of that right."""
        return self.final_reward or self.rollout_id is None


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class KeyRing:
    """Issues and checks keys. Without state beyond the secret; callable from any thread.

    ``secret`` is at least 16 bytes, or None for a fresh random one. With ``required`` a call without a valid key is
    refused; without it, keys that are not lgov's are anonymous (an lgov key is checked in either case).

    ``admin_keys`` (each at least 16 characters) may speak for any rollout: a list, or a function that is called at every
    check, so that keys can be revoked while the endpoint runs (`AdminKeyFile`). None: one key, made from the secret.
    """

    __slots__ = ("_admin_keys", "_secret", "required")

    def __init__(
        self,
        secret: bytes | None = None,
        *,
        required: bool = True,
        admin_keys: Sequence[str] | Callable[[], Sequence[str]] | None = None,
    ) -> None:
        if secret is not None and len(secret) < 16:
            raise EndpointError(
                f"the key secret has {len(secret)} bytes, at least 16 are needed",
                hint="secrets.token_bytes(32) makes one",
            )
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._admin_keys: Callable[[], Sequence[str]]
        if admin_keys is None:
            admin_keys = [_ADMIN_PREFIX + self._sign(b"admin")]
        if callable(admin_keys):
            self._admin_keys = admin_keys
        else:
            keys = tuple(admin_keys)
            check_admin_keys(keys)
            self._admin_keys = lambda: keys
        self.required = required

    def __repr__(self) -> str:
        return f"KeyRing(required={self.required})"  # never the secret

    def _sign(self, message: bytes) -> str:
        return _text(hmac.digest(self._secret, _DOMAIN + message, hashlib.sha256))

    @property
    def admin(self) -> str:
        """A key that may speak for any rollout: the first admin key. Raises `EndpointError` where all are revoked."""
        keys = self._admin_keys()
        if not keys:
            raise EndpointError("there is no admin key", hint="write one into the file of admin keys")
        return keys[0]

    def issue(
        self,
        rollout_id: str,
        attempt: int | None = None,
        *,
        expires_at: float | None = None,
        final_reward: bool = False,
    ) -> str:
        """The key for one attempt (from 1), or with None for all attempts; always the same for the same arguments.

        ``expires_at`` and ``final_reward`` are as in `KeyGrant`, the time rounded up. Raises `ScopeError` for bad ids.
        """
        RolloutScope(rollout_id, 1 if attempt is None else attempt)  # checks the ids
        ids = f"{'*' if attempt is None else attempt}\0{rollout_id}"
        if expires_at is not None or final_reward:
            expires = "" if expires_at is None else str(math.ceil(expires_at))
            ids += f"\0{'r' if final_reward else ''}\0{expires}"
        return f"{_PREFIX}{_text(ids.encode())}.{self._sign(ids.encode())}"

    def check(self, key: str | None) -> KeyGrant:
        """The rights of ``key``. Raises `EndpointError` (401) if it is missing, unknown, expired or forged. Fails closed."""
        if key is not None:
            if key.startswith(_PREFIX):
                grant = self._read_scoped(key)
                if grant.expires_at is not None and time.time() >= grant.expires_at:
                    raise EndpointError("the key has expired", status=401, hint="ask for a new one for this rollout")
                return grant
            if self._is_admin(key):
                return KeyGrant(admin=True)
            if key.startswith(_ADMIN_PREFIX):
                raise EndpointError("the admin key is not this endpoint's", status=401)
        if self.required:
            what = "no key was given" if not key else "the key is not one of this endpoint's"
            raise EndpointError(what, status=401, hint="send a key issued for the rollout as the API key")
        return KeyGrant()

    def _is_admin(self, key: str) -> bool:
        raw, matches = key.encode("utf-8", "surrogateescape"), False
        for admin_key in self._admin_keys():  # all of them, so that the time reveals nothing
            matches |= hmac.compare_digest(raw, admin_key.encode())
        return matches

    def _read_scoped(self, key: str) -> KeyGrant:
        forged = EndpointError("the key is not one of this endpoint's", status=401, hint="it was issued elsewhere")
        encoded, _, signature = key[len(_PREFIX) :].partition(".")
        try:
            ids = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            if not hmac.compare_digest(signature.encode(), self._sign(ids).encode()):
                raise forged
            attempt, rollout_id, *more = ids.decode().split("\0")
            rights, expires = more or ("", "")
            return KeyGrant(
                rollout_id,
                None if attempt == "*" else int(attempt),
                final_reward="r" in rights,
                expires_at=float(expires) if expires else None,
            )
        except (binascii.Error, ValueError) as error:
            raise forged from error


def check_admin_keys(keys: Sequence[str]) -> None:
    """Raises `EndpointError` for an admin key that is too short, or looks like the key of a rollout."""
    for number, key in enumerate(keys, 1):
        if len(key) < _MIN_ADMIN_KEY or key.startswith(_PREFIX):
            raise EndpointError(
                f"admin key {number} is too short or begins with {_PREFIX}",
                status=500,
                hint=f"an admin key has at least {_MIN_ADMIN_KEY} characters: for example lgov_admin_ and 32 random ones",
            )


class AdminKeyFile:
    """The admin keys in a file, one a line (empty lines and those that begin with # are skipped).

    Calling it reads the file. Callable from any thread. Fails closed: while the file cannot be read, can be read by other
    users or holds a bad key, there is no admin key. The constructor raises `EndpointError` for such a file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._read()

    def __call__(self) -> Sequence[str]:
        """The keys."""
        try:
            return self._read()
        except (OSError, EndpointError):
            return ()

    def _read(self) -> tuple[str, ...]:
        try:
            if open_to_others(self._path):
                raise EndpointError(
                    f"{self._path} can be read by other users", status=500, hint=f"chmod 600 {self._path}"
                )
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise EndpointError(f"the admin keys in {self._path} cannot be read: {error}", status=500) from error
        keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
        check_admin_keys(keys)
        return keys
