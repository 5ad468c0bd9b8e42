"""``lgov run``: an unedited program under policy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from lgov_core.commands.group import Exit, exit_status
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
@click.option(
    "--policy", type=click.Path(path_type=Path), help="Policy file. [default: policy.yaml beside the program]"
)
@click.option("--audit", type=click.Path(path_type=Path), help="File of the audit record. [default: .lgov/audit.db]")
@click.option(
    "--redact",
    metavar="NAME",
    multiple=True,
    help="Argument whose value is left out of the audit record; repeatable.",
)
@click.option("--store", help="Trace store for spans and rewards. [default: no store]")
@click.option(
    "--endpoint", help="Base URL of a training endpoint to which the program's OpenAI-style clients are redirected."
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
    "--content/--no-content", default=True, show_default=True, help="Keep prompts, arguments and results on spans."
)
@click.option("--json", "as_json", is_flag=True, help="Write errors and the closing report as JSON to standard error.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    ctx: click.Context,
    policy: Path | None,
    audit: Path | None,
    redact: tuple[str, ...],
    store: str | None,
    endpoint: str | None,
    timeout_s: float | None,
    rollout_id: str | None,
    task_id: str | None,
    children: Literal["govern", "allow"],
    content: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Run a Python program and the Python processes it starts under policy, without editing it.

    \b
      lgov run --policy policy.yaml -- python agent.py arguments
      lgov run --policy policy.yaml -- python -m package

    The agents of every framework that lgov can govern are governed; each decision is committed to the audit record
    before the act. If the policy is missing or broken, or a framework cannot be governed, the program is not run. At the
    end standard error says what was covered, and how near the program came to a known gap.
    """  # noqa: D301 - click wants the control character
    from lgov_core.process.run import RunOptions, run_program

    flags = {
        "policy": policy,
        "audit": audit,
        "redact": redact or None,
        "store": store,
        "endpoint": endpoint,
        "timeout_s": timeout_s,
    }
    try:
        settings = load_settings(flags)
    except LgovError as error:
        # Settings that cannot be read may be the ones that name the policy.
        raise InstrumentationError(f"not run: {error.message}", hint=error.hint) from error
    options = RunOptions(
        policy=settings.policy,
        audit=settings.audit,
        redact=settings.redact,
        store=settings.store,
        endpoint=settings.endpoint,
        timeout_s=settings.timeout_s,
        rollout_id=rollout_id,
        task_id=task_id,
        children=children,
        capture_content=content,
        as_json=as_json,
    )
    ctx.exit(run_program(command, options))
