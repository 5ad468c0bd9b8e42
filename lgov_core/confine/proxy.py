"""The one way out of a box: an HTTP proxy outside, which connects to the hosts of the rules and no other.

Names are looked up here: a box has no DNS. ``CONNECT`` carries any protocol; requests with a whole URL are for plain
HTTP. Ports of this machine's loopback that the rules name are forwarded as they are. Every attempt is on record.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from lgov_core.audit.entry import EntryWriter
from lgov_core.errors import AuditError
from lgov_core.policies.confinement import ConfineRules
from lgov_core.policies.network.egress import why_closed
from lgov_core.types import Action, Decision, Effect, Point, Severity

#: The name of the policy on decisions about connections. Only the broker may use it.
POLICY: Final = "confinement"
#: Variables with the address of a model endpoint.
_ENDPOINTS: Final = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "LGOV_ENDPOINT")
#: Where a place comes from that the rules name.
_BY_RULE: Final = "connect"
#: Distinct places that are counted by name; the rest is counted together.
MAX_PLACES: Final = 1000
#: Connections that wait to be made into spans.
MAX_UNTRACED: Final = 1000


@dataclass(frozen=True, slots=True)
class Reach:
    """The places that may be reached, as ``host:port`` or ``*.domain:port``, each with where it comes from."""

    places: Mapping[str, str]

    def rule(self, host: str, port: int) -> str | None:
        """The place of `places` that lets ``host`` be reached at ``port``; None when there is none."""
        exact = f"{host}:{port}"
        if exact in self.places:
            return exact
        labels = host.split(".")
        wider = (f"*.{'.'.join(labels[start:])}:{port}" for start in range(1, len(labels)))
        return next((place for place in wider if place in self.places), None)

    def models(self) -> frozenset[str]:
        """The places that are there because the program's models are."""
        return frozenset(name for name, origin in self.places.items() if origin != _BY_RULE)

    def forwards(self) -> tuple[int, ...]:
        """Ports of this machine's loopback among the places."""
        parts = (place.rpartition(":") for place in self.places)
        return tuple(sorted({int(port) for host, _, port in parts if is_loopback(host)}))


def make_reach(rules: ConfineRules, endpoints: Iterable[tuple[str, str | None]]) -> Reach:
    """The reach of ``rules`` and, unless they keep it away, of the model ``endpoints`` (what names each, and its URL)."""
    places = dict.fromkeys(rules.connect, _BY_RULE)
    for name, url in endpoints if rules.model else ():
        parts = urlsplit(url or "")
        if parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            places.setdefault(f"{host.lower()}:{port}", name)
    return Reach(places)


def model_endpoints(endpoint: str | None) -> list[tuple[str, str | None]]:
    """Where the program's models are: lgov's own ``endpoint``, and what the environment says."""
    return [("--endpoint", endpoint), *((name, os.environ.get(name)) for name in _ENDPOINTS)]


def is_loopback(host: str) -> bool:
    """True if ``host`` is this machine itself."""
    return host in ("localhost", "127.0.0.1", "[::1]")


def closed_address(host: str, rule: str, address: str) -> str | None:
    """Why a host that only a whole domain allows may not be at ``address``: what it names may change; None: it may."""
    return why_closed(ipaddress.ip_address(address)) if rule.startswith("*.") else None


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


@dataclass(frozen=True, slots=True)
class AskedConnection:
    """An attempt to reach ``place`` (``host:port``), allowed by ``rule`` or denied; ``entry_id`` is its audit entry's."""

    place: str
    rule: str | None
    why: str
    entry_id: str | None = None
    at: float = field(default_factory=time.time)

    def decided(self, rollout_id: str | None, attempt: int | None = None) -> tuple[Action, Decision]:
        """The attempt as an act of a rollout, and what was decided about it."""
        effect, severity = (Effect.DENY, Severity.HIGH) if self.rule is None else (Effect.ALLOW, Severity.LOW)
        return (
            Action(
                Point.PRE_TOOL_CALL,
                "connect",
                arguments={"place": self.place},
                framework=POLICY,
                rollout_id=rollout_id,
                attempt=attempt,
            ),
            Decision(effect, POLICY, self.rule or "connect", self.why, severity, decision_id=self.entry_id),
        )


@dataclass(slots=True)
class Attempts:
    """Every connection that was asked for: on record before it is made, and counted. Safe in any thread.

    ``untraced`` are the oldest `MAX_UNTRACED` that the box has not asked for yet, to make spans of them.
    """

    log: EntryWriter
    rollout_id: str | None
    allowed: Counter[str] = field(default_factory=Counter)
    denied: Counter[str] = field(default_factory=Counter)
    untraced: list[AskedConnection] = field(default_factory=list[AskedConnection])
    _lock: Any = field(default_factory=threading.Lock)

    def commit(self, place: str, rule: str | None, why: str) -> None:
        """Records an attempt to reach ``place``, allowed by ``rule`` or denied. Raises `AuditError`: then it is not made.

        Code in the box wrote ``place``, and it is shown on a terminal: what is not printable is escaped.
        """
        place, why = _printable(place), _printable(why)
        connection = AskedConnection(place, rule, why)
        connection = replace(connection, entry_id=self.log.commit(*connection.decided(self.rollout_id)))
        counts = self.denied if rule is None else self.allowed
        with self._lock:
            if len(self.untraced) < MAX_UNTRACED:
                self.untraced.append(connection)
            counts[place if place in counts or len(counts) < MAX_PLACES else "others"] += 1

    def take_untraced(self) -> list[AskedConnection]:
        """Returns ``untraced`` and empties it."""
        with self._lock:
            taken, self.untraced = self.untraced, []
        return taken


