"""The command line stays small: as many commands and options as a person can look through."""

from __future__ import annotations

import click

from tests.commands.test_cli import LEAVES

#: A new command or option takes the place of another one.
MOST_COMMANDS, MOST_OPTIONS = 28, 180


def test_there_are_no_more_commands_and_options_than_agreed() -> None:
    options = {
        path: [option for option in command.params if isinstance(option, click.Option)]
        for path, command in LEAVES.items()
    }
    assert len(LEAVES) <= MOST_COMMANDS, sorted(LEAVES)
    assert sum(map(len, options.values())) <= MOST_OPTIONS, {path: len(of) for path, of in options.items()}


def test_no_command_is_a_function_of_twenty_parameters() -> None:
    """What several commands share, or belongs together, is one value."""
    most = {path: command.callback.__code__.co_argcount for path, command in LEAVES.items()}  # type: ignore[union-attr]
    assert max(most.values()) <= 14, most
