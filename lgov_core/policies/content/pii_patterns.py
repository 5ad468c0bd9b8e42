"""What personal data looks like: one table, a row a shape.

A number is only taken for personal data when its check digits hold, or when a word before it says what it is. No shape
goes on over more than one space, and `lgov_core.policies.content.streaming_redactor` relies on what the words of such a shape look like.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from lgov_core.policies.content import check_digits as checks
from lgov_core.policies.content import national_ids as ids
from lgov_core.policies.content.findings import CONTEXT, Check, Pattern, left_of

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
_MONTHS = r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"


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


def _checked(
    valid: Callable[[str], bool],
    context: re.Pattern[str] | None = None,
    unless: re.Pattern[str] | None = None,
    *,
    shorter: bool = False,
) -> Check:
    """What is ``valid`` without its separators; with ``shorter``, read to the end or to the end of an earlier group."""

    def check(text: str, start: int, end: int) -> int | None:
        left = _words_before(text, start)
        if (context is not None and context.search(left) is None) or (unless is not None and unless.search(left)):
            return None
        while end > start:
            if valid(_bare(text[start:end])):
                return end
            if not shorter:
                return None
            gap = max(text.rfind(" ", start, end), text.rfind("-", start, end))
            end = gap if gap > start else start
        return None

    return check


def _shape(body: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9])(?:{body})(?![A-Za-z0-9])", flags)


def _national(body: str, valid: Callable[[str], bool], context: str | None = None, *hints: str) -> Pattern:
    check = _checked(valid, _word(context)) if context else _checked(valid, unless=_OF_A_THING)
    return Pattern("national_id", _shape(body, re.IGNORECASE), hints, check)


def _is_a_moment(digits: str) -> bool:
    """Whether twelve digits are a day of these years and a time of that day, as names of files and builds have them."""
    return len(digits) == 12 and digits[:4] > "2015" and digits[8:10] < "24" and digits[10:] < "60"


def _said(kind: str, body: str, context: str, *hints: str, digits: int = 0, near: int = 48) -> Pattern:
    """A value of which only the words before it say what it is."""
    words = _word(context)

    def check(text: str, start: int, end: int) -> int | None:
        enough = sum(c.isdigit() for c in text[start:end]) >= digits
        return end if enough and words.search(_words_before(text, start, near)) else None

    return Pattern(kind, _shape(body, re.IGNORECASE), hints, check)


_FILES = ("png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "ts", "json", "html", "xml", "yaml", "yml", "toml", "txt", "pdf", "service", "local", "git")  # fmt: skip


def _email(text: str, start: int, end: int) -> int | None:
    value = text[start:end].lower()
    if value.rpartition(".")[2] in _FILES or value.startswith("git@") or value.startswith(".") or ".." in value:
        return None
    left = left_of(text, start)
    # user:password@host in a URL is no address
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


_LOCAL = r"(?<![\w.%+-])[\w.%+-][\w.%+'-]{0,63}"
#: An at sign between spaces also multiplies matrices (``a @ b.T``) and names firms (``us @ acme.com``): there the host is
#: one that people have their mail at, or is spelt out.
_MAIL_HOSTS = (
    "(?:g(?:oogle)?mail|yahoo|ymail|hotmail|outlook|live|msn|icloud|aol|gmx|web|proton(?:mail)?|mail|yandex|qq|163"
    "|fastmail|zoho)"
)
_SPOKEN_ENDINGS = "com|org|net|edu|gov|mil|io|eu|de|fr|ch|nl|uk|ru|pl|se|dk|be|ca|au|br|jp|cn|kr"

PATTERNS: Final[tuple[Pattern, ...]] = (
    Pattern("email", re.compile(r"(?:(?<![\w.%+-])[\w.%+-][\w.%+'-]{0,63}|\"[\w.%+'-]{1,64}\")(?:@|\[at\]|\(at\))(?:(?:[^\W_][\w-]{0,62}(?:\.|\[dot\]|\(dot\))){1,8}[^\W\d_]{2,24}(?![\w-])|\[(?:\d{1,3}\.){3}\d{1,3}\])", re.I), ("@", "[at]", "(at)"), _email),
    Pattern("email", re.compile(rf"{_LOCAL}(?:[\[({{<]at[\])}}>]| [\[({{<]at[\])}}>] )(?:[^\W_][\w-]{{0,62}}(?:\.| ?[\[({{<]dot[\])}}>] ?| dot )){{1,8}}[^\W\d_]{{2,24}}(?![\w-])", re.I), ("[at]", "(at)", "{at}", "<at>"), _email),
    Pattern("email", re.compile(rf"{_LOCAL}(?:(?: @ ?|@ )(?={_MAIL_HOSTS}\.|[\w-]{{1,63}}(?: \. | dot ))| at (?!the )(?=[\w-]{{1,63}} dot ))(?:[^\W_][\w-]{{0,62}}(?:\.| \. | dot )){{1,8}}(?:{_SPOKEN_ENDINGS})(?![\w.-]\w)", re.I), (" @", "@ ", " dot "), _email),
    Pattern("credit_card", re.compile(r"(?<![A-Za-z0-9])(?<!(?<!\d)\d )\d(?: \d){12,18}(?! \d(?!\d))(?![A-Za-z0-9])"), (), _checked(checks.payment_card)),
    Pattern("credit_card", re.compile(r"(?<![A-Za-z0-9])(?<!\d[.,])\d{4}(?:[ -](?:\d[ -]?){8,14}\d|\d{9,15})(?![A-Za-z0-9])"), (), _checked(checks.payment_card, shorter=True)),
    Pattern("credit_card", re.compile(r"(?<![A-Za-z0-9])(?<!\d[.,])\d{5,8}(?:[ -]?\d){5,14}(?![A-Za-z0-9])"), ("card", "credit", "debit", "visa", "amex", "maestro", "cc"), _checked(checks.payment_card, _word(r"cards?(?:\s(?:number|no|#))?|credit|debit|visa|amex|master ?card|maestro|cc|pan"), shorter=True)),
    Pattern("credit_card", re.compile(r"(?<![A-Za-z0-9])(?<!\d[.,])\d{4}[._/]\d{4}[._/]\d{4}[._/]\d{1,7}(?![A-Za-z0-9])"), (), _checked(checks.payment_card)),
    Pattern("credit_card", re.compile(r"(?<![A-Za-z0-9])[1-9]\d{11,18}(?![A-Za-z0-9])"), ("card", "credit", "debit", "maestro", "cc"), _checked(checks.luhn, _word(r"cards?(?:\s(?:number|no|#))?|credit|debit|maestro|cc|pan"))),
    Pattern("iban", _shape(r"[A-Z]{2}[ -]?\d{2}(?:[ -]?[A-Z0-9]){11,30}", re.I), (), _checked(checks.iban, shorter=True)),
    Pattern("us_ssn", re.compile(r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"), ("-",), _checked(checks.us_ssn, None, _OF_A_THING)),
    Pattern("us_ssn", re.compile(r"(?<![\w-])\d{3}[ .]?\d{2}[ .]?\d{4}(?![\w-])"), ("ssn", "social", "itin", "taxpayer"), _checked(checks.us_ssn, _word(r"ssn|social security(?:\s(?:number|no))?|social|itin|taxpayer"))),
    # Not the end of 1.38435736E+12.
    _national(r"\d{8}[ -]?[A-Z](?!(?<=E)[+-]\d)|[XYZ][ -]?\d{7}[ -]?[A-Z]", checks.es_dni),
    _national(r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", lambda value: len(value) == 9),
    _national(r"[1-37-8] ?\d{2} ?(?:0[1-9]|[1-9]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", checks.fr_nir),
    _national(r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]", checks.it_codice_fiscale),
    _national(r"\d{3}\.\d{3}\.\d{3}-\d{2}", checks.br_cpf),
    _national(r"\d{11}", checks.br_cpf, r"cpf", "cpf"),
    _national(r"\d{9}|\d{4}[. ]\d{2}[. ]\d{3}", checks.nl_bsn, r"bsn|burgerservicenummer|sofi(?:nummer)?", "bsn", "burgerservice", "sofi"),
    _national(r"\d{2} ?\d{3} ?\d{3} ?\d{3}", checks.de_steuer_id, r"steuer[ -]?id\w*|steueridentifikations\w*|steuernummer|idnr|tin|tax id", "steuer", "idnr", "tin", "tax"),
    _national(r"\d{2} ?[0-3]\d[01]\d{3} ?[A-Z] ?\d{3}", lambda value: len(value) == 12, r"(?:sozial|renten)?versicherungsn(?:umme)?r|svn[ru]|rvn[ru]", "versicherungsn", "svn", "rvn"),
    _national(r"\d{3} ?\d{3} ?\d{4}", checks.uk_nhs, r"nhs", "nhs"),
    _national(r"(?<!\d[ -])\d{4} \d{4} \d{4}(?![ -]?\d)", checks.in_aadhaar),
    _national(r"\d{4}-?\d{4}-?\d{4}", checks.in_aadhaar, r"aadhaar|aadhar|uidai", "aadha", "uidai"),
    _national(r"[A-Z]{3}[PCHFATBLJG][A-Z]\d{4}[A-Z]", lambda value: len(value) == 10, r"pan", "pan"),
    _national(r"\d{11}", checks.pl_pesel, r"pesel", "pesel"),
    _national(r"(?:19|20)?\d{6}[-+]\d{4}", lambda value: checks.se_personnummer(value) and not _is_a_moment(value)),
    _national(r"20\d{6}-\d{4}", checks.se_personnummer, r"person(?:nummer|nr)|pnr|born|född", "person", "pnr", "born", "föd"),
    _national(r"\d{3}[ -]?\d{3}[ -]?\d{3}", checks.luhn, r"sin|social insurance(?:\snumber)?", "sin", "social insurance"),
    _national(r"\d{3} ?\d{3} ?\d{3}", checks.au_tfn, r"tfn|tax file(?:\snumber)?", "tfn", "tax file"),
    _national(r"756\.\d{4}\.\d{4}\.\d{2}", checks.ean13),
    _national(r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", checks.be_rrn),
    _national(r"\d{6}[ .-]?\d{3}[ .-]?\d{2}", checks.be_rrn, r"num[ée]ro national|registre national|rijksregister\w*|insz|niss|nrn", "national", "rijksregister", "insz", "niss", "nrn"),
    _national(r"[STFG]\d{7}[A-Z]", checks.sg_nric),
    _national(r"\d{17}[\dX]", ids.cn_id),
    _national(r"\d{6}-[1-8]\d{6}", ids.kr_rrn),
    _national(r"\d{6}-\d{2}-\d{4}", ids.my_kad),
    _national(r"\d-\d{4}-\d{5}-\d{2}-\d", ids.th_id),
    _national(r"[A-Z][1289]\d{8}", ids.tw_id),
    _national(r"\d{6}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y]", lambda value: ids.fi_hetu(value if len(value) == 10 else value[:6] + value[7:])),
    _national(r"[A-Z]{4}\d{6}[HMX][A-Z]{5}[A-Z0-9]\d", ids.mx_curp),
    _national(r"\d{1,2}\.\d{3}\.\d{3}-[\dK]", ids.cl_rut),
    _national(r"\d{7,8}-[\dK]", ids.cl_rut, r"rut|run", "rut", "run"),
    _national(r"\d{2}-\d{8}-\d", ids.ar_cuil),
    _national(r"\d{11}", ids.ar_cuil, r"cuil|cuit", "cuil", "cuit"),
    _national(r"\d{6}/\d{4}", ids.cz_rc),
    _national(r"\d{3}-\d{3}-\d{3} \d{2}", ids.ru_snils),
    _national(r"[1-9][A-Z][A-Z0-9]\d-[A-Z][A-Z0-9]\d-[A-Z]{2}\d{2}", lambda value: not set("SLOIBZ") & set(value)),
    _national(r"\d{7}[A-W][A-I]?", lambda value: len(value) in (8, 9), r"ppsn?|pps (?:number|no)", "pps"),
    Pattern("passport", re.compile(r"(?<![A-Z0-9<])[A-Z0-9<]{9}\d[A-Z<]{3}\d{7}[MFX<]\d{7}[A-Z0-9<]{14}\d{1,2}(?![A-Z0-9<])"), (), lambda text, start, end: end if ids.mrz(text[start:end]) else None),
    _said("national_id", r"\d(?:[ ./-]?\d){7,12}|\d{15,16}", r"fødselsnummer|personnummer|cpr(?:[ -]?(?:number|nr|nummer))?|cnp|kimlik(?: no)?|nif|contribuinte|mykad|nric|my ?number|マイナンバー|teudat zehut|t\.z\.|ird(?: number)?|egn|егн|oib|isikukood|asmens kodas|svnr|sozialversicherungsnummer|ahv|инн|іпн|рнокпп|снилс|nik|ktp|(?:sa|thai|south african) id|citizen id|henkilötunnus|rodné číslo|身份证|身分證|주민등록번호|個人番号", "fødsels", "personn", "cpr", "cnp", "kimlik", "nif", "contribuinte", "mykad", "nric", "my number", "mynumber", "マイナンバー", "zehut", "t.z.", "ird", "egn", "егн", "oib", "isikukood", "asmens", "svnr", "sozialv", "ahv", "инн", "іпн", "рнокпп", "снилс", "nik", "ktp", " id", "henkilö", "rodné", "身份证", "身分證", "주민", "個人番号", digits=8, near=24),
    _said("national_id", r"[A-Z0-9]{1,4}(?:[-./]?[A-Z0-9]{2,8}){1,4}", r"national (?:id(?:entity|entification)?|insurance)(?: card)?(?: (?:number|no))?|id[ -]card(?: (?:number|no))?|identity card(?: (?:number|no))?|personalausweis(?:nummer)?", "national i", "id card", "id-card", "identity card", "personalausweis", digits=6),
    _said("passport", r"[A-Z]{0,3}\d{5,9}[A-Z]?|[A-Z0-9]{8,9}", r"passports?|passport(?:\s|_)?(?:no|number|num|id)|reisepass\w*|pasaporte|passeport", "pass", "pasaporte", digits=5),
    _said("driver_license", r"[A-Z0-9]{4,13}(?:-[A-Z0-9]{2,10}){0,4}", r"(?:driver'?s?|driving)[ _-]?licen[cs]e|dl(?!\.\w)(?:\s(?:no|number))?|führerschein\w*|permis de conduire", "licen", "dl", "führerschein", "permis", digits=4, near=32),
    _said("bank_account", r"\d{6,17}|\d{2,6}(?:-\d{2,10}){1,3}|\d{2}[ ]\d{2}[ ]\d{2}", r"(?:bank |checking |savings )?account (?:no|number|num|#)|acct(?: no| number)?|routing (?:no|number)|aba|sort code|bank account|kontonummer", "acc", "routing", "aba", "sort code", "konto", digits=6),
    _said("medical_record", r"[A-Z]{0,3}-?\d{5,12}", r"mrn|medical record(?: (?:number|no))?|patient (?:id|number|no)|health (?:card|insurance)(?: (?:number|no))?|medicare(?: (?:number|no))?", "mrn", "medical", "patient", "health", "medicare", digits=5),
    _said("date_of_birth", rf"\d{{1,4}}[./-]\d{{1,2}}[./-]\d{{1,4}}|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTHS}\.?,? \d{{4}}|{_MONTHS}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|(?:19|20)\d{{6}}", r"dob|d\.o\.b|date of birth|birth ?dates?|birth ?day|born|geboren|geburtsdatum|né|née|nacimiento|nacido|birth", "dob", "d.o.b", "birth", "born", "gebor", "geburts", "né", "naci", digits=5),
    Pattern("phone", re.compile(r"(?<![\w.+-])(?:(?:\+|00)[1-9]\d{0,2}(?: ?[-./] ?| )\d(?=[-./ ]\d)|(?:\+|00)?\(?\d{1,15}\)?)(?:(?: ?[-./] ?| )(?:\(\d{1,8}\)|\d{2,8})|\(\d{1,8}\)|(?<=\))\d{1,8}){0,7}(?: ?x\d{1,6})?(?![\w@])", re.I), (), _phone),
    Pattern("ip_address", re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)"), (".",), _ip),
    Pattern("ip_address", re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){2,7}(?::?[0-9A-Fa-f]{1,4}){1,6}(?![\w:])|(?<![\w:])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5}::(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,5})?(?![\w:])"), (":",), _ip),
    Pattern("mac_address", re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}(?![\w:])|(?<![\w:-])[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}(?![\w-])"), (":", "-")),
    Pattern("crypto_wallet", _shape(r"[13][1-9A-HJ-NP-Za-km-z]{25,34}"), (), lambda text, start, end: end if checks.base58_wallet(text[start:end]) else None),
    Pattern("crypto_wallet", _shape(r"bc1[02-9ac-hj-np-z]{11,71}|BC1[02-9AC-HJ-NP-Z]{11,71}"), ("bc1",), lambda text, start, end: end if checks.bech32_wallet(text[start:end]) else None),
    Pattern("crypto_wallet", _shape(r"0x[0-9A-Fa-f]{40}"), ("0x",)),
)  # fmt: skip
