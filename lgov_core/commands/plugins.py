"""``lgov plugins``: installed plugins and their hooks."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import write_json, write_table


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin and the hooks it implements, in the order of ``lgov_core.hookspecs``."""

    name: str
    builtin: bool
    hooks: tuple[str, ...]


def installed_plugins() -> list[InstalledPlugin]:
    """The plugins that a governor of this installation loads. Raises `PluginError` if one cannot be loaded."""
    from lgov_core import hookspecs
    from lgov_core.plugins import BUILTIN_ADAPTERS, make_plugin_manager

    manager = make_plugin_manager()
    order = [name for name in vars(hookspecs) if name.startswith("lgov_")]
    found: list[InstalledPlugin] = []
    for name, plugin in manager.list_name_plugin():
        callers = manager.get_hookcallers(plugin) or []
        hooks = sorted((caller.name for caller in callers), key=order.index)
        found.append(InstalledPlugin(name, name in BUILTIN_ADAPTERS, tuple(hooks)))
    return found


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
def plugins(as_json: bool) -> None:
    """List the plugins of this installation and the hooks that each implements.

    A plugin that cannot be loaded is an error: it might hold a policy.
    """
    found = installed_plugins()
    if as_json:
        write_json([asdict(plugin) for plugin in found])
        return
    rows = [(plugin.name, "built in" if plugin.builtin else "entry point", ", ".join(plugin.hooks)) for plugin in found]
    write_table(("plugin", "from", "hooks"), rows)
