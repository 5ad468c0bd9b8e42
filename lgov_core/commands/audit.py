"""``lgov audit``: verifies, shows, counts, erases and archives the record of decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lgov_core.commands.group import Exit, effect_text, write_json, write_result, write_table
from lgov_core.commands.options import (
    FOLDER,
    PATH,
    command,
    entries_option,
    limit_option,
    moment_option,
    opened_record,
    record_or_setting,
    settings_option,
    yes_option,
)
from lgov_core.errors import LgovError, counted
from lgov_core.settings import load_settings

if TYPE_CHECKING:
    from lgov_core.audit import AuditEntry, AuditLog
    from lgov_core.audit.reading import EntrySelection
    from lgov_core.audit.report import AuditReport

#: Characters of arguments in the table.
_ARGUMENTS_SHOWN: Final = 80


# ---------------------------------------------------------------------- verify


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--key", help="Public key that must have signed the record: 64 hex digits, or a file with them.")
@click.option("--head", type=PATH, help="File with signed heads kept outside the record.")
@click.option("--archive", type=FOLDER, help="Folder of archived records: verify those before PATH too.")
@click.option("--require-signed", is_flag=True, help="Require a signed head over every entry.")
@click.pass_context
def verify(
    ctx: click.Context,
    path: Path,
    key: str | None,
    head: Path | None,
    archive: Path | None,
    require_signed: bool,
    as_json: bool,
) -> None:
    """Verify every chain, text and signature in the audit record PATH, and report what that proves.

    Without --key any key is accepted; without --head a record cut at its end, or an older copy, is not detected. The same
    check is one file that needs nothing of lgov: python -m lgov_core.audit.verify, or a copy of it.

    PATH may be the folder of a checkpoint, an export or a run (all its checkpoints): every file, the weights, the data and
    the chain of statements since the first checkpoint are compared with the statements.
    """
    if not path.exists():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    if path.is_dir():
        if head is not None or archive is not None:
            raise click.UsageError("--head and --archive are for audit records; a checkpoint has none")
        ctx.exit(_verify_folder(path, key, require_signed, as_json))
    from lgov_core.audit.verify import in_words, verify_archived
    from lgov_core.audit.verify import verify as verify_record

    if archive is None:
        reports = [(str(path), verify_record(path, key=key, head=head, require_signed=require_signed))]
    elif archive.is_dir():
        reports = verify_archived(path, archive, key=key, head=head, require_signed=require_signed)
    else:
        raise click.UsageError(f"--archive: there is no folder {archive}")
    if reports[0][1].usage:
        raise click.UsageError(str(reports[0][1].problem))
    values: list[dict[str, Any]] = [{"path": name, **asdict(report)} for name, report in reports]
    words = [in_words(report) if archive is None else f"{name}\n{in_words(report)}" for name, report in reports]
    ok = all(report.ok for _, report in reports)
    write_result(values[0] if archive is None else {"ok": ok, "records": values}, "\n".join(words), as_json=as_json)
    ctx.exit(Exit.OK if ok else Exit.AUDIT_BROKEN)


def _verify_folder(path: Path, key: str | None, require_signed: bool, as_json: bool) -> Exit:
    """Verifies one checkpoint, or all of a run."""
    from lgov_core.audit.lineage import FOLDERS, LINEAGE_FILE, in_words, verify_lineage

    inner = sorted(file.parent for pattern in FOLDERS for file in path.glob(f"{pattern}/{LINEAGE_FILE}"))
    alone = (path / LINEAGE_FILE).exists() or not inner
    bare = [folder for pattern in FOLDERS for folder in path.glob(pattern) if folder.is_dir() and folder not in inner]
    folders = [path] if alone else sorted([*inner, *bare])
    reports = [verify_lineage(folder, key=key, require_signed=require_signed) for folder in folders]
    if reports[0].usage:
        raise click.UsageError(str(reports[0].problem))
    ok, values = all(report.ok for report in reports), [asdict(report) for report in reports]
    about = values[0] if alone else {"path": str(path), "ok": ok, "checkpoints": values}
    write_result(about, "\n".join(map(in_words, reports)), as_json=as_json)
    return Exit.OK if ok else Exit.AUDIT_BROKEN


# ---------------------------------------------------------------------- show


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH, required=False)
@entries_option
@click.option(
    "--denied", is_flag=True, help="Only decisions that blocked something, or would have outside shadow mode."
)
@click.option("--entry", "entry_id", metavar="ID", help="Only the entry with this id (aud_...), and its outcome.")
@click.option("--counts", is_flag=True, help="Count the decisions instead, and verify the record.")
@limit_option("Most recent rows")
@click.pass_context
def show(
    ctx: click.Context,
    path: Path | None,
    selection: EntrySelection,
    denied: bool,
    entry_id: str | None,
    counts: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List the entries of the audit record PATH (default: the one of the settings), in the order of writing.

    A row is one line, where long values are cut; --json has everything. Times are in UTC.

    --counts counts the decisions by tool, result, rule, agent, point and time. A tool has one decision for each call; those on
    what it returned are under "result". "would deny" is what shadow mode allowed and the policies deny.
    """
    from lgov_core.audit.report import plain
    from lgov_core.types import BLOCKING

    path = record_or_setting(path)
    with opened_record(path) as record:
        entries = [entry for entry in record.entries(selection.rollout_id) if selection.holds(entry)]
    if entry_id is not None:
        entries = [entry for entry in entries if entry_id in (entry.entry_id, entry.refers_to)]
    if denied:
        entries = [entry for entry in entries if entry.verdict["effect"] in BLOCKING]
    if counts:
        ctx.exit(_count(path, entries, as_json))
    newest = entries[-limit:] if limit else entries
    if as_json:
        write_json([plain(entry) for entry in newest])
        return
    columns = ("#", "time", "what", "action", "answer", "why")
    write_table(columns, [_row(entry) for entry in newest], shortened=("action", "why"))
    click.echo(f"{len(newest)} of {counted(len(entries), 'entry', 'entries')}", err=True)


