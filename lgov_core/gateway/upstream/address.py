"""Checks the addresses and the keys of upstream servers."""

from __future__ import annotations

from urllib.parse import urlsplit

from lgov_core.errors import EndpointError


def check_url(url: str) -> None:
    """Raises `EndpointError` unless ``url`` is the http(s) URL of a server, without a user and a password."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        fine = False
    if not fine or not url.isascii() or not url.isprintable():
        raise EndpointError(f"{url!r} is not a URL of a server", hint="for example http://127.0.0.1:8000/v1")


def check_key(key: str | None) -> None:
    """Raises `EndpointError` for a key that cannot be sent in a header."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise EndpointError("the key of the upstream holds characters that a header cannot", hint="a line break?")
