"""Keys that are bound to one attempt at one rollout.

A scoped key is an HMAC over the ids it is for. It needs no table: every process that holds the secret can issue keys
and check them. The agent under training gets such a key and can speak for its own attempt only; the admin key may speak
for any.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from lgov_core.errors import EndpointError
from lgov_core.scope import RolloutScope

_PREFIX = "lgov_key_"
_ADMIN_PREFIX = "lgov_admin_"
_DOMAIN = b"lgov endpoint key 1\0"


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What the bearer of a key may do: speak for one attempt (ids set), or for any (``admin``), or nothing is known."""

    rollout_id: str | None = None
    attempt: int | None = None
    admin: bool = False


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class KeyRing:
    """Issues and checks keys. Without state beyond the secret; callable from any thread.

    ``secret`` is at least 16 bytes, or None for a fresh random one. With ``required`` (the default) a call without a
    valid key is refused; without it, keys that are not lgov's are let through as anonymous, for agents that send a key
    of their own (an lgov key is checked in either case).
    """

    __slots__ = ("_secret", "required")

    def __init__(self, secret: bytes | None = None, *, required: bool = True) -> None:
        if secret is not None and len(secret) < 16:
            raise EndpointError(
                f"the key secret has {len(secret)} bytes, at least 16 are needed",
                hint="secrets.token_bytes(32) makes one",
            )
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self.required = required

    def __repr__(self) -> str:
        return f"KeyRing(required={self.required})"  # never the secret

    def _sign(self, message: bytes) -> str:
        return _text(hmac.digest(self._secret, _DOMAIN + message, hashlib.sha256))

    @property
    def admin(self) -> str:
        """The key that may speak for any rollout."""
        return _ADMIN_PREFIX + self._sign(b"admin")

    def issue(self, rollout_id: str, attempt: int) -> str:
        """The key for one attempt (from 1), always the same for the same ids. Raises `ScopeError` for bad ids."""
        RolloutScope(rollout_id, attempt)  # checks the ids
        ids = f"{attempt}\0{rollout_id}".encode()
        return f"{_PREFIX}{_text(ids)}.{self._sign(ids)}"

    def check(self, key: str | None) -> KeyGrant:
        """What ``key`` allows. Raises `EndpointError` (401) for a missing, unknown or forged key. Fails closed."""
        if key is not None and key.startswith(_PREFIX):
            return self._check_scoped(key)
        if key is not None and key.startswith(_ADMIN_PREFIX):
            if hmac.compare_digest(key.encode(), self.admin.encode()):
                return KeyGrant(admin=True)
            raise EndpointError("the admin key is not this endpoint's", status=401)
        if self.required:
            what = "no key was given" if not key else "the key is not one of this endpoint's"
            raise EndpointError(what, status=401, hint="send a key issued for the rollout as the API key")
        return KeyGrant()

    def _check_scoped(self, key: str) -> KeyGrant:
        forged = EndpointError("the key is not one of this endpoint's", status=401, hint="it was issued elsewhere")
        encoded, _, signature = key[len(_PREFIX) :].partition(".")
        try:
            ids = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            if not hmac.compare_digest(signature.encode(), self._sign(ids).encode()):
                raise forged
            attempt, _, rollout_id = ids.decode().partition("\0")
            return KeyGrant(rollout_id, int(attempt))
        except (binascii.Error, ValueError) as error:
            raise forged from error
