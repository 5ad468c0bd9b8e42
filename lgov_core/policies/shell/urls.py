"""Addresses that a command may read from."""

from __future__ import annotations

import re

from lgov_core.policies.shell.refusal import Refused
from lgov_core.policies.shell.values import UNKNOWN, is_wild, shown

_URL = re.compile(r"(?:(https?)://)?([A-Za-z0-9_.-]+|\[::1\])(?::(\d+))?(/.*|\?.*|)", re.DOTALL | re.IGNORECASE)
_LOCAL = re.compile(r"localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|\[::1\]|host\.docker\.internal", re.IGNORECASE)
_HOST = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][\w.-]*|\d{1,3}(?:\.\d{1,3}){3}")
#: Addresses at which a cloud gives out credentials.
_METADATA = re.compile(r"169\.254\.\d+\.\d+|metadata(?:\.google\.internal)?|100\.100\.100\.200|0x\w+", re.IGNORECASE)


def check_url(word: str, *, local: bool = False) -> bool:
    """Refuses an address that is not plain http(s), or not certain; whether it is on another machine.

    With ``local`` it must be this machine, as data is sent there.
    """
    match = _URL.fullmatch(word)
    if match is None:
        raise Refused("shell-network", f"{shown(word)} is not a plain http address that may be read.")
    check_host(match[2])
    here = _LOCAL.fullmatch(match[2]) is not None
    if local and not here:
        raise Refused("shell-network", f"Data is not sent to {match[2][:60]}; the network may only be read from.")
    if not here and (UNKNOWN in word or is_wild(match[4])):
        raise Refused("shell-network", f"The address {shown(word)} carries what is not written out.")
    return not here


def check_host(word: str) -> None:
    """Refuses the name of a machine that is not certain, or gives out credentials."""
    if re.fullmatch(r"\+\w+", word):  # dig +short
        return
    if _LOCAL.fullmatch(word) is None and (_HOST.fullmatch(word) is None or _METADATA.fullmatch(word)):
        raise Refused("shell-network", f"{shown(word)} is not a plain name of a machine that may be asked.")
