"""The door of every server that lgov starts: which requests it takes, by the headers that a browser cannot be made to forge.

A web page can send requests to servers on the machine of whoever looks at it, and can lead a name of its own to that machine.
Programs (the openai SDK, curl) send none of the headers that tell pages apart, and pass.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lgov_core.errors import EndpointError
from lgov_core.types import new_id

#: A name or an address, and a port.
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+?)\.?(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_PORTS: Final = {"http": "80", "https": "443"}
#: Where a page of the server itself sends from, and what somebody typed into the browser.
_OWN_SITES: Final = ("same-origin", "none")
#: The types of a body that routes read: JSON, and OTLP's other form. A page can send neither without asking the server first.
_BODIES: Final = ("application/json", "application/x-protobuf")


#: Names a request, to its client and in the log.
REQUEST_ID_HEADER: Final = "x-request-id"
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


@dataclass(slots=True)
class Requester:
    """Who sent a request: its id, the address, and as soon as they are known the key's owner, the rollout, the recorded call.

    ``own_id`` is the id that the client gave, which the record of its call has too. ``ended`` is how a stream ended that is not
    whole, ``spent`` are seconds by what took them (`add_spent`).
    """

    request_id: str
    peer: str | None = None
    key_of: str | None = None
    rollout: str | None = None
    call: str | None = None
    own_id: str | None = None
    ended: str | None = None
    spent: dict[str, float] = field(default_factory=dict[str, float])

    def log_fields(self) -> dict[str, Any]:
        """The fields that every line of the log has of the request."""
        names = ("request_id", "peer", "key_of", "rollout", "call")
        return {name: getattr(self, name) for name in names}


_REQUESTER: ContextVar[Requester | None] = ContextVar("lgov_requester", default=None)


def requester() -> Requester | None:
    """Who sent the request that this code answers; None outside of one."""
    return _REQUESTER.get()


def add_spent(what: str, since: float) -> None:
    """Counts the time from ``since`` (`time.perf_counter`) to now as spent on ``what``, for the request's line in the log."""
    if (sender := requester()) is not None:
        sender.spent[what] = sender.spent.get(what, 0.0) + time.perf_counter() - since


class RefusedAtDoor(EndpointError):
    """A request that the door does not let in: 403, or 415 for the type of its body."""

    code: ClassVar[str] = "refused"


def is_loopback(host: str) -> bool:
    """Returns whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


class Door:
    """An application behind the one check of who sends a request, before any route; pure but for what the application does.

    - ``Host`` must be a name of this machine's loopback (``localhost``, an address), or one of ``allowed_hosts``. With
      ``has_keys`` also an address and this machine's name; a program may then use any name.
    - ``Origin``, if there is one, must be the server's own; for one of ``allowed_hosts`` also with ``https``, of a proxy in
      front. ``Sec-Fetch-Site``, if there is one, must be ``same-origin`` or ``none``.
    - A body says that it is JSON, or protobuf; a program may leave its type out.

    A refusal is JSON of status 403, or 415 for the type of a body; it names the header, its value and the fix.
    """

    def __init__(self, app: ASGIApp, *, has_keys: bool, allowed_hosts: Collection[str] = ()) -> None:
        self.app = app
        self._has_keys = has_keys
        self._allowed = {name.lower().rstrip(".") for name in allowed_hosts}
        self._names = {"localhost", *self._allowed, *((socket.gethostname().lower(),) if has_keys else ())}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "lgov.requester" not in scope:  # one door may stand behind another
                scope["lgov.requester"] = sender = _sender(scope, headers)
                _REQUESTER.set(sender)
                send = _named(sender.request_id, send)
            try:
                self._check(headers, scope["scheme"])
            except RefusedAtDoor as error:
                refusal = {**error.as_json(), "message": str(error), "type": "refused", "param": None}
                closing = {"connection": "close"}  # its body is not read
                await JSONResponse({"error": refusal}, error.status, closing)(scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            raise EndpointError(f"this server has no {scope['type']} routes")
        await self.app(scope, receive, send)

    def _check(self, headers: Headers, scheme: str) -> None:
        host, origin, site = (_only(headers, name) for name in ("host", "origin", "sec-fetch-site"))
        from_browser = origin is not None or site is not None
        own = _HOST.fullmatch((host or "").lower())
        is_known = own is not None and self._is_own(own["name"])
        if not is_known and not (self._has_keys and not from_browser):
            hint = "ask it by localhost or 127.0.0.1, or name the host in the setting allowed_hosts"
            raise _refused("Host", host, "not a name of this server", hint)
        if origin is not None and (own is None or not self._is_same(origin, scheme, own["name"], own["port"])):
            hint = "send it from a program without this header, or from a page of this server"
            raise _refused("Origin", origin, "another origin than this server's", hint)
        if site is not None and site not in _OWN_SITES:
            hint = "open the address itself in the browser, or send it from a program without this header"
            raise _refused("Sec-Fetch-Site", site, "another site", hint)
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            declared = _only(headers, "content-type")
            kind = (declared or "").partition(";")[0].strip().lower()
            if kind not in _BODIES and (declared is not None or from_browser):
                hint = "send a JSON body with Content-Type: application/json"
                raise _refused("Content-Type", declared, "not the type of a body that is read here", hint, status=415)

    def _is_same(self, origin: str, scheme: str, name: str, port: str | None) -> bool:
        schemes = (scheme, "https") if name in self._allowed else (scheme,)
        return _read_origin(origin) in [(own, name, port or _PORTS.get(own)) for own in schemes]

    def _is_own(self, name: str) -> bool:
        address = _address(name)
        if address is None:
            return name in self._names
        # Another site's name can be made to lead here; an address cannot.
        return address.is_loopback or self._has_keys or name in self._names


def _sender(scope: Scope, headers: Headers) -> Requester:
    """Who sent a request. Its id is the client's own, if that can be printed in a line of the log."""
    own = headers.getlist(REQUEST_ID_HEADER)
    own_id = own[0] if len(own) == 1 and _REQUEST_ID.fullmatch(own[0]) else None
    return Requester(own_id or new_id("req"), scope["client"][0] if scope.get("client") else None, own_id=own_id)


def _named(request_id: str, send: Send) -> Send:
    """``send``, which tells the client the id."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (REQUEST_ID_HEADER.encode(), request_id.encode())]}
        await send(message)

    return named


def _read_origin(origin: str) -> tuple[str, str, str | None] | None:
    """Scheme, name and port of an ``Origin``; None for ``null`` and for what is none."""
    scheme, separator, rest = origin.lower().partition("://")
    read = _HOST.fullmatch(rest)
    return (scheme, read["name"], read["port"] or _PORTS.get(scheme)) if separator and read is not None else None


@lru_cache(256)
def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def _only(headers: Headers, name: str) -> str | None:
    values = headers.getlist(name)
    if len(values) > 1:
        raise _refused(name.title(), ", ".join(values), "given more than once", "send it once")
    return values[0] if values else None


def _refused(header: str, value: str | None, why: str, hint: str, *, status: int = 403) -> RefusedAtDoor:
    what = f"the request has no {header} header" if value is None else f"the {header} header is {value[:100]!r}, {why}"
    return RefusedAtDoor(what, status=status, hint=hint)
