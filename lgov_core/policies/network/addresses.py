"""Addresses and words in the form in which they are compared: who or what is meant, not how it is written."""

from __future__ import annotations

import json
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args
from urllib.parse import unquote, urlsplit

from lgov_core.governor.options import DataFile
from lgov_core.policies.base import Unclear
from lgov_core.policies.content.pii import iban_at_start
from lgov_core.policies.content.text_views import INVISIBLE, written_number


class Address(NamedTuple):
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
    port_suffix = "" if port in (None, 80, 443) else f":{port}"
    return Address("url", f"{host_form(host or '')}{port_suffix}{path}{more}")


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


def covers(source: Address, used: Address) -> bool:
    """Returns whether ``used`` was said when ``source`` was.

    An e-mail address, account or phone number covers itself; a phone number also the same with its country's prefix. A
    URL covers what lies below it, so that a named host covers its pages, and a path covers what lies in it. A query
    string, a fragment and a user are new text: only the whole URL covers them.
    """
    if source.kind != used.kind:
        return False
    if source.form == used.form:
        return True
    if source.kind == "phone":
        short, long = sorted((source.form, used.form), key=len)
        return len(short) >= 8 and len(long) - len(short) <= 3 and long.endswith(short)
    if source.kind == "url":
        base, whole = source.form.rstrip("/"), page_of(source) == source.form and page_of(used) == used.form
        return source.form.partition("#")[0] == used.form or (
            whole and len(base) > 1 and used.form.startswith(base + "/")
        )
    return source.kind == "path" and len(source.form) > 1 and used.form.startswith(source.form + "/")


def page_of(url: Address) -> str:
    """The host and the path of a URL."""
    return re.split("[?#]", url.form, maxsplit=1)[0]


_DATA: Final = DataFile("lgov_core.policies.network", "addresses.yaml")
_re = cache(_DATA.pattern)
_words = cache(_DATA.words)
_SLASHES = "/\\"
_TRAILING = ".,;:!?)]}'\"*_»›”’"

#: Stands for the name of an argument where any number may be an account or a phone: in what the user said.
ANY: Final = "phone account"

#: An e-mail recipient that cannot be determined, so that it was not said.
UNCLEAR: Final = Address("email", "\0")

#: A character that each match of a pattern has: ``1`` stands for any digit, a slash for a backslash too.
_NEEDS: Final = {
    **dict.fromkeys(("url", "scheme"), ":"),
    **dict.fromkeys(("email", "local_email"), "@"),
    **dict.fromkeys(("network", "path", "said_folder"), "/"),
    **dict.fromkeys(("iban_like", "phone", "local_phone", "digits"), "1"),
}
_MARK: Final = re.compile(r"[:@/\\.\d]")
#: What is in each address: a mark, six digits or a wallet's length; and in an e-mail address that is hidden in a code.
_MAY_HOLD: Final = re.compile(r"[:@/\\.]|(?:\d\D*){6}|[A-Za-z0-9]{26}")
_ENCODED: Final = re.compile("[%&=]")
#: Texts that are an e-mail address in every reading, and nothing else.
_ONE_EMAIL: Final = re.compile(
    r"[a-z][a-z0-9_]{0,40}(?:[.+-][a-z0-9_]{1,20}){0,3}@(?:[a-z][a-z0-9-]{0,60}\.){1,4}[a-z]{2,24}"
)

_Read = Callable[[str], Address | None]


def _marks(text: str) -> set[str]:
    """The characters in a text by which patterns are left out."""
    marks = set(_MARK.findall(text))
    return marks | {"/" if mark == "\\" else "1" for mark in marks if mark == "\\" or mark.isdigit()}


@lru_cache(maxsize=1_024)
def _is(pattern: str, argument: str) -> bool:
    return _re(pattern).search(argument) is not None


@lru_cache(maxsize=1_024)
def _expects_email(argument: str) -> bool:
    words = _re("name_word").findall(argument)
    return bool(words) and words[-1].lower() in _words("email_arguments")


