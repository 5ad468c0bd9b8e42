"""``lgov audit verify``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from lgov_core.commands.group import Exit, exit_status, json_option
from lgov_core.commands.output import write_json


@click.command(epilog=exit_status(Exit.OK, Exit.USAGE, Exit.AUDIT_BROKEN))
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--key", help="The public key that must have signed: 64 hex digits, or the file that holds it.")
@click.option("--head", type=click.Path(path_type=Path), help="The file where heads were kept outside of the record.")
@click.option("--require-signed", is_flag=True, help="Every entry must be covered by a signed head.")
@json_option
@click.pass_context
def verify(
    ctx: click.Context, path: Path, key: str | None, head: Path | None, require_signed: bool, as_json: bool
) -> None:
    """Recompute every chain, text and signature in the audit record PATH, and say what that proves.

    Without --key any key will do, and without --head a record that was cut at its end, or an older copy, does not show.
    The same check is one file that needs nothing of lgov: python -m lgov_core.audit.verify, or a copy of it.
    """
    from lgov_core.audit.verify import in_words
    from lgov_core.audit.verify import verify as recompute

    report = recompute(path, key=key, head=head, require_signed=require_signed)
    if report.usage:
        raise click.UsageError(str(report.problem))
    if as_json:
        write_json({"path": str(path), **asdict(report)})
    else:
        click.echo(in_words(report))
    ctx.exit(Exit.OK if report.ok else Exit.AUDIT_BROKEN)
