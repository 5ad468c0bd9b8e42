"""Instruments each framework the moment a program imports it, and ends the process when it cannot be governed.

A framework is instrumented right after its first top-level package has been loaded and before the importing statement goes
on, so that every name the program imports from it is already governed. An import that merely raised could be tried
again, and the second try would find the half-loaded module ungoverned; so a framework that cannot be instrumented ends the
process.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.errors import InstrumentationError

if TYPE_CHECKING:
    from lgov_core.governor import Governor
    from lgov_core.types import Adapter

_LOG = logging.getLogger("lgov.instrumentation")

#: How long a second thread that imports a framework waits for the first to have instrumented it, in seconds.
INSTRUMENT_TIMEOUT_S = 120.0


class FrameworkGuard(MetaPathFinder):
    """Import hook for the modules of ``adapters``.

    ``governor`` is asked for when the first framework is imported. ``refuse`` is called with a sentence when a framework
    cannot be governed, and must end the process. Safe with any number of importing threads.
    """

    def __init__(
        self, adapters: Iterable[Adapter], governor: Callable[[], Governor], refuse: Callable[[str], NoReturn]
    ) -> None:
        self.adapters = tuple(adapters)
        self._by_module = {module: adapter for adapter in self.adapters for module in adapter.modules}
        self._governor = governor
        self._refuse = refuse
        self._lock = threading.RLock()
        self._begun: set[str] = set()
        self._patched: set[str] = set()  # modules of the frameworks that were loaded when these were instrumented
        self.instrumented: list[str] = []

    def install(self) -> None:
        """Registers the import hook; frameworks that are loaded already are instrumented at once.

        From then on the process also ends when it makes a sub-interpreter: nothing in one is governed. Raises
        `InstrumentationError` in a process that has a guard: a framework has one governor.
        """
        if any(isinstance(finder, FrameworkGuard) for finder in sys.meta_path):
            raise InstrumentationError(
                "this process is governed already, by the lgov run that started it",
                hint="start lgov run with --children allow: what it starts then has the governor of its own alone",
            )
        sys.meta_path.insert(0, self)
        sys.addaudithook(self._watch)
        for adapter in self.adapters:
            if any(name in sys.modules for name in adapter.modules):
                self.instrument(adapter)

    def _watch(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if event == "cpython.PyInterpreterState_New" and self in sys.meta_path:
            self._refuse("it makes a sub-interpreter, in which nothing is governed; use threads or processes")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds a framework's top-level module with the other finders and puts the instrumentation behind its loading.

        A module that was loaded when its framework was instrumented is found again only to be loaded a second time (a
        reload, or an import after it was removed from ``sys.modules``), without what was patched: then the process ends.
        """
        if fullname in self._patched:
            self._refuse(
                f"{fullname} is loaded a second time, and the new copy is not governed; do not reload a framework or"
                " remove it from sys.modules"
            )
        if (adapter := self._by_module.get(fullname)) is None:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                spec.loader = _InstrumentingLoader(self, adapter, spec.loader)
                return spec
        return None

    def instrument(self, adapter: Adapter) -> None:
        """Instruments ``adapter`` unless that has been done. Returns without instrumentation only inside the
        instrumentation itself.
        """
        if not self._lock.acquire(timeout=INSTRUMENT_TIMEOUT_S):
            self._refuse(f"{adapter.name} was not instrumented within {INSTRUMENT_TIMEOUT_S:g} s")
        try:
            # A module of the same name that is not the framework is left alone.
            if adapter.name in self._begun or not adapter.installed():
                return
            self._begun.add(adapter.name)
            try:
                adapter.instrument(self._governor())
            except BaseException as error:  # noqa: BLE001 - whatever went wrong, nothing may run ungoverned
                self._refuse(f"{adapter.name} cannot be governed: {error}")
            self._patched |= {name for name in sys.modules if name.partition(".")[0] in adapter.modules}
            self.instrumented.append(adapter.name)
            for reason in dict.fromkeys(adapter.unsupported.values()):
                _LOG.info("%s: not governed: %s", adapter.name, reason)
        finally:
            self._lock.release()


class _InstrumentingLoader(Loader):
    """Loads a module with its own loader, then has its framework instrumented."""

    def __init__(self, guard: FrameworkGuard, adapter: Adapter, inner: Loader | None) -> None:
        self._guard = guard
        self._adapter = adapter
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec) if self._inner is not None else None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if self._inner is None:  # A namespace package: there is nothing to execute.
            find: Any = PathFinder.find_spec
            loader: Any = NamespaceLoader(module.__name__, list(module.__path__), find)
        else:
            loader = self._inner
        module.__loader__ = loader
        if spec is not None:
            spec.loader = loader
        if not self._adapter.surface:  # Nothing can be governed, so not even its import is worth running.
            self._guard.instrument(self._adapter)
        if self._inner is not None:
            self._inner.exec_module(module)
        self._guard.instrument(self._adapter)
