"""The page Governance: decisions over time, the list of those that did more than allow, and the choices of the filters."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from lgov_core.audit import AuditEntry, AuditLog
from lgov_core.errors import StoreError
from lgov_core.store import RolloutQueue, open_store
from lgov_core.store.pages import ListedDecision, StorePages
from lgov_core.trace import semconv
from lgov_core.types import BLOCKING, Span

#: Bars over time, keys that are kept apart, and how many of them are shown, in series and in the table.
_BINS: Final = 60
_MOST_KEYS: Final = 2_000
_SERIES: Final = 50
_TABLE: Final = 200
OTHER: Final = "(other)"
#: What decisions can be counted by.
COLUMNS: Final = ("policy", "rule", "tool", "agent")


class _Key(NamedTuple):
    """The texts by which decisions are counted together."""

    policy: str
    rule: str
    tool: str
    agent: str
    effect: str
    would: str


def decision_counts(pages: StorePages, by: str) -> dict[str, Any]:
    """The decisions over time by a column (one of `COLUMNS`). Beyond 2,000 keys the rare ones are "(other)"."""
    counted = pages.decisions_over_time(_BINS)
    keys: dict[_Key, Counter[int]] = defaultdict(Counter)
    for kind, counts in counted.counts.items():
        keys[_Key(kind.policy, kind.rule, kind.tool, kind.agent, kind.effect, kind.would)].update(counts)
    if len(keys) > _MOST_KEYS:
        keys = _most_frequent(keys)
    totals = {key: counts.total() for key, counts in keys.items()}
    seconds = sorted({at for counts in keys.values() for at in counts})
    bins = list(range(seconds[0], seconds[-1] + counted.width_s, counted.width_s)) if seconds else []
    series: dict[str, dict[str, Any]] = {}
    effects, would = Counter[str](), Counter[str]()
    for key, counts in keys.items():
        effects[key.effect] += totals[key]
        if key.would:
            would[key.would] += totals[key]
        name = getattr(key, by)
        entry = series.setdefault(name, {"key": name, "total": 0, "blocked": 0, "would": 0, "values": {}})
        entry["total"] += totals[key]
        entry["blocked"] += totals[key] if key.effect in BLOCKING else 0
        entry["would"] += totals[key] if key.would in BLOCKING else 0
        values = entry["values"].setdefault(key.effect, [0] * len(bins))
        for at, count in counts.items():
            values[(at - bins[0]) // counted.width_s] += count
    rare = [key for key in keys if key.effect != "allow" or key.would]
    rare.sort(key=lambda key: (-totals[key], key))
    return {
        "decisions": effects.total(),
        "effects": dict(effects),
        "would": dict(would),
        "bins": {"at": bins, "width_s": counted.width_s},
        "series": sorted(series.values(), key=lambda entry: (-entry["total"], entry["key"]))[:_SERIES],
        "table": [{**key._asdict(), "count": totals[key]} for key in rare[:_TABLE]],
    }


def _most_frequent(keys: Mapping[_Key, Counter[int]]) -> dict[_Key, Counter[int]]:
    kept: dict[_Key, Counter[int]] = defaultdict(Counter)
    for rank, key in enumerate(sorted(keys, key=lambda key: (-keys[key].total(), key))):
        kept_key = key if rank < _MOST_KEYS else _Key(OTHER, OTHER, OTHER, OTHER, key.effect, key.would)
        kept[kept_key].update(keys[key])
    return kept


def decision_choices(pages: StorePages) -> dict[str, list[str]]:
    """The policies, rules and tools that decisions name, 200 of each at most."""
    kinds = pages.decision_kinds()
    names = {
        "rules": {kind.rule for kind in kinds},
        "tools": {kind.tool for kind in kinds},
        "policies": {kind.policy for kind in kinds if not kind.only_allows},
    }
    return {name: sorted(each - {""})[:_TABLE] for name, each in names.items()}


def decision_page(
    pages: StorePages, effect: str | None, columns: Mapping[str, str], before: int | None, limit: int
) -> dict[str, Any]:
    """At most ``limit`` decisions before the place ``before``; the cursor is such a place.

    ``effect`` is an effect, ``blocked`` or ``would``; None: all but allow. ``columns`` has values for `COLUMNS`.
    """
    listed = pages.decisions_before(before, limit + 1, effect, columns)
    items = listed[:limit]
    return {"items": list(map(_item, items)), "cursor": str(items[-1].seq) if len(listed) > limit else None}


def _item(decision: ListedDecision) -> dict[str, Any]:
    attributes: dict[str, Any] = json.loads(decision.attributes)

    def text(name: str) -> str:
        return str(attributes.get(name) or "")

    return {
        "rollout_id": decision.rollout_id,
        "attempt": decision.attempt,
        "at": decision.at,
        "point": text(semconv.POINT),
        "action": text(semconv.ACTION_NAME),
        "tool": text(semconv.ACTION_NAME),
        "agent": text(semconv.AGENT_NAME) or None,
        "effect": text(semconv.DECISION_EFFECT),
        "would": text(semconv.DECISION_WOULD),
        "blocks": text(semconv.DECISION_EFFECT) in BLOCKING,
        "policy": text(semconv.DECISION_POLICY),
        "rule": text(semconv.DECISION_RULE),
        "reason": text(semconv.DECISION_REASON),
        "severity": text(semconv.DECISION_SEVERITY),
        "decision_id": text(semconv.DECISION_ID) or None,
        "tool_call_id": text(semconv.TOOL_CALL_ID) or None,
    }


class RecordAlone:
    """The decisions of an audit record that has no store beside it, as the spans of a store in memory.

    Callable from any thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read = 0
        self.store: RolloutQueue = open_store("memory://")

    def read(self) -> None:
        """Adds to the store what was written since the last time. Raises `StoreError` and `AuditError`."""
        if not self._path.is_file():
            raise StoreError(f"the audit record {self._path} is gone", hint="it was moved or deleted; put it back")
        with self._lock, AuditLog(self._path, signer=None) as log:
            entries = log.entries(after=self._read)
            if entries:
                self.store.add_spans([_span(entry) for entry in entries if entry.kind == "decision"])
                self._read = entries[-1].position


def _span(entry: AuditEntry) -> Span:
    verdict, at = entry.verdict, entry.time_ns / 1e9
    attributes = {
        semconv.AGENT_NAME: entry.agent,
        semconv.POINT: entry.point,
        semconv.ACTION_KIND: entry.action_kind,
        semconv.ACTION_NAME: entry.name,
        semconv.TOOL_CALL_ID: entry.call_id,
        semconv.DECISION_ID: entry.entry_id,
        semconv.DECISION_EFFECT: entry.effect,
        semconv.DECISION_POLICY: verdict["policy"],
        semconv.DECISION_RULE: verdict["rule"],
        semconv.DECISION_REASON: verdict["reason"],
        semconv.DECISION_SEVERITY: verdict["severity"],
        semconv.DECISION_WOULD: verdict["effect"] if verdict["effect"] != entry.effect else None,
    }
    name = semconv.DECISION_SPAN_NAME
    return Span(name, entry.entry_id, at, at, semconv.said(attributes), entry.rollout_id, entry.attempt)
