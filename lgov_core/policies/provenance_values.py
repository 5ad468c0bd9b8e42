"""Addresses in text, and the form in which two of them are compared: who or where is meant, not how it is written."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from lgov_core.policies.text_views import INVISIBLE

KINDS: Final = ("email", "url", "path", "account", "phone")


@dataclass(frozen=True, slots=True)
class Address:
    """One address: its kind, and the form in which it is compared. For a URL ``form`` is host and path."""

    kind: str
    form: str


_EMAIL = re.compile(r"(?<![\w.%+'-])[\w.%+'-]{1,64}@[^\W_][\w-]{0,62}(?:\.[\w-]{1,63}){1,8}")
_URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}:[/\\]{1,3}[^\s<>\"'`|{}]{1,2048}")
_SCHEME = re.compile(
    r"(?<![A-Za-z0-9+.-])(?:javascript|mailto|data|vbscript|tel|sms|magnet|blob):[^\s<>\"'`]{1,512}", re.IGNORECASE
)
_NETWORK = re.compile(r"(?<![\w:/\\])[/\\]{2}[\w.-]{1,253}[/\\][^\s<>\"'`|]{0,512}")
#: A host without a scheme: www., a port, a path after it, or an ending that is hardly ever one of a file.
_HOST = re.compile(
    r"(?<![\w@./\\:%-])((?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}|\d{1,3}(?:\.\d{1,3}){3})(:\d{1,5})?([/?#][^\s<>\"'`]{0,2048})?(?![\w@-])"
)
_ENDING_WORDS = (
    "com net org io co dev app ai edu gov mil int info biz xyz online site tech top shop store cloud page link click me tv cc"
    " gg us uk de fr es it nl be ch at se no dk fi pl cz pt gr ie eu ru ua cn jp kr in au nz ca br mx ar cl za tr il ir sa ae"
    " sg hk tw id my th vn ph su to ws ly fm ml tk ga cf gq pw icu live news blog wiki space website fun club vip work world"
    " today agency email network systems host press pro name mobi travel museum bank onion zip mov"
)
_ENDINGS = frozenset(_ENDING_WORDS.split())
#: Of those, the ones that a file name, or the first word of the next sentence, may end in.
_FILE_LIKE = frozenset(
    [
        "zip",
        "mov",
        "pl",
        "ai",
        "app",
        "page",
        "name",
        "id",
        "in",
        "to",
        "no",
        "it",
        "is",
        "me",
        "my",
        "be",
        "at",
        "so",
        "pub",
        "press",
    ]
)
_PATH = re.compile(
    r"(?<![\w:/\\.~%<])(?:[A-Za-z]:[\\/]|~[\w.-]{0,32}[\\/]|\.{1,2}[\\/]|[\\/](?=[\w.~-]))[^\s<>\"'`|*?;,(){}\[\]]{1,1024}"
    r"|(?<![\w:/\\.~%-])[\w.-]{1,128}(?:[\\/][\w. -]{0,127}[\w-]){0,16}[\\/][\w-]{1,64}\.[A-Za-z0-9]{1,6}(?![\w/\\])"
)
_IBAN_LIKE = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]){10,30}(?![A-Za-z0-9])")
_WALLET = re.compile(
    r"(?<![A-Za-z0-9])(?:0x[0-9A-Fa-f]{40}|bc1[a-z0-9]{11,71}|[13][1-9A-HJ-NP-Za-km-z]{25,34}"
    r"|[LMr][1-9A-HJ-NP-Za-km-z]{25,34})(?![A-Za-z0-9])"
)
_DIGITS = re.compile(r"(?<![\w.+-])\d(?:[ -]?\d){5,33}(?![\w.])")
_PHONE = re.compile(r"(?<![\w.+])(?:\+|00)\(?[1-9](?:[ ().-]{0,2}\d){7,14}(?!\d)")
_LOCAL_PHONE = re.compile(r"(?<![\w.+-])\(?\d{2,5}\)?(?:[ .-]\d{2,4}){2,4}(?![\w.-])")

_ACCOUNT_NAME = re.compile(
    r"account|acct|iban|recipient|payee|beneficiary|wallet|card|routing|creditor|destination|^to$", re.IGNORECASE
)
_PHONE_NAME = re.compile(r"phone|mobile|cell|sms|whats|tel|msisdn|recipient|caller|callee|^to$|number$", re.IGNORECASE)
_PATH_NAME = re.compile(r"path|file|dir|folder|root|cwd|location|source|target|^src$|^dst$|dest", re.IGNORECASE)
_TRAILING = ".,;:!?)]}'\"*_»›”’"


#: Stands for the name of an argument where any number may be an account or a phone: in what the user said.
ANY: Final = "phone account"


def addresses(text: str, argument: str = ANY) -> Iterator[Address]:
    """The addresses in ``text``, which is the value of ``argument`` (its name says what bare digits or words are)."""
    text = unicodedata.normalize("NFKC", INVISIBLE.sub("", text))
    taken: list[tuple[int, int]] = []

    def free(match: re.Match[str]) -> bool:
        return not any(match.start() < end and start < match.end() for start, end in taken)

    def urls() -> Iterator[Address]:
        for pattern in (_URL, _SCHEME, _NETWORK):
            for match in pattern.finditer(text):
                if free(match):
                    taken.append(match.span())
                    yield url_address(match.group().rstrip(_TRAILING))

    yield from urls()
    for match in _EMAIL.finditer(text):
        if free(match):
            taken.append(match.span())
            yield Address("email", email_form(match.group().rstrip(".")))
    for match in _HOST.finditer(text):
        if free(match) and _is_host(match, text):
            taken.append(match.span())
            yield url_address("https://" + match.group().rstrip(_TRAILING))
    yield from _accounts(text, argument, taken)
    yield from _paths(text, argument, taken)


def _accounts(text: str, argument: str, taken: list[tuple[int, int]]) -> Iterator[Address]:
    shapes = [("account", _IBAN_LIKE), ("account", _WALLET), ("phone", _PHONE)]
    if _ACCOUNT_NAME.search(argument):
        shapes.append(("account", _DIGITS))
    if _PHONE_NAME.search(argument):
        shapes += [("phone", _LOCAL_PHONE), ("phone", _DIGITS)]
    for kind, pattern in shapes:
        for match in pattern.finditer(text):
            digits = sum(c.isdigit() for c in match.group())
            if any(match.start() < end and start < match.end() for start, end in taken) or digits < 6:
                continue
            if kind == "phone" and (digits > 15 or _is_date(match.group())):
                continue
            if argument != ANY:  # what the user said may be either
                taken.append(match.span())
            yield Address(kind, phone_form(match.group()) if kind == "phone" else account_form(match.group()))


def _paths(text: str, argument: str, taken: list[tuple[int, int]]) -> Iterator[Address]:
    found = False
    for match in _PATH.finditer(text):
        if any(match.start() < end and start < match.end() for start, end in taken):
            continue
        form = path_form(match.group().rstrip(_TRAILING))
        if form.strip("/."):
            found = True
            yield Address("path", form)
    whole = text.strip()
    if (
        not found
        and not taken
        and whole
        and argument != ANY
        and _PATH_NAME.search(argument)
        and "\n" not in whole
        and len(whole) <= 1024
    ):
        yield Address("path", path_form(whole))


def _is_host(match: re.Match[str], text: str) -> bool:
    host, port, rest = match.group(1).lower(), match.group(2), match.group(3)
    if host[0].isdigit() and re.fullmatch(r"[\d.]+", host):
        return bool(port or rest) or match.group() == text.strip()
    ending = host.rpartition(".")[2]
    if host.startswith("www.") or (ending in _ENDINGS and ending not in _FILE_LIKE):
        return True
    return bool(port or rest) and (ending in _ENDINGS or not ending.isascii())


def _is_date(text: str) -> bool:
    return re.fullmatch(r"\d{4}[-. ]\d{1,2}[-. ]\d{1,2}|\d{1,2}[-. ]\d{1,2}[-. ]\d{4}", text) is not None


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
    """A URL as host (with a port that is not the usual one) and path; other schemes keep theirs."""
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
    query = f"?{parts.query}" if parts.query else ""
    if scheme not in ("", "http", "https", "ws", "wss"):
        return Address("url", f"{scheme}:{host_form(host) if host else ''}{path}{query}")
    shown = "" if port in (None, 80, 443) else f":{port}"
    return Address("url", f"{host_form(host or '')}{shown}{path}{query}")


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
    return bare.lower() if bare[:2].lower() == "0x" else bare if _WALLET.fullmatch(bare) else bare.upper()


def phone_form(phone: str) -> str:
    """The digits of a phone number without the leading zeros of a prefix."""
    return "".join(c for c in phone if c.isdigit()).lstrip("0")


def covers(said: Address, used: Address) -> bool:
    """Whether somebody who said ``said`` has said ``used``.

    An e-mail address, account or phone number covers itself; a phone number also the same with its country's prefix. A
    URL covers what lies below it, so that a named host covers its pages, and a path covers what lies in it.
    """
    if said.kind != used.kind:
        return False
    if said.form == used.form:
        return True
    if said.kind == "phone":
        short, long = sorted((said.form, used.form), key=len)
        return len(short) >= 8 and len(long) - len(short) <= 3 and long.endswith(short)
    if said.kind in ("url", "path"):
        base = said.form.rstrip("/") if said.kind == "url" else said.form
        return len(base) > 1 and "?" not in base and used.form.startswith((base + "/", base + "?"))
    return False
