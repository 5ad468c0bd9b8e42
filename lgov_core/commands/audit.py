"""``lgov audit``: prove, look at, hand on and erase what an audit record holds."""

from __future__ import annotations

import click

from lgov_core.commands.group import LazyGroup

_HERE = "lgov_core.commands"


@click.group(
    cls=LazyGroup,
    lazy={
        "verify": (f"{_HERE}.audit_verify:verify", "Recompute a record, and say what that proves."),
        "show": (f"{_HERE}.audit_read:show", "List what a record holds."),
        "export": (f"{_HERE}.audit_read:export", "Write a record as JSON lines, CloudEvents or OCSF."),
        "erase": (f"{_HERE}.audit_write:erase", "Erase the texts of an entry or a rollout."),
        "keygen": (f"{_HERE}.audit_write:keygen", "Make the key that signs records."),
    },
)
def audit() -> None:
    """Prove, look at, hand on and erase what an audit record holds."""
