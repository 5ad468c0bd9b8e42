"""Makes the plugin manager. Nothing loads when lgov is imported; a manager is made for each governor."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from lgov_core import hookspecs
from lgov_core.errors import PluginError

#: Adapters that ship with lgov. Names, not entry points: an entry point whose framework is missing would make the whole
#: group fail to load, while these modules import no framework until they are armed.
BUILTIN_ADAPTERS = ("lgov_langchain.plugin", "lgov_autogen.plugin", "lgov_openai_agents.plugin", "lgov_openai.plugin")

ENTRY_POINT_GROUP = "lgov"


def make_plugin_manager(
    plugins: Iterable[Any] = (), *, builtin: Sequence[str] = BUILTIN_ADAPTERS, third_party: bool = True
) -> pluggy.PluginManager:
    """A manager with the hook specifications, the built-in adapters, third-party entry points and ``plugins``.

    Every entry point of the group ``lgov`` is loaded on its own. One that cannot be loaded is fatal whatever it is: until
    it is loaded nobody can know whether it judges, and a missing judge must not pass for a silent one. A function whose
    name begins with ``lgov_`` but names no hook is fatal too, because a misspelt judge never judges.

    Raises `PluginError`.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for name in builtin:
        try:
            manager.register(importlib.import_module(name), name=name)
        except ModuleNotFoundError as error:
            if error.name is not None and name.startswith(error.name):
                raise PluginError(
                    f"built-in adapter {name} is not part of this installation",
                    hint="reinstall lgov, or pass builtin=() to leave the adapters out",
                ) from error
            raise PluginError(f"built-in adapter {name} could not be imported: {error}") from error
    if third_party:
        for point in entry_points(group=ENTRY_POINT_GROUP):
            manager.register(_load(point), name=f"{point.name} ({point.value})")
    for plugin in plugins:
        register(manager, plugin)
    check_hooks(manager)
    return manager


def register(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Registers a plugin under its class's (or module's) name, so that an error can say whose it is.

    A second one of that name is told apart by a number. Raises `ValueError` for a plugin that is registered already.
    """
    name = getattr(plugin, "__name__", None) or type(plugin).__name__
    manager.register(plugin, name=None if manager.has_plugin(name) else name)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # one that ends the process would end it with the status of a success
        raise PluginError(
            f"plugin {point.name} ({point.value}) could not be loaded: {type(error).__name__}: {error}",
            hint="repair or uninstall it; lgov does not start without a plugin that may judge",
        ) from error


def check_hooks(manager: pluggy.PluginManager) -> None:
    """Raises `PluginError` for hooks that do not exist or whose arguments do not fit."""
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(str(error), hint="see lgov_core.hookspecs for the hooks and their arguments") from error
    for plugin in manager.get_plugins():
        for name in dir(plugin):
            if (
                name.startswith("lgov_")
                and not hasattr(hookspecs, name)
                and hasattr(getattr(plugin, name, None), f"{hookspecs.PROJECT}_impl")
            ):
                raise PluginError(f"{manager.get_name(plugin)}: there is no hook {name}")
