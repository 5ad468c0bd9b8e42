"""PIIPolicy: personal data stays out of actions and results. Numbers that carry their own check must pass it."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lgov_core.governor.options import DataFile, names
from lgov_core.policies.content import pii as check_digits
from lgov_core.policies.content.content import CONTEXT, Check, ContentPolicy, left_of

_DATA: Final = DataFile("lgov_core.policies.content", "pii_formats.yaml")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_CF_ODD_OF_DIGIT = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21)
_CF_ODD_OF_LETTER = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_CF_ODD = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", _CF_ODD_OF_DIGIT + _CF_ODD_OF_LETTER, strict=True))


def luhn(digits: str) -> bool:
    """The check of payment cards and of several national numbers."""
    total = 0
    for at, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + at % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _issued(digits: str) -> bool:  # the ranges that card networks have
    two, three, four, length = int(digits[:2]), int(digits[:3]), int(digits[:4]), len(digits)
    if digits[0] == "4":
        return length in (13, 16, 19)
    if two in (34, 37):
        return length == 15
    if 51 <= two <= 55 or 2221 <= four <= 2720 or 2200 <= four <= 2205 or four == 9792:
        return length == 16
    if two in (36, 38, 39) or 300 <= three <= 305:
        return 14 <= length <= 19
    if four == 6011 or two == 65 or 644 <= three <= 649 or two == 62 or 3528 <= four <= 3589:
        return 16 <= length <= 19
    return (two in (50, 60, 61, 63, 67) or 56 <= two <= 58) and length in (16, 18, 19)


def payment_card(digits: str) -> bool:
    """A card number: a network's range and length, and the Luhn check."""
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and _issued(digits) and luhn(digits)


def iban(value: str) -> bool:
    """An account number with its country's length and the check mod 97."""
    if _DATA.content["iban_lengths"].get(value[:2]) != len(value) or not value.isalnum() or not value.isascii():
        return False
    return int("".join(str(int(c, 36)) for c in value[4:] + value[:4])) % 97 == 1


def iban_at_start(text: str) -> str | None:
    """The account number with which ``text`` begins, or None."""
    number = text[: _DATA.content["iban_lengths"].get(text[:2], 0)]
    return number if iban(number) else None


def us_ssn(digits: str) -> bool:
    """A US social security number in the ranges that are given out, or a taxpayer number of a person (ITIN)."""
    area, group, serial = int(digits[:3]), int(digits[3:5]), int(digits[5:])
    if area >= 900:
        return serial > 0 and (50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or 94 <= group <= 99)
    return area not in (0, 666) and group > 0 and serial > 0


def weighted_sum(digits: str, weights: Iterable[int]) -> int:
    """The sum of all digits, each times its weight."""
    return sum(int(d) * w for d, w in zip(digits, weights, strict=True))


def weighted(weights: tuple[int, ...], modulus: int = 11) -> Callable[[str], bool]:
    """A check that the weighted sum of all digits is a multiple of ``modulus``."""

    def check(digits: str) -> bool:
        return weighted_sum(digits, weights) % modulus == 0 and len(set(digits)) > 1

    return check


nl_bsn = weighted((9, 8, 7, 6, 5, 4, 3, 2, -1))
pl_pesel = weighted((1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1), 10)
au_tfn = weighted((1, 4, 3, 7, 5, 8, 6, 9, 10))
ean13 = weighted((1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1), 10)


def uk_nhs(digits: str) -> bool:
    """A number of the British health service: 10 digits."""
    rest = 11 - weighted_sum(digits[:9], range(10, 1, -1)) % 11
    return rest != 10 and rest % 11 == int(digits[9])


def es_dni(value: str) -> bool:
    """A Spanish identity number, of a national or a resident."""
    number = value[:-1].translate(str.maketrans("XYZ", "012"))
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == value[-1]


def de_steuer_id(digits: str) -> bool:
    """A German tax number: 11 digits, ISO 7064 mod 11,10."""
    product = 10
    for digit in digits[:10]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return digits[0] != "0" and (11 - product) % 10 == int(digits[10]) and len(set(digits[:10])) < 10


