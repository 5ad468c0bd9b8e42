"""``lgov policy``: write, check, question and test policy files."""

from __future__ import annotations

import click

from lgov_core.commands.group import LazyGroup

_HERE = "lgov_core.commands.policy"


@click.group(
    cls=LazyGroup,
    lazy={
        "init": (f"{_HERE}.init:init", "Write a commented policy file to start from."),
        "check": (f"{_HERE}.check:check", "Load a policy file as a governed program would."),
        "explain": (f"{_HERE}.explain:explain", "Say what every rule answers to one action, and why."),
        "eval": (f"{_HERE}.eval:evaluate", "Judge a file of cases and count what is right."),
        "replay": (f"{_HERE}.replay:replay", "Say what a policy file would have changed on record."),
    },
)
def policy() -> None:
    """Write, check, question and test policy files."""
