"""PIIPolicy: personal data stays out of actions and results."""

from __future__ import annotations

from typing import ClassVar

from lgov_core.policies.content.content import ContentPolicy
from lgov_core.policies.content.findings import Pattern
from lgov_core.policies.content.pattern_file import load_patterns


class PIIPolicy(ContentPolicy):
    """Denies actions that hold personal data, or takes it out, in both directions.

    Finds e-mail addresses, phone numbers, payment cards, bank accounts (IBAN), US social security numbers, national ids
    of some twenty countries, public IP and MAC addresses, wallets, and, where a word before them says so, passport and
    driving licence numbers, bank accounts, medical records and dates of birth. Numbers that carry a check must pass it.
    See `ContentPolicy` for where it looks and what the options mean; ``allow`` is for what may pass, such as
    ``*@example.org``.

    Does not find names, postal addresses, ages or professions: those cannot be determined by their shape.
    """

    slug: ClassVar[str] = "pii"
    usual_name: ClassVar[str] = "pii"
    noun: ClassVar[str] = "personal data"

    @classmethod
    def patterns(cls) -> tuple[Pattern, ...]:
        """See `ContentPolicy.patterns`."""
        from lgov_core.policies.content import pii_checks

        return load_patterns("pii.yaml", pii_checks.check_of)
