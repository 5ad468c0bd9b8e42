"""``lgov plugins``: installed plugins and their hooks."""

from __future__ import annotations

from typing import Any

from lgov_core.commands.group import Exit
from lgov_core.commands.options import command
from lgov_core.commands.output import write_json, write_table


def installed_plugins() -> list[dict[str, Any]]:
    """The plugins of this installation: name, whether built in, and hooks in the order of ``lgov_core.hookspecs``.

    Raises `PluginError` if one cannot be loaded.
    """
    from lgov_core import hookspecs
    from lgov_core.plugins import BUILTIN_ADAPTERS, make_plugin_manager

    manager = make_plugin_manager()
    order = [name for name in vars(hookspecs) if name.startswith("lgov_")]
    found: list[dict[str, Any]] = []
    for name, plugin in manager.list_name_plugin():
        hooks = sorted((caller.name for caller in manager.get_hookcallers(plugin) or []), key=order.index)
        found.append({"name": name, "builtin": name in BUILTIN_ADAPTERS, "hooks": hooks})
    return found


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
def plugins(as_json: bool) -> None:
    """List the plugins of this installation and the hooks that each implements.

    A plugin that cannot be loaded is an error: it might hold a policy.
    """
    found = installed_plugins()
    if as_json:
        write_json(found)
        return
    rows = [(one["name"], "built in" if one["builtin"] else "entry point", ", ".join(one["hooks"])) for one in found]
    write_table(("plugin", "from", "hooks"), rows)