def addresses(text: str, argument: str = ANY) -> list[Address]:
    """The addresses in ``text``, each once; it is the value of ``argument`` (its name says what bare digits or words are).

    Time is linear in the text.
    """
    plain, expected = _plain(text), argument != ANY and _expects_email(argument)
    no_address = argument != ANY and _MAY_HOLD.search(plain) is None and not _is("path_name", argument)
    if no_address and not (expected and _ENCODED.search(plain)):
        return []
    if argument != ANY and _ONE_EMAIL.fullmatch(plain) is not None:
        return [Address("email", email_form(plain))]
    return list(dict.fromkeys(_Reading(plain, argument, expected=expected).addresses()))


class _Reading:
    """One way through a text: what was read as one thing is blanked, so that it is not read as another."""

    def __init__(self, text: str, argument: str, *, expected: bool) -> None:
        self.text = text
        self.argument, self.expected = argument, expected
        self.said = argument == ANY
        self.found: list[Address] = []
        self.marks = _marks(text)

    def addresses(self) -> list[Address]:
        if "/" in self.marks and _re("host_alone").fullmatch(self.text.strip()) is not None:
            self.text = f"https://{self.text.strip().lstrip(_SLASHES)}"
            self.marks = _marks(self.text)
        if ":" in self.marks and (plain := _re("link_fields").sub(_apart, self.text)) != self.text:
            self.text, self.marks = plain, _marks(plain)
        for pattern in ("url", "scheme", "network"):
            self.take(pattern, lambda text: url_address(text.rstrip(_TRAILING)))
        expected = self.expected
        self.take(
            "email",
            lambda text: (
                Address("email", email_form(text.rstrip(".")))
                if expected or not _re("versioned").fullmatch(text)
                else None
            ),
        )
        if self.said or expected:
            self.take("local_email", lambda text: Address("email", email_form(text)))
        if expected and _re("left_over").search(_re("mention").sub("", self.text)):
            self.found.append(UNCLEAR)
        if "." in self.marks:
            self.hosts()
        if self.said:  # a number may follow
            ibans = (iban_at_start(account_form(text)) for text in _re("iban_like").findall(self.text))
            self.found += [Address("account", account) for account in ibans if account is not None]
        self.take("iban_like", lambda text: _account(text, least=6), keep=self.said)
        self.blank(WALLET, lambda text: Address("account", account_form(text)), keep=self.said)
        self.take("phone", _phone, keep=self.said)
        # What the user said may be an account as well as a phone number, so nothing is blanked there.
        if _is("account_name", self.argument):
            self.take("digits", lambda text: _account(text, least=6), keep=self.said)
        if _is("phone_name", self.argument):
            self.take("local_phone", _phone, keep=self.said)
            self.take("digits", _phone, keep=self.said)
        nothing_yet, whole = not self.found, self.text.strip()
        self.take("path", _path, keep=self.said)
        if self.said:
            self.take("said_folder", _path)
        is_path = not self.said and _is("path_name", self.argument)
        more = self.text.strip(" ,;\n") if self.found else whole  # beside paths, part of the name of a file
        if is_path and nothing_yet and more and "\n" not in whole and len(whole) <= 1024:
            self.found.append(Address("path", path_form(whole)))
        return self.found

    def take(self, pattern: str, read: _Read, *, keep: bool = False) -> None:
        """As `blank`, by the pattern of that name, where the text has what each match of it has."""
        if _NEEDS[pattern] in self.marks:
            self.blank(_re(pattern), read, keep=keep)

    def blank(self, pattern: re.Pattern[str], read: _Read, *, keep: bool = False) -> None:
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
                host = _re("next_sentence").sub("", host)
            self.found.append(url_address(f"https://{host}"))
            return "\n" * len(match.group())

        self.text = _re("host").sub(blanked, self.text)