def fr_nir(value: str) -> bool:
    """A French social security number with its key: 15 places, Corsica's letters included."""
    number = value[:13].replace("2A", "19").replace("2B", "18")
    return number.isdigit() and 97 - int(number) % 97 == int(value[13:])


def it_codice_fiscale(value: str) -> bool:
    """An Italian tax code: 16 letters and digits, the last a check."""
    total = sum(_CF_ODD[c] for c in value[0:15:2]) + sum(
        int(c, 36) if c.isdigit() else ord(c) - 65 for c in value[1:15:2]
    )
    return chr(65 + total % 26) == value[15]


def br_cpf(digits: str) -> bool:
    """A Brazilian personal number: 11 digits, two of them checks."""
    for length in (9, 10):
        if weighted_sum(digits[:length], range(length + 1, 1, -1)) * 10 % 11 % 10 != int(digits[length]):
            return False
    return len(set(digits)) > 1


def in_aadhaar(digits: str) -> bool:
    """An Indian identity number: 12 digits with a Verhoeff check."""
    multiply, permute = _DATA.content["verhoeff_multiply"], _DATA.content["verhoeff_permute"]
    check = 0
    for at, digit in enumerate(reversed(digits)):
        check = int(multiply[check][int(permute[at % 8][int(digit)])])
    return check == 0 and digits[0] not in "01"


def be_rrn(digits: str) -> bool:
    """A Belgian register number: 11 digits, the last two a check mod 97."""
    return int(digits[9:]) in (97 - int(digits[:9]) % 97, 97 - int("2" + digits[:9]) % 97)


def sg_nric(value: str) -> bool:
    """A Singaporean identity number: a letter, 7 digits, a letter."""
    total = weighted_sum(value[1:8], (2, 7, 6, 5, 4, 3, 2)) + 4 * (value[0] in "TG")
    return ("JZIHGFEDCBA" if value[0] in "ST" else "XWUTRQPNMLK")[total % 11] == value[8]


def se_personnummer(value: str) -> bool:
    """A Swedish personal number, of 10 or 12 digits: a date, a serial and a Luhn check."""
    digits = value[-10:]
    return 1 <= int(digits[2:4]) <= 12 and 1 <= int(digits[4:6]) % 60 <= 31 and luhn(digits)


def base58_checked(value: str, lengths: tuple[int, ...]) -> bool:
    """Base58 of one of ``lengths`` bytes, of which the last four are the double SHA-256 of those before."""
    number = 0
    for c in value:
        number = number * 58 + _BASE58.index(c)
    data = number.to_bytes((number.bit_length() + 7) // 8)
    data = bytes(max(0, min(lengths) - len(data))) + data
    return len(data) in lengths and hashlib.sha256(hashlib.sha256(data[:-4]).digest()).digest()[:4] == data[-4:]


def base58_wallet(value: str) -> bool:
    """A Bitcoin address of the older form."""
    return base58_checked(value, (25,))


def bech32_wallet(value: str) -> bool:
    """A Bitcoin address of the newer form (BIP 173, BIP 350)."""
    prefix, _, data = value.lower().rpartition("1")
    values = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix] + [_BECH32.find(c) for c in data]
    if -1 in values:
        return False
    check = 1
    for item in values:
        top, check = check >> 25, (check & 0x1FFFFFF) << 5 ^ item
        for bit, generator in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            check ^= generator if top >> bit & 1 else 0
    return check in (1, 0x2BC830A3)


_FINNISH = "0123456789ABCDEFHJKLMNPRSTUVWXY"
#: Taiwan's letters in the order of the numbers from 10 on that they stand for.
_TAIWANESE: Final = "ABCDEFGHJKLMNPQRSTUVXYWZIO"
_CURP = "0123456789ABCDEFGHIJKLMN\u00d1OPQRSTUVWXYZ"


def _a_date(year: str, month: str, day: str) -> bool:
    """Returns whether it is a date in a century that counts; a two-digit year is read as 20xx, which has every 29 February."""
    try:
        datetime.date(int(year) if len(year) == 4 else 2000 + int(year), int(month), int(day))
    except ValueError:
        return False
    return True


