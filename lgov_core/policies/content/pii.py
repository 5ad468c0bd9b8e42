"""PIIPolicy: personal data stays out of actions and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lgov_core.policies.content.content import MAX_CHARACTERS, ContentAction, ContentPolicy
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
    noun: ClassVar[str] = "personal data"

    def __init__(
        self,
        *,
        action: ContentAction = "deny",
        kinds: Sequence[str] | None = None,
        allow: Sequence[str] = (),
        max_characters: int = MAX_CHARACTERS,
        name: str = "pii",
    ) -> None:
        super().__init__(action=action, kinds=kinds, allow=allow, max_characters=max_characters, name=name)

    @classmethod
    def patterns(cls) -> tuple[Pattern, ...]:
        """See `ContentPolicy.patterns`."""
        from lgov_core.policies.content import pii_checks

        return load_patterns("pii.yaml", pii_checks.check_of)
