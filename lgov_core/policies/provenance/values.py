"""Addresses in the form in which they are compared: who or where is meant, not how it is written."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

KINDS: Final = ("email", "url", "path", "account", "phone")


@dataclass(frozen=True, slots=True)
class Address:
    """One address: its kind, and the form in which it is compared. For a URL ``form`` is host and path."""

    kind: str
    form: str


WALLET: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:0x[0-9A-Fa-f]{40}|bc1[a-z0-9]{11,71}|[13][1-9A-HJ-NP-Za-km-z]{25,34}"
    r"|[LMr][1-9A-HJ-NP-Za-km-z]{25,34})(?![A-Za-z0-9])"
)
_TWO_HOSTS = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:[/\\]*|//)[^/?#\\]+\\[^/?#]*[@.]")


def host_form(host: str) -> str:
    """A host name in lower case, internationalised names in their ASCII form, without ``www.`` and a last dot."""
    host = host.strip().rstrip(".").casefold().replace("\u3002", ".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return host
    return host.removeprefix("www.")


def email_form(address: str) -> str:
    """An e-mail address in lower case with its host as `host_form` has it."""
    local, _, host = address.rpartition("@")
    return f"{local.casefold()}@{host_form(host)}"


def url_address(url: str) -> Address:
    """A URL as host (with a port that is not the usual one) and path; other schemes keep theirs. Behind them, what else it
    says: the query string, the fragment, the user.

    Where a host ends at a backslash for some programs and not for others, it is unclear whose it is.
    """
    if _TWO_HOSTS.match(url) is not None:
        return Address("url", f"?{url}")
    url = url.replace("\\", "/")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return Address("url", f"?{url}")
    scheme = parts.scheme.lower()
    if scheme == "file":
        return Address("path", path_form(unquote(parts.path)))
    if scheme == "mailto":
        return Address("email", email_form(unquote(parts.path)))
    if scheme in ("tel", "sms"):
        return Address("phone", phone_form(parts.path))
    path = posixpath.normpath(unquote(parts.path)) if parts.path.strip("/") else "/"
    if path.startswith("//"):
        path = path[1:]
    user = parts.netloc.rpartition("@")[0]
    more = (
        f"?{parts.query}" * bool(parts.query) + f"#{parts.fragment}" * bool(parts.fragment) + f"#{user}@" * bool(user)
    )
    if scheme not in ("", "http", "https", "ws", "wss"):
        return Address("url", f"{scheme}:{host_form(host) if host else ''}{path}{more}")
    shown = "" if port in (None, 80, 443) else f":{port}"
    return Address("url", f"{host_form(host or '')}{shown}{path}{more}")


def path_form(path: str) -> str:
    """A path with slashes, without ``.`` and ``..`` and doubled or last slashes."""
    plain = unquote(path.strip()).replace("\\", "/")
    form = posixpath.normpath(plain)
    if form.startswith("//"):
        form = form[1:]
    return form[0].lower() + form[1:] if re.match(r"[A-Za-z]:/", form) else form


def account_form(account: str) -> str:
    """An account number without spaces, in capitals; a wallet keeps its letter case."""
    bare = re.sub(r"[ -]", "", account)
    return bare.lower() if bare[:2].lower() == "0x" else bare if WALLET.fullmatch(bare) else bare.upper()


def phone_form(phone: str) -> str:
    """The digits of a phone number without the leading zeros of a prefix."""
    return "".join(c for c in phone if c.isdigit()).lstrip("0")


def covers(said: Address, used: Address) -> bool:
    """Whether ``used`` was said when ``said`` was.

    An e-mail address, account or phone number covers itself; a phone number also the same with its country's prefix. A
    URL covers what lies below it, so that a named host covers its pages, and a path covers what lies in it. A query
    string, a fragment and a user are new text: only the whole URL covers them.
    """
    if said.kind != used.kind:
        return False
    if said.form == used.form:
        return True
    if said.kind == "phone":
        short, long = sorted((said.form, used.form), key=len)
        return len(short) >= 8 and len(long) - len(short) <= 3 and long.endswith(short)
    if said.kind == "url":
        base, whole = said.form.rstrip("/"), page_of(said) == said.form and page_of(used) == used.form
        return said.form.partition("#")[0] == used.form or (
            whole and len(base) > 1 and used.form.startswith(base + "/")
        )
    return said.kind == "path" and len(said.form) > 1 and used.form.startswith(said.form + "/")


def page_of(url: Address) -> str:
    """The host and the path of a URL."""
    return re.split("[?#]", url.form, maxsplit=1)[0]
