"""``lgov view``, and the window as `lgov serve`, `lgov train` and `lgov demo` mount it."""

from __future__ import annotations

import signal
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import FILE, PATH, command
from lgov_core.commands.output import write_result
from lgov_core.errors import EndpointError
from lgov_core.settings import load_settings, without_password

if TYPE_CHECKING:
    from lgov_core.views.web.app import MountedWindow

#: Rollouts that an exported page can hold.
_MOST_EXPORTED: Final = 2000
_HOST: Final = "127.0.0.1"


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("place", metavar="PATH", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8322, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--open/--no-open", "browse", default=True, help="Open the page in a browser.  [default: open]")
@click.option("--export", type=FILE, help="Write one self-contained HTML file instead, and end.")
@click.option("--no-content", is_flag=True, help="With --export: leave out what models, tools and users wrote.")
@click.option(
    "--limit",
    type=click.IntRange(0, _MOST_EXPORTED),
    default=100,
    show_default=True,
    help=f"With --export: number of rollouts; 0 takes all, at most {_MOST_EXPORTED}.",
)
@click.option("--audit", type=PATH, help="Audit record, if it is not in the run's folder.")
@click.option("--approvals", type=PATH, multiple=True, help="File of approval requests; repeatable.")
@click.option("--policy", "policies", type=PATH, multiple=True, help="Policy file that can be replayed; repeatable.")
@click.option("--tokenizer", type=PATH, help="tokenizer.json or its folder, for the texts of tokens.")
def view(
    place: str | None,
    port: int,
    browse: bool,
    export: Path | None,
    no_content: bool,
    limit: int,
    audit: Path | None,
    approvals: tuple[Path, ...],
    policies: tuple[Path, ...],
    tokenizer: Path | None,
    as_json: bool,
) -> None:
    """Look at a store or at runs in the browser: figures, rollouts, tokens, decisions, approvals.

    PATH is a trace store (a path or an address), an audit record, the folder of a run, or a folder of runs; without it the
    store, the audit record and the policy file of the settings are shown. The page is for this machine only (use ssh -L to look
    from elsewhere): the printed address opens it once. Ctrl-C ends it. With --export no server is started.
    """
    try:
        from lgov_core.views.pages.approvals import approval_files
        from lgov_core.views.web.app import served_window
        from lgov_core.views.web.window import Window, WindowOptions
    except ImportError as error:
        raise EndpointError(f"the window needs {error.name}", hint='pip install "lgov[view]"') from error
    if no_content and export is None:
        raise click.UsageError("--no-content is for --export")
    if place is None:
        place, audit, policies = _from_settings(audit, policies)
    files = (*approvals, *(path for policy in policies for path in approval_files(policy)))
    options = WindowOptions(audit=audit, approvals=files, policies=policies, tokenizer=tokenizer)
    window = Window(place, options)
    try:
        if export is not None:
            from lgov_core.views.web.export import write_report

            written = write_report(window, export, content=not no_content, limit=limit or _MOST_EXPORTED)
            write_result(written, f"{export}: {written['bytes'] / 1e6:.1f} MB, {written['chosen']}", as_json=as_json)
            return
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
        with served_window(window, host=_HOST, port=port, say=say_on_stderr) as (server, address):
            about = {"address": address, "url": server.url, "path": without_password(place)}
            write_result(about, f"the window is open at {address}", as_json=as_json)
            if browse:
                webbrowser.open(address)
            stopped.wait()
    except KeyboardInterrupt:
        click.echo("closed", err=True)
    finally:
        window.close()


def _from_settings(audit: Path | None, policies: tuple[Path, ...]) -> tuple[str, Path | None, tuple[Path, ...]]:
    """The store, or else the audit record, that the settings name; and beside a store the record and the policy file.

    Raises `click.UsageError` where there is neither.
    """
    settings = load_settings()
    record = audit or (settings.audit if settings.audit is not None and settings.audit.is_file() else None)
    if (source := settings.store or (None if record is None else str(record))) is None:
        raise click.UsageError("name a store, an audit record or a run, or set store or audit in lgov.toml")
    policy = () if settings.policy is None or not settings.policy.is_file() else (settings.policy,)
    return source, record if settings.store is not None else None, policies or policy


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
