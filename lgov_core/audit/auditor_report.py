"""The report of a record for an auditor: what was decided under which policy, by whom, and what proves it."""

from __future__ import annotations

import hashlib
import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from lgov_core._util.sqlite_file import is_blank
from lgov_core.audit.log import AuditLog
from lgov_core.audit.reading import AuditEntry, EntrySelection, answerer, moment
from lgov_core.audit.report import EFFECTS, about_records, audit_report, reason_of
from lgov_core.audit.verify import VerifyReport, in_words, verify_archived
from lgov_core.audit.verify import verify as verify_record
from lgov_core.errors import AuditError, counted
from lgov_core.governor.options import ANSWER, APPROVED, REJECTED
from lgov_core.types import BLOCKING


@dataclass(frozen=True, slots=True)
class AuditorReport:
    """The report of a record for an auditor; times are ISO 8601 in UTC.

    ``about`` says which part of the records it is about: the ``filters``, how many ``entries`` they chose ``of`` all, and the
    same ``in_words``. ``verified`` is the proof (`lgov_core.audit.verify.VerifyReport`) of the whole record and ``in_words``
    the same as text. ``records`` are this record and the archived ones before it, the oldest first, each with its own proof;
    ``keys`` the public keys that signed them, each with its SHA-256 fingerprint. ``policies`` are all that held in the time
    that was chosen, each with its file, from when it began until another did or its last decision (None: it holds still), and
    ``shadow`` those of them that let pass what they deny. ``runs`` began in these records and did not end there. Everything
    else is of the chosen entries. ``versions`` (of lgov's code) have the first and last decision of each period.
    ``ungoverned`` is what governed programs started or sent that no rule saw. ``denials`` by a policy, what shadow mode
    ``let_pass``, ``rejections`` by a person, ``unanswered`` calls that waited for one, and ``approvals`` name the act, the
    policy, the rule, the reason and, as ``by``, who answered: each answer once, when it was given; the decisions by it only
    where no entry of it is among them. ``inside`` is true where only a box says so. ``changes`` are beginnings of policies,
    erasures, rotations, deletions of archives, and boxes. ``notes`` explain a section, or say what it cannot show. ``verified``
    has ``ok`` only where all ``records`` do.
    """

    path: str
    about: dict[str, Any]
    verified: dict[str, Any]
    in_words: str
    records: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    counts: dict[str, Any]
    policies: list[dict[str, Any]]
    versions: list[dict[str, Any]]
    shadow: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    ungoverned: list[dict[str, Any]]
    denials: list[dict[str, Any]]
    let_pass: list[dict[str, Any]]
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
        """The tables by their heading: a note, which may be empty, and rows, as they are shown to people."""
        counts = self.counts
        yield "Period", counts["in_words"], [_shown({name: counts[name] for name in ("first", "last", "entries")})]
        yield "Decisions by tool, result and point", self.notes["counts"], list(_count_rows(counts))
        for name, heading in _SECTIONS.items():
            rows = [_shown(row) for row in getattr(self, name)]
            yield heading, self.notes.get(name, "") if rows or name == "ungoverned" else "", rows


