"""SecretsPolicy: keys, tokens and passwords stay out of actions and results. Names of files that hold such things."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from lgov_core.governor.options import DataFile, names
from lgov_core.policies.content.content import Check, ContentPolicy, left_of
from lgov_core.policies.content.pii import base58_checked
from lgov_core.types import Severity

#: Globs, in lower case. One with a slash is for a name within a folder of the other name.
CREDENTIAL_NAMES: Final = names(
    """
    .ssh .gnupg .aws .azure .kube .docker .password-store .netrc _netrc .pgpass .my.cnf .git-credentials .npmrc
    .pypirc .env .env.* .envrc .vault-token .htpasswd .s3cfg .boto id_rsa* id_dsa* id_ecdsa* id_ed25519*
    authorized_keys *.kdbx *.p12 *.pfx *.jks *.jceks *.bks *.keystore *.ppk *.p8 *.agekey
    login.keychain* credentials.json service-account*.json cookies.sqlite
    secrets.yml secrets.yaml secrets.json .terraformrc wallet.dat key4.db logins.json terraform.tfstate
    .cargo/credentials* .config/gcloud .config/gh .config/rclone *.key privkey*.pem *[-_]key.pem key.pem
    *private*.pem *keypair*.pem secrets.toml *[-_]credentials.json *adminsdk*.json .terraform.d .m2/settings.xml
    kubeconfig .gem/credentials .pulumi
    """
)
#: With those that are no more than likely to hold one: closed for the tools of agents and in boxes, where nothing else is lost.
SECRET_NAMES: Final = (*CREDENTIAL_NAMES, *names("*.env *_history *.pem"))


_DATA: Final = DataFile("lgov_core.policies.content", "secret_formats.yaml")
_re = _DATA.pattern

_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
#: A key of a kind that machines make has at least this many bits a character; English words have about 2.5 to 3.
MIN_BITS = 3.0
MIN_KEY = 12
MIN_PASSWORD = 6


def entropy(text: str) -> float:
    """Shannon entropy in bits a character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values()) if text else 0.0


def is_placeholder(value: str) -> bool:
    """Returns whether ``value`` stands for a secret that is not there."""
    return (
        len(set(value.lower())) <= 2
        or _re("reference").match(value) is not None
        or _re("tag").fullmatch(value) is not None
        or _re("placeholder_word").search(value) is not None
        or value.lower().strip("_-.!") in _DATA.words("no_value")
    )


def not_a_placeholder(text: str, start: int, end: int) -> int | None:
    """A key of a known format, unless it is a placeholder."""
    value = text[start:end]
    tail = value[value.find("_", 2) + 1 :]
    if "_" not in value[2:] or 2 * len(tail) < len(value):  # an underscore late in a key is one of its characters
        tail = value[4:]
    if len(set(tail)) <= 3 or _re("placeholder_in_key").search(value) is not None:
        return None
    return end


def random_looking(text: str, start: int, end: int) -> int | None:
    """A key of a known format whose letters are mixed with digits, as no words are."""
    value = text[start:end]
    if _DIGIT.search(value) is None or entropy(value) < MIN_BITS:
        return None
    return not_a_placeholder(text, start, end)


def machine_key(text: str, start: int, end: int) -> int | None:
    """The value given to something called a key, token or secret."""
    value = text[start:end].rstrip(".,;:!?)]}'\"`")
    if len(value) < MIN_KEY or is_placeholder(value):
        return None
    if _re("file").search(value) is not None:
        return None
    mixed = _DIGIT.search(value) is not None and _LETTER.search(value) is not None
    cased = (
        any(c.islower() for c in value) and any(c.isupper() for c in value) and len(value) >= 20 and " " not in value
    )
    words = re.fullmatch(r"[A-Za-z]+(?:[-_./][A-Za-z0-9]+)*", value) is not None and not mixed
    if words or not (mixed or cased) or entropy(value) < MIN_BITS:
        return None
    return start + len(value)


