"""Whether what looks like personal data is: check digits, and what the words before it say. The shapes are in ``pii.yaml``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lgov_core.policies.content import check_digits, national_ids
from lgov_core.policies.content.findings import CONTEXT, Check, left_of
from lgov_core.policies.options import names

_NOT_ALNUM = re.compile(r"[^A-Za-z0-9]+")
_REST_OF_A_WORD = re.compile(r"\A[^\W\d_]+")
#: Words that say that a number is about a thing, not a person.
_OF_A_THING = re.compile(
    r"\b(?:order|invoice|tracking|parcel|ref|reference|sku|isbn|issn|ean|upc|serial|part|version|ticket|case|build|commit"
    r"|model|bug|issue|pr|article|item|product|transaction|txn|batch|lot|po|rfc|port|pid|size|price|total|amount|timestamp"
    r"|doi|arxiv|cas|hash|checksum|checksums)(?:\s(?:no|number|num|id|code))?\.?[\s#:=\"'_-]{0,4}$",
    re.IGNORECASE,
)
_PHONE_WORD = re.compile(
    r"(?<![A-Za-z])(?:phones?|tele?(?:phone|fon)?|mobile|cell(?:phone)?|handy|fax|desk|landline|call(?:ing|ed|s)?|dial(?:ing)?|ring|sms|texted"
    r"|whatsapp|signal|reach|answering|hotline|móvil|rufnummer|tél|téléphone|telefono|teléfono|telefoon|contact[_ ]number)"
    r"(?:number|num|no|nr)?(?![a-z])",
    re.IGNORECASE,
)


def _word(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)


def _bare(text: str) -> str:
    return _NOT_ALNUM.sub("", text).upper()


def _words_before(text: str, start: int, characters: int = CONTEXT) -> str:
    """What stands before ``start``, names taken apart into words, without a word whose beginning is too far away."""
    left = left_of(text, start, characters)
    if len(left) < start and text[start - len(left) - 1].isalpha():
        left = _REST_OF_A_WORD.sub("", left)
    return left.replace("_", " ")


def check_of(row: Mapping[str, Any]) -> Check | None:
    """The check of one row of ``pii.yaml``."""
    if "check" in row:
        return _BY_NAME[row["check"]]
    if "valid_as_written" in row:
        as_written = _number_check(row["valid_as_written"])
        return lambda text, start, end: end if as_written(text[start:end]) else None
    if {"valid", "context", "unless_thing"}.isdisjoint(row):
        return None
    valid = _number_check(row["valid"]) if "valid" in row else None
    context = _word(row["context"]) if "context" in row else None
    of_a_thing, shorter = row.get("unless_thing", False), row.get("shorter", False)
    digits, near = row.get("digits", 0), row.get("near", 48 if "digits" in row else CONTEXT)

    def check(text: str, start: int, end: int) -> int | None:
        left = _words_before(text, start, near)
        if (context is not None and context.search(left) is None) or (of_a_thing and _OF_A_THING.search(left)):
            return None
        if sum(c.isdigit() for c in text[start:end]) < digits:
            return None
        while end > start:
            if valid is None or valid(_bare(text[start:end])):
                return end
            gap = max(text.rfind(" ", start, end), text.rfind("-", start, end)) if shorter else start
            end = max(gap, start)
        return None

    return check


def _number_check(name: str) -> Callable[[str], bool]:
    """A function of `check_digits` or `national_ids` by its name."""
    return getattr(national_ids if hasattr(national_ids, name) else check_digits, name)


_FILES = frozenset(names("png jpg jpeg gif svg webp css js ts json html xml yaml yml toml txt pdf service local git"))


def _email(text: str, start: int, end: int) -> int | None:
    value = text[start:end].lower()
    if value.rpartition(".")[2] in _FILES or value.startswith("git@") or value.startswith(".") or ".." in value:
        return None
    left = left_of(text, start)
    # user:password@host in a URL is not an address
    return None if re.search(r"://[^\s/]*$", left) and not left.lower().endswith("mailto:") else end


_INTERNATIONAL = re.compile(r"(?:\+|00)[1-9(]")
_NORTH_AMERICAN = re.compile(
    r"(?:1[-. ]?)?(?:\([2-9]\d{2}\)[-. ]?|[2-9]\d{2}[-. ])[2-9]\d{2}[-. ]\d{4}(?:\s?x\d{1,6})?", re.IGNORECASE
)
#: A national number with its trunk prefix, in groups.
_TRUNK = re.compile(
    r"01[5-7]\d[ /-]\d{7,8}|07[1-9]\d\d[ -]\d{6}|\(?0[1-9]\d{0,3}\)?(?:[ /-]\(?\d{2,4}\)?){2,4}|\(0[1-9]\d{0,3}\)[ -]?\d{5,8}"
)
_BRAZILIAN = re.compile(r"\([1-9]\d\) ?9?[2-9]\d{3}-\d{4}")
_PHONE_GIVEN = re.compile(
    r"(?:phone|mobile|tel|fax|whatsapp|sms|msisdn)(?:\s?(?:number|no|nr))?\s?=\s?$", re.IGNORECASE
)
#: A day with its year, before an hour: ``09/11/2019 00`` of ``09/11/2019 00:27``.
_DATE = re.compile(r"(?:0?[1-9]|[12]\d|3[01])([ /.-])(?:0?[1-9]|1[0-2])\1(?:19|20)\d\d(?!\d)")
_PHONE_TAG = re.compile(r"-(?:office|fax|mobile|home|work|cell|phone|desk)\b", re.IGNORECASE)


def _phone(text: str, start: int, end: int) -> int | None:
    value = text[start:end]
    digits = _bare(value).partition("X")[0]
    if not 7 <= len(digits) <= 15 or not digits.isdigit() or len(set(digits)) < 3 or _DATE.match(value):
        return None
    left = _words_before(text, start, 40)
    if left and re.search(r"[\d,/=]\s?$|\.$|[^A-Za-z]\.\s$|[€$£]\s?$", left[-3:]) and not _PHONE_GIVEN.search(left):
        return None
    shaped = (
        (len(digits) >= 9 and _INTERNATIONAL.match(value))
        or _NORTH_AMERICAN.fullmatch(value)
        or (9 <= len(digits) <= 12 and _TRUNK.fullmatch(value))
        or _BRAZILIAN.fullmatch(value)
    )
    if not (shaped or _PHONE_WORD.search(left) or _PHONE_TAG.match(text, end)) or _OF_A_THING.search(left):
        return None
    return end


#: A slice of Python, as in ``[1::2]``, rather than an address.
_SLICE = re.compile(r"\d{0,2}::\d{1,2}")
_RESOLVERS = frozenset({"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9"})


def _ip(text: str, start: int, end: int) -> int | None:
    if re.search(
        r"(?:version|release|v|ver|build|firmware|driver|assembly|==|>=|~=|@|section|§|chapter)[\s:=\"']{0,3}$",
        left_of(text, start, 16),
        re.IGNORECASE,
    ) or text.endswith(".0.0.0", start, end):  # a network, or what browsers call their version
        return None
    try:
        address = ipaddress.ip_address(text[start:end])
    except ValueError:
        return None
    if _SLICE.fullmatch(text, start, end) is not None:
        return None
    return end if address.is_global and not address.is_multicast and text[start:end] not in _RESOLVERS else None


_BY_NAME: Final[Mapping[str, Check]] = {"email": _email, "phone": _phone, "ip_address": _ip}
