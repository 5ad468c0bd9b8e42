"""Decisions over time, counted in slices: a store with millions of them is not read in one answer."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from typing import Any, Final, NamedTuple

from lgov_core.store.sql.pages import StorePages
from lgov_core.trace import semconv
from lgov_core.types import BLOCKING
from lgov_core.views.pages.filters import BriefDecision

#: Seconds that one answer counts for, rows of the table of spans read together, bars over time, and keys kept apart.
_SLICE_S: Final = 0.1
_ROWS: Final = 1_500
_BINS: Final = 60
_MOST_KEYS: Final = 2_000
_SHOWN: Final = 50
_TABLE: Final = 200
OTHER: Final = "(other)"
#: What a decision can be counted by, and the attribute of its span.
COLUMNS: Final = {
    "policy": semconv.DECISION_POLICY,
    "rule": semconv.DECISION_RULE,
    "tool": semconv.ACTION_NAME,
    "agent": semconv.AGENT_NAME,
}


class _Key(NamedTuple):
    """What decisions are alike in, but for the time."""

    policy: str
    rule: str
    tool: str
    agent: str
    effect: str
    would: str


class DecisionCounts:
    """Counts the decisions of a store. Callable from any thread. Memory is bounded: beyond 2,000 kinds all are "(other)"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = 0
        self._bins: dict[_Key, Counter[int]] = {}
        self._width_s = 1
        self._first = self._last = 0

    def answer(self, pages: StorePages, by: str) -> dict[str, Any]:
        """The counts by a column (one of `COLUMNS`), after counting on for a while. Raises `StoreError`."""
        with self._lock:
            total = self._count(pages)
            return {"progress": {"done": self._read, "total": total}, **self._shown(by)}

    def choices(self, pages: StorePages) -> dict[str, Any]:
        """The policies, rules and tools that occur among what was counted."""
        with self._lock:
            total = self._count(pages)
            names = {f"{column}s": {getattr(key, column) for key in self._bins} - {""} for column in ("rule", "tool")}
            names["policies"] = {key.policy for key in self._bins if key.effect != "allow" or key.would} - {""}
            shown = {name: sorted(found)[:_TABLE] for name, found in names.items()}
            return {**shown, "progress": {"done": self._read, "total": total}}

    def _count(self, pages: StorePages) -> int:
        total, until = pages.marks()["spans"], time.monotonic() + _SLICE_S
        while self._read < total:
            last = min(self._read + _ROWS, total)
            for _, at, _, _, attributes in pages.decisions_between(self._read, last, allowed=True):
                self._add(int(at), BriefDecision(json.loads(attributes)))
            self._read = last
            if time.monotonic() > until:
                break
        return total

    def _add(self, at: int, decision: BriefDecision) -> None:
        names = {column: decision.of(attribute)[:200] for column, attribute in COLUMNS.items()}
        if decision.of(semconv.ACTION_KIND) in ("model", "text", "agent") and not decision.would:
            names["tool"] = (
                f"({decision.of(semconv.POINT)})"  # a model call or a text: the point says more than its name
            )
        key = _Key(**names, effect=decision.effect, would=decision.would)
        if key not in self._bins and len(self._bins) >= _MOST_KEYS:
            key = _Key(OTHER, OTHER, OTHER, OTHER, decision.effect, decision.would)
        self._bins.setdefault(key, Counter())[at - at % self._width_s] += 1
        self._first, self._last = min(self._first or at, at), max(self._last or at, at)
        while (self._last - self._first) // self._width_s >= _BINS:
            self._widen()

    def _widen(self) -> None:
        self._width_s *= 2
        for key, counter in self._bins.items():
            wider: Counter[int] = Counter()
            for at, count in counter.items():
                wider[at - at % self._width_s] += count
            self._bins[key] = wider

    def _shown(self, by: str) -> dict[str, Any]:
        times = sorted({at for counter in self._bins.values() for at in counter})
        at = list(range(times[0], times[-1] + self._width_s, self._width_s)) if times else []
        effects, would = Counter[str](), Counter[str]()
        grouped: dict[str, list[_Key]] = defaultdict(list)
        for key, counter in self._bins.items():
            effects[key.effect] += counter.total()
            if key.would:
                would[key.would] += counter.total()
            grouped[getattr(key, by)].append(key)
        series = sorted((self._series(name, keys, at) for name, keys in grouped.items()), key=lambda one: -one["total"])
        rare = [key for key in self._bins if key.effect != "allow" or key.would]
        rare.sort(key=lambda key: -self._bins[key].total())
        return {
            "decisions": effects.total(),
            "effects": dict(effects),
            "would": dict(would),
            "bins": {"at": at, "width_s": self._width_s},
            "series": series[:_SHOWN],
            "table": [{**key._asdict(), "count": self._bins[key].total()} for key in rare[:_TABLE]],
        }

    def _series(self, name: str, keys: list[_Key], at: list[int]) -> dict[str, Any]:
        values: dict[str, list[int]] = {}
        for key in keys:
            row = values.setdefault(key.effect, [0] * len(at))
            for time_, count in self._bins[key].items():
                row[(time_ - at[0]) // self._width_s] += count
        totals = {key: self._bins[key].total() for key in keys}
        return {
            "key": name,
            "total": sum(totals.values()),
            "blocked": sum(count for key, count in totals.items() if key.effect in BLOCKING),
            "would": sum(count for key, count in totals.items() if key.would in BLOCKING),
            "values": values,
        }
