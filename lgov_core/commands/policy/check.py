"""``lgov policy check``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lgov_core.commands.group import Exit, show_error
from lgov_core.commands.options import PATH, command
from lgov_core.commands.output import write_json
from lgov_core.errors import PolicyError


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH)
@click.pass_context
def check(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Check FILE as a governed program would load it; reports the first error of each rule."""
    from lgov_core.policies import dry_run as dry_run
    from lgov_core.policies import load_policy_file

    try:
        with dry_run():
            loaded = load_policy_file(file)
    except PolicyError as error:
        problems = [error, *getattr(error, "further", ())]
        if as_json:
            write_json({"file": str(file), "ok": False, "problems": [_said(problem) for problem in problems]})
        else:
            for problem in problems:
                show_error(problem, as_json=False)
        ctx.exit(Exit.FINDING)
    rules = [rule.name for rule in loaded.rules]
    about = {"name": loaded.name, "mode": loaded.mode, "default": loaded.default, "digest": loaded.digest}
    if as_json:
        write_json({"file": str(file), "ok": True, "problems": [], **about, "rules": rules})
        return
    click.echo(f"{file}: ok")
    click.echo(f"  {loaded.name}: {len(rules)} rules ({', '.join(rules)})")
    click.echo(f"  mode {loaded.mode}; acts that no rule covers: {loaded.default}")
    click.echo(f"  digest {loaded.digest}")
    if loaded.mode == "shadow":
        click.echo("  note: in shadow mode nothing is blocked, decisions are only recorded", err=True)


def _said(problem: PolicyError) -> dict[str, Any]:
    line = getattr(problem, "line", None)
    return {"code": problem.code, "line": line, "message": problem.message, "hint": problem.hint}
