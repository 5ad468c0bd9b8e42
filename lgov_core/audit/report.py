"""Entries for other programs (JSON lines, CloudEvents, OCSF), counts of decisions, and the report for an auditor."""

from __future__ import annotations

import hashlib
import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from lgov_core.audit.reading import AuditEntry
from lgov_core.audit.verify import in_words
from lgov_core.audit.verify import verify as verify_record
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
    first, last = _at(min(times)), _at(max(times))
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
            "time": _at(entry.time_ns).strftime(form),
        }
        for heading, table in report.tables().items():
            if (key := keys[heading]) is not None:
                table.setdefault(key, Counter())[effect] += 1
    return report


def _at(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, UTC)


# ---------------------------------------------------------------------- for an auditor


@dataclass(frozen=True, slots=True)
class AuditorReport:
    """The report of a record for an auditor; times are ISO 8601 in UTC.

    ``verified`` is the proof (`lgov_core.audit.verify.VerifyReport`) of the whole record, ``in_words`` the same as text, and
    ``keys`` the public keys that signed it, each with its SHA-256 fingerprint. Everything else is of the entries that were
    chosen. ``policies`` and ``versions`` (of lgov's code) have the first and last decision under each, ``shadow`` the spans of
    time in which a policy let pass what it denies: from the first such decision to the last one before a denial that was
    enforced. ``ungoverned`` are Python programs that governed ones started and that were not governed. ``denials`` (with
    those of shadow mode) and ``approvals`` name the act, the policy, the rule and the reason, in which a person who approved
    is named. ``changes`` are erasures, rotations, deletions of archives, and boxes.
    """

    path: str
    verified: dict[str, Any]
    in_words: str
    keys: list[dict[str, Any]]
    counts: dict[str, Any]
    policies: list[dict[str, Any]]
    versions: list[dict[str, Any]]
    shadow: list[dict[str, Any]]
    ungoverned: list[dict[str, Any]]
    denials: list[dict[str, Any]]
    approvals: list[dict[str, Any]]
    changes: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def sections(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """The tables by their heading: rows of equal fields."""
        counts = self.counts
        period = {"first": counts["first"], "last": counts["last"], "entries": counts["entries"], **counts["decisions"]}
        yield "Period", [period]
        for heading, name in _SECTIONS.items():
            yield heading, getattr(self, name)


_SECTIONS: Final = {
    "Keys": "keys",
    "Policies": "policies",
    "Versions of the code": "versions",
    "Shadow mode": "shadow",
    "Programs that were not governed": "ungoverned",
    "Denials": "denials",
    "Approvals": "approvals",
    "Changes of the record": "changes",
}


def evidence(
    path: Path, entries: Iterable[AuditEntry], *, key: Path | None, heads: Path | None, reasons: bool = True
) -> AuditorReport:
    """The report on ``entries`` of the record at ``path``, in the order of writing; verifies the record.

    ``key`` is the public key that must have signed it, ``heads`` the file of heads that was kept elsewhere, None for neither.
    Reasons may quote what users and models wrote; without ``reasons`` they are left out. Raises what reading raises.
    """
    every = list(entries)
    verified = verify_record(path, key=key, head=heads)
    decisions = [entry for entry in every if entry.kind == "decision"]
    signed_by = [] if verified.key is None else [verified.key]
    keys = [
        {
            "key": text,
            "sha256": hashlib.sha256(bytes.fromhex(text)).hexdigest(),
            "compared with": None if key is None or not verified.key_trusted else str(key),
        }
        for text in signed_by
    ]
    denials = [entry for entry in decisions if entry.verdict["effect"] in BLOCKING]
    approvals = [(entry, by) for entry in decisions if (by := entry.approval) is not None]
    return AuditorReport(
        str(path),
        asdict(verified),
        in_words(verified),
        keys,
        audit_report(every).as_json(),
        _periods(decisions, lambda entry: ("policy digest", entry.policy_digest or "(none)")),
        _periods(decisions, lambda entry: ("lgov", entry.code_version or "(unknown)")),
        _shadow_periods(denials),
        [{**_when(entry), "programs": _names(entry.body["programs"])} for entry in every if entry.kind == "ungoverned"],
        [_act(entry, entry.verdict, reasons) | {"enforced": entry.effect in BLOCKING} for entry in denials],
        [_act(entry, by, reasons) for entry, by in approvals],
        [_change(entry, reasons) for entry in every if entry.kind in _CHANGES],
    )


_CHANGES: Final = ("erasure", "rotation", "retirement", "confinement")


def _iso(entry: AuditEntry) -> str:
    return _at(entry.time_ns).isoformat(timespec="seconds")


def _when(entry: AuditEntry) -> dict[str, Any]:
    return {"entry": entry.position, "time": _iso(entry), "rollout": entry.rollout_id}


def _act(entry: AuditEntry, verdict: Mapping[str, Any], reasons: bool) -> dict[str, Any]:
    named = {name: getattr(entry, name) for name in ("point", "name", "agent")}
    act = {**_when(entry), **named, **{name: verdict[name] for name in ("policy", "rule", "severity")}}
    return act | ({"reason": verdict["reason"]} if reasons else {})


def _periods(entries: Iterable[AuditEntry], key: Callable[[AuditEntry], tuple[str, str]]) -> list[dict[str, Any]]:
    periods: dict[str, dict[str, Any]] = {}
    for entry in entries:
        name, value = key(entry)
        period = periods.setdefault(value, {name: value, "first": _iso(entry), "decisions": 0})
        period |= {"last": _iso(entry), "decisions": period["decisions"] + 1}
    return list(periods.values())


def _shadow_periods(denials: Iterable[AuditEntry]) -> list[dict[str, Any]]:
    """The spans of time in which denials were not enforced; one that was enforced ends a span."""
    periods: list[dict[str, Any]] = []
    running = False
    for entry in denials:
        if entry.effect in BLOCKING:
            running = False
            continue
        if not running:
            periods.append({"policy digest": entry.policy_digest, "first": _iso(entry), "not enforced": 0})
        periods[-1] |= {"last": _iso(entry), "not enforced": periods[-1]["not enforced"] + 1}
        running = True
    return periods


def _change(entry: AuditEntry, reasons: bool) -> dict[str, Any]:
    body, text = entry.body, ""
    if "erased" in body:
        text = f"texts of {len(body['erased'])} entries erased" + (f": {body['reason']}" if reasons else "")
    elif "previous" in body:
        text = f"continues the record {body['previous']['record']} of {body['previous']['entries']} entries"
    elif "retired" in body:
        text = f"deleted archives: {', '.join(body['retired'])}"
    elif entry.kind == "confinement":
        text = f"box: {entry.reason}"
    return {**_when(entry), "kind": entry.kind, "what": text}


def _names(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def evidence_text(report: AuditorReport) -> Iterator[str]:
    """The lines of the report as text."""
    yield from (f"Audit report of {report.path}", "", *report.in_words.splitlines())
    for heading, rows in report.sections():
        yield from ("", f"{heading}: {len(rows) if rows else 'none'}" if heading != "Period" else heading)
        for row in rows:
            yield "  " + ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)


_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1c1e21;background:#fff}"
    "div{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{border:1px solid #c8ccd1}"
    "th,td{padding:.3rem .6rem;text-align:left;vertical-align:top}th,pre{background:#f0f2f4}"
    "pre{padding:1rem;white-space:pre-wrap}.ok{border-left:.4rem solid #2a7d46}.broken{border-left:.4rem solid #b3261e}"
)


def evidence_html(report: AuditorReport) -> Iterator[str]:
    """The lines of the report as one HTML file, which loads nothing, in ASCII."""

    def text(value: object) -> str:
        return html.escape(str(value)).encode("ascii", "xmlcharrefreplace").decode()

    title = text(f"Audit report of {report.path}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1>"
    yield f'<pre class="{"ok" if report.verified["ok"] else "broken"}">{text(report.in_words)}</pre>'
    for heading, rows in report.sections():
        yield f"<h2>{heading}</h2>"
        if not rows:
            yield "<p>None.</p>"
            continue
        names = list(dict.fromkeys(name for row in rows for name in row))
        yield "<div><table><tr>" + "".join(f"<th>{text(name)}</th>" for name in names) + "</tr>"
        for row in rows:
            values = ("" if row.get(name) is None else row[name] for name in names)
            yield "<tr>" + "".join(f"<td>{text(value)}</td>" for value in values) + "</tr>"
        yield "</table></div>"
    yield "</body></html>"
