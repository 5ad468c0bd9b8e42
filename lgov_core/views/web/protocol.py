"""HTTP of the window: errors with their status, parameters that are checked, JSON, headers, and who may use it.

The window is opened by a one-time token that becomes a cookie, or by an admin key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lgov_core.errors import EndpointError, LgovError, StoreError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.limits import Busy
from lgov_core.gateway.operation import log_request
from lgov_core.gateway.protocol import Attribution
from lgov_core.policies.approvals.answers import KEY_PREFIX, hash_of
from lgov_core.store.database import QueryTooSlow
from lgov_core.store.pages import Filters
from lgov_core.train.loop.run_files import finite
from lgov_core.views.attempt_builder import NotRecorded


class WindowError(LgovError):
    """A request that cannot be answered. ``status`` is the HTTP status."""

    code = "window"
    status: ClassVar[int] = 500


class QueryError(WindowError):
    """A parameter or a body without meaning."""

    code = "query"
    status = 400


class NoSessionError(WindowError):
    """The browser has no session."""

    code = "unauthorized"
    status = 401


class NotFoundError(WindowError):
    """There is no such source, side or address."""

    code = "not_found"
    status = 404


_STATUS: Final = {
    "not_found": 404,
    "forbidden": 403,
    "changed": 409,
    "answered": 409,
    "policy": 400,
    "policy_file": 400,
    "train": 503,
}


def status_of(error: LgovError) -> int:
    """The status for an error: what is not in a store is missing, and one that cannot be read is unavailable."""
    if isinstance(error, WindowError | Busy):
        return error.status
    if isinstance(error, QueryTooSlow):
        return 504  # which a page does not ask again by itself
    if isinstance(error, StoreError):
        return 404 if isinstance(error, NotRecorded) else 503
    return _STATUS.get(error.code, 500)


#: Characters of a parameter.
_LONGEST = 500
#: The last place in the order of writing that there can be.
_LAST = 2**63 - 1
_OUTCOMES = ("succeeded", "failed", "blocked", "infrastructure", "timeout", "truncated", "running", "unknown")


class Query:
    """The parameters of a request, by name. Each method raises `WindowError` (400) for a value without meaning."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._given = parameters

    def text(self, name: str) -> str | None:
        """A text, None where it is missing or empty."""
        value = self._given.get(name) or None
        if value is not None and len(value) > _LONGEST:
            raise QueryError(f"{name} is longer than {_LONGEST} characters")
        return value

    def needed(self, name: str) -> str:
        """A text that must be given."""
        value = self.text(name)
        if value is None:
            raise QueryError(f"{name} is missing", hint=f"add {name}=")
        return value

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number."""
        value = self._given.get(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdecimal() or not least <= int(value[:20]) <= most:
            raise QueryError(f"{name} is {value[:20]!r}", hint=f"a whole number from {least} to {most}")
        return int(value)

    def choice(self, name: str, allowed: Sequence[str], default: str | None = None) -> str | None:
        """One of ``allowed``, or the default where it is missing."""
        value = self._given.get(name) or None
        if value is not None and value not in allowed:
            raise QueryError(f"{name} is {value[:40]!r}", hint=f"one of {', '.join(allowed)}")
        return value or default

    def flag(self, name: str) -> bool:
        """True where ``name=1`` is given."""
        return self.choice(name, ("0", "1")) == "1"

    def cursor(self) -> int | None:
        """The place before which a page begins, None for the first page."""
        return self.whole("cursor", 0, 1, _LAST) or None

    def attempt(self) -> int | None:
        """The attempt that is asked for, None for the last."""
        return self.whole("attempt", 0, 1, 2**31) or None

    def filters(self) -> Filters:
        """The filters of tasks and rollouts."""
        return Filters(
            run=self._given.get("run"),
            task=self._given.get("task"),
            agent=self.text("agent"),
            outcome=self.choice("outcome", _OUTCOMES),
            denied=self.choice("denied", ("0", "1", "would")),
            policy=self.text("policy"),
            rule=self.text("rule"),
            text=self.text("text"),
        )


#: Nothing inline, nothing evaluated, nothing from elsewhere.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def json_body(value: Any) -> bytes:
    """``value`` as JSON in ASCII: lone surrogates stay as they are, and what is not finite becomes null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def json_answer(value: Any, status: int = 200) -> Response:
    """``value`` as an answer that is not kept."""
    return _json(json_body(value), status)


