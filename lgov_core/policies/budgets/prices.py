"""What models and tools cost, as the user says. lgov ships no prices: they change, and a wrong one is worse than none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from lgov_core.errors import PolicyError
from lgov_core.policies.budgets.amounts import NANO

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