_SECTIONS: Final = {
    "records": "Records",
    "keys": "Keys",
    "policies": "Policies",
    "versions": "Versions of the code",
    "shadow": "Shadow mode",
    "runs": "Runs without an end",
    "ungoverned": "Not governed",
    "denials": "Denials by a policy",
    "let_pass": "Let pass in shadow mode",
    "rejections": "Rejections by a person",
    "unanswered": "Calls that ended before a person answered",
    "approvals": "Approvals",
    "changes": "Changes of the record",
}
_NOTES: Final = {
    "proof": (
        "An entry is one event. A chain is what one program wrote, each entry with the hash of the one before it. A head is a"
        " signature over all entries so far, also kept in a file elsewhere: entries after the last head are not signed."
    ),
    "counts": (
        "Tools: decisions before a call. Results: decisions on what a call returned. Points: where in a run was decided."
    ),
    "records": "The digest is the SHA-256 over the hashes of these entries; verify.py prints it for the file.",
    "keys": "Compare the fingerprint (SHA-256 of the public key) with one that reached you another way than this report.",
    "policies": (
        "All policies of the period, whatever was chosen: from when they began until another one did, or their last decision."
        " Decisions: the chosen ones. Mode enforce: a denied call does not run; mode shadow: every call runs, and is judged."
    ),
    "shadow": (
        "The times without enforcement; in another mode than shadow, by some rules only. Let pass: chosen decisions that would"
        " have stopped a call, listed below."
    ),
    "runs": (
        "Whatever was chosen. The record has their beginning and no end: they run still, or were killed. What a last entry"
        " post_model_call proposes was not decided on; of a last decision pre_tool_call it is not known whether the call ran."
    ),
    "ungoverned": (
        "Listed: Python programs that a governed program started and lgov did not reach; other programs that it started; and"
        " hosts to which it sent requests for a model past lgov. A program run by lgov run notes them when it ends. Not seen"
        " here: programs started without lgov, what the listed programs did, and what a governed program does other than by"
        " the tools and models of its framework. An empty list does not show that everything was governed."
    ),
    "denials": "These calls did not run.",
    "let_pass": "These calls ran: shadow mode denies nothing, and asks no person.",
    "rejections": "Each answer once, though several decisions may follow from it.",
    "unanswered": "These calls did not run. A call that is made again for the same request is listed again.",
    "approvals": ("By names the person, or the program's own code where that answered. Shown: what the person saw."),
}
#: Names of fields as they are shown.
_LABELS: Final = {
    "sha256": "fingerprint",
    "policy digest": "fingerprint of the policy",
    "unsigned": "not signed",
    "erased": "with erased texts",
    "before_key": "from before there was a key",
    "let_pass": "let pass",
    "entries_sha256": "digest of",
}
#: What a decision came to, by its effect or the section that lists it.
_WORDS: Final = {
    "allow": "allowed",
    "warn": "allowed with a warning",
    "transform": "allowed with changes",
    "denials": "denied by a policy",
    "rejections": "denied as a person had rejected it",
    "unanswered": "ended before a person answered",
    "let_pass": "let pass in shadow mode",
    "escalate": "ended before a person answered",
    "deny": "denied",
    "would deny": "let pass in shadow mode",
}
#: Names of each kind in the table of counts; JSON has all.
_MOST: Final = 10
#: Characters of an act's arguments in a report.
_ARGUMENTS: Final = 500


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is drawn: what is known from inside a box only is marked as such, what is not known left out."""
    row = {**row, "until": row["until"] or "not replaced"} if "until" in row else row
    cells = {_LABELS.get(name, name): value for name, value in row.items() if value is not None and name != "inside"}
    if "entries_sha256" in row:
        cells["digest of"] = f"entries 1 to {row['entries']}: {row['entries_sha256']}"
    return {**({"said in the box": "yes"} if "inside" in row else {}), **cells}


def _count_rows(counts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for what in ("tools", "results", "points"):
        table: dict[str, dict[str, int]] = counts[what]
        names = sorted(table, key=lambda name: -sum(table[name].values()))
        for name in names[:_MOST]:
            effects = {_WORDS[effect]: table[name][effect] for effect in EFFECTS if effect in table[name]}
            yield {"for": f"{what.removesuffix('s')} {name}", "decisions": sum(table[name].values()), **effects}
        if len(names) > _MOST:
            yield {"for": f"{len(names) - _MOST} more {what}, in the report as JSON"}


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
    reading = _Reading(selection, after, content)
    for name, _ in proofs:
        reading.read(Path(name), is_one_of_several=len(proofs) > 1)
    if reading.damage and all(proof.ok for _, proof in proofs):
        raise reading.damage[0]
    chosen, policies, versions = reading.chosen, reading.held(), _Periods()
    for entry, _ in chosen:
        if entry.kind == "decision":
            versions.add(entry, entry.code_version or "(unknown)", is_chosen=True)
    counts = audit_report(entry for entry, _ in chosen).as_json()
    acts = _acts(chosen)
    missing = [f"Not in this report: {error}." for error in reading.damage]
    return AuditorReport(
        str(path),
        _about(reading, len(proofs)),
        asdict(verified) | {"ok": all(proof.ok for _, proof in proofs)},
        "\n".join([*_broken_archives(proofs), in_words(verified)]),
        [_proof(Path(name).name, proof) for name, proof in proofs],
        _keys(proofs),
        {**counts, "in_words": _sum_in_words(entry for entry, _ in chosen)},
        [period.row() for period in policies],
        [
            {"lgov": each.value, "first": _iso(each.first), "last": _iso(each.last), "decisions": each.decisions}
            for each in versions.every
        ],
        [{**each.row(), "let_pass": each.let_pass} for each in policies if each.mode == "shadow" or each.is_shadowed],
        _unended(proofs, {period.value: period.file for period in reading.policies.every}),
        [_ungoverned(entry, about) for entry, about in chosen if entry.kind == "ungoverned"],
        acts["denials"],
        acts["let_pass"],
        acts["rejections"],
        acts["unanswered"],
        acts["approvals"],
        [_change(entry, about) for entry, about in chosen if entry.kind in _CHANGES],
        {**_NOTES, "records": " ".join([_NOTES["records"], *missing])},
    )


def _about(reading: _Reading, records: int) -> dict[str, Any]:
    """The part of the records that was chosen."""
    filters = {
        name.removesuffix("_id"): value for name, value in asdict(reading.selection).items() if value is not None
    }
    filters |= {name: _iso(filters[name] * 1e9) for name in ("since", "before") if name in filters}
    filters |= {"after entry": reading.after} if reading.after else {}
    entries, where = counted(reading.entries, "entry", "entries"), f" in {counted(records, 'record')}"
    words = f"This report is about the whole record: {entries}{where}."
    if filters:
        chosen = ", ".join(f"{name} {value}" for name, value in filters.items())
        words = (
            f"This report is about a part of the record only: {chosen}. It has {len(reading.chosen)} of {entries}{where};"
            " what was not chosen is not listed, and may hold denials, approvals and changes. The proof is of whole records."
        )
    words += "" if reading.content else " Arguments, texts, and reasons that may quote them, are left out."
    return {"filters": filters, "entries": len(reading.chosen), "of": reading.entries, "in_words": words}


def _sum_in_words(entries: Iterable[AuditEntry]) -> str:
    """The decisions by what they came to, each counted once."""
    kinds = Counter(_kind(entry) for entry in entries if entry.kind == "decision")
    parts = ", ".join(f"{kinds[kind]} {words}" for kind, words in _WORDS.items() if kinds[kind])
    return f"{counted(kinds.total(), 'decision')}: {parts or 'none'}. Other entries are results of calls, and changes."


def _unended(proofs: Iterable[tuple[str, VerifyReport]], files: Mapping[str, str | None]) -> list[dict[str, Any]]:
    return [
        {
            "record": Path(name).name,
            "program": run["program"],
            "rollout": run["rollout"],
            "policy digest": run["policy"],
            "file": files.get(run["policy"]),
            "began": run["first"]["time"],
            "first entry": run["first"]["entry"],
            "last": run["last"]["time"],
            "last entry": run["last"]["entry"],
            "what": run["last"]["what"],
        }
        for name, proof in proofs
        for run in proof.unended
    ]


def _broken_archives(proofs: Sequence[tuple[str, VerifyReport]]) -> list[str]:
    return [f"BROKEN: {name}: {proof.problem}" for name, proof in proofs[:-1] if not proof.ok]


def _acts(chosen: Sequence[_Chosen]) -> dict[str, list[dict[str, Any]]]:
    """The rows about acts by their section. Of a person's answer there is one: its own entry, or else the decisions by it."""
    acts: dict[str, list[dict[str, Any]]] = {"denials": [], "let_pass": [], "rejections": []}
    acts |= {"unanswered": [], "approvals": []}
    answered = {(entry.body["request"], entry.rule) for entry, _ in chosen if entry.kind == ANSWER}
    for entry, about in chosen:
        kind, approval = _kind(entry), entry.approval
        verdict = entry.verdict if kind == "let_pass" else entry.body
        if entry.kind == ANSWER:
            row = _act(entry, about, {**verdict, "reason": reason_of(entry)})
            acts["approvals" if entry.rule == APPROVED else "rejections"].append(row)
        if entry.kind != "decision":
            continue
        if kind in acts and (verdict.get("request"), verdict.get("rule")) not in answered:
            would = {"would have been": "denied" if verdict["effect"] == "deny" else "put to a person"}
            acts[kind].append(_act(entry, about, verdict) | (would if kind == "let_pass" else {}))
        if approval is not None and (approval.get("request"), APPROVED) not in answered:
            acts["approvals"].append(_act(entry, about, approval))
    return acts


