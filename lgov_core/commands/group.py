"""The command group: commands that load on use, errors without tracebacks, exit codes that mean something."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any

import click

from lgov_core.errors import AuditError, InstrumentationError, LgovError, PolicyDenied, SettingsError


class Exit(IntEnum):
    """What the exit status of ``lgov`` says."""

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
    AuditError: Exit.AUDIT_BROKEN,
    InstrumentationError: Exit.CANNOT_GOVERN,
}

_JSON_WANTED = "lgov_core.json"

json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to standard output instead of text.")


def exit_status(*codes: Exit, more: str = "") -> str:
    """The paragraph of a command's help that lists its exit codes; ``more`` is put at its end."""
    meanings = "; ".join(f"{code.value} {_MEANING[code]}" for code in codes)
    return f"Exit status: {meanings}{'; ' + more if more else ''}."


def exit_of(error: LgovError) -> Exit:
    """The exit status that goes with an error."""
    return next((code for kind, code in _EXIT_OF_ERROR.items() if isinstance(error, kind)), Exit.FINDING)


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called.

    ``lazy`` maps a name to where the command is (``module:attribute``) and its line in the help, so that help needs
    none of them. An `LgovError` from a command becomes a message on standard error (as JSON if ``--json`` was given)
    and an exit status; Ctrl-C becomes 130, with what the KeyboardInterrupt says.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._where = {name: where for name, (where, _) in lazy.items()}
        for name, (_, line) in lazy.items():
            self.add_command(click.Command(name, short_help=line))

    def load(self, name: str) -> click.Command:
        """The command itself, imported. Raises KeyError for a name that is not in the group."""
        module, _, attribute = self._where[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command and loads it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name != "run":  # there standard output is the program's
            _write_anything()
        return name, self.load(name) if name in self._where else command, rest

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
            show_error(
                LgovError(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"),
                as_json=as_json,
            )
            ctx.exit(Exit.FINDING)
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo(str(error) or "interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)


class _Usage(LgovError):
    code = "usage"


def _write_anything() -> None:
    """Makes standard output escape characters that it cannot encode, because model text may hold any."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


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