def error_answer(error: LgovError, **more: Any) -> Response:
    """An error as an answer."""
    return _json(json_body({"error": error.as_json(), **more}), status_of(error))


def _json(body: bytes, status: int) -> Response:
    return Response(body, status, {"Cache-Control": "no-store"}, media_type="application/json")


class SafeHeaders:
    """An application whose every answer has `HEADERS`, and whose requests are logged, as those of an endpoint."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, mount = time.perf_counter(), 0, scope.get("endpoint")

        async def with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            await self._app(scope, receive, with_headers)
        finally:
            # A path that is none of the window's may hold anything, also a key.
            route = scope["path"] if scope.get("endpoint") is not mount else None
            log_request(route, status, (time.perf_counter() - began, None), Attribution())


#: Browsers that may have a session at the same time; the oldest one ends.
_MOST_SESSIONS: Final = 64


class WindowAccess:
    """The token and the sessions of one window. For one event loop.

    ``keys`` are those of the endpoint that the window is mounted on: an admin key opens it as well, the key of a rollout does
    not. ``is_approver`` says of a key whether it is an approver's, which opens the window too. ``on_new_token`` is called
    when the token was used up and there is a fresh one. Where a request comes from is checked by the server's
    `lgov_core.gateway.door.Door`.
    """

    def __init__(
        self,
        *,
        keys: KeyRing | None = None,
        is_approver: Callable[[str], bool] = lambda key: False,
        on_new_token: Callable[[], None] | None = None,
    ) -> None:
        self._keys = keys
        self._is_approver = is_approver
        self._on_new_token = on_new_token
        #: The key that each session was opened with, empty without one, by the digest of the session.
        self._sessions: dict[bytes, str] = {}
        self.token = secrets.token_urlsafe(32)
        #: Cookies do not know ports: each window has a name of its own.
        self.cookie = f"lgov_view_{secrets.token_hex(4)}"

    def exchange(self, token: str) -> str | None:
        """A new session for the one-time token, which is used up; None for any other."""
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.token.encode()):
            return None
        self.token = secrets.token_urlsafe(32)
        if self._on_new_token is not None:
            self._on_new_token()
        return self.new_session()

    def new_session(self, approver_key: str = "") -> str:
        """A session; its holder has shown a token, an admin key or the key of an approver."""
        session = secrets.token_urlsafe(32)
        kept = list(self._sessions.items())[1 - _MOST_SESSIONS :]
        self._sessions = {**dict(kept), _digest(session): approver_key}
        return session

    def is_open(self, request: Request) -> bool:
        """True for a request with a session, an admin key or the key of an approver. May wait for a file of approvals."""
        key = self._session_key(request)
        if key is None or key:
            return self.has_admin_key(request.headers) or bool(self.approver_key(request))
        return True

    def approver_key(self, request: Request) -> str:
        """The approver's key that a request has, or its session was opened with, while it is valid; empty for others."""
        key = _bearer(request.headers) or self._session_key(request) or ""
        return key if key.startswith(KEY_PREFIX) and self._is_approver(key) else ""

    def stranger(self, request: Request) -> str:
        """Who sends a request that is refused, for logs: by the beginning of the SHA-256 of a key, as records name keys."""
        key = _bearer(request.headers) or self._session_key(request)
        return f"the key {hash_of(key)[:8]} opens nothing here" if key else "this browser has no session"

    def _session_key(self, request: Request) -> str | None:
        """The key that the session of a request was opened with, empty without one; None without a session."""
        digest, opened_with = _digest(request.cookies.get(self.cookie, "")), None
        for session, key in self._sessions.items():  # all of them, so that the time reveals nothing
            opened_with = key if hmac.compare_digest(digest, session) else opened_with
        return opened_with

    def has_admin_key(self, headers: Headers) -> bool:
        """True for a request with an admin key of the endpoint. Raises `Busy` (503) while that cannot be checked."""
        key = _bearer(headers)
        if self._keys is None or not key:
            return False
        try:
            return self._keys.check(key).admin
        except EndpointError as error:
            if isinstance(error, Busy) and not key.startswith(KEY_PREFIX):
                raise
            return False


def _bearer(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode("utf-8", "surrogateescape")).digest()
