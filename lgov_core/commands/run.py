"""``lgov run`` and ``lgov mcp``: an unedited program, and an MCP server, under policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import click

from lgov_core.commands.group import Exit, exit_status
from lgov_core.commands.options import audit_option, content_option, policy_option, settings_option
from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.settings import Settings, load_settings


@click.command(
    # Everything after the first word that is not an option of ours belongs to the program.
    context_settings={"allow_interspersed_args": False},
    # Settings that cannot be read are 78 here: they may be the ones that name the policy.
    epilog=exit_status(
        Exit.CANNOT_GOVERN, Exit.INTERRUPTED, more="2 wrong usage; any other status is the program's own"
    ),
)
@policy_option
@audit_option
@click.option("--store", help="Trace store for spans and rewards. [default: no store]")
@click.option(
    "--endpoint",
    help="Base URL of a training endpoint; the program's OpenAI-style and Anthropic clients are redirected to it.",
)
@settings_option
@click.option("--rollout-id", help="Rollout id of this run. [default: a new id]")
@click.option(
    "--children",
    type=click.Choice(["govern", "best-effort", "allow"]),
    default="govern",
    show_default=True,
    help="Python child processes: govern them, or exit with status 78 (except in a box); govern those that can be; or none.",
)
@click.option(
    "--deny-unevaluated",
    is_flag=True,
    help="Send no request to a model server that no rule sees: completions, files, other clients than the governed ones.",
)
@content_option
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
    children: Literal["govern", "best-effort", "allow"],
    assignments: Mapping[str, str],
    content: bool,
    deny_unevaluated: bool,
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
    settings = _settings(flags, assignments)
    options = RunOptions(
        replace(Governance.from_settings(settings), content=content and settings.content),
        endpoint=settings.endpoint,
        rollout_id=rollout_id,
        children="allow" if children == "allow" else "govern",
        allow_ungoverned_children=children != "govern",
        deny_unevaluated=deny_unevaluated,
        as_json=as_json,
    )
    if confine is None:
        if preset is not None:
            raise click.UsageError("--preset is for --confine")
        ctx.exit(run_program(command, options))
    from lgov_core.process.confined import run_confined

    ctx.exit(run_confined(command, options, strict=confine == "strict", preset=preset))


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=exit_status(
        Exit.CANNOT_GOVERN, Exit.INTERRUPTED, more="0 the client has ended; 1 the server has; 2 wrong usage"
    ),
)
@policy_option
@settings_option
@click.option("--url", help="Address of a server that speaks streamable HTTP, instead of COMMAND.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Serve clients over streamable HTTP at this port of 127.0.0.1. [default: standard input and output]",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def mcp(
    ctx: click.Context,
    assignments: Mapping[str, str],
    url: str | None,
    port: int | None,
    command: tuple[str, ...],
    **flags: Any,
) -> None:
    """Put an MCP server under policy, for any client: it takes the place of the server's command.

    \b
      lgov mcp --policy policy.yaml -- npx -y @modelcontextprotocol/server-filesystem .
      lgov mcp --policy policy.yaml --url https://tools.example.org/mcp

    Tools are pinned at their first use. Calls, results, resources, prompts, and what a server asks of the user or the model are
    judged and recorded as those of every agent are; a denied call is a result that the model reads. Headers for the server at
    --url, one a line, are taken from LGOV_MCP_HEADERS.
    """  # noqa: D301 - click wants the control character
    from lgov_core.governance import Governance

    try:
        from lgov_core.process.mcp_proxy import run_mcp
    except ImportError as error:
        raise InstrumentationError("lgov mcp needs the MCP SDK", hint='pip install "lgov[mcp]"') from error
    if bool(command) == bool(url):
        raise click.UsageError("name the server: by its COMMAND behind --, or by --url")
    ctx.exit(run_mcp(Governance.from_settings(_settings(flags, assignments)), command, url, port, click.echo))


def _settings(flags: Mapping[str, Any], assignments: Mapping[str, str]) -> Settings:
    try:
        return load_settings(flags, texts=assignments)
    except LgovError as error:
        # Settings that cannot be read may be the ones that name the policy.
        raise InstrumentationError(f"not run: {error.message}", hint=error.hint) from error
