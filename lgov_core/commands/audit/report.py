"""``lgov audit report``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.audit.selected import kept_heads_option, selection_options, trusted_key_option
from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, PATH, command
from lgov_core.commands.output import printable, write_json, write_table
from lgov_core.commands.recorded import opened_record

if TYPE_CHECKING:
    from lgov_core.audit.report import AuditReport
    from lgov_core.audit.selection import Selection

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #8884; font-variant-numeric: tabular-nums }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere }
.deny { color: #c0392b; font-weight: 600 } .none { opacity: .4 }
"""


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.AUDIT_BROKEN)
@click.argument("path", type=PATH)
@selection_options
@trusted_key_option
@kept_heads_option
@click.option("--html", type=FILE, help="Also write the report as one HTML page.")
@click.pass_context
def report(
    ctx: click.Context,
    path: Path,
    selection: Selection,
    key: str | None,
    head: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Count the decisions in the audit record PATH by tool, result, rule, agent, point and time.

    A tool has one decision for each call; those on what it returned are under "result". "would deny" counts what shadow mode
    allowed and the policies deny. The report ends with what lgov audit verify says of the record.
    """
    from lgov_core.audit.report import audit_report
    from lgov_core.audit.verify import in_words, verify

    with opened_record(path) as record:
        found = audit_report(entry for entry in record.entries() if selection.holds(entry))
    verified = verify(path, key=key, head=head)
    if verified.usage:
        raise click.UsageError(str(verified.problem))
    proof = in_words(verified)
    if html is not None:
        from lgov_core._util.atomic_file import write_lines
        from lgov_core.errors import ExportError

        write_lines(html, _page(path, found, proof), ExportError)
    if as_json:
        write_json({"path": str(path), **found.as_json(), "verified": asdict(verified)})
    else:
        _show(found, proof)
        if html is not None:
            click.echo(f"wrote {html}", err=True)
    ctx.exit(Exit.OK if verified.ok else Exit.AUDIT_BROKEN)


def _show(found: AuditReport, proof: str) -> None:
    click.echo(f"{_summary(found)}\n")
    for heading, table in found.tables().items():
        if table:
            write_table((heading, *_columns(found)), _rows(found, table))
            click.echo()
    click.echo(f"verified\n{proof}")


def _summary(found: AuditReport) -> str:
    counts = ", ".join(f"{found.decisions[effect]} {effect}" for effect in _columns(found)[1:])
    decisions = counted(found.decisions.total(), "decision")
    when = f", from {found.first} to {found.last}" if found.first else ""
    return f"{decisions} ({counts or 'none'}) in {counted(found.entries, 'entry', 'entries')}{when}"


def _columns(found: AuditReport) -> tuple[str, ...]:
    """The effects that occur, behind the sum."""
    from lgov_core.audit.report import EFFECTS

    return "decisions", *(effect for effect in EFFECTS if found.decisions[effect])


def _rows(found: AuditReport, table: Mapping[str, Counter[str]]) -> Iterator[tuple[object, ...]]:
    """The rows of one table: times in their order, everything else with what was denied most first."""
    names = sorted(table)
    if table is not found.times:
        names.sort(key=lambda name: (-table[name]["deny"], -table[name]["would deny"], -table[name].total()))
    for name in names:
        yield name, table[name].total(), *(table[name][effect] for effect in _columns(found)[1:])


def _page(path: Path, found: AuditReport, proof: str) -> list[str]:
    """The report as a page that loads nothing else."""
    name = escape(printable(str(path)))
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Audit report: {name}</title><style>{_STYLE}</style><h1>Audit report</h1>"
        f"<p><code>{name}</code>: {_summary(found)}.</p>"
    ]
    for heading, table in found.tables().items():
        if not table:
            continue
        cells = "".join(f"<th scope=col>{column}" for column in (heading, *_columns(found)))
        parts.append(f"<h2>By {heading}</h2><table><thead><tr>{cells}<tbody>")
        for first, *counts in _rows(found, table):
            parts.append(f"<tr><td>{escape(printable(str(first)))}")
            for effect, count in zip(_columns(found), counts, strict=True):
                kind = "none" if not count else "deny" if "deny" in effect else ""
                parts.append(f"<td class='{kind}'>{count}")
        parts.append("</table>")
    lines = "".join(f"<li>{escape(printable(line))}" for line in proof.splitlines())
    parts.append(f"<h2>Verification</h2><ul>{lines}</ul>")
    return [line.encode("ascii", "xmlcharrefreplace").decode() for line in parts]
