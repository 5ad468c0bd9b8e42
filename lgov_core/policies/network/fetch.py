"""Connections that go only where an EgressPolicy lets them: pinned addresses, and every redirect judged again."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import urllib.request
from email.message import Message
from typing import IO, Any

from lgov_core.errors import PolicyDenied
from lgov_core.policies.network.egress import EgressPolicy, PinnedURL

#: Headers that belong to one host and are dropped when a redirect leads to another.
_HOST_HEADERS = ("Authorization", "Cookie", "Proxy-authorization")


def guarded_connect(policy: EgressPolicy, url: str, *, timeout: float = 10.0) -> socket.socket:
    """A TCP connection for ``url`` to an address that ``policy`` has judged; the name is not looked up again.

    ``timeout`` is in seconds, for each address and for the socket afterwards. The caller closes it, and speaks TLS with
    the URL's host as ``server_hostname`` where the scheme asks for it. Raises `PolicyDenied` and OSError. May be called
    from several threads at once.
    """
    return _connected(policy.check_url(url), timeout)


def guarded_opener(
    policy: EgressPolicy, *, timeout: float = 10.0, tls: ssl.SSLContext | None = None
) -> urllib.request.OpenerDirector:
    """An opener of the standard library for http and https that fetches only what ``policy`` allows.

    Each request, redirected ones among them, is judged and resolved once, and connected to the addresses judged; a
    redirect to another host goes without credentials. Proxies of the environment are not used; other schemes fail.
    ``timeout`` is in seconds and replaces none given to ``open``. ``tls`` is the context for https (the default one
    verifies). ``open`` raises `PolicyDenied` and what the standard library raises. May be shared between threads.
    """
    opener = urllib.request.OpenerDirector()
    handlers = (
        urllib.request.UnknownHandler(),
        _Handler(policy, timeout, tls or ssl.create_default_context()),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    )
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _connected(pinned: PinnedURL, timeout: float | None) -> socket.socket:
    failed: OSError | None = None
    for address in pinned.addresses:
        try:
            return socket.create_connection((address, pinned.port), timeout)
        except OSError as error:
            failed = error
    raise failed or OSError(f"{pinned.host} has no address")


class _PinnedConnection(http.client.HTTPConnection):
    """An HTTP connection to the addresses of one judged URL."""

    def __init__(self, pinned: PinnedURL, timeout: float | None, tls: ssl.SSLContext | None) -> None:
        super().__init__(pinned.host, pinned.port, timeout=timeout)
        self._pinned = pinned
        self._tls = tls

    def connect(self) -> None:
        plain = _connected(self._pinned, self.timeout)
        if self._tls is None:
            self.sock = plain
            return
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname=self._pinned.host)
        except BaseException:
            plain.close()
            raise


class _Handler(urllib.request.AbstractHTTPHandler):
    """Judges each request on its way to a connection."""

    def __init__(self, policy: EgressPolicy, timeout: float, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._policy = policy
        self._timeout = timeout
        self._tls = tls

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Opens one request. A proxy set on it is refused: it would choose the address."""
        pinned = self._policy.check_url(req.full_url)
        authority = re.split("[/?#]", req.full_url.partition("://")[2], maxsplit=1)[0].lower()
        if req.has_proxy() or (req.host or "").lower() != authority:
            raise PolicyDenied(self._policy.deny("url-proxy", "A proxy would choose the address; fetch without one."))
        tls = self._tls if pinned.scheme == "https" else None
        raw: Any = req.timeout
        timeout = raw if isinstance(raw, int | float) else self._timeout

        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            return _PinnedConnection(pinned, timeout, tls)

        return self.do_open(connection, req)  # type: ignore[arg-type]  # only called, never subclassed

    https_open = http_open
    http_request = urllib.request.AbstractHTTPHandler.do_request_
    https_request = urllib.request.AbstractHTTPHandler.do_request_


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects through the opener again, without the headers that belong to the first host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        """The next request, or None where the method may not be redirected."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if following is not None and following.host != req.host:
            for header in _HOST_HEADERS:
                following.remove_header(header)
        return following
