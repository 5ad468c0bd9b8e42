"""Requests of this process to model servers that no rule saw: counted for the closing report, or refused before they are sent.

Every HTTP client that is written in Python hands the head of a request to a socket of Python's or to its TLS. There it is read,
whatever client wrote it: a second copy of a library, a request that no adapter knows, a socket of the program's own. What is
sent inside a model call that a governor judges was evaluated. Not seen is what has sockets of its own (libraries in C, uvloop
without TLS, other programs), and of HTTP/2 only that a connection begins.

A model server is a host that a governed client is pointed at, that the environment names as one, or to which an evaluated
request went; and a request is one to a model, wherever it goes, if its path is that of an API which lgov governs.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import sys
import threading
from asyncio import selector_events, sslproto
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from lgov_core.errors import PolicyDenied, counted
from lgov_core.types import Decision, Effect

#: The head of a request of HTTP/1, or the beginning of a connection of HTTP/2.
_HEAD: Final = re.compile(rb"(GET|POST|PUT|PATCH|DELETE|PRI) (\S{1,8000}) HTTP/\d(?:\.\d)?\r\n")
_HOST: Final = re.compile(rb"\r\nhost:[ \t]*([^\r\n]+)", re.IGNORECASE)
#: Bytes in which the head of a request is looked for.
_MOST: Final = 16384
#: Hosts that are counted by name.
_MOST_HOSTS: Final = 1000
#: Hosts that the report names.
_MOST_NAMED: Final = 5
#: Where clients of models go by their own defaults: what the environment says, else the openai client's server.
_DEFAULTS: Final = {"OPENAI_BASE_URL": "https://api.openai.com/v1", "OPENAI_API_BASE": "", "ANTHROPIC_BASE_URL": ""}
#: What takes data to send, the highest first: a transport would keep what a socket below it raises to itself.
_SENDERS: Final = (
    (selector_events._SelectorSocketTransport, ("write", "writelines")),  # pyright: ignore[reportAttributeAccessIssue]
    (sslproto._SSLProtocolTransport, ("write", "writelines")),
    (ssl.SSLObject, ("write",)),
    (ssl.SSLSocket, ("send", "write")),
    (socket.socket, ("send", "sendall", "sendmsg")),
)


class RequestWatch:
    """Counts the requests of this process that no governor judged, by host. With ``refuses`` those to models are not sent.

    A refused request raises `PolicyDenied` where it would be sent; some clients make it the cause of an error of their own.
    ``tell`` is called with what a forked process counts, which has no report of its own; with ``is_child`` this process has
    none either. Safe in any thread.
    """

    def __init__(
        self, *, refuses: bool = False, tell: Callable[[Mapping[str, int]], None] | None = None, is_child: bool = False
    ) -> None:
        self.refuses = refuses
        self._tell = tell
        self._pid = 0 if is_child else os.getpid()
        self._servers: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._of_models: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sending = threading.local()

    def install(self) -> Callable[[], None]:
        """Watches the sockets of this process from now on; returns what ends that."""
        own = [(owner, name, getattr(owner, name), name in vars(owner)) for owner, names in _SENDERS for name in names]
        for owner, name, function, _ in own:
            setattr(owner, name, self._watched(function))

        def undo() -> None:
            for owner, name, function, is_own in own:
                if is_own:
                    setattr(owner, name, function)
                else:
                    delattr(owner, name)

        return undo

    def _watched(self, send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        def watched(self_: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._sending, "is_seen", False) or (request := _head_in(data)) is None:
                return send(self_, data, *args, **kwargs)
            self._see(request, self_)
            self._sending.is_seen = True  # what sends below this one is given the same head
            try:
                return send(self_, data, *args, **kwargs)
            finally:
                self._sending.is_seen = False

        return watched

    def _see(self, request: re.Match[bytes], channel: Any) -> None:
        """Counts the request whose head is sent. Raises `PolicyDenied` if it must not be sent."""
        host, path = _place(request[2].decode("latin-1"), bytes(request.string[:_MOST]), channel)
        sender, is_evaluated = _sender()
        is_of_model = _is_of_model(path)
        if sender is not None or (is_evaluated and is_of_model):
            self._servers.add(_host_of(sender) if sender is not None else host)
        if is_evaluated or host == _host_of(os.environ.get("LGOV_ENDPOINT", "")):  # there it is judged
            return
        is_of_model = is_of_model or host in self._known()
        self._count(host, is_of_model)
        if self.refuses and is_of_model:
            reason = (
                f"no rule sees this request to the model server {host}, and --deny-unevaluated refuses such requests"
            )
            raise PolicyDenied(Decision(Effect.DENY, "lgov", "unevaluated-request", reason))

    def _count(self, host: str, is_of_model: bool) -> None:
        if os.getpid() != self._pid:
            if is_of_model and self._tell is not None:
                self._tell({host: 1})
            return
        with self._lock:
            if host in self._counts or len(self._counts) < _MOST_HOSTS:
                self._counts[host] += 1
                self._of_models[host] += is_of_model

    def _known(self) -> set[str]:
        names = (os.environ.get(name) or default for name, default in _DEFAULTS.items())
        return self._servers.union(map(_host_of, filter(None, names)))

    @property
    def unevaluated(self) -> Counter[str]:
        """The requests to model servers that no rule saw, by host, with its port where that is not the usual one."""
        with self._lock:
            servers = self._known()
            counts = {host: self._counts[host] if host in servers else self._of_models[host] for host in self._counts}
        return Counter({host: count for host, count in counts.items() if count})


def _head_in(data: Any) -> re.Match[bytes] | None:
    """The head of a request with which ``data`` begins: bytes, or several buffers of them."""
    try:
        return _HEAD.match(next(iter(data), b"") if isinstance(data, list | tuple) else data)
    except (TypeError, ValueError, BufferError):
        return None


def _place(target: str, head: bytes, channel: Any) -> tuple[str, str]:
    """The host (and port, where it is not the usual one) and the path of a request."""
    if "://" in target:  # by way of a proxy
        return _host_of(target), unquote(urlsplit(target).path)
    named = _HOST.search(head)
    host = named[1].decode("latin-1").strip().lower() if named is not None else str(_peer(channel))
    return host.removesuffix(":443").removesuffix(":80"), unquote(target.partition("?")[0])


def _peer(channel: Any) -> str:
    try:
        return str(channel.server_hostname or channel.getpeername()[0])
    except (AttributeError, OSError, IndexError, TypeError):
        return "unknown"


def _host_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2].lower().removesuffix(":443").removesuffix(":80")


@cache
def _paths() -> re.Pattern[str]:
    from lgov_core.wire.apis import APIS

    # The other names are words of many services, so they count only below the version of the API.
    names = "|".join(re.escape(api.path) for api in APIS)
    return re.compile(f"/chat/completions|/v1(?:{names}|/embeddings)(?:/|$)")


def _is_of_model(path: str) -> bool:
    return _paths().search(re.sub("/+", "/", path)) is not None


def _sender() -> tuple[str | None, bool]:
    """The base URL of the governed client that is sending, if one is; and whether it sends what a governor judged."""
    live_span: Any = sys.modules.get("lgov_core.instrumentation.live_span")
    if live_span is None:  # nothing of this process is governed yet
        return None, False
    return live_span.MODEL_SERVER.get(), live_span.MODEL_CALL.get() is not None


def request_lines(unevaluated: Mapping[str, int], *, refused: bool) -> list[str]:
    """A line for each host to which requests went that no rule saw."""
    sent = "not evaluated, and not sent" if refused else "not evaluated"
    lines = [
        f"{counted(count, 'request')} to {host} {'was' if count == 1 else 'were'} {sent}"
        for host, count in sorted(unevaluated.items(), key=lambda item: (-item[1], item[0]))
    ]
    more = len(lines) - _MOST_NAMED
    return [*lines[:_MOST_NAMED], f"requests to {more} further hosts were {sent}"] if more > 0 else lines
