"""``lgov audit show`` and ``lgov audit export``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.audit.selected import selection_options
from lgov_core.commands.group import Exit
from lgov_core.commands.options import PATH, command, limit_option
from lgov_core.commands.output import effect_text, write_json, write_result, write_table
from lgov_core.commands.recorded import opened_record

if TYPE_CHECKING:
    from lgov_core.audit import AuditEntry
    from lgov_core.audit.selection import Selection

#: Characters of arguments in the table.
_ARGUMENTS_SHOWN = 80


@command(Exit.OK, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@selection_options
@click.option(
    "--denied", is_flag=True, help="Only decisions that blocked something, or would have outside shadow mode."
)
@click.option("--entry", "entry_id", metavar="ID", help="Only the entry with this id (aud_...), and its outcome.")
@limit_option("Most recent rows")
def show(path: Path, selection: Selection, denied: bool, entry_id: str | None, limit: int, as_json: bool) -> None:
    """List the entries of the audit record PATH, in the order of writing. Times are in UTC.

    A row is one line, where long values are cut; --json has everything.
    """
    from lgov_core.audit.export import plain
    from lgov_core.types import BLOCKING

    with opened_record(path) as record:
        entries = [one for one in record.entries(selection.rollout_id) if selection.holds(one)]
    if entry_id is not None:
        entries = [one for one in entries if entry_id in (one.entry_id, one.refers_to)]
    if denied:
        entries = [one for one in entries if one.verdict["effect"] in BLOCKING]
    shown = entries[-limit:] if limit else entries
    if as_json:
        write_json([plain(entry) for entry in shown])
        return
    columns = ("#", "time", "what", "action", "answer", "why")
    write_table(columns, [_row(entry) for entry in shown], shortened=("action", "why"))
    click.echo(f"{len(shown)} of {counted(len(entries), 'entry', 'entries')}", err=True)


def _row(entry: AuditEntry) -> tuple[object, ...]:
    when = datetime.fromtimestamp(entry.time_ns / 1e9, UTC).strftime("%m-%d %H:%M:%S")
    verdict = entry.verdict
    where = f"{verdict['policy']}/{verdict['rule']}" if verdict["rule"] else verdict["policy"] or ""
    why = f"{where}: {verdict['reason']}" if verdict["reason"] and where else verdict["reason"] or where
    why = f"said in the box: {why}" if entry.body.get("inside") else why
    answer = effect_text(entry.effect, verdict["effect"]) if entry.effect else entry.status or ""
    return entry.position, when, entry.point or entry.kind, _subject(entry), answer, why


def _subject(entry: AuditEntry) -> str:
    """What the entry is about: an act, or other entries and records."""
    body = entry.body
    if "erased" in body:
        return f"texts of {counted(len(body['erased']), 'entry', 'entries')}"
    if "previous" in body:
        return f"continues {body['previous']['file']}, of {counted(body['previous']['entries'], 'entry', 'entries')}"
    if "retired" in body:
        return f"deleted {', '.join(one['file'] for one in body['retired'].values())}"
    return f"{entry.name or ''} {(entry.arguments or '')[:_ARGUMENTS_SHOWN]}".strip()


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@click.option(
    "--format", "form", type=click.Choice(("jsonl", "cloudevents", "ocsf")), default="jsonl", show_default=True
)
@click.option("--output", type=PATH, help="Output file. [default: standard output]")
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, help="Only entries after this position.")
@selection_options
def export(path: Path, form: str, output: Path | None, after: int, selection: Selection, as_json: bool) -> None:
    """Write the audit record PATH as JSON lines: its own fields, CloudEvents 1.0, or OCSF 1.3 API Activity.

    A file is written whole or not at all. With --json the summary about --output is JSON; the entries always are.
    """
    from lgov_core._util.atomic_file import write_lines
    from lgov_core.audit.export import Format, lines
    from lgov_core.errors import ExportError

    with opened_record(path) as record:
        entries = [one for one in record.entries(selection.rollout_id, after=after) if selection.holds(one)]
    written = lines(entries, cast("Format", form))
    if output is None:
        for line in written:
            click.echo(line)
        return
    count = write_lines(output, written, ExportError)
    about = {"file": str(output), "format": form, "entries": count}
    write_result(about, f"wrote {counted(count, 'entry', 'entries')} to {output}", as_json=as_json)
