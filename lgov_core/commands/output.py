"""Writes results to standard output, as text or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of output to a file or a pipe.
_WIDTH_WITHOUT_TERMINAL = 120
#: Columns of a table there: a row is one line, which other programs can parse.
_TABLE_WIDTH_WITHOUT_TERMINAL = 10_000


def write_json(value: Any) -> None:
    """Writes one JSON document to standard output. Values that JSON has no form for are written as text."""
    click.echo(json.dumps(value, indent=2, default=str, allow_nan=False))


def write_result(value: Any, text: str, *, as_json: bool) -> None:
    """Writes ``value`` as JSON, or else ``text``."""
    if as_json:
        write_json(value)
    else:
        click.echo(text)


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
