"""``lgov frameworks``: what each adapter can do, where it cannot, and the known ways around it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import write_json, write_table
from lgov_core.instrumentation.framework import Adapter
from lgov_core.types import Point

ABILITIES = ("observe", "block", "tell", "transform", "stream", "sync")


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("name", required=False)
def frameworks(name: str | None, as_json: bool) -> None:
    """Show what lgov can do at each point of each framework (or of framework NAME), and the known gaps.

    observe: it is seen; block: it can be stopped; tell: the model reads why; transform: it can be changed; stream and
    sync: all that also for streamed replies and for synchronous agents.
    """
    from lgov_core.plugins import make_plugin_manager
    from lgov_core.process.governed import installed_adapters

    adapters = installed_adapters(make_plugin_manager())
    if name is not None:
        known = [adapter.name for adapter in adapters]
        adapters = [adapter for adapter in adapters if adapter.name == name]
        if not adapters:
            raise click.BadParameter(f"no adapter is called {name}; there are: {', '.join(known)}")
    if as_json:
        write_json([as_mapping(adapter) for adapter in adapters])
        return
    for adapter in adapters:
        state = "installed" if adapter.installed() else "not installed"
        versions = ", ".join(f"{dist} {wanted}" for dist, wanted in adapter.tested.items())
        click.secho(f"{adapter.name}", bold=True, nl=False)
        click.echo(f"  {state}; tested with {versions or 'nothing'}")
        write_table(("point", *ABILITIES), surface_rows(adapter, yes="yes", no="-"))
        for gap in adapter.gaps:
            click.echo(f"  gap: {gap.name}: {gap.why}")
        for reason, cells in unsupported_cells(adapter).items():
            click.echo(f"  not: {', '.join(cells)}: {reason}")
        click.echo()


def surface_rows(adapter: Adapter, *, yes: str, no: str) -> list[tuple[str, ...]]:
    """A row for each point that the adapter knows: its name and, for each of `ABILITIES`, ``yes`` or ``no``."""
    points = [point for point in Point if point in adapter.surface]
    return [
        (point.value, *(yes if getattr(adapter.surface[point], ability) else no for ability in ABILITIES))
        for point in points
    ]


def unsupported_cells(adapter: Adapter) -> dict[str, list[str]]:
    """For each reason the cells that it rules out, as ``mode / shape``; a mode that is ruled out entirely is given alone."""
    from lgov_core.instrumentation.framework import SHAPES

    reasons: dict[str, list[str]] = {}
    for (mode, shape), reason in adapter.unsupported.items():
        reasons.setdefault(reason, []).append(mode if shape == "*" else f"{mode} / {shape}")
    for reason, cells in reasons.items():
        modes = {cell.partition(" / ")[0] for cell in cells}
        whole = [mode for mode in modes if all(f"{mode} / {shape}" in cells for shape in SHAPES)]
        rest = [cell for cell in cells if cell.partition(" / ")[0] not in whole]
        reasons[reason] = sorted(whole) + rest
    return reasons


def as_mapping(adapter: Adapter) -> dict[str, Any]:
    """The adapter as JSON values."""
    return {
        "name": adapter.name,
        "installed": adapter.installed(),
        "modules": list(adapter.modules),
        "tested": dict(adapter.tested),
        "surface": {point.value: asdict(surface) for point, surface in adapter.surface.items()},
        "unsupported": [
            {"mode": mode, "shape": shape, "reason": reason} for (mode, shape), reason in adapter.unsupported.items()
        ],
        "gaps": [asdict(gap) for gap in adapter.gaps],
    }
