"""The report of a record for an auditor: what was decided under which policy, by whom, and what proves it."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from lgov_core._util.sqlite_file import is_blank
from lgov_core.audit.log import AuditLog
from lgov_core.audit.reading import AuditEntry, EntrySelection, answerer, moment
from lgov_core.audit.report import about_records, audit_report, reason_of
from lgov_core.audit.verify import VerifyReport, in_words, verify_archived
from lgov_core.audit.verify import verify as verify_record
from lgov_core.errors import AuditError
from lgov_core.governor.options import ANSWER, APPROVED, REJECTED
from lgov_core.types import BLOCKING


@dataclass(frozen=True, slots=True)
class AuditorReport:
    """The report of a record for an auditor; times are ISO 8601 in UTC.

    ``verified`` is the proof (`lgov_core.audit.verify.VerifyReport`) of the whole record and ``in_words`` the same as
    text. ``records`` are this record and the archived ones before it, the oldest first, each with its own proof; ``keys``
    the public keys that signed them, each with its SHA-256 fingerprint. Everything else is of the entries that were chosen
    in all of them. ``policies``, with their files, and ``versions`` (of lgov's code) have the first and last decision
    of each period under them, ``shadow`` the spans of time in which a policy let pass what it denies: from the first
    such decision to the last one before a denial that was enforced; for a policy in shadow mode that denied nothing,
    all its time. ``ungoverned`` is what governed programs started or sent that no rule saw. ``denials`` (with those of
    shadow mode), ``rejections`` by a person, ``unanswered`` calls that waited for one, and ``approvals`` name the act,
    the policy, the rule, the reason and, as ``by``, who answered: each answer once, when it was given; the decisions by it
    only where no entry of it is among them. ``inside`` is true where only a box says so.
    ``changes`` are erasures, rotations, deletions of archives, and boxes.
    ``notes`` say what a section cannot show. ``verified`` has ``ok`` only where all ``records`` do.
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
            yield heading, self.notes.get(name, ""), [_marked(row) for row in getattr(self, name)]


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
#: Characters of an act's arguments in a report.
_ARGUMENTS: Final = 500


def _marked(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is drawn: what is known from inside a box only is marked as such."""
    return {
        **({"said in the box": "yes"} if "inside" in row else {}),
        **{n: v for n, v in row.items() if n != "inside"},
    }


def evidence(
    path: Path,
    selection: EntrySelection,
    *,
    key: Path | None,
    heads: Path | None,
    archive: Path | None = None,
    after: int = 0,
    content: bool = True,
) -> AuditorReport:
    """The report on the entries of ``selection`` in the record at ``path`` and the archives before it; verifies them all.

    ``key`` is the public key that must have signed the record, ``heads`` the file of heads that was kept elsewhere, None for
    neither. Archives are found as `verify_archived` does, in ``archive`` if it is named. What cannot be read of a broken record
    is not in the report, which says so. With ``after``, entries of this record behind that position only. Without
    ``content`` entries are read as `AuditEntry.without_content`. Raises what reading raises.
    """
    verified = verify_record(path, key=key, head=heads)
    proofs = [(str(path), verified)] if after else _proofs(path, verified, archive, heads)
    verified = proofs[-1][1]
    under: list[AuditEntry] = []
    damage: list[AuditError] = []
    chosen = [
        entry if content else (entry[0].without_content(), entry[1])
        for name, _ in proofs
        for entry in _selected(Path(name), selection, after, len(proofs) > 1, under, damage)
    ]
    if damage and all(proof.ok for _, proof in proofs):
        raise damage[0]
    decisions = [(entry, about) for entry, about in chosen if entry.kind == "decision"]
    blocked = [(entry, about) for entry, about in decisions if entry.verdict["effect"] in BLOCKING]
    acts = _acts(chosen)
    policies = [
        period.row("policy digest", file=period.file, mode=period.mode)
        for period in _periods(under, lambda entry: entry.policy_digest or "(none)")
        if period.decisions
    ]
    versions = _periods((entry for entry, _ in decisions), lambda entry: entry.code_version or "(unknown)")
    return AuditorReport(
        str(path),
        asdict(verified) | {"ok": all(proof.ok for _, proof in proofs)},
        "\n".join([*_broken_archives(proofs), in_words(verified)]),
        [_proof(Path(name).name, proof) for name, proof in proofs],
        _keys(proofs, str(key) if verified.key_trusted else None),
        audit_report(entry for entry, _ in chosen).as_json(),
        policies,
        [period.row("lgov") for period in versions],
        _shadow_periods((entry for entry, _ in blocked), policies),
        [_ungoverned(entry, about) for entry, about in chosen if entry.kind == "ungoverned"],
        acts["denials"],
        acts["rejections"],
        acts["unanswered"],
        acts["approvals"],
        [_change(entry, about) for entry, about in chosen if entry.kind in _CHANGES],
        {**_NOTES, **({"records": " ".join(f"Not in this report: {error}." for error in damage)} if damage else {})},
    )


def _broken_archives(proofs: Sequence[tuple[str, VerifyReport]]) -> list[str]:
    return [f"BROKEN: {name}: {proof.problem}" for name, proof in proofs[:-1] if not proof.ok]


def _acts(chosen: Sequence[_Chosen]) -> dict[str, list[dict[str, Any]]]:
    """The rows about acts by their section. Of a person's answer there is one: its own entry, or else the decisions by it."""
    acts: dict[str, list[dict[str, Any]]] = {"denials": [], "rejections": [], "unanswered": [], "approvals": []}
    answered = {(entry.body["request"], entry.rule) for entry, _ in chosen if entry.kind == ANSWER}
    for entry, about in chosen:
        verdict, approval = entry.verdict, entry.approval
        if entry.kind == ANSWER:
            row = _act(entry, about, {**verdict, "reason": reason_of(entry)})
            acts["approvals" if entry.rule == APPROVED else "rejections"].append(row)
        if entry.kind != "decision":
            continue
        if verdict["effect"] in BLOCKING and (verdict.get("request"), verdict["rule"]) not in answered:
            acts[_kind_of_denial(entry)].append(_act(entry, about, verdict) | {"enforced": entry.effect in BLOCKING})
        if approval is not None and (approval.get("request"), APPROVED) not in answered:
            acts["approvals"].append(_act(entry, about, approval))
    return acts


def _kind_of_denial(entry: AuditEntry) -> str:
    """The section of a decision that blocked a call, or would have: a policy's, a person's, or nobody's yet."""
    verdict = entry.verdict
    return (
        "unanswered" if verdict["effect"] == "escalate" else "rejections" if verdict["rule"] == REJECTED else "denials"
    )


def _proofs(
    path: Path, verified: VerifyReport, archive: Path | None, heads: Path | None
) -> list[tuple[str, VerifyReport]]:
    """The proofs of the archives, the oldest first, and that of the record, which ``verified`` has by its key."""
    (_, own), *older = verify_archived(path, archive, head=heads)  # which may be signed with other keys
    if verified.ok and not own.ok:  # the record that it continues was not found
        verified = replace(verified, ok=False, problem=own.problem, first_bad=own.first_bad)
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
    path: Path,
    selection: EntrySelection,
    after: int,
    is_one_of_several: bool,
    under: list[AuditEntry],
    damage: list[AuditError],
) -> list[_Chosen]:
    """The chosen entries of a record; ``under`` gets the decisions among them, and each beginning of a policy, in order.

    ``damage`` gets why entries could not be read.
    """
    named = {"record": path.name} if is_one_of_several else {}
    every: list[AuditEntry] = []
    try:
        if is_blank(path):  # which would become a new record
            raise AuditError(f"there is nothing in {path}", hint="put its archive back")
        with AuditLog(path, signer=None) as log:
            every = log.entries(damage=damage)
    except AuditError as error:
        damage.append(error)
    chosen: list[_Chosen] = []
    for entry in every:
        is_chosen = entry.position > after and selection.holds(entry)
        if (is_chosen and entry.kind == "decision") or (entry.kind == "policy" and "mode" in entry.body):
            under.append(entry)
        if is_chosen:
            about = {**named, "entry": entry.position, "time": _iso(entry), "rollout": entry.rollout_id}
            about |= {"inside": True} if entry.body.get("inside") else {}
            chosen.append((entry, about))
    return chosen


def _proof(name: str, proof: VerifyReport) -> dict[str, Any]:
    names = ("record", "ok", "problem", "entries", "erased", "signed", "unsigned", "before_key", "sha256")
    return {"file": name, **{field: getattr(proof, field) for field in names}}


_CHANGES: Final = ("erasure", "rotation", "retirement", "loss", "confinement", "policy")


def _iso(entry: AuditEntry) -> str:
    return moment(entry.time_ns).isoformat(timespec="seconds")


def _act(entry: AuditEntry, about: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    act = {**about, **{name: getattr(entry, name) for name in ("point", "name", "agent")}}
    act |= {name: verdict[name] for name in ("policy", "rule", "severity")}
    return act | {
        "by": answerer(verdict),
        "arguments": (entry.arguments or "")[:_ARGUMENTS] or None,
        "reason": verdict["reason"] or None,
    }


@dataclass(slots=True)
class _Period:
    """The time for which a value held, with the numbers of its first and last entry, and of a policy its file and mode."""

    value: str
    begun: int
    until: int
    file: str | None = None
    mode: str | None = None
    first: str = ""
    last: str = ""
    decisions: int = 0

    def row(self, name: str, **more: str | None) -> dict[str, Any]:
        return {name: self.value, **more, "first": self.first, "last": self.last, "decisions": self.decisions}


def _periods(entries: Iterable[AuditEntry], value_of: Callable[[AuditEntry], str]) -> list[_Period]:
    """The periods of a value. It has another once it held, was replaced and holds again; programs that run at the same time
    under different values do not end each other's.
    """
    periods: list[_Period] = []
    of_writer: dict[str, _Period] = {}
    beginnings: dict[str, AuditEntry] = {}
    for number, entry in enumerate(entries):
        value, period = value_of(entry), of_writer.get(entry.writer)
        if period is None or period.value != value:
            period = next((period for period in reversed(periods) if period.value == value), None)
            if period is None or period.until < periods[-1].begun:
                periods.append(period := _Period(value, number, number))
        of_writer[entry.writer], period.until = period, number
        if entry.kind == "decision":
            period.first, period.last = period.first or _iso(entry), _iso(entry)
            period.decisions += 1
        else:
            beginnings[value] = entry
        if (beginning := beginnings.get(value)) is not None:
            period.file, period.mode = beginning.name, beginning.body["mode"]
    return periods


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


def _change(entry: AuditEntry, about: Mapping[str, Any]) -> dict[str, Any]:
    text, why = about_records(entry), entry.reason or ""
    if text:
        text += f": {why}" if why else ""
    elif why:
        text = {"confinement": f"box: {why}", "policy": f"{entry.name}: {why}"}.get(entry.kind, why)
    digest = entry.policy_digest or None if entry.kind == "policy" else None
    return {**about, "kind": entry.kind, "what": text, "by": entry.body.get("by"), "policy digest": digest}


def _ungoverned(entry: AuditEntry, about: Mapping[str, Any]) -> dict[str, Any]:
    kinds = ("programs", "others", "requests")
    return {**about, **{name: _names(entry.body[name]) for name in kinds if entry.body.get(name)}}


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
