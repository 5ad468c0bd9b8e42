"""Amounts, limits and token counts of budgets, and what models and tools cost.

The user says what they cost. lgov ships no prices: they change, and a wrong one is worse than none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from lgov_core.errors import PolicyError

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
        """Returns the first amount that would not suffice, or None."""
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


#: Where adapters and endpoints write how long a reply may be, and how many replies are asked for.
_MOST: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens", "max_new_tokens")
_REPLIES: Final = ("n", "best_of")
_OPTIONS: Final = ("options", "settings", "model_settings", "sampling")
#: More tokens than this are not a count of anything.
_ABSURD: Final = 2**40


def most_input_tokens(arguments: Mapping[str, Any], bytes_per_token: float) -> int:
    """An upper bound for the tokens of a prompt: the bytes of everything in it as JSON, ``bytes_per_token`` to a token.

    No byte-level tokenizer makes more than one token of a byte. Raises `ValueError` or `RecursionError` for what has no
    JSON form.
    """
    text = json.dumps(_with_text_keys(arguments), ensure_ascii=False, default=_other)
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / bytes_per_token)


def most_output_tokens(arguments: Mapping[str, Any], otherwise: int) -> int:
    """The most tokens that the reply may have: what the call itself says, or ``otherwise``; times the replies asked for."""
    places = [arguments, *(arguments[name] for name in _OPTIONS if isinstance(arguments.get(name), Mapping))]
    limits = [count for holder in places for name in _MOST if (count := _count(holder.get(name))) is not None]
    replies = [count for holder in places for name in _REPLIES if (count := _count(holder.get(name))) is not None]
    return max(limits, default=otherwise) * max(replies, default=1)


def tokens_used(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """The tokens of prompt and reply that a finished call says it used; None when it does not say anything usable.

    A call that says it used nothing at all says nothing usable: every prompt has a token.
    """
    usage = arguments.get("usage")
    if not isinstance(usage, Mapping):
        return None
    read, written = usage.get("input_tokens"), usage.get("output_tokens")
    if type(read) is not int or type(written) is not int:
        return None
    return (read, written) if min(read, written) >= 0 and 0 < read + written < _ABSURD else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return math.ceil(min(value, _ABSURD))  # a limit beyond all measure is not a small one


def _with_text_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()}


def _other(value: object) -> Any:
    return _with_text_keys(value) if isinstance(value, Mapping) else repr(value)


_HINT = "write {input: 2.5, output: 10}: US dollars for a million tokens"
_MILLION = 1_000_000


class Price(NamedTuple):
    """Of a model: US dollars for a million tokens of the prompt and of the reply."""

    input: float
    output: float

    def nano_usd(self, input_tokens: int, output_tokens: int) -> int:
        """The price of the given numbers of tokens in billionths of a dollar, rounded up."""
        return math.ceil((input_tokens * self.input + output_tokens * self.output) * (NANO // _MILLION))


def price_of(owner: str, option: str, value: object) -> Price:
    """A price from ``{"input": ..., "output": ...}`` or two numbers. Raises `PolicyError`."""
    if isinstance(value, Mapping) and set(value) == {"input", "output"}:
        numbers: list[object] = [value["input"], value["output"]]
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        numbers = list(value)
    else:
        raise PolicyError(f"{owner}: {option} is not a price: {value!r}", hint=_HINT)
    return Price(*(_dollars(owner, option, number) for number in numbers))


def price_table(owner: str, option: str, value: object) -> dict[str, Price]:
    """Prices by model name or glob. Raises `PolicyError`."""
    return {glob: price_of(owner, f"{option}: {glob}", price) for glob, price in _table(owner, option, value)}


def cost_table(owner: str, option: str, value: object) -> dict[str, int]:
    """Billionths of a dollar for one call, by tool name or glob. Raises `PolicyError`."""
    return {
        glob: math.ceil(_dollars(owner, f"{option}: {glob}", dollars) * NANO)
        for glob, dollars in _table(owner, option, value)
    }


def find(table: Mapping[str, Any], name: str) -> Any:
    """The entry for ``name``: its own, or that of the longest glob that fits it; None when there is none."""
    if name in table:
        return table[name]
    fitting = [glob for glob in table if fnmatchcase(name, glob)]
    return table[max(fitting, key=len)] if fitting else None


def _table(owner: str, option: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, Mapping):
        raise PolicyError(
            f"{owner}: {option} must map names to dollars, not {value!r}", hint=f"write {option}: {{...}}"
        )
    for name in value:
        if not isinstance(name, str) or not name:
            raise PolicyError(f"{owner}: {option} names {name!r}, which is not text", hint="put it in quotes")
    return list(value.items())


def _dollars(owner: str, option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MILLION:
        raise PolicyError(f"{owner}: {option} costs {value!r}", hint="write US dollars, 0 or more, as a number")
    return float(value)