def cn_id(value: str) -> bool:
    """A Chinese identity number: 17 digits with a date in them, and a digit or X."""
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return (
        value[6:8] in ("18", "19", "20")
        and _a_date(value[6:10], value[10:12], value[12:14])
        and "10X98765432"[weighted_sum(value[:17], weights) % 11] == value[17]
    )


def kr_rrn(digits: str) -> bool:
    """A Korean resident number: a date, then seven digits. Those given out since 2020 have no check digit."""
    return digits[6] in "12345678" and _a_date(digits[:2], digits[2:4], digits[4:6])


def my_kad(digits: str) -> bool:
    """A Malaysian identity number: a date and six digits, two of which are a place."""
    return _a_date(digits[:2], digits[2:4], digits[4:6]) and digits[6:8] not in ("00", "17", "18", "19", "20")


def th_id(digits: str) -> bool:
    """A Thai identity number: 13 digits."""
    return (11 - weighted_sum(digits[:12], range(13, 1, -1)) % 11) % 10 == int(digits[12])


def tw_id(value: str) -> bool:
    """A Taiwanese identity number: a letter, 1 or 2 (8 or 9 for residents), eight digits."""
    number = _TAIWANESE.index(value[0]) + 10
    return (number // 10 + number % 10 * 9 + weighted_sum(value[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1))) % 10 == 0


def fi_hetu(value: str) -> bool:
    """A Finnish identity code, with a letter for its century or without: a date, three digits, a check character."""
    value = value if len(value) == 10 else value[:6] + value[7:]
    return _a_date(value[4:6], value[2:4], value[:2]) and _FINNISH[int(value[:6] + value[-4:-1]) % 31] == value[-1]


def mx_curp(value: str) -> bool:
    """A Mexican population code: 18 letters and digits, a date in them."""
    total = sum(_CURP.index(c) * (18 - at) for at, c in enumerate(value[:17]))
    return _a_date(value[4:6], value[6:8], value[8:10]) and (10 - total % 10) % 10 == int(value[17])


def cl_rut(value: str) -> bool:
    """A Chilean number: seven or eight digits and a digit or K."""
    total = sum(int(d) * (2 + at % 6) for at, d in enumerate(reversed(value[:-1])))
    return "0K987654321"[total % 11] == value[-1]


def ar_cuil(digits: str) -> bool:
    """An Argentine personal number: 11 digits."""
    return digits[:2] in ("20", "23", "24", "27") and weighted_sum(digits, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0


def cz_rc(digits: str) -> bool:
    """A Czech or Slovak birth number of ten digits: a date (women's months are 50 later), and a multiple of 11."""
    month = int(digits[2:4])
    month -= 70 if month > 70 else 50 if month > 50 else 20 if month > 20 else 0
    return _a_date(digits[:2], str(month), digits[4:6]) and int(digits) % 11 == 0


def ru_snils(digits: str) -> bool:
    """A Russian insurance number: nine digits and a check of two."""
    return weighted_sum(digits[:9], (9, 8, 7, 6, 5, 4, 3, 2, 1)) % 101 % 100 == int(digits[9:])


def us_mbi(value: str) -> bool:
    """A number of US Medicare, which uses no letter that looks like a digit."""
    return not set("SLOIBZ") & set(value)


def se_personnummer_of_a_person(value: str) -> bool:
    """A Swedish personal number that is not a day of these years with a time of that day, as in names of files."""
    moment = len(value) == 12 and value[:4] > "2015" and value[8:10] < "24" and value[10:] < "60"
    return se_personnummer(value) and not moment


def mrz(value: str) -> bool:
    """The second line of a passport's machine-readable zone: number, birth and expiry with their check digits."""

    def holds(field: str, check: str) -> bool:
        total = sum((0 if c == "<" else int(c, 36)) * (7, 3, 1)[at % 3] for at, c in enumerate(field))
        return str(total % 10) == check

    return holds(value[:9], value[9]) and holds(value[13:19], value[19]) and holds(value[21:27], value[27])


_re = DataFile("lgov_core.policies.content", "pii_formats.yaml").pattern


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
    words = row.get("context")
    context = re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE) if words is not None else None
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