def _kind(entry: AuditEntry) -> str:
    """The section of a decision that blocked a call, or would have outside shadow mode; else its effect."""
    if entry.effect not in BLOCKING:
        return "let_pass" if entry.verdict["effect"] in BLOCKING else entry.effect or "allow"
    return "unanswered" if entry.effect == "escalate" else "rejections" if entry.rule == REJECTED else "denials"


def _proofs(
    path: Path, verified: VerifyReport, archive: Path | None, heads: Path | None
) -> list[tuple[str, VerifyReport]]:
    """The proofs of the archives, the oldest first, and that of the record, which ``verified`` has by its key."""
    (_, own), *older = verify_archived(path, archive, head=heads)  # which may be signed with other keys
    if verified.ok and not own.ok:  # the record that it continues was not found
        verified = replace(verified, ok=False, problem=own.problem, first_bad=own.first_bad)
    return [*reversed(older), (str(path), replace(verified, others=own.others))]


def _keys(proofs: Sequence[tuple[str, VerifyReport]]) -> list[dict[str, Any]]:
    """The keys that signed."""
    return [
        {"key": key, "sha256": hashlib.sha256(bytes.fromhex(key)).hexdigest()}
        for key in dict.fromkeys(proof.key for _, proof in proofs if proof.key is not None)
    ]


