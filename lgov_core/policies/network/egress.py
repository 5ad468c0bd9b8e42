"""EgressPolicy: where the URLs that a tool is given may lead.

A URL has one reading, or none: every parser must find the same scheme, host and port in it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta

from lgov_core.errors import PolicyDenied, PolicyError
from lgov_core.governor.options import argument_names, names
from lgov_core.policies.base import BoundedPolicy, Unclear
from lgov_core.policies.confinement import in_box
from lgov_core.policies.options import Names, PolicyOptions, Text, Texts, YesOrNo, takes
from lgov_core.types import Action, Decision, Point, Severity

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Addresses of cloud metadata that lie in public space.
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: What the registries set aside in IPv4. Written out, because the lists of the standard library differ by version.
_SET_ASIDE = tuple(
    ipaddress.IPv4Network(text)
    for text in names(
        """
        0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
        192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
        """
    )
)
#: The part of IPv6 that is given out, and what in it carries IPv4 inside or is not routed.
_GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
_CARRIERS = tuple(
    ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "3ffe::/16")
)
_ISATAP = (0x00005EFE, 0x02005EFE)


def embedded(address: Address) -> Address:
    """The IPv4 address that a mapped or NAT64 address stands for; any other address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def why_closed(address: Address) -> str | None:
    """The kind of closed address that this is (``"loopback"``, ``"private"``, ...), or None for a public one."""
    address = embedded(address)
    kinds = (
        ("a metadata service", address in _METADATA or str(address) in ("169.254.169.254", "100.100.100.200")),
        ("an unspecified address", address.is_unspecified),
        ("loopback", address.is_loopback),
        ("link-local", address.is_link_local),
        ("multicast", address.is_multicast),
        ("private", address.is_private),
        ("reserved", address.is_reserved or not address.is_global or _is_set_aside(address)),
    )
    return next((kind for kind, holds in kinds if holds), None)


def _is_set_aside(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return any(address in network for network in _SET_ASIDE)
    if address.scope_id is not None or ((int(address) >> 32) & 0xFFFFFFFF) in _ISATAP:
        return True
    return address not in _GIVEN_OUT or any(address in network for network in _CARRIERS)


MAX_URL = 8192
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21, "ftps": 990}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)(.*)", re.DOTALL)
_LABEL = re.compile(r"(?!-)[a-z0-9_\-]{1,63}(?<!-)")
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)", re.I)
_PORT = re.compile(r"[1-9][0-9]{0,4}")
#: Letters that the two versions of IDNA read differently, or not at all.
_DEVIATIONS = frozenset("ßẞςΣ\u200c\u200d\u00ad\u3002\uff0e\uff61")
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


@dataclass(frozen=True, slots=True)
class PlainURL:
    """The parts of a URL that say where it leads: scheme and host in lower case, host in ASCII, the port filled in.

    ``address`` is set when the host is an IP address written in its usual form.
    """

    scheme: str
    host: str
    port: int
    address: Address | None


def read_url(text: str) -> PlainURL:
    """Where ``text`` leads. Raises `Unclear` when programs could disagree about it."""
    if not text or len(text) > MAX_URL:
        raise Unclear("url-unclear", f"Give a URL of at most {MAX_URL} characters.")
    if any(unicodedata.category(letter) in _UNSEEN for letter in text):
        raise Unclear("url-unclear", "The URL holds spaces, control or invisible characters; encode or drop them.")
    if "\\" in text:
        raise Unclear("url-unclear", "A backslash in a URL is read differently by different programs.")
    match = _URL.fullmatch(text)
    if match is None:
        raise Unclear("url-unclear", "Write the whole URL, with scheme and host: https://host/path.")
    scheme, authority, rest = match[1].lower(), match[2], match[3]
    if "@" in authority or (rest[:1] in ("?", "#") and "@" in rest.partition("/")[0]):
        raise Unclear("url-userinfo", "A URL with a name or password before the host is not accepted.")
    host, port = _host_and_port(authority)
    address = _address(host)
    host = ascii_host(host) if address is None else str(address)
    if port is None:
        number = DEFAULT_PORTS.get(scheme, 0)
    else:
        number = int(port)
        if number > 65535:
            raise Unclear("url-unclear", f"{port} is not a port.")
    _agrees(text, scheme, host, port)
    return PlainURL(scheme, host, number, address)


def ascii_host(host: str) -> str:
    """A host name in lower case and ASCII. Raises `Unclear` for what is none, or has more than one ASCII form."""
    lowered = host.lower()
    if not lowered.isascii():
        if unicodedata.normalize("NFKC", lowered) != lowered or _DEVIATIONS.intersection(host):
            raise Unclear("url-host", "The host holds characters that programs read differently; write it in ASCII.")
        try:
            lowered = lowered.encode("idna").decode("ascii")
        except UnicodeError:
            raise Unclear("url-host", "The host is not a name; write it in ASCII (xn--...).") from None
    if lowered.endswith("."):
        raise Unclear("url-host", "Write the host without a dot at its end.")
    labels = lowered.split(".")
    if len(lowered) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise Unclear("url-host", "The host is not a host name.")
    if _NUMBER.fullmatch(labels[-1]):
        raise Unclear("url-address", "Write an IP address in its usual form (four decimal numbers), or a host name.")
    return lowered


