"""Options that several commands share, and the decorator that makes a command."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
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


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def moment_option(flag: str, what: str) -> Callable[[_Function], _Function]:
    """An option that takes an age or a date, and gives the command Unix seconds, or None."""
    text = f"{what} an age (30d, 12h) or a date in UTC (2026-01-31, 2026-01-31T09:30)."
    return click.option(flag, metavar="WHEN", callback=_moment, help=text)


def _moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Unix seconds of an age (``30d``, ``12h``), or of a date with or without a time (UTC by default)."""
    if value is None:
        return None
    if ago := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value):
        return time.time() - float(ago[1]) * _UNITS[ago[2]]
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither an age (30d, 12h) nor a date (2026-01-31)") from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


audit_option = click.option("--audit", type=PATH, help="File of the audit record. [default: .lgov/audit.db]")
audit_key_option = click.option(
    "--audit-key",
    type=PATH,
    help="Secret key that signs the audit record. [default: the key of lgov audit keygen, if any]",
)
heads_option = click.option(
    "--heads", type=PATH, help="File for signed heads, outside the record. [default: beside the record]"
)
own_key_option = click.option(  # of the commands that write to a record that is there
    "--key",
    "audit_key",
    type=PATH,
    help="Secret key of a signed record. [default: the setting audit_key, or the key of lgov audit keygen, if any]",
)
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
