"""The options that choose entries of an audit record, and those that name what it is verified with."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from lgov_core.commands.options import PATH, moment_option

trusted_key_option = click.option(
    "--key", help="Public key that must have signed the record: 64 hex digits, or a file with them."
)
kept_heads_option = click.option("--head", type=PATH, help="File with signed heads kept outside the record.")
_OPTIONS = (
    click.option("--rollout", "rollout_id", help="Only entries of this rollout."),
    click.option("--session", "session_id", help="Only entries of this session."),
    moment_option("--since", "Only entries written since"),
    moment_option("--before", "Only entries written before"),
    click.option("--tool", metavar="GLOB", help="Only entries about calls of this tool (glob)."),
    click.option("--agent", metavar="GLOB", help="Only entries of this agent (glob)."),
    click.option(
        "--text",
        metavar="TEXT",
        help="Only entries whose arguments, texts, name or reason contain this, in upper or lower case.",
    ),
)
_NAMES = ("rollout_id", "session_id", "since", "before", "tool", "agent", "text")


def selection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets them as one ``selection`` (`lgov_core.audit.selection.Selection`)."""

    @wraps(function)
    def called(**given: Any) -> Any:
        from lgov_core.audit.selection import Selection

        return function(selection=Selection(**{name: given.pop(name) for name in _NAMES}), **given)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called
