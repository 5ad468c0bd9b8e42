"""One reading of a URL, or none: every parser must find the same scheme, host and port in it. Public addresses."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from urllib.parse import urlsplit

from lgov_core.governor.options import names
from lgov_core.policies.base import Unclear

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
    _characters(text)
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


def _characters(text: str) -> None:
    if not text or len(text) > MAX_URL:
        raise Unclear("url-unclear", f"Give a URL of at most {MAX_URL} characters.")
    if any(unicodedata.category(letter) in _UNSEEN for letter in text):
        raise Unclear("url-unclear", "The URL holds spaces, control or invisible characters; encode or drop them.")
    if "\\" in text:
        raise Unclear("url-unclear", "A backslash in a URL is read differently by different programs.")


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