#: An entry, and where and when it was written.
_Chosen: TypeAlias = tuple[AuditEntry, dict[str, Any]]


@dataclass(slots=True)
class _Reading:
    """Reads records: ``chosen`` gets the entries of a selection, ``policies`` when each held, by all entries.

    ``damage`` gets why entries could not be read.
    """

    selection: EntrySelection
    after: int
    content: bool
    chosen: list[_Chosen] = field(default_factory=list[_Chosen])
    policies: _Periods = field(default_factory=lambda: _Periods())
    damage: list[AuditError] = field(default_factory=list[AuditError])
    entries: int = 0
    _begin: float = 0

    def read(self, path: Path, *, is_one_of_several: bool) -> None:
        """Reads the record at ``path``."""
        named = {"record": path.name} if is_one_of_several else {}
        every: list[AuditEntry] = []
        try:
            if is_blank(path):  # which would become a new record
                raise AuditError(f"there is nothing in {path}", hint="put its archive back")
            with AuditLog(path, signer=None) as log:
                every = log.entries(damage=self.damage)
        except AuditError as error:
            self.damage.append(error)
        self.entries += len(every)
        for entry in every:
            is_chosen = entry.position > self.after and self.selection.holds(entry)
            if entry.kind == "decision" or (entry.kind == "policy" and "mode" in entry.body):
                self.policies.add(entry, entry.policy_digest or "(none)", is_chosen=is_chosen)
            if is_chosen:
                about = {**named, "entry": entry.position, "time": _iso(entry.time_ns), "rollout": entry.rollout_id}
                about |= {"inside": True} if entry.body.get("inside") else {}
                self.chosen.append((entry if self.content else entry.without_content(), about))
            elif entry.position == self.after:
                self._begin = entry.time_ns

    def held(self) -> list[_Period]:
        """The periods of policies that overlap with the time that was chosen."""
        begin = max(self._begin, (self.selection.since or 0) * 1e9)
        before = self.selection.before
        return [
            period
            for period in self.policies.ended()
            if (period.until is None or period.until >= begin) and (before is None or period.first < before * 1e9)
        ]


