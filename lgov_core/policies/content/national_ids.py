"""Checks of further national numbers: Asia, the Americas, northern and eastern Europe. As `check_digits`."""

from __future__ import annotations

import datetime
from typing import Final

from lgov_core.policies.content.check_digits import se_personnummer, weighted_sum

_FINNISH = "0123456789ABCDEFHJKLMNPRSTUVWXY"
#: Taiwan's letters in the order of the numbers from 10 on that they stand for.
_TAIWANESE: Final = "ABCDEFGHJKLMNPQRSTUVXYWZIO"
_CURP = "0123456789ABCDEFGHIJKLMN\u00d1OPQRSTUVWXYZ"


def _a_date(year: str, month: str, day: str) -> bool:
    """Whether it is one in any century that counts; two digits of a year are read as 20xx, which has every 29 February."""
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
