"""Who may use the window: a one-time token that becomes a cookie, admin keys, and the checks of Host and Origin."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request

from lgov_core.errors import EndpointError
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.views.web.protocol import RefusedError

#: Browsers that may have a session at the same time; the oldest one ends.
_MOST_SESSIONS: Final = 64
_SAME_ORIGIN: Final = ("same-origin", "none")


class WindowAccess:
    """The token, the sessions and the names of one window. For one event loop.

    ``keys`` are those of the endpoint that the window is mounted on: an admin key opens it as well, the key of a rollout does
    not. ``hosts`` are names that it may be asked by, besides IP addresses, ``localhost`` and the name of this machine.
    ``on_new_token`` is called when the token was used up and there is a fresh one.
    """

    def __init__(
        self,
        *,
        keys: KeyRing | None = None,
        hosts: Sequence[str] = (),
        on_new_token: Callable[[], None] | None = None,
    ) -> None:
        self._keys = keys
        self.takes_key = keys is not None
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}
        self._on_new_token = on_new_token
        self._sessions: list[bytes] = []
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

    def new_session(self) -> str:
        """A session; its holder has shown a token or an admin key."""
        session = secrets.token_urlsafe(32)
        self._sessions = [*self._sessions[1 - _MOST_SESSIONS :], _digest(session)]
        return session

    def is_open(self, request: Request) -> bool:
        """True for a request with a session, or with an admin key."""
        digest = _digest(request.cookies.get(self.cookie, ""))
        is_known = False
        for session in self._sessions:  # all of them, so that the time reveals nothing
            is_known |= hmac.compare_digest(digest, session)
        return is_known or self.has_admin_key(request.headers)

    def has_admin_key(self, headers: Headers) -> bool:
        """True for a request with an admin key of the endpoint."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if self._keys is None or scheme.lower() != "bearer" or not key:
            return False
        try:
            return self._keys.check(key.strip()).admin
        except EndpointError:
            return False

    def check(self, request: Request, *, is_api: bool) -> None:
        """Raises `RefusedError` for a Host that is not this machine's, and for a request of another origin."""
        host = request.headers.get("host", "")
        if not self._is_ours(host):
            raise RefusedError(
                f"the window is not known as {host[:100]!r}", hint="use its IP address, localhost or --host"
            )
        origin = request.headers.get("origin")
        if origin is not None and origin != f"{request.url.scheme}://{host}":
            raise RefusedError("the request comes from another origin", hint="open the window itself")
        if is_api and request.headers.get("sec-fetch-site", "none") not in _SAME_ORIGIN:
            raise RefusedError("the request comes from another site", hint="open the window itself")
        if request.method == "POST":
            if origin is None:
                raise RefusedError("the request does not say where it comes from", hint="send an Origin header")
            if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                raise RefusedError("the request is not JSON", hint="send Content-Type: application/json")

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.lower() in self._hosts:
            return True
        try:  # another site's name can be made to lead here; an address cannot
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode("utf-8", "surrogateescape")).digest()
