"""Makes the plugin manager. Nothing loads when lgov is imported; a manager is made for each governor."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import Any

import pluggy

from lgov_core import hookspecs
from lgov_core.errors import PluginError

#: Adapters that ship with lgov. Names, not entry points: an entry point whose framework is missing would make the whole
#: group fail to load, while these modules import no framework until they are instrumented.
BUILTIN_ADAPTERS = tuple(
    f"{package}.instrumentor" for package in ("lgov_langchain", "lgov_autogen", "lgov_openai_agents", "lgov_openai")
)

ENTRY_POINT_GROUP = "lgov"


def make_plugin_manager(
    plugins: Iterable[Any] = (), *, builtin: Sequence[str] = BUILTIN_ADAPTERS, third_party: bool = True
) -> pluggy.PluginManager:
    """A manager with the hook specifications, the built-in adapters, third-party entry points and ``plugins``.

    Every entry point of the group ``lgov`` is loaded on its own. One that cannot be loaded is fatal: whether it judges is
    unknown until it is loaded, and a missing policy must not count as one without an opinion. For the same reason it is
    fatal when a function whose name begins with ``lgov_`` names no hook or is not marked ``@hookimpl``, and when a
    plugin has no hook at all. A policy is a plugin too: it judges at every point, like one given to a governor.

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
            name = f"{point.name} ({point.value})"
            try:
                plugin = point.load()
            except (
                Exception,
                SystemExit,
            ) as error:  # one that ends the process would end it with the status of a success
                raise PluginError(
                    f"plugin {name} could not be loaded: {type(error).__name__}: {error}",
                    hint="repair or uninstall it; lgov does not start without a plugin that may judge",
                ) from error
            _register(manager, plugin, name)
    for plugin in plugins:
        register(manager, plugin)
    check_hooks(manager)
    return manager


def register(manager: pluggy.PluginManager, plugin: Any) -> None:
    """Registers a plugin under its class's (or module's) name, so that errors can name it.

    A second one of that name gets a number. Raises `PluginError` for a plugin without hooks, and `ValueError`
    for one that is registered already.
    """
    name = getattr(plugin, "__name__", None) or type(plugin).__name__
    _register(manager, plugin, None if manager.has_plugin(name) else name)


def _register(manager: pluggy.PluginManager, plugin: Any, name: str | None) -> None:
    if plugin is not None:
        manager.register(plugin, name=name)
        if manager.get_hookcallers(plugin) or _unmarked(plugin):  # check_hooks reports the unmarked
            return
        manager.unregister(plugin)
    if inspect.isclass(plugin) or not callable(getattr(plugin, "judge", None)):
        raise PluginError(
            f"{name or repr(plugin)} is not a plugin: it has no function of a hook's name that is marked @hookimpl",
            hint="pass an object or a module with hooks (lgov_core.hookspecs), or a policy",
        )
    manager.register(PolicyPlugin(plugin), name=name)


class PolicyPlugin:
    """A policy as a plugin: judges at every point, and gets events if it is stateful."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        #: Whether actions need an id that it can recognise.
        self.stateful = callable(getattr(policy, "observe", None)) and getattr(policy, "stateful", True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)  # bounded, timeout_s, deferred

    @hookspecs.hookimpl
    def lgov_agent_startup(self, action: Any) -> Any:
        """The policy's verdict; the other seven decision hooks do the same at their points."""
        return self.policy.judge(action)

    lgov_input = lgov_pre_model_call = lgov_post_model_call = lgov_agent_startup
    lgov_pre_tool_call = lgov_post_tool_call = lgov_output = lgov_agent_shutdown = lgov_agent_startup

    @hookspecs.hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Hands ``event`` to a policy that keeps count."""
        observe = getattr(self.policy, "observe", None)
        if callable(observe):
            observe(event)


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
        if unmarked := _unmarked(plugin):
            raise PluginError(
                f"{manager.get_name(plugin)}: {unmarked} is not marked, so it would never be called",
                hint="write @hookimpl before it",
            )


def _unmarked(plugin: Any) -> str | None:
    """The name of a function of ``plugin`` that is a hook's but was not made one."""
    for name in dir(plugin):
        if name.startswith("lgov_") and hasattr(hookspecs, name):
            function = getattr(plugin, name, None)
            if inspect.isroutine(function) and not hasattr(function, f"{hookspecs.PROJECT}_impl"):
                return name
    return None
