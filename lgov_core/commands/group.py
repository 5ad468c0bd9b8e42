"""The command group: loads commands on use, turns errors into a message and an exit status, and writes results."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from lgov_core.errors import (
    AuditError,
    AuditInUse,
    AuditKeyError,
    InstrumentationError,
    LgovError,
    PolicyDenied,
    SettingsError,
)

if TYPE_CHECKING:
    from rich.console import Console


class Exit(IntEnum):
    """The exit statuses of ``lgov``."""

    OK = 0
    FINDING = 1
    USAGE = 2
    DENIED = 3
    AUDIT_BROKEN = 4
    CANNOT_GOVERN = 78
    INTERRUPTED = 130


_MEANING = {
    Exit.OK: "success, nothing found",
    Exit.FINDING: "a finding, or the command failed",
    Exit.USAGE: "wrong usage or settings",
    Exit.DENIED: "denied by policy",
    Exit.AUDIT_BROKEN: "the audit record is broken",
    Exit.CANNOT_GOVERN: "the program cannot be governed and was not run",
    Exit.INTERRUPTED: "interrupted",
}

_EXIT_OF_ERROR = {
    SettingsError: Exit.USAGE,
    PolicyDenied: Exit.DENIED,
    AuditKeyError: Exit.FINDING,
    AuditInUse: Exit.FINDING,
    AuditError: Exit.AUDIT_BROKEN,
    InstrumentationError: Exit.CANNOT_GOVERN,
}

_JSON_WANTED = "lgov_core.json"

#: For each command its line in the help, and its ``module:attribute`` in `lgov_core.commands` or its subcommands.
Commands: TypeAlias = "Mapping[str, tuple[str, str | Commands]]"


def exit_status(*codes: Exit, more: str = "") -> str:
    """The last paragraph of a command's help: its exit codes, and ``more``."""
    meanings = "; ".join(f"{code.value} {_MEANING[code]}" for code in codes)
    return f"Exit status: {meanings}{'; ' + more if more else ''}."


def exit_of(error: LgovError) -> Exit:
    """The exit status that goes with an error."""
    return next((code for kind, code in _EXIT_OF_ERROR.items() if isinstance(error, kind)), Exit.FINDING)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; its help imports none of them.

    An `LgovError` from a command becomes a message on standard error (as JSON if ``--json`` was given) and an exit
    status; Ctrl-C becomes 130, with the message of the KeyboardInterrupt.
    """

    def __init__(self, *args: Any, lazy: Commands, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places: dict[str, str] = {}
        for name, (line, target) in lazy.items():
            if isinstance(target, str):
                self._places[name] = target
                self.add_command(click.Command(name, short_help=line))
            else:
                self.add_command(LazyGroup(name, help=line, short_help=line, lazy=target))

    def load(self, name: str) -> click.Command:
        """The command itself, imported. Raises KeyError for a name that is not in the group."""
        if name not in self._places:
            return self.commands[name]
        module, _, attribute = self._places[name].partition(":")
        return getattr(importlib.import_module(f"lgov_core.commands.{module}"), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command and loads it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name != "run" and isinstance(sys.stdout, io.TextIOWrapper):  # with "run" it is the program's
            sys.stdout.reconfigure(errors="backslashreplace")  # model text may hold what it cannot encode
        return name, self.load(name) if name in self._places else command, rest

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses, and remembers whether JSON is wanted, for errors that come before the command's own options."""
        own = args[: args.index("--")] if "--" in args else args
        ctx.meta[_JSON_WANTED] = "--json" in own
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; turns what it raises into a message and an exit status."""
        as_json = bool(ctx.meta.get(_JSON_WANTED))
        try:
            return super().invoke(ctx)
        except LgovError as error:
            show_error(error, as_json=as_json)
            ctx.exit(exit_of(error))
        except click.ClickException as error:
            if not as_json:
                raise
            show_error(_Usage(error.format_message(), hint=f"{ctx.command_path} --help says more"), as_json=True)
            ctx.exit(error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:  # click exits quietly when the pipe is closed
                raise
            _discard_output()
            where = f": {error.filename}" if error.filename else ""
            show_error(LgovError(f"{error.strerror or error}{where}"), as_json=as_json)
            ctx.exit(Exit.FINDING)
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo(str(error) or "interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)


class _Usage(LgovError):
    code = "usage"


def _discard_output() -> None:
    """Discards buffered output after a write error; Python would otherwise retry at exit."""
    with suppress(AttributeError, ValueError):
        try:
            sys.stdout.flush()
        except OSError:
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())


def show_error(error: LgovError, *, as_json: bool) -> None:
    """Writes an error and its hint to standard error."""
    if as_json:
        click.echo(json.dumps({"error": error.as_json()}), err=True)
        return
    click.secho("error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(error.message, err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


#: Columns of output to a file or a pipe.
_WIDTH_WITHOUT_TERMINAL = 120
#: Columns of a table there: a row is one line, which other programs can parse.
_TABLE_WIDTH_WITHOUT_TERMINAL = 10_000


def write_json(value: Any) -> None:
    """Writes one JSON document to standard output. Values that JSON has no form for are written as text, numbers as null."""
    from lgov_core._util.json_text import finite

    click.echo(json.dumps(finite(value), indent=2, default=str, allow_nan=False))


def write_result(value: Any, text: str, *, as_json: bool) -> None:
    """Writes ``value`` as JSON, or else ``text``."""
    if as_json:
        write_json(value)
    else:
        click.echo(text)


@contextmanager
def only_the_result() -> Generator[None]:
    """Within the block what agents, and the programs that they start, write to standard output goes to standard error."""
    with redirect_stdout(sys.stderr), ExitStack() as changed:
        with suppress(OSError):  # one that is no file, as a test has it, has no children that write to it
            if sys.__stdout__ is not None and sys.__stdout__.fileno() == 1:
                own = os.dup(1)
                changed.callback(os.close, own)
                changed.callback(os.dup2, own, 1)
                os.dup2(2, 1)
        yield


def console() -> Console:
    """A console on standard output: no colour and a fixed width when that is not a terminal."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    width = None if terminal else _WIDTH_WITHOUT_TERMINAL
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, shortened: Collection[str] = ()) -> None:
    """Writes rows under their column names, without a frame, so that other programs can parse them.

    With ``shortened`` a row is one line of the terminal, or of 120 characters where there is none: these columns are cut.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=bool(shortened) and column not in shortened)
    for row in rows:
        cells = ["" if cell is None else printable(str(cell)) for cell in row]
        if shortened:
            table.add_row(*(Text(cell.replace("\n", " "), no_wrap=True, overflow="ellipsis") for cell in cells))
        else:
            table.add_row(*map(Text, cells))
    to = console()
    if not to.is_terminal and not shortened:
        to.width = _TABLE_WIDTH_WITHOUT_TERMINAL
    to.print(table)


def effect_text(effect: str, verdict: str) -> str:
    """Says what happened to an act, and beside it what the policies decided if shadow mode did not enforce that."""
    return effect if verdict == effect else f"{effect} (would {verdict})"


def rewards_text(rewards: Mapping[str, float]) -> str:
    """Rewards by dimension, in one cell."""
    return "  ".join(f"{name} {value:+g}" for name, value in rewards.items())


def printable(text: str) -> str:
    """``text`` with unprintable characters replaced, so that model text cannot control the terminal."""
    return "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}" for character in text
    )
