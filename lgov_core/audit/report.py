"""Entries for other programs (JSON lines, CloudEvents, OCSF) and in words, and counts of decisions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import quote

from lgov_core.audit.reading import AuditEntry, moment
from lgov_core.errors import counted
from lgov_core.governor.options import ANSWER
from lgov_core.types import BLOCKING, Point

Format = Literal["jsonl", "cloudevents", "ocsf"]

#: OCSF severity_id: 1 informational, 2 low, 3 medium, 4 high, 5 critical.
_SEVERITY: Final = {"low": 2, "medium": 3, "high": 4, "critical": 5}


def lines(entries: Iterable[AuditEntry], form: Format) -> Iterator[str]:
    """Each entry as one line of JSON, without its line feed."""
    write = {"jsonl": plain, "cloudevents": cloud_event, "ocsf": ocsf}[form]
    return (json.dumps(write(entry), allow_nan=False) for entry in entries)


def plain(entry: AuditEntry) -> dict[str, Any]:
    """Everything that was hashed, with the texts (null once erased), position and hashes."""
    return {
        **entry.body,
        "position": entry.position,
        "arguments": json.loads(entry.arguments or "null"),
        "content": json.loads(entry.content or "null"),
        "prev_hash": entry.prev_hash.hex(),
        "hash": entry.hash.hex(),
    }


def cloud_event(entry: AuditEntry) -> dict[str, Any]:
    """A CloudEvents 1.0 event in structured JSON mode; the data is that of `plain`."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": entry.entry_id,
        "source": f"urn:lgov:audit:{entry.writer}",
        "type": f"dev.lgov.audit.{entry.kind}",
        "time": datetime.fromtimestamp(entry.time_ns / 1e9, UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": plain(entry),
    }
    if entry.rollout_id is not None:
        event["subject"] = quote(entry.rollout_id)
    return event


def ocsf(entry: AuditEntry) -> dict[str, Any]:
    """An OCSF 1.3 API Activity (class 6003): who (the agent) did what (the tool), and whether it was allowed.

    In shadow mode an act is allowed, with the severity, policy and reason of the denial that was not enforced.
    """
    verdict = entry.verdict
    denied = entry.effect in BLOCKING or entry.status == "denied"
    failed = entry.status not in (None, "ok", "denied", "paused")
    event: dict[str, Any] = {
        "class_uid": 6003,
        "class_name": "API Activity",
        "category_uid": 6,
        "category_name": "Application Activity",
        "activity_id": 99,  # other
        "activity_name": entry.point or entry.kind,
        "type_uid": 600399,
        "time": entry.time_ns // 1_000_000,
        "severity_id": _SEVERITY.get(verdict["severity"], 1) if denied or verdict["effect"] in BLOCKING else 1,
        "status_id": 2 if denied or failed else 1,
        "status_detail": verdict["reason"] or entry.status,
        "message": verdict["reason"] or f"{entry.kind} {entry.name or ''}".strip(),
        "metadata": {
            "version": "1.3.0",
            "uid": entry.entry_id,
            "correlation_uid": entry.refers_to or entry.call_id,
            "product": {"name": "lgov", "vendor_name": "lgov", "version": entry.code_version},
        },
        "actor": {"app_name": entry.agent or "agent"},
        "api": {
            "operation": entry.name or entry.kind,
            "service": {"name": entry.framework or "lgov"},
            "request": {"uid": entry.call_id or entry.entry_id},
        },
        "src_endpoint": {"name": entry.agent or "agent"},
    }
    if session := entry.session_id or entry.rollout_id:
        event["actor"]["session"] = {"uid": session}
    if entry.kind == "decision":
        event["metadata"]["profiles"] = ["security_control"]  # which the next three belong to
        event["action_id"] = 2 if denied else 1  # OCSF: 1 allowed, 2 denied
        event["disposition_id"] = 2 if denied else 1  # 1 allowed, 2 blocked
        event["policy"] = {"name": verdict["policy"], "uid": entry.policy_digest, "desc": verdict["rule"]}
    return {**_known(event), "unmapped": plain(entry)}


def _known(event: Mapping[str, Any]) -> dict[str, Any]:
    """``event`` without what is None: an attribute of OCSF that is not known is left out."""
    return {
        name: _known(value) if isinstance(value, dict) else value for name, value in event.items() if value is not None
    }


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
    times = [entry.time_ns for entry in every]
    first, last = moment(min(times)), moment(max(times))
    report.first, report.last = first.isoformat(timespec="seconds"), last.isoformat(timespec="seconds")
    form = "%Y-%m-%d %H:00" if last - first <= _BY_THE_HOUR else "%Y-%m-%d"
    for entry in every:
        if entry.kind != "decision":
            continue
        effect, verdict = entry.effect or "allow", entry.verdict
        if effect not in BLOCKING and verdict["effect"] in BLOCKING:
            effect = "would deny"
        report.decisions[effect] += 1
        keys = {
            "tool": entry.name if entry.point == Point.PRE_TOOL_CALL else None,
            "result": entry.name if entry.point == Point.POST_TOOL_CALL else None,
            "rule": "/".join(filter(None, (verdict["policy"], verdict["rule"]))) or "(none)",
            "agent": entry.agent or "(none)",
            "point": entry.point,
            "time": moment(entry.time_ns).strftime(form),
        }
        for heading, table in report.tables().items():
            if (key := keys[heading]) is not None:
                table.setdefault(key, Counter())[effect] += 1
    return report


def reason_of(entry: AuditEntry) -> str:
    """The reason of an entry's verdict, and of a person's answer what they wrote and were shown, unless it is erased."""
    texts: dict[str, Any] = json.loads(entry.content or "{}") if entry.kind == ANSWER else {}
    user = texts.get("user_text")
    question = " | ".join(filter(None, (texts.get("question"), user and f"the user: {user}")))
    reason = ": ".join(filter(None, (entry.verdict["reason"], texts.get("reason"))))
    return f"{reason}; shown: {question}" if question else reason


def about_records(entry: AuditEntry) -> str:
    """Says what an entry says of other entries, or of other records; an empty text where it says nothing of them."""
    body, previous = entry.body, entry.body.get("previous")
    if "erased" in body:
        return f"texts of {counted(len(body['erased']), 'entry', 'entries')} erased"
    if previous is not None:
        return f"continues {previous['file']}, of {counted(previous['entries'], 'entry', 'entries')}"
    if "lost" in body:
        return f"lost: up to entry {body['lost']['last']} of record {body['lost']['record']}"
    return f"deleted {', '.join(record['file'] for record in body['retired'].values())}" if "retired" in body else ""
