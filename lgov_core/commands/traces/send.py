"""``lgov traces send``: recorded rollouts to an OpenTelemetry collector."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

import click

from lgov_core._util.plurals import counted
from lgov_core.commands.group import Exit
from lgov_core.commands.options import command, rollouts_option, run_option
from lgov_core.commands.output import printable, write_json
from lgov_core.commands.recorded import opened_store

#: Where OpenTelemetry's own exporters look for headers: NAME=VALUE pairs with commas between them, percent-encoded.
HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("store")
@click.option("--to", "url", required=True, help="URL of the collector, usually http://HOST:4318/v1/traces.")
@rollouts_option
@run_option
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header to send with each request; repeatable."
)
@click.option(
    "--protocol", type=click.Choice(["protobuf", "json"]), default="protobuf", show_default=True, help="Encoding."
)
@click.option(
    "--content/--no-content",
    default=True,
    show_default=True,
    help="Include prompts, replies, arguments, results and token ids.",
)
def send(
    store: str,
    url: str,
    rollout_ids: tuple[str, ...],
    run_id: str | None,
    headers: tuple[str, ...],
    protocol: Any,
    content: bool,
    as_json: bool,
) -> None:
    """Send the rollouts in STORE to an OpenTelemetry collector, over OTLP/HTTP.

    Each attempt, model call, tool call, decision and reward is a span. Sent again, it has the same ids. Headers are taken
    from OTEL_EXPORTER_OTLP_HEADERS as well. A collector that refuses spans makes the exit status 1.
    """
    from lgov_core.trace.otlp.export import Collector, export_spans
    from lgov_core.trace.rollout_spans import rollout_spans

    if rollout_ids and run_id is not None:
        raise click.UsageError("give --rollout or --run, not both")
    with opened_store(store) as recorded:
        if missing := [one for one in rollout_ids if not rollout_spans(recorded, one)]:
            raise click.UsageError(f"there is no rollout {missing[0]} in {store}")
        collector = Collector(url, headers=_headers(headers), protocol=protocol)
        sent = export_spans(recorded, collector, rollout_ids=list(rollout_ids) or None, run_id=run_id, content=content)
    if as_json:
        write_json(asdict(sent))
    else:
        click.echo(
            f"sent {counted(sent.spans, 'span')} of {counted(sent.rollouts, 'rollout')} in {counted(sent.requests, 'request')}"
        )
        for message in sent.messages:
            click.echo(f"the collector says: {printable(message[:300])}", err=True)
    if sent.rejected:
        click.echo(f"{sent.rejected} spans were rejected", err=True)
        click.get_current_context().exit(Exit.FINDING)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    """The headers to send, those of the command line before those of the environment."""
    pairs = [unquote(pair) for pair in os.environ.get(HEADERS_VARIABLE, "").split(",") if pair.strip()]
    headers: dict[str, str] = {}
    for pair in (*pairs, *given):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or "\n" in pair or "\r" in pair:
            raise click.UsageError("a header is written NAME=VALUE")  # its text may be a key, so it is not shown
        headers[name.strip().lower()] = value.strip()
    return headers
