"""``lgov policy``: write, check, question and test policy files."""

from __future__ import annotations

import click

from lgov_core.commands.group import LazyGroup

_HERE = "lgov_core.commands.policy"


@click.group(
    cls=LazyGroup,
    lazy={
        "init": (f"{_HERE}.init:init", "Write a commented policy file to start from."),
        "check": (f"{_HERE}.check:check", "Check a policy file."),
        "explain": (f"{_HERE}.explain:explain", "Show each rule's decision on one action, and why."),
        "eval": (f"{_HERE}.eval:evaluate", "Test a policy file against labelled cases."),
        "replay": (f"{_HERE}.replay:replay", "Show which recorded decisions another policy file would change."),
    },
)
def policy() -> None:
    """Write, check, explain and test policy files."""
