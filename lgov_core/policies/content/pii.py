"""PIIPolicy: personal data stays out of actions and results."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from lgov_core.governor.options import names
from lgov_core.policies.content import check_digits
from lgov_core.policies.content.content import ContentPolicy
from lgov_core.policies.content.findings import CONTEXT, Check, left_of
from lgov_core.policies.data import DataFile

_re = DataFile("lgov_core.policies.content", "pii_formats.yaml").pattern


def _word(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)


def _bare(text: str) -> str:
    return _re("not_alnum").sub("", text).upper()


def _words_before(text: str, start: int, characters: int = CONTEXT) -> str:
    """The text before ``start``, names taken apart into words, without a word whose beginning is too far away."""
    before = left_of(text, start, characters)
    if len(before) < start and text[start - len(before) - 1].isalpha():
        before = _re("rest_of_a_word").sub("", before)
    return before.replace("_", " ")


def check_of(row: Mapping[str, Any]) -> Check | None:
    """The check of one row of ``pii_formats.yaml``."""
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
        before = _words_before(text, start, near)
        if (context is not None and context.search(before) is None) or (
            of_a_thing and _re("of_a_thing").search(before)
        ):
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
    """A function of `check_digits` by its name."""
    return getattr(check_digits, name)


_FILES = frozenset(names("png jpg jpeg gif svg webp css js ts json html xml yaml yml toml txt pdf service local git"))


def _email(text: str, start: int, end: int) -> int | None:
    value = text[start:end].lower()
    if value.rpartition(".")[2] in _FILES or value.startswith("git@") or value.startswith(".") or ".." in value:
        return None
    before = left_of(text, start)
    # user:password@host in a URL is not an address
    return None if re.search(r"://[^\s/]*$", before) and not before.lower().endswith("mailto:") else end


def _phone(text: str, start: int, end: int) -> int | None:
    value = text[start:end]
    digits = _bare(value).partition("X")[0]
    if not 7 <= len(digits) <= 15 or not digits.isdigit() or len(set(digits)) < 3 or _re("date").match(value):
        return None
    before = _words_before(text, start, 40)
    if (
        before
        and re.search(r"[\d,/=]\s?$|\.$|[^A-Za-z]\.\s$|[€$£]\s?$", before[-3:])
        and not _re("phone_given").search(before)
    ):
        return None
    shaped = (
        (len(digits) >= 9 and _re("international").match(value))
        or _re("north_american").fullmatch(value)
        or (9 <= len(digits) <= 12 and _re("trunk").fullmatch(value))
        or _re("brazilian").fullmatch(value)
    )
    if not (shaped or _re("phone_word").search(before) or _re("phone_tag").match(text, end)) or _re(
        "of_a_thing"
    ).search(before):
        return None
    return end


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
    if _re("slice").fullmatch(text, start, end) is not None:
        return None
    return end if address.is_global and not address.is_multicast and text[start:end] not in _RESOLVERS else None


_BY_NAME: Final[Mapping[str, Check]] = {"email": _email, "phone": _phone, "ip_address": _ip}


class PIIPolicy(ContentPolicy):
    """Denies actions that contain personal data, or takes the data out, in both directions.

    Finds e-mail addresses, phone numbers, payment cards, bank accounts (IBAN), US social security numbers, national ids
    of some twenty countries, public IP and MAC addresses and wallets; and, after a word that says so, passport and driving
    licence numbers, bank accounts, medical records and dates of birth. Numbers with check digits must be valid. Does not
    find names, postal addresses, ages or professions, which have no form.

    Looks at the text and at the arguments, at any depth, keys included. ``action`` is ``deny``, or ``redact``: each value is
    replaced by its kind in brackets. ``kinds`` are the kinds to look for (all unless given). ``allow`` are globs for values
    that may pass, such as ``*@example.org``. An action of more than ``max_characters`` is denied.
    """

    slug = "pii"
    usual_name = "pii"
    check_of = staticmethod(check_of)
    noun = "personal data"