def password(text: str, start: int, end: int) -> int | None:
    """The value given to something called a password: quoted, or mixed as passwords are."""
    value = _re("next_field").split(text[start:end], maxsplit=1)[0].rstrip(".,;:)]}'\"`")
    if len(value) < MIN_PASSWORD or is_placeholder(value):
        return None
    quoted = start > 0 and text[start - 1] in "\"'" and end < len(text) and text[end] == text[start - 1]
    letters = _LETTER.search(value) is not None
    mixed = letters and (_DIGIT.search(value) is not None or re.search(r"[^\w\s.,:/-]", value) is not None)
    digits = value.isdigit()
    if not (mixed or digits or (quoted and letters and " " not in value)):
        return None
    return start + len(value)


def not_left_out(text: str, start: int, end: int) -> int | None:
    """Accepts any value where a secret belongs, unless it is a placeholder."""
    return None if is_placeholder(text[start:end]) else end


def _named_value(check: Check, text: str, start: int, end: int) -> int | None:
    """Applies ``check`` to a value given to a name, unless the name was given none: the next line names the next."""
    before = left_of(text, start, 8)
    gap = before[len(before.rstrip()) :]
    if ("\n" in gap or len(gap) > 1) and _re("next_name").match(text, start) is not None:
        return None
    return check(text, start, end)


def spoken_password(text: str, start: int, end: int) -> int | None:
    """Finds the value after "password is": a word there is about the password, so letters alone are nothing."""
    value = text[start:end].rstrip(".,;:)]}'\"`")
    if _DIGIT.search(value) is None or _LETTER.search(value) is None:
        return None
    return password(text, start, end)


def url_password(text: str, start: int, end: int) -> int | None:
    """The password in ``scheme://user:password@host``."""
    value = text[start:end]
    user = re.search(r"//([^\s:/@]*):$", left_of(text, start, 80))
    name = user.group(1).lower() if user else ""
    generic = name in _DATA.words("any_user") and value.lower() in _DATA.words("any_password")
    hidden = len(set(value)) <= 2 or "xxxx" in value.lower() or "***" in value
    return None if generic or hidden or _re("reference").match(value) else end


def basic_credentials(text: str, start: int, end: int) -> int | None:
    """The base64 of ``user:password``, as in a Basic authorization."""
    digits = text[start:end].rstrip("=")
    try:
        plain = base64.b64decode(digits + "=" * (-len(digits) % 4)).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return end if ":" in plain[:-1] and plain.isprintable() else None


def bearer_token(text: str, start: int, end: int) -> int | None:
    """The token of a Bearer authorization."""
    value = text[start:end]
    if _DIGIT.search(value) is None or entropy(value) < MIN_BITS or is_placeholder(value):
        return None
    return end


def option_password(text: str, start: int, end: int) -> int | None:
    """The password in ``mysql -psecret`` and its like."""
    return password(text, start, end) if _re("option").search(left_of(text, start)) is not None else None


def session_cookie(text: str, start: int, end: int) -> int | None:
    """The value of a cookie that is called like a session."""
    return machine_key(text, start, end) if _re("cookie").search(left_of(text, start)) is not None else None


def wallet_key(text: str, start: int, end: int) -> int | None:
    """A private key of a wallet in import format: base58 of a version byte, 32 bytes and a double SHA-256's first four."""
    return end if base58_checked(text[start:end], (37, 38)) else None


def check_of(row: Mapping[str, Any]) -> Check | None:
    """The check of one row of ``secret_formats.yaml``: a function of this module."""
    check: Check | None = globals()[row["check"]] if "check" in row else None
    return partial(_named_value, check) if check is not None and "names" in row else check


class SecretsPolicy(ContentPolicy):
    """Denies actions that contain a secret, or takes the secret out, in both directions.

    Finds keys and tokens in the formats of many services, private keys, passwords in URLs, basic and bearer authorization,
    and the value of anything that is called a password, key, token or secret, unless it is a placeholder (``${NAME}``,
    ``<your key>``, ``xxxx``). Does not find a password that nothing calls one.

    Looks at the text and at the arguments, at any depth, keys included. ``action`` is ``deny``, or ``redact``: each value is
    replaced by its kind in brackets. ``kinds`` are the kinds to look for (all unless given). ``allow`` are globs for values
    that may pass. An action of more than ``max_characters`` is denied.
    """

    slug = "secret"
    usual_name = "secrets"
    check_of = staticmethod(check_of)
    noun = "a secret"
    severity = Severity.CRITICAL