def _proof(name: str, proof: VerifyReport) -> dict[str, Any]:
    names = ("record", "ok", "problem", "entries", "erased", "signed", "unsigned", "before_key", "entries_sha256")
    return {"file": name, **{field: getattr(proof, field) for field in names}}


_CHANGES: Final = ("erasure", "rotation", "retirement", "loss", "confinement", "policy")


def _iso(time_ns: float) -> str:
    return moment(int(time_ns)).isoformat(timespec="seconds")


def _act(entry: AuditEntry, about: Mapping[str, Any], verdict: Mapping[str, Any]) -> dict[str, Any]:
    act = {**about, **{name: getattr(entry, name) for name in ("point", "name", "agent")}}
    act |= {name: verdict.get(name) for name in ("policy", "rule", "severity")}
    return act | {
        "by": answerer(verdict),
        "arguments": (entry.arguments or "")[:_ARGUMENTS] or None,
        "reason": verdict.get("reason") or None,
    }


@dataclass(slots=True)
class _Period:
    """The time for which a value held: its first and last entry, by number and by time; of a policy its file and mode.

    ``until`` is when another one began, or its last entry, if that is later; None where it holds still.
    """

    value: str
    begun: int
    first: int
    number: int = 0
    last: int = 0
    until: int | None = None
    file: str | None = None
    mode: str | None = None
    is_shadowed: bool = False
    decisions: int = 0
    let_pass: int = 0

    def row(self) -> dict[str, Any]:
        about = {"policy digest": self.value, "file": self.file, "mode": self.mode, "from": _iso(self.first)}
        return {**about, "until": self.until and _iso(self.until), "decisions": self.decisions}


@dataclass(slots=True)
class _Periods:
    """The periods of a value. It has another once it held, was replaced and holds again; programs that run at the same time
    under different values do not end each other's.
    """

    every: list[_Period] = field(default_factory=list[_Period])
    _of_writer: dict[str, _Period] = field(default_factory=dict[str, _Period])
    _beginnings: dict[str, AuditEntry] = field(default_factory=dict[str, AuditEntry])
    _count: int = 0

    def add(self, entry: AuditEntry, value: str, *, is_chosen: bool) -> None:
        """Adds a decision, or the beginning of a policy, in the order of writing."""
        self._count += 1
        period = self._of_writer.get(entry.writer)
        if period is None or period.value != value:
            period = next((period for period in reversed(self.every) if period.value == value), None)
            if period is None or period.number < self.every[-1].begun:
                self.every.append(period := _Period(value, self._count, entry.time_ns))
        self._of_writer[entry.writer] = period
        period.number, period.last = self._count, entry.time_ns
        if entry.kind == "decision":
            is_let_pass = _kind(entry) == "let_pass"
            period.is_shadowed |= is_let_pass or bool(entry.shadowed)
            period.decisions += is_chosen
            period.let_pass += is_chosen and is_let_pass
        else:
            self._beginnings[value] = entry
        if (beginning := self._beginnings.get(value)) is not None:
            period.file, period.mode = beginning.name, beginning.body["mode"]

    def ended(self) -> list[_Period]:
        """The periods, each with its end."""
        for period, following in zip(self.every, self.every[1:], strict=False):
            period.until = max(period.last, following.first)
        return self.every


