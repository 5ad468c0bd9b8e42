"""Options that several commands share, and the decorator that makes a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from lgov_core.commands.group import Exit, exit_status

_Function = TypeVar("_Function", bound=Callable[..., Any])

PATH: Final = click.Path(path_type=Path)
FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def command(*codes: Exit, more: str = "") -> Callable[[Callable[..., Any]], click.Command]:
    """A command with ``--json`` (``as_json``), whose help ends with its exit codes and ``more``."""

    def make(function: Callable[..., Any]) -> click.Command:
        made = click.command(epilog=exit_status(*codes, more=more))(function)
        text = "Write JSON to standard output instead of text."
        made.params.append(click.Option(["--json", "as_json"], is_flag=True, help=text))
        return made

    return make


def limit_option(what: str) -> Callable[[_Function], _Function]:
    """``--limit``: rows to show, 50 unless given; 0 is all of them."""
    text = f"{what} to show; 0 shows all."
    return click.option("--limit", type=click.IntRange(min=0), default=50, show_default=True, help=text)


audit_option = click.option("--audit", type=PATH, help="File of the audit record. [default: .lgov/audit.db]")
base_model_option = click.option("--model", help="Base model, if the checkpoint does not name it or it has moved.")
redact_option = click.option(
    "--redact",
    metavar="NAME",
    multiple=True,
    callback=lambda _context, _parameter, names: names or None,  # none given: the settings file's
    help="Argument whose value is left out of the audit record; repeatable.",
)
rollouts_option = click.option(
    "--rollout", "rollout_ids", metavar="ID", multiple=True, help="Only this rollout; repeatable."
)
run_option = click.option("--run", "run_id", help="Only rollouts of this run.")
yes_option = click.option("--yes", is_flag=True, help="Skip the confirmation.")
