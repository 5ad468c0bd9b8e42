"""Amounts, limits and balances of budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

#: One US dollar. Money is counted in whole billionths of one, so that sums are exact.
NANO: Final = 1_000_000_000

Lack: TypeAlias = Literal["cost", "tokens", "calls", "seconds", "budgets", "closed"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Something to spend: billionths of a US dollar, tokens and calls."""

    nano_usd: int = 0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nano_usd + other.nano_usd, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.nano_usd - other.nano_usd, self.tokens - other.tokens, self.calls - other.calls)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a budget may spend; None means no limit. ``seconds`` since its first action."""

    nano_usd: int | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None

    def lack(self, total: Amount, elapsed_s: float) -> Lack | None:
        """What there would not be enough of, or None."""
        if self.seconds is not None and elapsed_s >= self.seconds:
            return "seconds"
        if self.nano_usd is not None and total.nano_usd > self.nano_usd:
            return "cost"
        if self.tokens is not None and total.tokens > self.tokens:
            return "tokens"
        if self.calls is not None and total.calls > self.calls:
            return "calls"
        return None


@dataclass(frozen=True, slots=True)
class Balance:
    """A budget at one moment: what is spent for good, what is set aside for calls under way, and its age in seconds."""

    spent: Amount = Amount()
    reserved: Amount = Amount()
    elapsed_s: float = 0.0

    @property
    def total(self) -> Amount:
        """Spent and set aside together: what limits are compared with."""
        return self.spent + self.reserved