def _change(entry: AuditEntry, about: Mapping[str, Any]) -> dict[str, Any]:
    text, why = about_records(entry), entry.reason or ""
    if text:
        text += f": {why}" if why else ""
    elif why:
        text = {"confinement": f"box: {why}", "policy": f"{entry.name}: {why}"}.get(entry.kind, why)
    if entry.kind == "policy" and "mode" in entry.body:
        mode = "enforced" if entry.body["mode"] == "enforce" else "in shadow mode: nothing is denied"
        text = f"the policy {entry.name} holds from then on, {mode}"
    digest = entry.policy_digest or None if entry.kind == "policy" else None
    return {**about, "kind": entry.kind, "what": text, "by": entry.body.get("by"), "policy digest": digest}


def _ungoverned(entry: AuditEntry, about: Mapping[str, Any]) -> dict[str, Any]:
    kinds = ("programs", "others", "requests")
    return {**about, **{name: _names(entry.body[name]) for name in kinds if entry.body.get(name)}}


def _names(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in counts.items())


def evidence_text(report: AuditorReport) -> Iterator[str]:
    """The lines of the report as text."""
    yield from (f"Audit report of {report.path}", report.about["in_words"], "", *report.in_words.splitlines())
    yield report.notes["proof"]
    for heading, note, rows in report.sections():
        yield from ("", f"{heading}: {len(rows) if rows else _none(report)}" if heading != "Period" else heading)
        yield from [note] if note else []
        for row in rows:
            yield "  " + ", ".join(f"{name} {value}" for name, value in row.items())


def _none(report: AuditorReport) -> str:
    return "none among the chosen entries" if report.about["filters"] else "none"


#: A table as one paragraph a row, in what the name stands for: on paper, on a narrow screen, and where columns are many.
_AS_PARAGRAPHS: Final = (
    "{0} table,{0} tbody,{0} tr{{display:block}}{0} .names,{0} td:empty{{display:none}}{0} td{{display:inline-block;border:0}}"
    "{0} td{{padding:0 1rem 0 0;max-width:100%}}{0} td::before{{content:attr(data-name)': ';color:#555}}"
    "{0} tr{{border-top:1px solid #c8ccd1;padding:.4rem 0;break-inside:avoid}}"
)
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1c1e21;background:#fff}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{border:1px solid #c8ccd1;padding:.3rem .6rem}"
    "th,td{text-align:left;vertical-align:top}h1,p,th,td,pre{overflow-wrap:anywhere}th,pre{background:#f0f2f4}"
    "pre{padding:1rem;white-space:pre-wrap}.ok{border-left:.4rem solid #2a7d46}.broken{border-left:.4rem solid #b3261e}"
    f"{_AS_PARAGRAPHS.format('.many')}@media print,(max-width:60rem){{{_AS_PARAGRAPHS.format('div')}}}"
    "@media print{body{font-size:11px;margin:0;max-width:none}}"
)
#: The most columns of a table on a wide screen.
_COLUMNS: Final = 4


def evidence_html(report: AuditorReport) -> Iterator[str]:
    """The lines of the report as one HTML file, which loads nothing, in ASCII."""

    def text(value: object) -> str:
        return html.escape(str(value)).encode("ascii", "xmlcharrefreplace").decode()

    title = text(f"Audit report of {report.path}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{_STYLE}</style></head><body><h1>{title}</h1><p><strong>{text(report.about['in_words'])}</strong></p>"
    yield f'<pre class="{"ok" if report.is_right else "broken"}">{text(report.in_words)}</pre>'
    yield f"<p>{text(report.notes['proof'])}</p>"
    for heading, note, rows in report.sections():
        yield f"<h2>{heading}</h2>" + (f"<p>{text(note)}</p>" if note else "")
        if not rows:
            yield f"<p>{_none(report).capitalize()}.</p>"
            continue
        names = list(dict.fromkeys(name for row in rows for name in row))
        yield '<div class="many"><table>' if len(names) > _COLUMNS else "<div><table>"
        yield '<tr class="names">' + "".join(f"<th>{text(name)}</th>" for name in names) + "</tr>"
        for row in rows:
            cells = (f'<td data-name="{text(name)}">{text(row.get(name, ""))}</td>' for name in names)
            yield "<tr>" + "".join(cells) + "</tr>"
        yield "</table></div>"
    yield "</body></html>"
