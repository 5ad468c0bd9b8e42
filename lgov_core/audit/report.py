"""Counts the decisions of an audit record: by tool, result, rule, agent, point and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lgov_core.audit.entry import AuditEntry
from lgov_core.types import BLOCKING, Point

#: What a decision can come to. ``would deny``: shadow mode let pass what the policies deny.
EFFECTS: Final = ("allow", "warn", "transform", "escalate", "deny", "would deny")
_BY_THE_HOUR: Final = timedelta(days=2)


@dataclass(slots=True)
class AuditReport:
    """Decisions of a record, by effect (see `EFFECTS`).

    ``entries`` counts outcomes and other entries too; ``first`` and ``last`` are when the first and last of them were
    written (ISO 8601, UTC), None without any. Each of ``tools``, ``results``, ``rules`` (``policy/rule``), ``agents``,
    ``points`` and ``times`` (the hour, or the day if the entries are from more than two days) has its own counts. ``tools``
    has the decisions before a tool call, one for each call, and ``results`` those on what the tool returned.
    """

    entries: int = 0
    first: str | None = None
    last: str | None = None
    decisions: Counter[str] = field(default_factory=Counter[str])
    tools: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    results: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    rules: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    agents: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    points: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    times: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def tables(self) -> dict[str, dict[str, Counter[str]]]:
        """The counts by their heading."""
        names = ("tool", "result", "rule", "agent", "point", "time")
        return {name: getattr(self, f"{name}s") for name in names}

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        about = {"entries": self.entries, "first": self.first, "last": self.last, "decisions": dict(self.decisions)}
        return about | {
            f"{heading}s": {key: dict(counts) for key, counts in table.items()}
            for heading, table in self.tables().items()
        }


def audit_report(entries: Iterable[AuditEntry]) -> AuditReport:
    """The report on ``entries``, which are in the order of writing."""
    every = list(entries)
    report = AuditReport(len(every))
    if not every:
        return report
    times = [one.time_ns for one in every]
    first, last = _at(min(times)), _at(max(times))
    report.first, report.last = first.isoformat(timespec="seconds"), last.isoformat(timespec="seconds")
    form = "%Y-%m-%d %H:00" if last - first <= _BY_THE_HOUR else "%Y-%m-%d"
    for entry in every:
        if entry.kind != "decision":
            continue
        effect, verdict = _effect(entry), entry.verdict
        report.decisions[effect] += 1
        keys = {
            "tool": entry.name if entry.point == Point.PRE_TOOL_CALL else None,
            "result": entry.name if entry.point == Point.POST_TOOL_CALL else None,
            "rule": "/".join(filter(None, (verdict["policy"], verdict["rule"]))) or "(none)",
            "agent": entry.agent or "(none)",
            "point": entry.point,
            "time": _at(entry.time_ns).strftime(form),
        }
        for heading, table in report.tables().items():
            if (key := keys[heading]) is not None:
                table.setdefault(key, Counter())[effect] += 1
    return report


def _effect(entry: AuditEntry) -> str:
    """The effect of a decision, as `EFFECTS` names it."""
    effect = entry.effect or "allow"
    return "would deny" if effect not in BLOCKING and entry.verdict["effect"] in BLOCKING else effect


def _at(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, UTC)
