"""95 % intervals by a bootstrap over seeds and, within each drawn seed, over its questions.

One draw takes as many seeds as there are, with replacement, and for each of them as many of its questions as it has, with
replacement; its value is the mean over the drawn seeds of the mean over their drawn questions. The interval goes from the
2.5th to the 97.5th percentile of 10,000 draws. A difference is taken question by question, for both sides were asked the
same questions. With three or five seeds the spread between seeds is known badly: where there is no difference, such an interval
leaves out 0 more often than in 5 % of cases (``tests/e2e/test_evidence.py`` has by how much), so look at each seed's, too.

How small a difference could have been seen at all is estimated from the spread of the seeds' differences (`detectable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

DRAWS = 10_000
#: By seed, a number for each question; None where a rollout says nothing (its machine failed).
Values = Sequence[Sequence[float | None]]


class Interval(TypedDict):
    """A mean with its interval. ``n`` counts questions, all seeds together."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Values, *, draws: int = DRAWS, seed: int = 0) -> Interval:
    """The mean over seeds of the mean over questions, with its interval."""
    import numpy as np

    rows = [np.array([value for value in row if value is not None], dtype=float) for row in values]
    chance = np.random.default_rng(seed)
    drawn = np.zeros(draws)
    for _ in rows:
        chosen = chance.integers(0, len(rows), draws)
        for number, row in enumerate(rows):
            at = np.flatnonzero(chosen == number)
            drawn[at] += row[chance.integers(0, len(row), (len(at), len(row)))].mean(axis=1)
    low, high = np.percentile(drawn / len(rows), [2.5, 97.5])
    mean = sum(float(row.mean()) for row in rows) / len(rows)
    return {
        "mean": round(mean, 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "n": sum(map(len, rows)),
    }


def difference(first: Values, second: Values) -> Interval:
    """`first` less `second`, question by question."""
    pairs = [
        [None if a is None or b is None else a - b for a, b in zip(row, other, strict=True)]
        for row, other in zip(first, second, strict=True)
    ]
    return interval(pairs)


def detectable(first: Values, second: Values, *, draws: int = 1_000_000) -> float | None:
    """The smallest true difference that a paired t-test at 5 % would have shown with a probability of 80 %, by so many seeds.

    (t(0.975) + t(0.8)) s / sqrt(n), with n - 1 degrees of freedom and s the standard deviation of the n seeds' mean
    differences (Bloom 1995, doi:10.1177/0193841X9501900504). The quantiles are those of ``draws`` drawn values. None for a
    single seed.
    """
    import numpy as np

    means = [
        np.mean([a - b for a, b in zip(row, other, strict=True) if a is not None and b is not None])
        for row, other in zip(first, second, strict=True)
    ]
    if len(means) < 2:
        return None
    drawn = np.random.default_rng(0).standard_t(len(means) - 1, draws)
    multiple = float(np.quantile(drawn, 0.975) + np.quantile(drawn, 0.8))
    return round(multiple * float(np.std(means, ddof=1)) / len(means) ** 0.5, 4)


def by_seed(first: Values, second: Values) -> list[float]:
    """The mean difference of each seed."""
    return [difference([row], [other])["mean"] for row, other in zip(first, second, strict=True)]


def shown(value: Any, *, percent: bool = False, signed: bool = False) -> str:
    """An interval as text."""
    sign = "+" if signed else ""
    if percent:
        return f"{100 * value['mean']:{sign}.1f} % [{100 * value['low']:{sign}.1f}, {100 * value['high']:{sign}.1f}]"
    return f"{value['mean']:{sign}.3f} [{value['low']:{sign}.3f}, {value['high']:{sign}.3f}]"


def verdict(value: Any) -> str:
    """What a difference shows."""
    if value["low"] > 0:
        return "higher"
    return "lower" if value["high"] < 0 else "no difference shown"


def shown_detectable(value: float | None, *, percent: bool = False) -> str:
    """What `detectable` found as text."""
    if value is None:
        return "-"
    return f"±{100 * value:.1f} %" if percent else f"±{value:.3f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
