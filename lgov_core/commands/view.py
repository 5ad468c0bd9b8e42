"""``lgov view``."""

from __future__ import annotations

import signal
import threading
import webbrowser
from pathlib import Path

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.mounted_window import say_on_stderr
from lgov_core.commands.options import FILE, PATH, command
from lgov_core.commands.output import write_result
from lgov_core.errors import EndpointError, SettingsError
from lgov_core.settings import without_password

#: Rollouts that an exported page can hold.
_MOST_EXPORTED = 2000


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("place", metavar="PATH")
@click.option("--host", default="127.0.0.1", show_default=True, help="Loopback address to listen on.")
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
    place: str,
    host: str,
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

    PATH is a trace store (a path or an address), an audit record, the folder of a run, or a folder of runs. The page is for
    this machine only: the printed address opens it once. Ctrl-C ends it. With --export no server is started.
    """
    try:
        from lgov_core.views.pages.approvals import approval_files
        from lgov_core.views.web.app import served_window
        from lgov_core.views.web.window import Window, WindowOptions
    except ImportError as error:
        raise EndpointError(f"the window needs {error.name}", hint='pip install "lgov[view]"') from error
    from lgov_core.gateway.server import is_loopback

    if no_content and export is None:
        raise click.UsageError("--no-content is for --export")
    files = (*approvals, *(path for policy in policies for path in approval_files(policy)))
    options = WindowOptions(audit=audit, approvals=files, policies=policies, tokenizer=tokenizer)
    window = Window(place, options)
    try:
        if export is not None:
            from lgov_core.views.web.export import write_report

            written = write_report(window, export, content=not no_content, limit=limit or _MOST_EXPORTED)
            write_result(written, f"{export}: {written['bytes'] / 1e6:.1f} MB, {written['chosen']}", as_json=as_json)
            return
        if not is_loopback(host):
            raise SettingsError(
                f"{host} can be reached from other machines", hint="leave --host out; use ssh -L to look from elsewhere"
            )
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
        with served_window(window, host=host, port=port, say=say_on_stderr) as (server, address):
            about = {"address": address, "url": server.url, "path": without_password(place)}
            write_result(about, f"the window is open at {address}", as_json=as_json)
            if browse:
                webbrowser.open(address)
            stopped.wait()
    except KeyboardInterrupt:
        click.echo("closed", err=True)
    finally:
        window.close()
