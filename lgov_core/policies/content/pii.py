"""PIIPolicy: personal data stays out of actions and results."""

from __future__ import annotations

from lgov_core.policies.content import pii_checks
from lgov_core.policies.content.content import ContentPolicy


class PIIPolicy(ContentPolicy):
    """Denies actions that hold personal data, or takes it out, in both directions.

    Finds e-mail addresses, phone numbers, payment cards, bank accounts (IBAN), US social security numbers, national ids
    of some twenty countries, public IP and MAC addresses, wallets, and, where a word before them says so, passport and
    driving licence numbers, bank accounts, medical records and dates of birth. Numbers that carry a check must pass it.
    See `ContentPolicy` for where it looks and what the options mean; ``allow`` is for what may pass, such as
    ``*@example.org``.

    Does not find names, postal addresses, ages or professions: those cannot be determined by their shape.
    """

    slug = "pii"
    usual_name = "pii"
    check_of = staticmethod(pii_checks.check_of)
    noun = "personal data"