def _apart(link: re.Match[str]) -> str:
    """A link and the values of its fields, each as a word of its own."""
    return " ".join([link[1], *(unquote(field.replace("=", " ", 1)) for field in link[2].split("&"))])


def _account(text: str, *, least: int) -> Address | None:
    enough = sum(c.isdigit() for c in text) >= least
    return Address("account", account_form(text)) if enough else None


def _phone(text: str) -> Address | None:
    digits = sum(c.isdigit() for c in text)
    date = re.fullmatch(r"\d{4}[-. ]\d{1,2}[-. ]\d{1,2}|\d{1,2}[-. ]\d{1,2}[-. ]\d{4}", text)
    return None if not 6 <= digits <= 15 or date is not None else Address("phone", phone_form(text))


def _path(text: str) -> Address | None:
    form = path_form(text.rstrip(_TRAILING))
    return Address("path", form) if form.strip("/.") else None


def _is_host(match: re.Match[str], whole: str) -> bool:
    host, port, rest = match.group(1).lower(), match.group(2), match.group(3)
    if host[0].isdigit() and re.fullmatch(r"[\d.]+", host):
        return bool(port or rest) or match.group() == whole
    ending = host.rpartition(".")[2]
    if host.startswith("www.") or (ending in _words("endings") and ending not in _words("file_like_endings")):
        return True
    return bool(port or rest) and (ending in _words("endings") or not ending.isascii())


AddressKind = Literal["email", "url", "path", "account", "phone"]
KINDS: Final[tuple[AddressKind, ...]] = get_args(AddressKind)

MAX_DEPTH: Final = 32
#: Characters of the name of an argument.
MAX_NAME: Final = 1_000


def strings_in(
    value: Any, name: str = "", depth: int = 0, keeps: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[str, str]]:
    """Every string with the key it stands under; keys themselves, and numbers as they are written.

    What stands under a key that ``keeps`` its name has that name, however deep it is, but for keys that keep their own.
    """
    if depth > MAX_DEPTH:
        raise Unclear("arguments-unlookable", f"The arguments are nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str) and len(key) > MAX_NAME:
                raise Unclear("arguments-unlookable", f"The arguments have a name longer than {MAX_NAME} characters")
            if isinstance(key, str) and not key.isidentifier():
                yield name, key
            named = name if keeps(name) and not keeps(str(key)) else str(key)
            yield from strings_in(item, named, depth + 1, keeps)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from strings_in(item, name, depth + 1, keeps)
    elif isinstance(value, bytes | bytearray):
        yield name, bytes(value).decode("utf-8", "replace")
    elif value is not None and not isinstance(value, bool):
        written = written_number(value) if isinstance(value, int | float) else str(value)
        if written is not None:
            yield name, written


def leaves_of(text: str) -> Iterator[tuple[str, str]]:
    """The values of a result in JSON, each with its field; any other text is one value of no field."""
    try:
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
        yield from [("", text)] if isinstance(value, str) else strings_in(value, "[]")
    except (ValueError, RecursionError, Unclear):
        yield "", text


def _plain(text: str) -> str:
    """A text in its compatible form, without invisible characters."""
    return text if text.isascii() else unicodedata.normalize("NFKC", INVISIBLE.sub("", text))


def words_of(text: str) -> str:
    """The words of ``text`` with a space around each, so that a part of a word is not the word."""
    plain = _plain(text).casefold().replace("\\", "/").translate(_MARKS)
    return f" {' '.join([word.strip('.') for word in plain.split()] if '.' in plain else plain.split())} "


def loose_words(text: str) -> str:
    """As `words_of`, with a space for whatever is no letter and no digit; ``1,000`` is ``1000``."""
    plain = _plain(text).casefold()
    plain = _THOUSANDS.sub("", plain) if "," in plain else plain
    return f" {_NO_WORD.sub(' ', plain).strip()} "


_NO_WORD: Final = re.compile(r"[\W_]+")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_MARKS: Final = str.maketrans(dict.fromkeys(",;:!?\"'()[]{}<>`", " "))
