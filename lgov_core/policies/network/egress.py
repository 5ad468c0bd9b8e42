"""EgressPolicy: where the URLs that a tool is given may lead."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.governor.options import argument_names, string_tuple
from lgov_core.policies.base import BoundedPolicy, Unclear
from lgov_core.policies.network.url_text import (
    DEFAULT_PORTS,
    Address,
    Network,
    PlainURL,
    ascii_host,
    embedded,
    read_url,
    why_closed,
)
from lgov_core.types import Action, Decision, Point, Severity

#: Arguments that are taken for URLs when ``argument`` is not given, and the endings of further names.
URL_ARGUMENTS = ("url", "urls", "uri", "uris", "href", "link", "links", "endpoint", "webhook", "callback", "proxy")
_URL_ENDINGS = ("url", "urls", "uri", "uris", "href", "endpoint", "webhook", "callback", "proxy")
MAX_URLS = 200
#: Names that lead into the machine, its network or its cloud; only naming one in ``domains`` opens it.
_INNER_ENDINGS = (
    *("localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp", "private", "test", "invalid"),
    *("home.arpa", "svc", "cluster.local", "onion", "metadata.google.internal", "metadata.azure.com", "consul"),
)

#: Resolves a host name to addresses in text form; raises OSError when it cannot.
Resolver = Callable[[str, int], Sequence[str]]


@dataclass(frozen=True, slots=True)
class PinnedURL:
    """A URL that may be fetched, and the addresses to which the connection must go: resolved once, each one judged."""

    url: str
    scheme: str
    host: str
    port: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """One entry of ``domains``: a host name, the names below it (``*.``), every name (``*``) or an address."""

    host: str
    below: bool
    port: int | None
    network: Network | None = None

    def holds(self, url: PlainURL) -> bool:
        if self.network is not None:
            return url.address is not None and embedded(url.address) in self.network
        if url.address is not None:
            return self.host == "*" and why_closed(url.address) is None
        if self.host == "*":
            return not _is_inner(url.host)
        return url.host.endswith("." + self.host) if self.below else url.host == self.host


class EgressPolicy(BoundedPolicy):
    """Lets a tool fetch only what lies under the allowed schemes, hosts and ports.

    ``domains`` are host names (``example.com``: that host only), ``*.example.org`` (every name below it, not itself),
    ``*`` (every public host), IP addresses and networks (``10.2.0.0/16``); a name or address may carry a port
    (``localhost:8080``). ``schemes`` are the allowed ones; ``ports`` the allowed ports, those of the schemes unless given.
    ``argument`` names the arguments that hold a URL or a list of URLs. Unless given they are those called ``url``, ``uri``,
    ``href``, ``link``, ``endpoint`` or ``webhook``, or whose name ends so. Each that is present is checked; a call without any
    is denied.

    A URL must have one reading only: no user names, backslashes, spaces or control characters, no host in a spelling
    that programs read differently, IP addresses in their usual form. Private, loopback, link-local, shared, multicast,
    reserved, tunnelled and metadata addresses are denied unless ``domains`` names them as addresses or networks.

    With ``resolve`` each host is also looked up: every address of it is checked, and a host without one is denied. Unless
    given, that is so when ``domains`` contains ``*``. The fetch may get another address than the check: fetch with
    `guarded_opener`, or connect to ``check_url(url).addresses`` (which always looks up) and check each redirect the same
    way. ``resolver`` replaces the system's.

    Judges ``pre_tool_call``; has no opinion on hand-offs and agents. ``bounded`` unless it resolves, which may wait for a
    name server. May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a
    meaning.
    """

    permits = True

    def __init__(
        self,
        *,
        domains: Sequence[str],
        argument: str | Sequence[str] | None = None,
        schemes: Sequence[str] = ("https",),
        ports: Sequence[int] | None = None,
        resolve: bool | None = None,
        resolver: Resolver | None = None,
        name: str = "egress",
    ) -> None:
        self.name = name
        self.schemes = frozenset(scheme.lower() for scheme in string_tuple(name, "schemes", schemes))
        for scheme in self.schemes:
            if not scheme.isidentifier() or (scheme not in DEFAULT_PORTS and not ports):
                names = ", ".join(DEFAULT_PORTS)
                raise PolicyError(f"{name}: schemes holds {scheme!r}", hint=f"write one of {names}, or give ports")
        self.places = tuple(_place(name, text) for text in string_tuple(name, "domains", domains))
        self.ports = None if ports is None else frozenset(_port(name, port) for port in ports)
        self.networks = tuple(destination.network for destination in self.places if destination.network is not None)
        self.arguments = None if argument is None else argument_names(name, argument, "the URL")
        if resolve is not None and not isinstance(resolve, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PolicyError(f"{name}: resolve is {resolve!r}", hint="write true or false")
        self.resolves = any(destination.host == "*" for destination in self.places) if resolve is None else resolve
        self.bounded = not self.resolves
        self._look_up = resolver or system_resolver

    def judge(self, action: Action) -> Decision | None:
        """The verdict on a tool call that carries a URL; None at other points."""
        if action.point is not Point.PRE_TOOL_CALL or action.kind in ("handoff", "agent"):
            return None
        values = [value for name, value in action.arguments.items() if self._is_asked(name)]
        if self.arguments is None:
            values = [value for value in values if value is not None]
        try:
            urls = [url for value in values for url in _texts(value)]
        except Unclear as unclear:
            return self.deny(unclear.rule, unclear.reason, Severity.MEDIUM)
        if not urls:
            names = "url" if self.arguments is None else " or ".join(self.arguments)
            return self.deny("url-missing", f"Give the URL as text in the argument {names}.", Severity.MEDIUM)
        if len(urls) > MAX_URLS:
            return self.deny("url-too-many", f"Give at most {MAX_URLS} URLs at a time.", Severity.MEDIUM)
        for url in urls:
            decision = self.judge_url(url)
            if decision.blocks:
                return decision
        return self.allow()

    def judge_url(self, url: str) -> Decision:
        """The verdict on one URL; looks the name up when the policy resolves."""
        try:
            destination = self._place(url)
            if self.resolves:
                self._addresses(destination)
        except Unclear as unclear:
            return self.deny(unclear.rule, unclear.reason)
        return self.allow()

    def check_url(self, url: str) -> PinnedURL:
        """Judges ``url``, looks its host up and judges every address. Connect to these and to no other.

        Raises `PolicyDenied`. May wait for a name server.
        """
        try:
            destination = self._place(url)
            return PinnedURL(url, destination.scheme, destination.host, destination.port, self._addresses(destination))
        except Unclear as unclear:
            raise PolicyDenied(self.deny(unclear.rule, unclear.reason)) from None

    # ------------------------------------------------------------------ one URL

    def _is_asked(self, argument: str) -> bool:
        if self.arguments is not None:
            return argument in self.arguments
        lowered = argument.lower()
        return lowered in URL_ARGUMENTS or lowered.replace("-", "_").split("_")[-1].endswith(_URL_ENDINGS)

    def _place(self, text: str) -> PlainURL:
        url = read_url(text)
        if url.scheme not in self.schemes:
            raise Unclear("url-scheme", f"{url.scheme[:20]}: is not allowed; use {', '.join(sorted(self.schemes))}.")
        if url.address is not None and self._is_closed(url.address):
            raise Unclear("url-address", f"{url.host} is {why_closed(url.address)}, which is not open to you.")
        places = [destination for destination in self.places if destination.holds(url)]
        if not places:
            raise Unclear("url-host", f"The host {url.host[:100]} is not among the allowed ones.")
        allowed = self.ports if self.ports is not None else {DEFAULT_PORTS.get(url.scheme)}
        if not any(
            destination.port == url.port if destination.port is not None else url.port in allowed
            for destination in places
        ):
            raise Unclear("url-port", f"Port {url.port} of {url.host[:100]} is not open to you.")
        return url

    def _addresses(self, url: PlainURL) -> tuple[str, ...]:
        """The addresses of the host, each allowed. Any that is not, and a name without any, is a denial."""
        if url.address is not None:
            return (str(url.address),)
        try:
            texts = tuple(self._look_up(url.host, url.port))
            addresses = [ipaddress.ip_address(text) for text in texts]
        except Exception:  # noqa: BLE001 - whatever a resolver raises, the name has no address that could be judged
            raise Unclear("url-unresolved", f"The host {url.host[:100]} cannot be looked up.") from None
        if not addresses:
            raise Unclear("url-unresolved", f"The host {url.host[:100]} has no address.")
        loopback_named = url.host == "localhost"
        for address in addresses:
            if self._is_closed(address) and not (loopback_named and address.is_loopback):
                why = why_closed(address)
                raise Unclear("url-address", f"{url.host[:100]} leads to {address}, which is {why}.")
        return texts

    def _is_closed(self, address: Address) -> bool:
        return why_closed(address) is not None and not any(embedded(address) in network for network in self.networks)


def system_resolver(host: str, port: int) -> Sequence[str]:
    """Every address the system knows for ``host``, in its order. Raises OSError. Waits as long as the system does."""
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _texts(value: Any) -> Sequence[str]:
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str) for item in items):
        raise Unclear("url-missing", "Give each URL as text.")
    return items


def _is_inner(host: str) -> bool:
    return "." not in host or any(host == ending or host.endswith("." + ending) for ending in _INNER_ENDINGS)


def _place(owner: str, text: str) -> _Place:
    """One entry of ``domains``, checked. Raises `PolicyError`."""
    if text == "*":
        return _Place("*", below=False, port=None)
    host, port = text, None
    if "//" in text:
        raise PolicyError(f"{owner}: domains holds {text!r}, which is a URL", hint="write its host alone: example.com")
    if text.count(":") == 1 or text.startswith("["):
        host, _, digits = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if digits:
            port = _port(owner, int(digits) if digits.isdecimal() else digits)
    try:
        network = ipaddress.ip_network(host.strip("[]"))
    except ValueError:
        network = None
    if network is not None:
        return _Place(str(network), below=False, port=port, network=network)
    below = host.startswith("*.")
    try:
        return _Place(ascii_host(host[2:] if below else host), below=below, port=port)
    except Unclear:
        raise PolicyError(
            f"{owner}: domains holds {text!r}, which is not a host name",
            hint="write example.com, *.example.com, host:port, an address, a network, or * for every public host",
        ) from None


def _port(owner: str, port: object) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise PolicyError(f"{owner}: {port!r} in ports or domains is not a port", hint="write a number from 1 to 65535")
    return port
