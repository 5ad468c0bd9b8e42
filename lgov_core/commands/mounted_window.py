"""The window as `lgov serve` and `lgov train` mount it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lgov_core.views.web.app import MountedWindow


def mounted_window(
    place: str,
    *,
    store: str | None = None,
    audit: Path | None = None,
    policies: Sequence[Path] = (),
    hosts: Sequence[str] = (),
) -> MountedWindow | None:
    """A window on ``place``, which may be empty still; approvals are found in the policy files. None without a web server."""
    try:
        from lgov_core.views.pages.approvals import approval_files
        from lgov_core.views.web.app import MountedWindow
        from lgov_core.views.web.window import Window, WindowOptions
    except ImportError:  # trained without the extra gateway
        return None

    files = tuple(path for policy in policies for path in approval_files(policy))
    options = WindowOptions(store=store, audit=audit, approvals=files, policies=tuple(policies))
    return MountedWindow(Window(place, options, may_be_empty=True), hosts=hosts, say=say_on_stderr)


def say_on_stderr(line: str) -> None:
    """Writes a line for people."""
    click.echo(line, err=True)
