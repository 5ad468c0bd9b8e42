"""PIIPolicy: personal data stays out of actions and results."""

from __future__ import annotations

from lgov_core.policies.content import pii_checks
from lgov_core.policies.content.content import ContentPolicy


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
    check_of = staticmethod(pii_checks.check_of)
    noun = "personal data"
