"""``lgov policy pins``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import write_json


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--approve", metavar="DIGEST", help="Pin the changed definition with this digest.")
@click.pass_context
def pins(ctx: click.Context, file: Path, approve: str | None, as_json: bool) -> None:
    """Show the tools pinned in FILE, the `store` of a rule with `use: pinned`; exit status 1 where changes wait."""
    from lgov_core.policies.tools.pinned import PinnedTools, digest_of_definition

    with closing(PinnedTools(file)) as tools:
        if approve is not None:
            tools.approve(approve)
        found = tools.all()
    if as_json:
        write_json([{"name": pin.name, "definition": pin.definition, "changed": pin.changed} for pin in found])
    for pin in () if as_json else found:
        click.echo(f"{pin.name}  {digest_of_definition(pin.definition)}")
        if pin.changed is not None:
            click.echo(f"  pinned   {pin.definition}\n  changed  {pin.changed}")
            click.echo(f"  to pin it: lgov policy pins {file} --approve {digest_of_definition(pin.changed)}")
    if any(pin.changed is not None for pin in found):
        ctx.exit(Exit.FINDING)