def _row(entry: AuditEntry) -> tuple[object, ...]:
    when = datetime.fromtimestamp(entry.time_ns / 1e9, UTC).strftime("%m-%d %H:%M:%S")
    verdict = entry.verdict
    where = f"{verdict['policy']}/{verdict['rule']}" if verdict["rule"] else verdict["policy"] or ""
    why = f"{where}: {verdict['reason']}" if verdict["reason"] and where else verdict["reason"] or where
    why = f"said in the box: {why}" if entry.body.get("inside") else why
    answer = effect_text(entry.effect, verdict["effect"]) if entry.effect else entry.status or ""
    return entry.position, when, entry.point or entry.kind, _subject(entry), answer, why


def _subject(entry: AuditEntry) -> str:
    """The subject of the entry: an act, or other entries and records."""
    body = entry.body
    if "erased" in body:
        return f"texts of {counted(len(body['erased']), 'entry', 'entries')}"
    if "previous" in body:
        return f"continues {body['previous']['file']}, of {counted(body['previous']['entries'], 'entry', 'entries')}"
    if "retired" in body:
        return f"deleted {', '.join(record['file'] for record in body['retired'].values())}"
    return f"{entry.name or ''} {(entry.arguments or '')[:_ARGUMENTS_SHOWN]}".strip()


def _count(path: Path, entries: Sequence[AuditEntry], as_json: bool) -> Exit:
    from lgov_core.audit.report import audit_report
    from lgov_core.audit.verify import in_words
    from lgov_core.audit.verify import verify as verify_record

    report, verified = audit_report(entries), verify_record(path)
    if as_json:
        write_json({"path": str(path), **report.as_json(), "verified": asdict(verified)})
    else:
        effects = _effects(report)
        sums = ", ".join(f"{report.decisions[effect]} {effect}" for effect in effects)
        when = f", from {report.first} to {report.last}" if report.first else ""
        decisions = counted(report.decisions.total(), "decision")
        click.echo(f"{decisions} ({sums or 'none'}) in {counted(report.entries, 'entry', 'entries')}{when}\n")
        for heading, table in report.tables().items():
            if table:
                write_table((heading, "decisions", *effects), _count_rows(report, table))
                click.echo()
        click.echo(f"verified\n{in_words(verified)}")
    return Exit.OK if verified.ok else Exit.AUDIT_BROKEN


def _effects(report: AuditReport) -> tuple[str, ...]:
    """The effects that occur."""
    from lgov_core.audit.report import EFFECTS

    return tuple(effect for effect in EFFECTS if report.decisions[effect])


def _count_rows(report: AuditReport, table: Mapping[str, Counter[str]]) -> Iterator[tuple[object, ...]]:
    """The rows of one table: times in their order, everything else with what was denied most first."""
    names = sorted(table)
    if table is not report.times:
        names.sort(key=lambda name: (-table[name]["deny"], -table[name]["would deny"], -table[name].total()))
    for name in names:
        yield name, table[name].total(), *(table[name][effect] for effect in _effects(report))


