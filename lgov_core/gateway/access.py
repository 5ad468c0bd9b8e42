"""Who may call the endpoint, and for whom: keys, the routes' rules about them, and the attempt that a call belongs to.

A scoped key is bound to one rollout, or to one attempt at it: an HMAC over what it is for. It needs no table: every process
that holds the secret can issue keys and check them. The agent under training gets such a key and can speak for its own
attempt only; an admin key may speak for any.
"""

from __future__ import annotations

import base64
import binascii
import contextvars
import hashlib
import hmac
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Scope

from lgov_core._util.files import open_to_others
from lgov_core.errors import EndpointError
from lgov_core.gateway.door import is_loopback, requester
from lgov_core.gateway.limits import Busy
from lgov_core.gateway.protocol import Attribution
from lgov_core.scope import RolloutScope

_PREFIX = "lgov_key_"
_ADMIN_PREFIX = "lgov_admin_"
_DOMAIN = b"lgov endpoint key 1\0"

#: Bytes of a secret, and characters of an admin key, at least.
_MIN_KEY = 16


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

    ``secret`` is at least 16 bytes, or several such, of which the first makes new keys and all are valid, or None for a fresh
    random one. ``is_revoked`` says that a key of a rollout is not valid any more, or raises (`RevokedKeys`). With ``required``
    a call without a valid key is refused; without it, keys that are not lgov's are anonymous (an lgov key is checked in
    either case).

    ``admin_keys`` (each at least 16 characters) may speak for any rollout: a list, or a function that is called at every
    check, so that keys can be revoked while the endpoint runs (`AdminKeyFile`). None: one key, made from the secret.
    """

    __slots__ = ("_admin_keys", "_is_revoked", "_secrets", "required")

    def __init__(
        self,
        secret: bytes | Sequence[bytes] | None = None,
        *,
        required: bool = True,
        admin_keys: Sequence[str] | Callable[[], Sequence[str]] | None = None,
        is_revoked: Callable[[str], bool] | None = None,
    ) -> None:
        secret = secrets.token_bytes(32) if secret is None else secret
        self._secrets = (secret,) if isinstance(secret, bytes) else tuple(secret)
        if (shortest := min(map(len, self._secrets), default=0)) < _MIN_KEY:
            raise EndpointError(
                f"the key secret has {shortest} bytes, at least {_MIN_KEY} are needed",
                hint="secrets.token_bytes(32) makes one",
            )
        self._is_revoked = is_revoked
        self._admin_keys: Callable[[], Sequence[str]]
        if admin_keys is None:
            admin_keys = [_ADMIN_PREFIX + signature for signature in self._signatures(b"admin")]
        if callable(admin_keys):
            self._admin_keys = admin_keys
        else:
            keys = tuple(admin_keys)
            for number, why in enumerate(map(_admin_flaw, keys), 1):
                if why is not None:
                    raise EndpointError(f"admin key {number} {why}", status=500)
            self._admin_keys = lambda: keys
        self.required = required

    def __repr__(self) -> str:
        return f"KeyRing(required={self.required})"  # never the secret

    def _signatures(self, message: bytes) -> list[str]:
        """The signatures of ``message`` by each secret, that of the first one first."""
        return [_text(hmac.digest(secret, _DOMAIN + message, hashlib.sha256)) for secret in self._secrets]

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

        ``expires_at`` and ``final_reward`` are as in `KeyGrant`, the time rounded up. Raises `ScopeError` for bad ids, and
        `EndpointError` (409) for a key that was revoked.
        """
        RolloutScope(rollout_id, 1 if attempt is None else attempt)  # checks the ids
        ids = f"{'*' if attempt is None else attempt}\0{rollout_id}"
        if expires_at is not None or final_reward:
            expires = "" if expires_at is None else str(math.ceil(expires_at))
            ids += f"\0{'r' if final_reward else ''}\0{expires}"
        key = f"{_PREFIX}{_text(ids.encode())}.{self._signatures(ids.encode())[0]}"
        if self._is_revoked is not None and self._is_revoked(key):
            raise EndpointError("this key was revoked", status=409, hint="issue one with another expires_at")
        return key

    def check(self, key: str | None) -> KeyGrant:
        """The rights of ``key``. Raises `EndpointError` (401) if it is missing, unknown, expired or forged. Fails closed.

        What ``is_revoked`` and the function of admin keys raise is raised: the key may be right.
        """
        if key is not None:
            if key.startswith(_PREFIX):
                grant = self._read_scoped(key)
                if grant.expires_at is not None and time.time() >= grant.expires_at:
                    raise EndpointError("the key has expired", status=401, hint="ask for a new one for this rollout")
                if self._is_revoked is not None and self._is_revoked(key):
                    raise EndpointError(
                        "the key was revoked", status=401, hint="ask for a new one, with another expiry"
                    )
                return grant
            if self._is_admin(key):
                return KeyGrant(admin=True)
            if key.startswith(_ADMIN_PREFIX):
                raise EndpointError("the admin key is not this endpoint's", status=401)
        if self.required:
            what = "no key was given" if not key else "the key is not one of this endpoint's"
            raise EndpointError(what, status=401, hint="send a key issued for the rollout as the API key")
        return KeyGrant()

    def owner(self, key: str | None) -> str | None:
        """Whose key it is, or was before it expired or was revoked, for the log; None for one that is not known.

        That is its rollout; admin keys have no names, so it is the beginning of their SHA-256.
        """
        if key is None:
            return None
        if key.startswith(_PREFIX):
            with suppress(EndpointError):
                return self._read_scoped(key).rollout_id
        elif self._is_admin(key):
            return f"admin {hashlib.sha256(key.encode()).hexdigest()[:12]}"
        return None

    @property
    def pings(self) -> dict[str, Callable[[], object]]:
        """Functions that raise while no key (``keys``), or no admin key (``admin_keys``), can be checked."""
        sources = {"keys": self._is_revoked, "admin_keys": self._admin_keys}
        return {name: ping for name, source in sources.items() if (ping := getattr(source, "ping", None)) is not None}

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
            raw, matches = signature.encode(), False
            for right in self._signatures(ids):  # all of them, so that the time reveals nothing
                matches |= hmac.compare_digest(raw, right.encode())
            if not matches:
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


