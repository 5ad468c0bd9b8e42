"""Finds the addresses in a text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from lgov_core.policies.content.text_views import INVISIBLE
from lgov_core.policies.options import names
from lgov_core.policies.provenance.values import (
    WALLET,
    Address,
    account_form,
    email_form,
    path_form,
    phone_form,
    url_address,
)

_LOCAL = r"(?:(?<![\w.%+-])[\w.%+-][\w.%+'-]{0,63}|\"\w[\w.%+' -]{0,63}\")"
#: What stands behind another at sign belongs to the address: it is the host that counts.
_EMAIL = re.compile(
    rf"{_LOCAL}@(?:\[[^\]\s]{{1,64}}\]|[^\W_][\w-]{{0,62}}(?:(?:\.[\w-]{{1,63}}){{1,8}}|(?:\u3002[a-zA-Z0-9-]{{1,63}}){{1,8}}))"
    r"(?:@[\w.:\[\]-]{1,255}){0,4}"
)
#: A host without a dot, where an address is expected.
_LOCAL_EMAIL = re.compile(rf"{_LOCAL}@[^\W_][\w-]{{0,62}}(?![\w.@\u3002-])")
_MENTION = re.compile(r"(?<![^\s,;(])@\w[\w-]{0,63}(?![^\s,;)])")
#: The last word of the name of an argument that holds e-mail addresses.
_EMAIL_WORDS = frozenset(
    names(
        "to cc bcc from sender replyto recipient recipients rcpt addressee addressees attendee attendees participant"
        " participants invitee invitees guest guests email emails mail mails address addresses"
    )
)
#: A package and its version, ``react@18.2.0`` or ``checkout@v4.1``: no host ends in a number, and addresses have four.
_VERSIONED = re.compile(r"[^@]+@(?!(?:\d{1,3}\.){3}\d{1,3}\.?$)v?\d[\w.-]*\.\d+\.?")
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
#: What a mail program may take for an address although it has no plain form: an at sign that is left, an encoded word.
_LEFT_OVER = re.compile(r"@|%40|&#(?:64|x40);|=\?[^?\s]{1,40}\?[bq]\?", re.IGNORECASE)
_URL = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}:[/\\]{1,3}[^\s<>\"'`|{}]{1,2048}")
_SCHEME = re.compile(
    r"(?<![A-Za-z0-9+.-])(?:javascript|mailto|data|vbscript|tel|sms|magnet|blob):[^\s<>\"'`]{1,512}", re.IGNORECASE
)
#: What stands behind the recipient in such a link: further recipients, a text.
_LINK_FIELDS = re.compile(
    r"((?<![A-Za-z0-9+.-])(?:mailto|tel|sms):[^\s<>\"'`?]{0,512})\?([^\s<>\"'`]{1,2048})", re.IGNORECASE
)
_NETWORK = re.compile(r"(?<![\w:/\\])[/\\]{2}[\w.-]{1,253}[/\\][^\s<>\"'`|]{0,512}")
_SLASHES = "/\\"
#: A value that is a host behind two slashes: an address without its scheme.
_HOST_ALONE = re.compile(r"[/\\]{2,}[\w.-]{1,253}(?::\d{1,5})?")
#: A host without a scheme: www., a port, a path after it, or an ending that is hardly ever one of a file.
_HOST = re.compile(
    r"(?<![\w@./\\:%-])((?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}|\d{1,3}(?:\.\d{1,3}){3})(:\d{1,5})?([/?#][^\s<>\"'`]{0,2048})?(?![\w@-])"
)
_ENDINGS = frozenset(
    names(
        "com net org io co dev app ai edu gov mil int info biz xyz online site tech top shop store cloud page link click me"
        " tv cc"
        " gg us uk de fr es it nl be ch at se no dk fi pl cz pt gr ie eu ru ua cn jp kr in au nz ca br mx ar cl za tr il ir"
        " sa ae"
        " sg hk tw id my th vn ph su to ws ly fm ml tk ga cf gq pw icu live news blog wiki space website fun club vip work"
        " world"
        " today agency email network systems host press pro name mobi travel museum bank onion zip mov"
    )
)
#: Of those, the ones that a file name, or the first word of the next sentence, may end in.
_FILE_LIKE = frozenset(names("zip mov pl ai app page name id in to no it is me my be at so pub press"))
_PATH = re.compile(
    r"(?<![\w:/\\.~%<])(?:[A-Za-z]:[\\/]|~[\w.-]{0,32}[\\/]|\.{1,2}[\\/]|[\\/](?=[\w.~-]))[^\s<>\"'`|*?;,(){}\[\]]{1,1024}"
    # a folder has blanks or dots in its name: "a.csv and b/c.csv" are two files
    r"|(?<![\w:/\\.~%-])[\w.-]{1,128}(?:[\\/](?:[\w.-]{0,127}[\w-]|[\w-]{1,64}(?: [\w-]{1,64}){1,8})){0,16}"
    r"[\\/][\w-]{1,64}(?:\.[\w-]{1,32}){0,4}\.[A-Za-z0-9]{1,6}(?!\.?[\w/\\])"
)
#: The user may name a folder in any way, and two in a row: ``from src/old to src/new/a.py``.
_SAID_FOLDER = re.compile(r"(?<![\w:/\\.~%-])[\w.-]{1,128}(?:[\\/][\w.-]{1,128}){1,16}[\\/]?")
#: In groups, each after the bank's holds a digit, so that the words after the number are not taken for a part of it.
_IBAN_LIKE = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}"
    r"(?:[A-Za-z0-9]{10,30}|[ -]?[A-Za-z0-9]{4}(?:[ -]?(?=[A-Za-z]{0,3}\d)[A-Za-z0-9]{1,4}){2,8})(?![A-Za-z0-9])"
)
_DIGITS = re.compile(r"(?<![\w.+-])\d(?:[ -]?\d){5,33}(?![\w.])")
_PHONE = re.compile(r"(?<![\w.+])(?:\+|00)\(?[1-9](?:[ ().-]{0,2}\d){7,14}(?!\d)")
_LOCAL_PHONE = re.compile(r"(?<![\w.+-])\(?\d{2,5}\)?(?:[ .-]\d{2,4}){2,4}(?![\w.-])")

_ACCOUNT_NAME = re.compile(
    r"account|acct|iban|recipient|payee|beneficiary|wallet|card|routing|creditor|destination|^to$", re.IGNORECASE
)
_PHONE_NAME = re.compile(r"phone|mobile|cell|sms|whats|tel|msisdn|recipient|caller|callee|^to$|number$", re.IGNORECASE)
_PATH_NAME = re.compile(r"(?:path|file|files|dir|directory|folder|cwd|filename|^src|^dst)$|file_?name", re.IGNORECASE)
_NEXT_SENTENCE = re.compile(r"(?<=[a-z]{2})\.[A-Z][a-z]*$")
_TRAILING = ".,;:!?)]}'\"*_»›”’"

#: Stands for the name of an argument where any number may be an account or a phone: in what the user said.
ANY: Final = "phone account"

#: An e-mail recipient that cannot be determined, so that it was not said.
UNCLEAR: Final = Address("email", "\0")

_Read = Callable[[str], Address | None]


def addresses(text: str, argument: str = ANY) -> list[Address]:
    """The addresses in ``text``, which is the value of ``argument`` (its name says what bare digits or words are).

    Time is linear in the text.
    """
    return _Reading(unicodedata.normalize("NFKC", INVISIBLE.sub("", text)), argument).addresses()


class _Reading:
    """One way through a text: what was read as one thing is blanked, so that it is not read as another."""

    def __init__(self, text: str, argument: str) -> None:
        self.text = text
        self.argument = argument
        self.said = argument == ANY
        self.found: list[Address] = []

    def addresses(self) -> list[Address]:
        if _HOST_ALONE.fullmatch(self.text.strip()) is not None:
            self.text = f"https://{self.text.strip().lstrip(_SLASHES)}"
        self.text = _LINK_FIELDS.sub(_apart, self.text)
        for pattern in (_URL, _SCHEME, _NETWORK):
            self.take(pattern, lambda part: url_address(part.rstrip(_TRAILING)))
        expected = not self.said and _holds_email(self.argument)
        self.take(
            _EMAIL,
            lambda part: (
                Address("email", email_form(part.rstrip("."))) if expected or not _VERSIONED.fullmatch(part) else None
            ),
        )
        if self.said or expected:
            self.take(_LOCAL_EMAIL, lambda part: Address("email", email_form(part)))
        if expected and _LEFT_OVER.search(_MENTION.sub("", self.text)):
            self.found.append(UNCLEAR)
        self.hosts()
        self.take(_IBAN_LIKE, lambda part: _account(part, least=6), keep=self.said)
        self.take(WALLET, lambda part: Address("account", account_form(part)), keep=self.said)
        self.take(_PHONE, _phone, keep=self.said)
        # What the user said may be an account as well as a phone number, so nothing is blanked there.
        if _ACCOUNT_NAME.search(self.argument):
            self.take(_DIGITS, lambda part: _account(part, least=6), keep=self.said)
        if _PHONE_NAME.search(self.argument):
            self.take(_LOCAL_PHONE, _phone, keep=self.said)
            self.take(_DIGITS, _phone, keep=self.said)
        nothing_yet, whole = not self.found, self.text.strip()
        self.take(_PATH, _path, keep=self.said)
        if self.said:
            self.take(_SAID_FOLDER, _path)
        is_path = not self.said and _PATH_NAME.search(self.argument) is not None
        more = self.text.strip(" ,;\n") if self.found else whole  # beside paths, part of the name of a file
        if is_path and nothing_yet and more and "\n" not in whole and len(whole) <= 1024:
            self.found.append(Address("path", path_form(whole)))
        return self.found

    def take(self, pattern: re.Pattern[str], read: _Read, *, keep: bool = False) -> None:
        """Adds what ``read`` makes of each match; blanks it in the text unless it is to ``keep``."""

        def blanked(match: re.Match[str]) -> str:
            address = read(match.group())
            if address is None:
                return match.group()
            self.found.append(address)
            return match.group() if keep else "\n" * len(match.group())

        self.text = pattern.sub(blanked, self.text)

    def hosts(self) -> None:
        whole = self.text.strip()

        def blanked(match: re.Match[str]) -> str:
            if not _is_host(match, whole):
                return match.group()
            host = match.group().rstrip(_TRAILING)
            if self.said:  # people forget the space after a full stop
                host = _NEXT_SENTENCE.sub("", host)
            self.found.append(url_address(f"https://{host}"))
            return "\n" * len(match.group())

        self.text = _HOST.sub(blanked, self.text)


def _apart(link: re.Match[str]) -> str:
    """A link and the values of its fields, each as a word of its own."""
    return " ".join([link[1], *(unquote(part.replace("=", " ", 1)) for part in link[2].split("&"))])


def _holds_email(argument: str) -> bool:
    words = _NAME_WORD.findall(argument)
    return bool(words) and words[-1].lower() in _EMAIL_WORDS


def _account(part: str, *, least: int) -> Address | None:
    enough = sum(c.isdigit() for c in part) >= least
    return Address("account", account_form(part)) if enough else None


def _phone(part: str) -> Address | None:
    digits = sum(c.isdigit() for c in part)
    return None if not 6 <= digits <= 15 or _is_date(part) else Address("phone", phone_form(part))


def _path(part: str) -> Address | None:
    form = path_form(part.rstrip(_TRAILING))
    return Address("path", form) if form.strip("/.") else None


def _is_host(match: re.Match[str], whole: str) -> bool:
    host, port, rest = match.group(1).lower(), match.group(2), match.group(3)
    if host[0].isdigit() and re.fullmatch(r"[\d.]+", host):
        return bool(port or rest) or match.group() == whole
    ending = host.rpartition(".")[2]
    if host.startswith("www.") or (ending in _ENDINGS and ending not in _FILE_LIKE):
        return True
    return bool(port or rest) and (ending in _ENDINGS or not ending.isascii())


def _is_date(text: str) -> bool:
    return re.fullmatch(r"\d{4}[-. ]\d{1,2}[-. ]\d{1,2}|\d{1,2}[-. ]\d{1,2}[-. ]\d{4}", text) is not None
