"""Entries for other programs (JSON lines, CloudEvents, OCSF), counts of decisions, and the report for an auditor."""

from __future__ import annotations

import hashlib
import html
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from lgov_core.audit.log import AuditLog
from lgov_core.audit.reading import AuditEntry, EntrySelection, modes_of
from lgov_core.audit.rotation import archive_folder
from lgov_core.audit.verify import VerifyReport, in_words, verify_archived
from lgov_core.audit.verify import verify as verify_record
from lgov_core.errors import counted
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

    ``verified`` is the proof (`lgov_core.audit.verify.VerifyReport`) of the whole record and ``in_words`` the same as
    text. ``records`` are this record and the archived ones before it, the oldest first, each with its own proof; ``keys``
    the public keys that signed them, each with its SHA-256 fingerprint. Everything else is of the entries that were chosen
    in all of them. ``policies`` and ``versions`` (of lgov's code) have the first and last decision under each, ``shadow``
    the spans of time in which a policy let pass what it denies: from the first such decision to the last one before a
    denial that was enforced; for a policy in shadow mode that denied nothing, all its time. ``ungoverned`` is what
    governed programs started or sent that no rule saw. ``denials`` (with those of shadow mode), ``rejections`` by a
    person, ``unanswered`` calls that waited for one, and ``approvals`` name the act, the policy, the rule and the reason,
    in which the person is named. ``changes`` are erasures, rotations, deletions of archives, and boxes.
    ``notes`` say what a section cannot show.
    """

    path: str
    verified: dict[str, Any]
    in_words: str
    records: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    counts: dict[str, Any]
    policies: list[dict[str, Any]]
    versions: list[dict[str, Any]]
    shadow: list[dict[str, Any]]
    ungoverned: list[dict[str, Any]]
    denials: list[dict[str, Any]]
    rejections: list[dict[str, Any]]
    unanswered: list[dict[str, Any]]
    approvals: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    notes: dict[str, str]

    @property
    def is_right(self) -> bool:
        """True when every record is right."""
        return all(record["ok"] for record in self.records)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def sections(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """The tables by their heading: a note, which may be empty, and rows of equal fields."""
        counts = self.counts
        period = {"first": counts["first"], "last": counts["last"], "entries": counts["entries"], **counts["decisions"]}
        yield "Period", "", [period]
        for name, heading in _SECTIONS.items():
            yield heading, self.notes.get(name, ""), getattr(self, name)


_SECTIONS: Final = {
    "records": "Records",
    "keys": "Keys",
    "policies": "Policies",
    "versions": "Versions of the code",
    "shadow": "Shadow mode",
    "ungoverned": "Not governed",
    "denials": "Denials by a policy",
    "rejections": "Rejections by a person",
    "unanswered": "Calls that ended before a person answered",
    "approvals": "Approvals",
    "changes": "Changes of the record",
}
_NOTES: Final = {
    "ungoverned": (
        "Listed: Python programs that a governed program started and lgov did not reach; other programs that it started; and"
        " requests to model servers that no rule saw, by host. A program run by `lgov run` notes them when it ends. Not seen"
        " here: programs started without lgov, what the listed programs did, and acts of a governed program that are no call"
        " of its framework. An empty list does not show that everything was governed."
    ),
    "unanswered": "A call that is made again for the same request is listed again.",
    "approvals": "Callbacks of the program can approve too: they are named as such.",
}
_NOT_FOUND: Final = (
    "This record continues {file} of {entries} entries, which was not found: its entries are not in this report. Name its"
    " folder with --archive."
)
#: Characters of an act's arguments in a report.
_ARGUMENTS: Final = 500
#: The rule by which a person's answer denies a call.
_REJECTED: Final = "approval-rejected"


def evidence(
    path: Path,
    selection: EntrySelection,
    *,
    key: Path | None,
    heads: Path | None,
    archive: Path | None = None,
    after: int = 0,
    reasons: bool = True,
) -> AuditorReport:
    """The report on the entries of ``selection`` in the record at ``path`` and the archives before it; verifies them all.

    ``key`` is the public key that must have signed the record, ``heads`` the file of heads that was kept elsewhere, None for
    neither. Archives are looked for in ``archive``, or where the record says, beside and below it; one that is missing is said
    and is no fault, since it may be kept elsewhere. With ``after``, entries of this record behind that position only. Reasons
    may quote what users and models wrote; without ``reasons`` they are left out. Raises what reading raises.
    """
    proofs = [(str(path), verify_record(path, key=key, head=heads))]
    notes = dict(_NOTES)
    if (previous := proofs[0][1].continues) is not None and not after:
        if (folder := archive or archive_folder(path, previous)) is not None:
            proofs = _with_archives(path, folder, proofs[0][1], heads)
        else:
            notes["records"] = _NOT_FOUND.format(**previous)
    verified = proofs[-1][1]
    modes: dict[str, str] = {}
    chosen = [entry for name, _ in proofs for entry in _selected(Path(name), selection, after, len(proofs) > 1, modes)]
    every = [entry for entry, _ in chosen]
    decisions = [(entry, about) for entry, about in chosen if entry.kind == "decision"]
    blocked = [(entry, about) for entry, about in decisions if entry.verdict["effect"] in BLOCKING]
    acts: dict[str, list[dict[str, Any]]] = {"denials": [], "rejections": [], "unanswered": []}
    for entry, about in blocked:
        act = _act(entry, about, entry.verdict, reasons) | {"enforced": entry.effect in BLOCKING}
        acts[_kind_of_denial(entry)].append(act)
    approvals = [(entry, about, by) for entry, about in decisions if (by := entry.approval) is not None]
    policies = _periods(decisions, lambda entry: ("policy digest", entry.policy_digest or "(none)"))
    policies = [period | {"mode": modes.get(period["policy digest"])} for period in policies]
    return AuditorReport(
        str(path),
        asdict(verified),
        in_words(verified),
        [_proof(Path(name).name, proof) for name, proof in proofs],
        _keys(proofs, str(key) if verified.key_trusted else None),
        audit_report(every).as_json(),
        policies,
        _periods(decisions, lambda entry: ("lgov", entry.code_version or "(unknown)")),
        _shadow_periods((entry for entry, _ in blocked), policies),
        [
            about
            | {name: _names(entry.body[name]) for name in ("programs", "others", "requests") if entry.body.get(name)}
            for entry, about in chosen
            if entry.kind == "ungoverned"
        ],
        acts["denials"],
        acts["rejections"],
        acts["unanswered"],
        [_act(entry, about, by, reasons) for entry, about, by in approvals],
        [_change(entry, about, reasons) for entry, about in chosen if entry.kind in _CHANGES],
        notes,
    )


def _kind_of_denial(entry: AuditEntry) -> str:
    """The section of a decision that blocked a call, or would have: a policy's, a person's, or nobody's yet."""
    verdict = entry.verdict
    return (
        "unanswered" if verdict["effect"] == "escalate" else "rejections" if verdict["rule"] == _REJECTED else "denials"
    )


def _with_archives(
    path: Path, folder: Path, verified: VerifyReport, heads: Path | None
) -> list[tuple[str, VerifyReport]]:
    """The proofs of the archives, the oldest first, and that of the record, which states the digest of the one before it."""
    (_, own), *older = verify_archived(path, folder, head=heads)  # which may be signed with other keys
    return [*reversed(older), (str(path), replace(verified, others=own.others))]


def _keys(proofs: Sequence[tuple[str, VerifyReport]], compared_with: str | None) -> list[dict[str, Any]]:
    """The keys that signed; ``compared_with`` is the file of that of the last record."""
    return [
        {
            "key": key,
            "sha256": hashlib.sha256(bytes.fromhex(key)).hexdigest(),
            "compared with": compared_with if key == proofs[-1][1].key else None,
        }
        for key in dict.fromkeys(proof.key for _, proof in proofs if proof.key is not None)
    ]


#: An entry, and where and when it was written.
_Chosen: TypeAlias = tuple[AuditEntry, dict[str, Any]]


def _selected(
    path: Path, selection: EntrySelection, after: int, is_one_of_several: bool, modes: dict[str, str]
) -> list[_Chosen]:
    """The chosen entries of a record; ``modes`` gets the mode of each policy that began in it, by digest."""
    named = {"record": path.name} if is_one_of_several else {}
    with AuditLog(path, signer=None) as log:
        every = log.entries()
    modes |= modes_of(every)
    return [
        (entry, {**named, "entry": entry.position, "time": _iso(entry), "rollout": entry.rollout_id})
        for entry in every
        if entry.position > after and selection.holds(entry)
    ]


def _proof(name: str, proof: VerifyReport) -> dict[str, Any]:
    names = ("record", "ok", "problem", "entries", "erased", "signed", "unsigned", "before_key", "sha256")
    return {"file": name, **{field: getattr(proof, field) for field in names}}


_CHANGES: Final = ("erasure", "rotation", "retirement", "loss", "confinement", "policy")


def _iso(entry: AuditEntry) -> str:
    return _at(entry.time_ns).isoformat(timespec="seconds")


def _act(entry: AuditEntry, about: Mapping[str, Any], verdict: Mapping[str, Any], reasons: bool) -> dict[str, Any]:
    act = {**about, **{name: getattr(entry, name) for name in ("point", "name", "agent")}}
    act |= {name: verdict[name] for name in ("policy", "rule", "severity")}
    return act | (
        {"arguments": (entry.arguments or "")[:_ARGUMENTS] or None, "reason": verdict["reason"]} if reasons else {}
    )


def _periods(entries: Iterable[_Chosen], key: Callable[[AuditEntry], tuple[str, str]]) -> list[dict[str, Any]]:
    periods: dict[str, dict[str, Any]] = {}
    for entry, _ in entries:
        name, value = key(entry)
        period = periods.setdefault(value, {name: value, "first": _iso(entry), "last": "", "decisions": 0})
        period |= {"last": _iso(entry), "decisions": period["decisions"] + 1}
    return list(periods.values())


def _shadow_periods(denials: Iterable[AuditEntry], policies: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The spans of time in which denials were not enforced; one that was enforced ends a span. Then policies without any."""
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
    digests = {period["policy digest"] for period in periods}
    quiet = (period for period in policies if period["mode"] == "shadow" and period["policy digest"] not in digests)
    names = ("policy digest", "first", "last")
    return periods + [{name: period[name] for name in names} | {"not enforced": 0} for period in quiet]


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


def _change(entry: AuditEntry, about: Mapping[str, Any], reasons: bool) -> dict[str, Any]:
    text, why = about_records(entry), entry.reason or ""
    if text:
        text += f": {why}" if why and reasons else ""
    elif why:
        text = {"confinement": f"box: {why}", "policy": f"{entry.name}: {why}"}.get(entry.kind, why)
    return {**about, "kind": entry.kind, "what": text}


def _names(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def evidence_text(report: AuditorReport) -> Iterator[str]:
    """The lines of the report as text."""
    yield from (f"Audit report of {report.path}", "", *report.in_words.splitlines())
    for heading, note, rows in report.sections():
        yield from ("", f"{heading}: {len(rows) if rows else 'none'}" if heading != "Period" else heading)
        yield from [note] if note else []
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
    yield f'<pre class="{"ok" if report.is_right else "broken"}">{text(report.in_words)}</pre>'
    for heading, note, rows in report.sections():
        yield f"<h2>{heading}</h2>" + (f"<p>{text(note)}</p>" if note else "")
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