#: How long the head of a request and a connection outwards may take, in seconds.
HEAD_TIMEOUT_S: Final = 15.0
#: Of a request's head, in bytes; and connections open at once.
MAX_HEAD: Final = 64 << 10
MAX_CONNECTIONS: Final = 256
#: Of a host's name on record, in characters.
MAX_NAME: Final = 255
_CHUNK: Final = 64 << 10


class NotConnected(Exception):
    """A connection that is not made: the status and the reason that the client reads."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Proxy:
    """Serves the connections of one box. ``serve`` and ``forward`` each take a listener and a thread of their own."""

    def __init__(self, reach: Reach, attempts: Attempts) -> None:
        self._reach = reach
        self._attempts = attempts
        self._free = threading.Semaphore(MAX_CONNECTIONS)

    def serve(self, listener: socket.socket) -> None:
        """Answers requests to the proxy."""
        self._accept(listener, self._answer)

    def forward(self, listener: socket.socket, port: int) -> None:
        """Connects what comes to ``listener`` with this machine's own ``port``."""

        def connect(client: socket.socket) -> socket.socket:
            place = next(
                address for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}") if address in places
            )
            self._attempts.commit(place, place, f"{places[place]} allows it")
            return socket.create_connection((place.rpartition(":")[0].strip("[]"), port), HEAD_TIMEOUT_S)

        places = self._reach.places
        self._accept(listener, connect)

    def _accept(self, listener: socket.socket, connect: Callable[[socket.socket], socket.socket]) -> None:
        def run() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    self._free.acquire()
                    threading.Thread(target=self._carry, args=(client, connect), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()

    def _carry(self, client: socket.socket, connect: Callable[[socket.socket], socket.socket]) -> None:
        try:
            with client, connect(client) as server:
                for end in (client, server):
                    end.settimeout(None)
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()
        except (OSError, AuditError):
            return
        finally:
            self._free.release()

    def _answer(self, client: socket.socket) -> socket.socket:
        client.settimeout(HEAD_TIMEOUT_S)
        try:
            head, rest = _read_head(client)
            words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            if len(words) != 3 or not words[2].startswith("HTTP/1."):
                raise NotConnected(400, "the request line cannot be read")
            verb, target, version = words
            try:
                parts, host, port = _destination(verb, target)
            except ValueError as error:
                self._attempts.commit(target[:MAX_NAME], None, str(error))
                raise NotConnected(400, str(error)) from error
            server = self._connect(host, port)
        except NotConnected as refused:
            text = f"lgov: {refused}\n"
            head = f"HTTP/1.1 {refused.status} Refused\r\ncontent-type: text/plain\r\ncontent-length: {len(text)}"
            client.sendall(f"{head}\r\nconnection: close\r\n\r\n{text}".encode())
            raise ConnectionError(str(refused)) from refused
        if verb == "CONNECT":
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server.sendall(rest)
        else:
            path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
            # One request a connection, since the next may be for another host.
            dropped = (b"connection:", b"proxy-")
            lines = [line for line in head.split(b"\r\n")[1:] if not line.lower().startswith(dropped)]
            first = f"{verb} {path} {version}".encode("latin-1")
            server.sendall(b"\r\n".join([first, *lines, b"connection: close", b"", b""]) + rest)
        return server

    def _connect(self, host: str, port: int) -> socket.socket:
        name = f"[{host}]" if ":" in host else host
        place, rule = f"{name[:MAX_NAME]}:{port}", self._reach.rule(name, port)
        if rule is None:
            self._attempts.commit(place, None, "no rule allows it")
            raise NotConnected(
                403, f"{place} may not be reached from the box; confine: connect in the policy file names what may"
            )
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            self._attempts.commit(place, None, f"the name is not known: {error}")
            raise NotConnected(502, f"{place}: {error}") from error
        for _, _, _, _, address in addresses:
            if why := closed_address(host, rule, str(address[0])):
                self._attempts.commit(place, None, f"its address {address[0]} is {why}")
                raise NotConnected(403, f"{place} is at {address[0]}, which is {why}; name the host itself to allow it")
        self._attempts.commit(place, rule, f"{self._reach.places[rule]} allows it")
        for family, kind, protocol, _, address in addresses:
            server = socket.socket(family, kind, protocol)
            server.settimeout(HEAD_TIMEOUT_S)
            try:
                server.connect(address)
            except OSError:
                server.close()
            else:
                return server
        raise NotConnected(502, f"{place} cannot be reached")


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(4096)
        if not piece or len(data) > MAX_HEAD:
            raise NotConnected(400, "the head of the request is not whole")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _destination(verb: str, target: str) -> tuple[SplitResult, str, int]:
    """The address in a request, its host and its port. Raises ValueError for one that cannot be read."""
    parts = urlsplit(f"//{target}" if verb == "CONNECT" else target)
    port = parts.port or (80 if parts.scheme == "http" else 0)
    if not parts.hostname or not port or (verb != "CONNECT" and parts.scheme != "http"):
        raise ValueError("the proxy takes CONNECT host:port, and requests with a whole http:// URL")
    return parts, parts.hostname.lower().rstrip("."), port


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Carries bytes until ``source`` ends, and tells ``target``."""
    with suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