def _host_and_port(authority: str) -> tuple[str, str | None]:
    bracketed = re.fullmatch(r"(\[[^\[\]]*\])(?::(.*))?", authority)
    if bracketed is not None:
        host, port = bracketed[1], bracketed[2]
    else:
        host, colon, port = authority.partition(":")
        port = port if colon else None
    if not host:
        raise Unclear("url-host", "The URL names no host.")
    if port is not None and _PORT.fullmatch(port) is None:
        raise Unclear("url-unclear", "The port of the URL is not a plain number.")
    return host, port


def _address(host: str) -> Address | None:
    """The address that ``host`` is when it is one in usual form, None for a name."""
    try:
        if host.startswith("["):
            if "%" in host:
                raise Unclear("url-address", "An address with a zone is not accepted.")
            return ipaddress.IPv6Address(host[1:-1])
        return ipaddress.IPv4Address(host)
    except ValueError:
        if host.startswith("["):
            raise Unclear("url-address", "What is in brackets is not an IPv6 address.") from None
        return None


def _agrees(text: str, scheme: str, host: str, port: str | None) -> None:
    """Asks the standard library's parser as well: two readings are a denial."""
    try:
        parts = urlsplit(text)
        other = (parts.scheme, parts.hostname or "", parts.port, parts.username)
    except ValueError:
        raise Unclear("url-unclear", "Programs read this URL differently; write it plainly.") from None
    if ":" in host:
        same_host = _address(f"[{other[1]}]") == ipaddress.IPv6Address(host)
    else:
        same_host = (other[1] if _address(other[1]) else ascii_host(other[1])) == host
    if (other[0], other[2], other[3]) != (scheme, None if port is None else int(port), None) or not same_host:
        raise Unclear("url-unclear", "Programs read this URL differently; write it plainly.")


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
            inner = any(url.host == ending or url.host.endswith("." + ending) for ending in _INNER_ENDINGS)
            return "." in url.host and not inner
        return url.host.endswith("." + self.host) if self.below else url.host == self.host


Port = Annotated[int, Meta(ge=1, le=65535, description="a number from 1 to 65535")]


class EgressOptions(PolicyOptions, frozen=True, kw_only=True):
    """The options of an `EgressPolicy`."""

    in_python = MappingProxyType({"resolver": (Callable,)})

    domains: Texts
    argument: Names | None = None
    schemes: Texts = ("https",)
    ports: Sequence[Port] | None = None
    resolve: YesOrNo | None = None
    resolver: Resolver | None = None
    name: Text = "egress"


class EgressPolicy(BoundedPolicy):
    """Lets a tool fetch only what lies under the allowed schemes, hosts and ports.

    ``domains`` are host names (``example.com``: that host only), ``*.example.org`` (every name below it, not itself), ``*``
    (every public host), IP addresses and networks (``10.2.0.0/16``); a name or address may carry a port
    (``localhost:8080``). ``schemes`` are the allowed ones; ``ports`` the allowed ports, those of the schemes unless given.
    ``argument`` names the arguments that hold a URL or a list of URLs. Unless given they are those called ``url``, ``uri``,
    ``href``, ``link``, ``endpoint`` or ``webhook``, or whose name ends so. Each that is present is checked; a call without
    any is denied.

    A URL must have one reading only: no user names, backslashes, spaces or control characters, no host in a spelling that
    programs read differently, IP addresses in their usual form. Private, loopback, link-local, shared, multicast, reserved,
    tunnelled and metadata addresses are denied unless ``domains`` names them as addresses or networks.

    With ``resolve``, the default when ``domains`` contains ``*``, every address of the host is checked too, and a host
    without an address is denied; in a box its proxy looks names up. The fetch may get another address than the check: fetch
    with `guarded_opener`, or connect to ``check_url(url).addresses`` (which always looks up) and check each redirect the
    same way. ``resolver`` replaces the system's.

    Evaluates ``pre_tool_call``; has no opinion on hand-offs and agents. ``bounded`` unless it resolves, which may wait for a
    name server. May be called from several threads at once. Fails closed. Raises `PolicyError` for an option without a
    meaning.
    """

    permits = True

    @takes(EgressOptions)
    def __init__(self, options: EgressOptions) -> None:
        self.name = name = options.name
        self.schemes = frozenset(scheme.lower() for scheme in options.schemes)
        for scheme in self.schemes:
            if not scheme.isidentifier() or (scheme not in DEFAULT_PORTS and not options.ports):
                names = ", ".join(DEFAULT_PORTS)
                raise PolicyError(f"{name}: schemes holds {scheme!r}", hint=f"write one of {names}, or give ports")
        self.places = tuple(_place(name, text) for text in options.domains)
        self.ports = None if options.ports is None else frozenset(options.ports)
        self.networks = tuple(destination.network for destination in self.places if destination.network is not None)
        self.arguments = None if options.argument is None else argument_names(name, options.argument, "the URL")
        anywhere = any(destination.host == "*" for destination in self.places)
        #: In a box no name can be looked up: its proxy does that, for the hosts that the policy file names.
        self.resolves = (anywhere and not in_box()) if options.resolve is None else options.resolve
        self.bounded = not self.resolves
        self._look_up = options.resolver or system_resolver

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
            port = int(digits) if digits.isdecimal() else 0
            if not 0 < port < 65536:
                raise PolicyError(
                    f"{owner}: {digits!r} in domains is not a port", hint="write a number from 1 to 65535"
                )
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
