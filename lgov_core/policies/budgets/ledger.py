"""Ledger: what each budget has spent and set aside, in one process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from lgov_core.policies.budgets.bookkeeping import SharedState

#: One US dollar. Money is counted in whole billionths of one, so that sums are exact.
NANO: Final = 1_000_000_000
#: Reservations that may wait for their settlement; the oldest one beyond counts as spent.
MAX_OPEN: Final = 100_000

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


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why something was not set aside: what is lacking, and the budget's balance."""

    lack: Lack
    balance: Balance


class Ledger(Protocol):
    """Keeps the budgets of one policy.

    ``key`` names a budget, ``operation`` one call, ``now`` is the policy's clock in seconds. Every method is atomic and
    may be called from several threads at once.
    """

    def reserve(
        self, key: str, operation: str | None, amount: Amount, limits: Limits, now: float, *, again: bool = False
    ) -> Shortfall | None:
        """Sets ``amount`` aside, or says what is lacking and changes nothing.

        ``again`` replaces what the operation had set aside before. Without an operation the amount is spent at once.
        """
        ...

    def settle(self, key: str, operation: str, actual: Amount | None, now: float) -> None:
        """What was set aside for the operation is spent: ``actual`` of it, or all where None.

        What was never set aside is spent from ``key`` when ``actual`` says how much.
        """
        ...

    def release(self, operation: str) -> None:
        """Gives back what was set aside for the operation, if anything still is."""
        ...

    def balance(self, key: str | None, now: float) -> Balance:
        """One budget, or the sum of all; its age is then that of the oldest."""
        ...

    def reset(self, key: str | None) -> None:
        """Forgets one budget, or all, with what was set aside."""
        ...

    def ended(self, key: str) -> None:
        """Notes that no more is expected from a budget."""
        ...


class _Book:
    """One budget in memory. Used under the ledger's lock."""

    __slots__ = ("reserved", "since", "spent", "until")

    def __init__(self, now: float) -> None:
        self.spent = Amount()
        self.reserved = Amount()
        self.since = self.until = now

    def balance(self, now: float) -> Balance:
        # A clock that is put back must not give time back.
        self.until = max(self.until, now)
        return Balance(self.spent, self.reserved, self.until - self.since)


class MemoryLedger(SharedState):
    """Budgets in the memory of this process; gone with it.

    Holds ``max_budgets``. When they are used up, those that have ended are dropped, oldest first; one that comes back
    after that is refused, because what it had spent is not known any more, and so is a new one when none has ended. A
    forked child goes on with a copy.
    """

    def __init__(self, max_budgets: int) -> None:
        super().__init__()
        self.max_budgets = max_budgets
        self._books: dict[str, _Book] = {}
        self._open: OrderedDict[str, tuple[str, Amount]] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._dropped: set[int] = set()

    def reserve(
        self, key: str, operation: str | None, amount: Amount, limits: Limits, now: float, *, again: bool = False
    ) -> Shortfall | None:
        """See `Ledger.reserve`."""
        with self._lock:
            book = self._book(key, now)
            if not isinstance(book, _Book):
                return Shortfall(book, Balance())
            before = self._open.get(operation, ("", Amount())) if operation is not None else ("", Amount())
            replaced = before[1] if again and before[0] == key else Amount()
            balance = book.balance(now)
            lack = limits.lack(balance.total - replaced + amount, balance.elapsed_s)
            if lack is not None:
                return Shortfall(lack, balance)
            if operation is None:
                book.spent += amount
                return None
            if operation in self._open:
                if replaced is before[1]:
                    book.reserved -= replaced
                else:
                    self._spend(*before)
            self._open[operation] = (key, amount)
            book.reserved += amount
            if len(self._open) > MAX_OPEN:
                _, oldest = self._open.popitem(last=False)
                self._spend(*oldest)
            return None

    def settle(self, key: str, operation: str, actual: Amount | None, now: float) -> None:
        """See `Ledger.settle`."""
        with self._lock:
            found = self._open.pop(operation, None)
            if found is not None:
                self._spend(*found, actual)
            elif actual is not None and isinstance(book := self._book(key, now), _Book):
                book.spent += actual

    def release(self, operation: str) -> None:
        """See `Ledger.release`."""
        with self._lock:
            found = self._open.pop(operation, None)
            if found is not None and (book := self._books.get(found[0])) is not None:
                book.reserved -= found[1]

    def balance(self, key: str | None, now: float) -> Balance:
        """See `Ledger.balance`."""
        with self._lock:
            if key is not None:
                return self._books[key].balance(now) if key in self._books else Balance()
            each = [book.balance(now) for book in self._books.values()]
        spent = reserved = Amount()
        for one in each:
            spent, reserved = spent + one.spent, reserved + one.reserved
        return Balance(spent, reserved, max((one.elapsed_s for one in each), default=0.0))

    def reset(self, key: str | None) -> None:
        """See `Ledger.reset`."""
        with self._lock:
            if key is None:
                for everything in (self._books, self._open, self._ended, self._dropped):
                    everything.clear()
                return
            self._books.pop(key, None)
            self._ended.pop(key, None)
            self._dropped.discard(hash(key))
            for operation in [name for name, (owner, _) in self._open.items() if owner == key]:
                del self._open[operation]

    def ended(self, key: str) -> None:
        """See `Ledger.ended`."""
        with self._lock:
            if key in self._books:
                self._ended[key] = None

    def _spend(self, key: str, reserved: Amount, actual: Amount | None = None) -> None:
        book = self._books.get(key)
        if book is not None:
            book.reserved -= reserved
            book.spent += reserved if actual is None else actual

    def _book(self, key: str, now: float) -> _Book | Literal["budgets", "closed"]:
        book = self._books.get(key)
        if book is not None:
            self._ended.pop(key, None)  # it goes on after all
            return book
        if hash(key) in self._dropped:
            return "closed"
        if len(self._books) >= self.max_budgets and not self._drop_one():
            return "budgets"
        book = self._books[key] = _Book(now)
        return book

    def _drop_one(self) -> bool:
        if len(self._dropped) >= 10 * self.max_budgets:
            return False
        for key in self._ended:
            if self._books[key].reserved == Amount():
                del self._books[key], self._ended[key]
                self._dropped.add(hash(key))
                return True
        return False