def require_keys(host: str, keys: KeyRing | None) -> None:
    """Raises `EndpointError` for a server that other machines can reach and that asks for no keys."""
    if not is_loopback(host) and (keys is None or not keys.required):
        raise EndpointError(
            f"{host} can be reached from other machines, and no keys are required",
            hint="listen on 127.0.0.1, or require keys (--key-secret-file, in Python keys=KeyRing(secret))",
        )


class _UnusableFile(EndpointError):
    """A file of keys cannot be used. ``why`` says so without its path, which is not for clients."""

    def __init__(self, path: Path, why: str, hint: str | None = None) -> None:
        super().__init__(f"the keys in {path} cannot be used: {why}", status=500, hint=hint)
        self.why = why


def _key_lines(path: Path, flaw: Callable[[str], str | None], *, needed: bool = True) -> tuple[str, ...]:
    """The keys in a text file, one a line; empty lines and those that begin with # are skipped. ``needed``: one at least.

    Raises `_UnusableFile` for a file that is missing or that other users can read, and for a line with a ``flaw``.
    """
    try:
        if open_to_others(path):
            raise _UnusableFile(path, "other users can read it", f"chmod 600 {path}")
        lines = [line.strip() for line in path.read_text("utf-8-sig").split("\n")]
    except OSError as error:
        raise _UnusableFile(path, f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise _UnusableFile(path, "it is not text", "write each key as text on a line of its own") from None
    keys = {number: line for number, line in enumerate(lines, 1) if line and not line.startswith("#")}
    for number, key in keys.items():
        if (why := flaw(key)) is not None:
            raise _UnusableFile(path, f"line {number} {why}")
    if needed and not keys:
        raise _UnusableFile(path, "no line of it holds a key")
    return tuple(keys.values())


def _secret_flaw(secret: str) -> str | None:
    size = len(secret.encode())
    return None if size >= _MIN_KEY else f"has {size} bytes, and a secret {_MIN_KEY} or more"


def _admin_flaw(key: str) -> str | None:
    bad = len(key) < _MIN_KEY or key.startswith(_PREFIX)
    return f"is too short for an admin key ({_MIN_KEY} characters), or begins with {_PREFIX}" if bad else None


def _revoked_flaw(line: str) -> str | None:
    is_key = line.startswith(_PREFIX) or re.fullmatch("[0-9a-f]{64}", line)
    return None if is_key else "is neither a whole key as it was issued nor the SHA-256 of one in hex"


def read_secrets(path: str | os.PathLike[str]) -> tuple[bytes, ...]:
    """The secrets in a file, one a line: the first one makes new keys, and the others still open. Raises `EndpointError`."""
    return tuple(secret.encode() for secret in _key_lines(Path(path), _secret_flaw))


class RevokedKeys:
    """The revoked keys of rollouts in a file, one a line: the key, or its SHA-256 in hex. Read again when the file changes.

    Calling it says whether a key is revoked. Callable from any thread. Fails closed: while the file cannot be used, a call
    raises `Busy` (503), and `ping`, like the constructor, `EndpointError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._state: tuple[tuple[int, ...] | None, frozenset[str]] = None, frozenset()
        self.ping()

    def __call__(self, key: str) -> bool:
        """Returns whether ``key`` is revoked. Raises `Busy` while nobody can tell."""
        try:
            self.ping()
        except EndpointError as error:
            raise Busy("keys cannot be checked now", status=503, retry_after_s=5) from error
        return not self._state[1].isdisjoint((key, hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()))

    def ping(self) -> None:
        """Reads the file, if it has changed. Raises `EndpointError`."""
        version = None
        with suppress(OSError):
            status = self._path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
        if version is None or version != self._state[0]:
            self._state = version, frozenset(_key_lines(self._path, _revoked_flaw, needed=False))


class AdminKeyFile:
    """The admin keys in a file, one a line; empty lines and those that begin with # are skipped.

    Calling it reads the file. Callable from any thread. Fails closed: while the file cannot be used, a call raises `Busy`
    (503), whose cause says why, and `ping`, like the constructor, `EndpointError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self.ping()

    def __call__(self) -> Sequence[str]:
        """The keys."""
        try:
            return self.ping()
        except _UnusableFile as error:
            raise Busy("keys cannot be checked now", status=503, retry_after_s=5) from error

    def ping(self) -> tuple[str, ...]:
        """Reads the file. Raises `EndpointError`."""
        return _key_lines(self._path, _admin_flaw)


ROLLOUT_HEADER = "x-lgov-rollout-id"
ATTEMPT_HEADER = "x-lgov-attempt"
AGENT_HEADER = "x-lgov-agent"
#: What a client of the Messages API says of itself; its own upstream gets it.
_UNDERSTOOD = ("anthropic-beta", "anthropic-version")

_ROLLOUT_ID = re.compile(r"[!-.0-~]{1,200}")  # printable ASCII without space and slash
_ATTEMPT = re.compile(r"[1-9][0-9]{0,8}")
_AGENT = re.compile(r"[ -~]{1,200}")


_CALLER = contextvars.ContextVar("lgov_endpoint_caller", default=Attribution())  # noqa: B039 - it is frozen


def caller() -> Attribution:
    """Whose call this task answers: what `attribute` found last in it."""
    return _CALLER.get()


def bearer_key(headers: Headers) -> str | None:
    """The key in an ``Authorization: Bearer`` or ``x-api-key`` header, or None.

    Raises `EndpointError` (400) for two that differ, and for a header given twice: lgov does not guess which one is meant.
    """
    scheme, _, key = (_only(headers, "authorization") or "").partition(" ")
    bearer = key.strip() or None if scheme.lower() == "bearer" else None
    own = (_only(headers, "x-api-key") or "").strip() or None
    if bearer is not None and own is not None and bearer != own:
        raise EndpointError("the authorization header and x-api-key hold different keys", hint="send one of them")
    return own if bearer is None else bearer


def attribute(headers: Headers, path: Mapping[str, str], grant: KeyGrant, *, allow_unattributed: bool) -> Attribution:
    """Whose call it is, by headers, path parameters ``rollout_id`` and ``attempt``, and its key's grant.

    Raises `EndpointError`: 403 for a key of another attempt, 400 for malformed, contradicting or repeated ids, or for none
    at all unless ``allow_unattributed``.
    """
    rollout_id = _agree(
        "rollout",
        _checked("the rollout id in the path", path.get("rollout_id"), _ROLLOUT_ID),
        _checked(ROLLOUT_HEADER, _only(headers, ROLLOUT_HEADER), _ROLLOUT_ID),
        grant.rollout_id,
    )
    attempt = _agree(
        "attempt",
        _checked("the attempt in the path", path.get("attempt"), _ATTEMPT),
        _checked(ATTEMPT_HEADER, _only(headers, ATTEMPT_HEADER), _ATTEMPT),
        None if grant.attempt is None else str(grant.attempt),
    )
    agent = _checked(AGENT_HEADER, _only(headers, AGENT_HEADER), _AGENT)
    agent = None if agent is None else unquote(agent)
    if agent is not None and not agent.isprintable():
        raise EndpointError(f"{AGENT_HEADER} is {agent[:60]!r}, which holds what cannot be printed")
    if (rollout_id is None) != (attempt is None):
        missing = "rollout id" if rollout_id is None else "attempt"
        raise EndpointError(
            f"the call names only half of its attempt: the {missing} is missing",
            hint=f"call /rollout/<id>/attempt/<n>/v1, or send {ROLLOUT_HEADER} and {ATTEMPT_HEADER}",
        )
    if rollout_id is None and not (allow_unattributed or grant.admin):
        raise EndpointError(
            "the call does not name its rollout",
            hint=f"send {ROLLOUT_HEADER} and {ATTEMPT_HEADER}, call /rollout/<id>/attempt/<n>/v1, or use its key",
        )
    understood = tuple((name, ",".join(values)) for name in _UNDERSTOOD if (values := headers.getlist(name)))
    who = Attribution(rollout_id, None if attempt is None else int(attempt), agent, understood)
    speak_for(who)
    return who


def speak_for(who: Attribution) -> None:
    """Makes ``who`` the caller of what this task does."""
    _CALLER.set(who)
    if (sender := requester()) is not None:
        sender.rollout = who.rollout_id


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise EndpointError(f"the header {name} is given {len(values)} times", hint="send it once")
    return values[0] if values else None


def _checked(name: str, value: str | None, form: re.Pattern[str]) -> str | None:
    if value is None or form.fullmatch(value):
        return value
    excerpt = value if len(value) <= 60 else value[:60] + "..."
    raise EndpointError(f"{name} is {excerpt!r}, which does not match {form.pattern}")


def _agree(what: str, in_path: str | None, in_header: str | None, in_key: str | None) -> str | None:
    if in_path is not None and in_header is not None and in_path != in_header:
        raise EndpointError(f"the path says {what} {in_path!r} and the header says {in_header!r}")
    claimed = in_header if in_path is None else in_path
    if claimed is not None and in_key is not None and claimed != in_key:
        hint = "make a client for each rollout: one that was kept from another has the address of that"
        raise EndpointError(f"the key is for {what} {in_key!r}, not for {claimed!r}", status=403, hint=hint)
    return in_key if claimed is None else claimed


class Access(StrEnum):
    """Who may use a route.

    ``open``: everybody. ``agent``: the bearer of a key, for its rollout only (the path parameter ``rollout_id`` is checked
    here, ids in the body by the route). ``admin``: an admin key; where keys are not required also a caller without one.
    """

    OPEN = "open"
    AGENT = "agent"
    ADMIN = "admin"


class RuledRoute(Route):
    """A route with its access rule.

    ``is_call``: it asks a model, so it is admitted (`Admission`) and can be paused. ``is_probe``: something asks it all the
    time, so the log leaves out that it was answered.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        methods: Sequence[str],
        access: Access,
        is_call: bool = False,
        is_probe: bool = False,
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.access = access
        self.is_call = is_call
        self.is_probe = is_probe


def grant_of(scope: Scope) -> KeyGrant:
    """The rights of a request's key, as its guard found them. Fails closed: an error where there was no guard."""
    grant = scope.get("lgov.grant")
    if not isinstance(grant, KeyGrant):
        raise EndpointError("this route has no rule of who may use it", status=500)
    return grant
