"""``lgov audit``: verify, show, export and erase audit records."""

from __future__ import annotations

import click

from lgov_core.commands.group import LazyGroup

_HERE = "lgov_core.commands.audit"


@click.group(
    cls=LazyGroup,
    lazy={
        "verify": (f"{_HERE}.verify:verify", "Verify a record's chain and signatures."),
        "show": (f"{_HERE}.read:show", "List the entries of a record."),
        "export": (f"{_HERE}.read:export", "Export a record as JSON lines, CloudEvents or OCSF."),
        "erase": (f"{_HERE}.write:erase", "Erase the texts of an entry or a rollout."),
        "keygen": (f"{_HERE}.write:keygen", "Create the key that signs records."),
    },
)
def audit() -> None:
    """Verify, show, export and erase audit records."""
