"""``lgov run``: an unedited program under policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import click

from lgov_core.commands.group import Exit, exit_status
from lgov_core.commands.options import PATH, audit_key_option, audit_option, heads_option, redact_option
from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.settings import load_settings


@click.command(
    # Everything after the first word that is not an option of ours belongs to the program.
    context_settings={"allow_interspersed_args": False},
    # Settings that cannot be read are 78 here: they may be the ones that name the policy.
    epilog=exit_status(
        Exit.CANNOT_GOVERN, Exit.INTERRUPTED, more="2 wrong usage; any other status is the program's own"
    ),
)
@click.option("--policy", type=PATH, help="Policy file. [default: policy.yaml beside the program]")
@audit_option
@audit_key_option
@heads_option
@redact_option
@click.option("--air", type=PATH, help="File of rules for intermediate rewards. [default: the built-in rewards]")
@click.option("--store", help="Trace store for spans and rewards. [default: no store]")
@click.option(
    "--endpoint", help="Base URL of a training endpoint; the program's OpenAI-style clients are redirected to it."
)
@click.option("--timeout", "timeout_s", type=float, help="Timeout of one policy evaluation, in seconds. [default: 2]")
@click.option("--rollout-id", help="Rollout id of this run. [default: a new id]")
@click.option("--task-id", help="Task id of the rollout. [default: the program's name]")
@click.option(
    "--children",
    type=click.Choice(["govern", "allow"]),
    default="govern",
    show_default=True,
    help="Python child processes: govern them too, or let them run ungoverned.",
)
@click.option(
    "--allow-ungoverned-children",
    is_flag=True,
    help="Keep status 0 when Python processes of the program were not governed. [default: status 78, except in a box]",
)
@click.option(
    "--content/--no-content", default=True, show_default=True, help="Keep prompts, arguments and results on spans."
)
@click.option(
    "--confine",
    is_flag=False,
    flag_value="strict",
    type=click.Choice(["strict", "best-effort"]),
    help="Run in a box that the kernel enforces: strict (--confine alone) needs every layer, best-effort takes those it finds.",
)
@click.option(
    "--preset", help="Preset of the box: workspace, no-network or offline-tests. [default: the policy file's]"
)
@click.option("--json", "as_json", is_flag=True, help="Write errors and the closing report as JSON to standard error.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    rollout_id: str | None,
    task_id: str | None,
    children: Literal["govern", "allow"],
    allow_ungoverned_children: bool,
    content: bool,
    confine: Literal["strict", "best-effort"] | None,
    preset: str | None,
    as_json: bool,
    command: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run a Python program and the Python processes it starts under policy, without editing it.

    \b
      lgov run --policy policy.yaml -- python agent.py arguments
      lgov run --policy policy.yaml -- python -O -m package
      lgov run --policy policy.yaml -- uvicorn app:app

    Governs the agents of every framework that lgov knows. Each decision is committed to the audit record before the call
    runs. If the policy is missing or broken, or a framework cannot be governed, the program is not run. At the
    end a report on standard error says what was covered, and which known gaps the program came near.
    """  # noqa: D301 - click wants the control character
    from lgov_core.governance import Governance
    from lgov_core.process.invocation import restart_with_options
    from lgov_core.process.run import RunOptions, run_program

    restart_with_options(command)
    try:
        settings = load_settings(flags)
    except LgovError as error:
        # Settings that cannot be read may be the ones that name the policy.
        raise InstrumentationError(f"not run: {error.message}", hint=error.hint) from error
    options = RunOptions(
        replace(Governance.from_settings(settings), content=content and settings.content),
        endpoint=settings.endpoint,
        rollout_id=rollout_id,
        task_id=task_id,
        children=children,
        allow_ungoverned_children=allow_ungoverned_children,
        as_json=as_json,
    )
    if confine is None:
        if preset is not None:
            raise click.UsageError("--preset is for --confine")
        ctx.exit(run_program(command, options))
    from lgov_core.process.confined import run_confined

    ctx.exit(run_confined(command, options, strict=confine == "strict", preset=preset))
