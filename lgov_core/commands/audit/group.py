"""``lgov audit``: prove, look at, hand on and erase what an audit record holds."""

from __future__ import annotations

import click

from lgov_core.commands.group import LazyGroup

_HERE = "lgov_core.commands.audit"


@click.group(
    cls=LazyGroup,
    lazy={
        "verify": (f"{_HERE}.verify:verify", "Recompute a record, and say what that proves."),
        "show": (f"{_HERE}.read:show", "List what a record holds."),
        "export": (f"{_HERE}.read:export", "Write a record as JSON lines, CloudEvents or OCSF."),
        "erase": (f"{_HERE}.write:erase", "Erase the texts of an entry or a rollout."),
        "keygen": (f"{_HERE}.write:keygen", "Make the key that signs records."),
    },
)
def audit() -> None:
    """Prove, look at, hand on and erase what an audit record holds."""
