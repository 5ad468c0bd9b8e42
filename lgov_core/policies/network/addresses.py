"""Which IP addresses are public hosts, and which are this machine, its network or its cloud."""

from __future__ import annotations

import ipaddress

from lgov_core.governor.options import names

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
    """What kind of closed address this is (``"loopback"``, ``"private"``, ...), or None for a public one."""
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