# ---------------------------------------------------------------------- erase


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--entry", "entry_id", metavar="ID", help="The entry whose texts to erase.")
@entries_option
@click.option("--reason", default="", help="Reason; recorded.")
@settings_option
@yes_option
@click.pass_context
def erase(
    ctx: click.Context,
    path: Path,
    entry_id: str | None,
    selection: EntrySelection,
    reason: str,
    assignments: Mapping[str, str],
    yes: bool,
    as_json: bool,
) -> None:
    """Erase arguments and texts of one entry, or of all that fit the options, from the audit record PATH.

    The chain stays valid, and an entry says what was erased; in a signed record it is signed with the record's key (the setting
    audit_key). Exits 1 when there was nothing to erase. Names, ids and reasons are part of the chain and stay: entries where
    the text of --where is in one are counted. Copies, exports and trace stores keep the texts.
    """
    from lgov_core.audit import default_signer
    from lgov_core.audit.reading import EntrySelection

    if (entry_id is None) == (selection == EntrySelection()):
        raise click.UsageError("give --entry, or options such as --where rollout=ID, --where text=TEXT or --before")
    if as_json and not yes:
        raise click.UsageError("--json does not prompt: give --yes with it")
    if not yes:
        what = str(entry_id)
        if entry_id is None:
            with opened_record(path) as record:
                what = counted(len(_entries_with_texts(record, None, selection)), "entry", "entries")
        click.confirm(f"Erase the texts of {what} for good?", abort=True, err=True)
    settings = load_settings(texts=assignments)
    with opened_record(path, signer=default_signer(settings.audit_key), heads=settings.heads) as record:
        entries = _entries_with_texts(record, entry_id, selection)
        rollouts = sorted({entry.rollout_id for entry in entries if entry.rollout_id})
        count = record.erase(entry_id=entry_id, selection=None if entry_id else selection, reason=reason)
        kept = 0 if selection.text is None else sum(map(selection.holds, record.entries()))
    text = f"erased the texts of {counted(count, 'entry', 'entries')}"
    if kept:
        text += f"; {counted(kept, 'entry', 'entries')} still with it in a name or a reason, which the chain needs"
    if rollouts:
        text += f"\nfrom {counted(len(rollouts), 'rollout')}, which a trace store has too (lgov traces prune STORE"
        text += f"{''.join(f' --where rollout={rollout}' for rollout in rollouts)})"
    write_result({"path": str(path), "erased": count, "kept": kept, "rollouts": rollouts}, text, as_json=as_json)
    ctx.exit(Exit.OK if count else Exit.FINDING)


def _entries_with_texts(record: AuditLog, entry_id: str | None, selection: EntrySelection) -> list[AuditEntry]:
    return [
        entry
        for entry in record.entries()
        if (entry.arguments or entry.content) and entry_id in (None, entry.entry_id) and selection.holds(entry)
    ]


# ---------------------------------------------------------------------- rotate, keygen


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option("--to", "folder", type=FOLDER, required=True, help="Folder of archived records, on the same file system.")
@moment_option("--delete-before", "Also delete archived records last written before")
@settings_option
def rotate(
    path: Path, folder: Path, delete_before: float | None, assignments: Mapping[str, str], as_json: bool
) -> None:
    """Archive the audit record PATH and begin the next one, which states what the archive holds.

    No program may have it open meanwhile. A signed record needs its key: the setting audit_key. lgov audit verify --archive
    checks the records across: one that is missing, cut or changed is found. --delete-before is for retention: an entry of the
    new record names what was deleted.
    """
    from lgov_core.audit import default_signer
    from lgov_core.audit.rotation import retire
    from lgov_core.audit.rotation import rotate as rotate_record

    if not path.is_file():
        raise LgovError(f"there is no audit record {path}", hint="name the record that was given to --audit")
    settings = load_settings(texts=assignments)
    signer, heads = default_signer(settings.audit_key), settings.heads
    target = rotate_record(path, folder, signer=signer, heads=heads)
    deleted = [] if delete_before is None else retire(path, folder, before=delete_before, signer=signer, heads=heads)
    text = f"archived as {target}; {path} continues it" + "".join(f"\ndeleted {name}" for name in deleted)
    about = {"path": str(path), "archive": str(target), "deleted": [str(name) for name in deleted]}
    write_result(about, text, as_json=as_json)


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.option("--key", type=PATH, help="Where to write the key. [default: the user's configuration folder]")
def keygen(key: Path | None, as_json: bool) -> None:
    """Create the Ed25519 key that signs audit records, and the public key beside it (.pub).

    Give the public key to those who verify. With the key at its default place every record is signed from then on.
    """
    from lgov_core.audit import default_key_path, make_key
    from lgov_core.audit.signing import public_path

    secret = key or default_key_path()
    signing_key = make_key(secret)
    public, key_hex = public_path(secret), signing_key.public.hex()
    write_result(
        {"key": str(secret), "public_key_file": str(public), "public_key": key_hex},
        f"secret key: {secret} (keep it away from those who can write the record)\npublic key: {public}\n  {key_hex}",
        as_json=as_json,
    )
