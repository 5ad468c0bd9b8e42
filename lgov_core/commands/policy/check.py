"""``lgov policy check``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lgov_core.commands.group import Exit, show_error
from lgov_core.commands.options import PATH, command
from lgov_core.commands.output import write_json, write_result
from lgov_core.errors import PolicyError


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("file", type=PATH)
@click.pass_context
def check(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Check FILE as a governed program would load it; reports the first error of each rule."""
    from lgov_core.policies import dry_run, load_policy_file

    try:
        with dry_run():
            loaded = load_policy_file(file)
    except PolicyError as error:
        problems = [error, *getattr(error, "further", ())]
        if as_json:
            write_json({"file": str(file), "ok": False, "problems": [_fields(problem) for problem in problems]})
        else:
            for problem in problems:
                show_error(problem, as_json=False)
        ctx.exit(Exit.FINDING)
    rules = [rule.name for rule in loaded.rules]
    text = (
        f"{file}: ok\n  {loaded.name}: {len(rules)} rules ({', '.join(rules)})\n"
        f"  mode {loaded.mode}; acts that no rule permits: {loaded.default}\n  digest {loaded.digest}"
    )
    about = {"name": loaded.name, "mode": loaded.mode, "default": loaded.default, "digest": loaded.digest}
    write_result({"file": str(file), "ok": True, "problems": [], **about, "rules": rules}, text, as_json=as_json)
    if loaded.mode == "shadow" and not as_json:
        click.echo("  note: in shadow mode nothing is blocked, decisions are only recorded", err=True)
    if loaded.default == "deny" and not any(rule.permits for rule in loaded.rules) and not as_json:
        click.echo(
            "  note: no rule permits anything, so every tool call is denied; add a rule that uses tool", err=True
        )


def _fields(problem: PolicyError) -> dict[str, Any]:
    line = getattr(problem, "line", None)
    return {"code": problem.code, "line": line, "message": problem.message, "hint": problem.hint}
