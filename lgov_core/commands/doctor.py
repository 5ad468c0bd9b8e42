"""``lgov doctor``: the installation, what lgov can do with each framework, or what is wrong with a training."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import click

import lgov_core
from lgov_core.commands.group import Exit, printable, write_json, write_table
from lgov_core.commands.options import command
from lgov_core.errors import LgovError, counted
from lgov_core.instrumentation.framework import Adapter
from lgov_core.settings import Settings, load_settings, without_password
from lgov_core.types import Point

_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
#: The extras of the distribution that a requirement names.
_INNER = re.compile(r"[A-Za-z0-9._-]+\s*\[([^\]]*)\]")
#: Rollouts named below a finding; JSON has more.
_ROLLOUTS_SHOWN = 5
ABILITIES = ("observe", "block", "tell", "transform", "stream", "sync")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("run", required=False)
@click.option(
    "--frameworks", "framework", is_flag=False, flag_value="all", metavar="[NAME]",
    help="Show what lgov can do at each point of each framework (or of NAME), and the known gaps.",
)  # fmt: skip
@click.pass_context
def doctor(ctx: click.Context, run: str | None, framework: str | None, as_json: bool) -> None:
    """Check this installation, or examine the training in RUN (a run folder or a trace store).

    Without RUN: versions, extras, frameworks, plugins with their hooks, and the settings with their origins. With RUN: why it
    does not learn, and whether it cheats, as named findings with the figures and rollouts behind them; exits 1 when there are
    any.

    With --frameworks: observe: it is seen; block: it can be stopped; tell: the model reads why; transform: it can be changed;
    stream and sync: all that also for streamed replies and for synchronous agents.
    """
    if framework is not None:
        if run is not None:
            raise click.UsageError("--frameworks=NAME is written with =, and not with RUN")
        _show_adapters(None if framework == "all" else framework, as_json)
        return
    if run is not None:
        ctx.exit(_examine(run, as_json))
    problems: list[str] = []

    def checked(check: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return check()
        except LgovError as error:
            problems.append(str(error))
            return otherwise

    report: dict[str, Any] = {
        "lgov": lgov_core.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "settings": checked(_settings, {}),
        "extras": _extras(),
        "frameworks": checked(_frameworks, []),
        "plugins": checked(installed_plugins, []),
        "conflicts": checked(_conflicts, []),
        "problems": problems,
    }
    if as_json:
        write_json(report)
    else:
        _write(report)
    ctx.exit(Exit.FINDING if problems else Exit.OK)


def _examine(run: str, as_json: bool) -> Exit:
    from lgov_core.train.diagnosis import examine

    report = examine(run)
    if as_json:
        write_json(report.as_json())
    else:
        for finding in report.findings:
            click.secho(f"{finding.severity.value}  {finding.name}", bold=True)
            click.echo(f"  {finding.sentence}\n  {finding.advice}")
            if finding.rollouts:
                click.echo(f"  rollouts: {' '.join(map(printable, finding.rollouts[:_ROLLOUTS_SHOWN]))}")
        summary = f"{counted(len(report.findings), 'finding')} in {counted(report.updates, 'update')}"
        click.echo(f"{summary}, {counted(report.rollouts, 'rollout')} examined")
        for name, why in report.not_examined.items():
            click.echo(f"not examined: {name}: {why}", err=True)
    return Exit.FINDING if report.findings else Exit.OK


def _settings() -> dict[str, dict[str, Any]]:
    settings = load_settings()
    names = [field.name for field in dataclasses.fields(Settings) if field.name != "origins"]
    values = {name: getattr(settings, name) for name in names}
    if settings.store is not None:
        values["store"] = without_password(settings.store)
    return {name: {"value": values[name], "origin": settings.origin(name)} for name in names}


def _extras() -> dict[str, dict[str, str | None]]:
    """For each extra the distributions it needs, with the installed version or None."""
    extras: dict[str, dict[str, str | None]] = {}
    for requirement in metadata.requires("lgov") or ():
        extra, name = _EXTRA.search(requirement), _NAME.match(requirement)
        if extra and name and name[0] != "lgov":
            extras.setdefault(extra[1], {}).update(
                {distribution: _version(distribution) for distribution in _distributions(requirement)}
            )
    return extras


def _distributions(requirement: str) -> list[str]:
    """The distributions that a requirement names and, where it is installed, its extras need: ``sqlglot[c]`` needs sqlglotc."""
    name, inner = _NAME.match(requirement), _INNER.match(requirement)
    assert name is not None
    if inner is None or _version(name[0]) is None:
        return [name[0]]
    extras = {extra.strip() for extra in inner[1].split(",")}
    needed = [line for line in metadata.requires(name[0]) or () if (of := _EXTRA.search(line)) and of[1] in extras]
    return [name[0], *(distribution for line in needed for distribution in _distributions(line))]


def installed_plugins() -> list[dict[str, Any]]:
    """The plugins of this installation: name, whether built in, and hooks in the order of ``lgov_core.hookspecs``.

    Raises `PluginError` if one cannot be loaded.
    """
    from lgov_core import hookspecs
    from lgov_core.plugins import BUILTIN_ADAPTERS, make_plugin_manager

    manager = make_plugin_manager()
    order = [name for name in vars(hookspecs) if name.startswith("lgov_")]
    plugins: list[dict[str, Any]] = []
    for name, plugin in manager.list_name_plugin():
        hooks = sorted((caller.name for caller in manager.get_hookcallers(plugin) or []), key=order.index)
        plugins.append({"name": name, "builtin": name in BUILTIN_ADAPTERS, "hooks": hooks})
    return plugins


def _conflicts() -> list[str]:
    """Installed distributions that a framework does not work with, each with the command that helps."""
    from lgov_core.plugins import make_plugin_manager
    from lgov_core.process.governed import installed_adapters

    return [
        f"{conflict.distribution} {version} is installed: {conflict.why}."
        f" If you use them: pip install '{conflict.distribution}<{conflict.below}'"
        for adapter in installed_adapters(make_plugin_manager())
        for conflict in adapter.conflicts
        if _version(conflict.needed_by) is not None and (version := _version(conflict.distribution)) is not None
        if _numbers(version) >= _numbers(conflict.below)
    ]


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _frameworks() -> list[dict[str, Any]]:
    from lgov_core.plugins import make_plugin_manager

    adapters: list[Adapter] = make_plugin_manager().hook.lgov_framework()
    return [
        {
            "name": adapter.name,
            "installed": adapter.installed(),
            "governed": bool(adapter.surface),
            "tested": dict(adapter.tested),
            "versions": {name: _version(name) for name in adapter.tested},
            "blocks_at": [point.value for point, surface in adapter.surface.items() if surface.block],
        }
        for adapter in adapters
    ]


def _write(report: dict[str, Any]) -> None:
    click.echo(f"lgov {report['lgov']}, Python {report['python']} ({report['executable']})")
    click.echo("\nsettings")
    settings = [(name, entry["value"], entry["origin"]) for name, entry in report["settings"].items()]
    write_table(("name", "value", "from"), settings)
    click.echo("\nextras")
    rows: list[tuple[str, str, str]] = []
    for extra, needed in report["extras"].items():
        missing = [name for name, version in needed.items() if version is None]
        rows.append((extra, "installed" if not missing else "not complete", ", ".join(missing)))
    write_table(("extra", "state", "missing"), rows)
    click.echo("\nframeworks")
    rows = []
    for framework in report["frameworks"]:
        able = "governed" if framework["governed"] else "recognised and refused"
        versions = ", ".join(f"{name} {version or '-'}" for name, version in framework["versions"].items())
        installed = "installed" if framework["installed"] else "not installed"
        rows.append((framework["name"], installed, f"{able} {versions}"))
    write_table(("framework", "state", "in this release"), rows)
    click.echo("\nplugins")
    plugins = [
        (plugin["name"], "built in" if plugin["builtin"] else "entry point", ", ".join(plugin["hooks"]))
        for plugin in report["plugins"]
    ]
    write_table(("plugin", "from", "hooks"), plugins)
    for conflict in report["conflicts"]:
        click.echo(f"\nnote: {conflict}")
    click.echo(f"\n{len(report['problems'])} problems")
    for problem in report["problems"]:
        click.echo(f"  {problem}")


# ---------------------------------------------------------------------- frameworks


def _show_adapters(name: str | None, as_json: bool) -> None:
    from lgov_core.plugins import make_plugin_manager
    from lgov_core.process.governed import installed_adapters

    adapters = installed_adapters(make_plugin_manager())
    if name is not None:
        names = [adapter.name for adapter in adapters]
        adapters = [adapter for adapter in adapters if adapter.name == name]
        if not adapters:
            raise click.BadParameter(f"no adapter is called {name}; there are: {', '.join(names)}")
    if as_json:
        write_json([as_mapping(adapter) for adapter in adapters])
        return
    for adapter in adapters:
        state = "installed" if adapter.installed() else "not installed"
        tested = ", ".join(f"{distribution} {versions}" for distribution, versions in adapter.tested.items())
        click.secho(f"{adapter.name}", bold=True, nl=False)
        click.echo(f"  {state}; tested with {tested or 'nothing'}")
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
        "surface": {point.value: dataclasses.asdict(surface) for point, surface in adapter.surface.items()},
        "unsupported": [
            {"mode": mode, "shape": shape, "reason": reason} for (mode, shape), reason in adapter.unsupported.items()
        ],
        "gaps": [dataclasses.asdict(gap) for gap in adapter.gaps],
    }
