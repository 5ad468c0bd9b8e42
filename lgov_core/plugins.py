"""Makes the plugin manager. Nothing loads when lgov is imported; a manager is made for each governor."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast, get_type_hints

import pluggy

from lgov_core import hookspecs
from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import PluginError, SettingsError, TrainError, suggest_name

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


def load_plugin_file(path: Path) -> Any:
    """The module in the file ``path``, which is its name too; it runs once. Raises `PluginError`."""
    if (loaded := sys.modules.get(str(path))) is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(str(path), path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise PluginError(f"there is no plugin file {path}", hint="name a Python file (.py) with hooks")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise PluginError(f"plugin {path} could not be loaded: {type(error).__name__}: {error}") from error
    return module


def named_by_plugins(
    hook: str, own: Mapping[str, Container[str]], plugins: Iterable[Any] = ()
) -> Mapping[str, Mapping[str, tuple[str, Callable[..., Any]]]]:
    """The classes or functions that installed plugins and ``plugins`` name in ``hook``, each with its plugin, by kind and name.

    ``own`` are lgov's own names of each kind; where there is one kind the hook gives its names alone. Raises `PluginError`.
    """
    named: dict[str, dict[str, tuple[str, Callable[..., Any]]]] = {kind: {} for kind in own}
    for impl in reversed(getattr(make_plugin_manager(plugins, builtin=()).hook, hook).get_hookimpls()):
        plugin = f"plugin {impl.plugin_name}"
        try:
            names: Any = impl.function()
            by_kind: Any = names if len(own) > 1 else dict.fromkeys(own, names)
            triples = [(kind, *pair) for kind, names in by_kind.items() for pair in names.items()]
        except Exception as error:
            problem = f"{hook} gives no names: {type(error).__name__}: {error}"
            raise PluginError(f"{plugin}: {problem}", hint="repair or uninstall it") from error
        for kind, name, factory in triples:
            if kind not in own or not isinstance(name, str) or not callable(factory):
                hint = f"there are {', '.join(own)}, and names are text"
                raise PluginError(f"{plugin}: {name!r}: {factory!r} is not a {kind} by name", hint=hint)
            if name in own[kind] or name in named[kind]:
                raise PluginError(f"{plugin}: there is a {kind} {name!r} already", hint="rename or uninstall one")
            named[kind][name] = (plugin, factory)
    return named


def make_part(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Makes a part of a training with ``options``, the fields of ``factory``, checked by their types. Raises `SettingsError`.

    What it raises when it is called becomes a `TrainError` with the ``name``, but where memory does not suffice.
    """
    fields = get_type_hints(factory)
    for option in options.keys() - fields:
        raise SettingsError(f"{name} has no option {option}", hint=suggest_name(option, fields, "it has none"))
    try:
        part: Any = checked(options, cast("type[Any]", factory), strict=False)
    except Mistake as mistake:
        option = f": {mistake.path[0]} must be " if mistake.path else ": "
        raise SettingsError(f"{name}{option}{mistake.expected}") from None

    def call(*arguments: Any) -> Any:
        try:
            return part(*arguments)
        except Exception as error:
            if isinstance(error, MemoryError) or "out of memory" in str(error):
                raise
            raise TrainError(f"{name} raised {type(error).__name__}: {error}") from error

    call.__name__ = name
    return call


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
