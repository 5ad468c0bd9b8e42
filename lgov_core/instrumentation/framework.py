"""The declaration of an adapter, and how its framework is instrumented: patches that can be undone, and a self-test.

An adapter declares what it can do in one `Instrumentor`, whose bound methods are its plug-in's hook ``lgov_framework`` and its
``instrument`` and ``uninstrument``. A module that is imported only when the framework is instrumented patches it and tests
that the patches hold. They look up `Instrumentor.governor` at each call: without one they only call through.
`wrap_methods` and its like patch every class below a base class, also those that are defined later.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import re
import sys
import threading
import warnings
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pluggy

from lgov_core import hookspecs
from lgov_core.errors import InstrumentationError
from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.governor import Governor
from lgov_core.instrumentation.otel_spans import unrecorded_span
from lgov_core.types import Action, Decision, Effect, Point, Surface
from lgov_core.types import Adapter as Adapter
from lgov_core.types import Conflict as Conflict
from lgov_core.types import Gap as Gap

#: How an agent is run, and what it does: the cells of the table of what a denial is tested in.
MODES = ("sync", "async", "streaming")
SHAPES = ("tool", "parallel tools", "hand-off", "agent-as-tool", "MCP tool", "hand-made loop")


def whole_surface(*, sync: bool = True, not_streamed: Collection[Point] = ()) -> Mapping[Point, Surface]:
    """The surface of an adapter that observes, blocks and transforms at every point of a call.

    The model reads why a tool call or its result was denied. ``not_streamed`` are the points at which streamed replies
    are only observed.
    """
    tool_points = (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)
    points = (Point.INPUT, Point.PRE_MODEL_CALL, Point.POST_MODEL_CALL, *tool_points, Point.OUTPUT)
    return {
        point: Surface(
            observe=True,
            block=True,
            tell=point in tool_points,
            transform=True,
            stream=point not in not_streamed,
            sync=sync,
        )
        for point in points
    }


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of an adapter's ``package``, whose public names are looked up when they are first used.

    ``modules`` says in which module of the package each name is. So importing the package imports no framework; a name does,
    before the module that has it: under ``lgov run`` that import instruments the framework, for which that module must be
    whole. The package's module ``instrumentor`` has its `Instrumentor`, by the name ``INSTRUMENTOR``.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        instrumentor = importlib.import_module(f"{package}.instrumentor")
        if modules[name] != "instrumentor":
            instrumentor.INSTRUMENTOR.import_framework()
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *modules})

    return find, names


class Patches:
    """The originals that were replaced, so that they can be put back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Sets attribute ``name`` of ``owner`` (a class or module) to ``new``."""
        own = name in vars(owner)
        old = getattr(owner, name) if not isinstance(owner, type) else vars(owner).get(name)
        setattr(owner, name, new)

        def restore() -> None:
            # Someone who wrapped our wrapper keeps it: without a governor it only passes calls through.
            if vars(owner).get(name) is not new:
                return
            if own:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

        self._undo.append(restore)

    def undo_by(self, undo: Callable[[], None]) -> None:
        """Notes something else that has to be undone."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Puts everything back, the last first."""
        while self._undo:
            self._undo.pop()()


@dataclass(eq=False, kw_only=True)
class Instrumentor:
    """The declaration of an adapter, and the governor of its framework in this process. Methods may be called from any thread.

    The fields but these are those of `Adapter`; an adapter sets nothing else. ``title`` is the framework's name in messages.
    ``patching`` names the module that imports the framework. It has ``patch(patches)``, which patches it, and
    ``self_test(instrumentor)``, which tries each way to a tool or a model while everything is denied
    (`denying_everything`), and returns the names of those on which a probe got through all the same. ``installed`` says
    whether the framework can be imported; by default it is one of ``modules``. ``self_test_in_thread``: the self-test runs
    event loops, so it needs a thread in which none is running. Such a thread cannot import a module that is being imported.
    """

    name: str
    title: str
    modules: tuple[str, ...]
    tested: Mapping[str, str]
    surface: Mapping[Point, Surface]
    patching: str
    installed: Callable[[], bool] | None = None
    unsupported: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    gaps: tuple[Gap, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    self_test_in_thread: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._instrumented: tuple[Governor, Patches] | None = None
        self._begun: Patches | None = None  # those of an instrument() that has not ended yet
        self._governor: Governor | None = None
        self._probe: contextvars.ContextVar[Governor | None] = contextvars.ContextVar(
            f"lgov_probe_{self.name}", default=None
        )

    @hookspecs.hookimpl
    def lgov_framework(self) -> Adapter:
        """The adapter, for the plug-in that has this as its hook."""
        return Adapter(
            name=self.name,
            modules=self.modules,
            tested=self.tested,
            surface=self.surface,
            installed=self.installed or (lambda: any(map(can_be_imported, self.modules))),
            instrument=self.instrument,
            uninstrument=self.uninstrument,
            offers=self.offers,
            unsupported=self.unsupported,
            gaps=self.gaps,
            conflicts=self.conflicts,
        )

    def offers(self) -> Iterable[Mapping[str, Any]]:
        """The definitions of `Adapter.offers`, by the module ``patching`` where it has them."""
        find: Any = getattr(importlib.import_module(self.patching), "offers", tuple[Mapping[str, Any]])
        return find()

    @property
    def governor(self) -> Governor | None:
        """The governor that the patches use: that of a running self-test, else the instrumented one, else None."""
        probe = self._probe.get()
        return self._governor if probe is None else probe

    def instrument(self, governor: Governor) -> None:
        """Puts every agent, tool and model of the framework in this process under ``governor``, and proves it by a self-test.

        A second call with the same governor changes nothing. Warns of versions outside the tested range. Raises
        `InstrumentationError` when the framework is missing, when another governor is instrumented, or when a patch or the
        self-test fails; then nothing stays patched and the process must not run agents.
        """
        with self._lock:
            if self._is_instrumented_by(governor):
                return
            for problem in outside_tested_range(self.tested):
                warnings.warn(problem, stacklevel=2)
            if self._begun is not None:
                self._begun.undo()
            patches = self._begun = Patches()
            try:
                # First the framework: under ``lgov run`` its import instruments it from inside, and that governor has it then.
                self.import_framework()
                if self._is_instrumented_by(governor):
                    return
                patching = importlib.import_module(self.patching)
                patching.patch(patches)
                self._governor = governor
                self._prove(patching)
            except BaseException as error:
                self._governor = None if self._instrumented is None else self._instrumented[0]
                patches.undo()
                if isinstance(error, InstrumentationError) or not isinstance(error, Exception):
                    raise
                raise InstrumentationError(
                    f"{self.title} cannot be governed here: {type(error).__name__}: {error}",
                    hint=f"lgov is tested with {', '.join(f'{name}{range_}' for name, range_ in self.tested.items())}",
                ) from error
            finally:
                self._begun = None
            self._instrumented = governor, patches

    def import_framework(self) -> None:
        """Imports the framework's top-level modules, as far as they are installed."""
        for name in filter(can_be_imported, self.modules):
            importlib.import_module(name)

    def _prove(self, patching: Any) -> None:
        """Raises `InstrumentationError` where a probe gets through, or the self-test cannot be made."""
        ways: list[str] = []

        def self_test() -> None:
            with _unobserved():
                ways.extend(patching.self_test(self))

        if self.self_test_in_thread:
            in_fresh_thread(self_test)
        else:
            self_test()
        if ways:
            raise InstrumentationError(
                f"{self.title} cannot be governed here: denied probes got through ({', '.join(dict.fromkeys(ways))})"
            )

    def _is_instrumented_by(self, governor: Governor) -> bool:
        """Returns whether ``governor`` is instrumented. Raises `InstrumentationError` when another one is."""
        if self._instrumented is not None and self._instrumented[0] is not governor:
            raise InstrumentationError(
                f"{self.title} is already governed by another governor", hint="call uninstrument() first"
            )
        return self._instrumented is not None

    def uninstrument(self) -> None:
        """Undoes `instrument`; does nothing when nothing is instrumented. Runs that are going on are no longer governed."""
        with self._lock:
            instrumented, self._instrumented, self._governor = self._instrumented, None, None
            if instrumented is not None:
                instrumented[1].undo()

    @contextmanager
    def denying_everything(self, only: Container[Point] | None = None) -> Generator[Governor]:
        """Makes the patches use a governor that denies everything, in this thread or task only: for self-tests.

        ``only`` names the points at which it denies; at others it has no opinion, so that the call goes on.
        """
        alone = pluggy.PluginManager(hookspecs.PROJECT)
        alone.add_hookspecs(hookspecs)
        denier = Governor(_DenyEverything(only), manager=alone)
        denier.exports_spans = False  # a self-test does not belong into the program's traces
        token = self._probe.set(denier)
        try:
            yield denier
        finally:
            self._probe.reset(token)
            denier.close()


@contextmanager
def _unobserved() -> Generator[None]:
    """Keeps what runs inside out of the program's logs and traces, whoever writes its spans: other instrumentations heed the
    keys, or the sampler drops what is below a span that is not sampled.
    """
    context: Any = sys.modules.get("opentelemetry.context")
    with ExitStack() as stack:
        stack.callback(_HIDDEN.reset, _HIDDEN.set(True))
        for handler in filter(None, (*logging.root.handlers, logging.lastResort)):
            handler.addFilter(_is_observed)
            stack.callback(handler.removeFilter, _is_observed)
        if context is not None:
            api = importlib.import_module("opentelemetry.trace")
            above = api.set_span_in_context(unrecorded_span(api, "1".zfill(16), (1, api.TraceFlags(0))))
            for key in ("suppress_instrumentation", getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "")):
                above = context.set_value(key, True, above)
            stack.callback(context.detach, context.attach(above))
        yield


_HIDDEN = contextvars.ContextVar("lgov_hidden", default=False)


def _is_observed(_record: logging.LogRecord) -> bool:
    return not _HIDDEN.get()


class _DenyEverything:
    name = "instrumentation-self-test"
    bounded = True

    def __init__(self, only: Container[Point] | None) -> None:
        self._only = only

    def judge(self, action: Action) -> Decision | None:
        if self._only is not None and action.point not in self._only:
            return None
        return Decision(Effect.DENY, policy=self.name, reason="the self-test denies everything")


def can_be_imported(name: str) -> bool:
    """Returns whether there is a module ``name``; does not import it."""
    return importlib.util.find_spec(name) is not None


def outside_tested_range(
    tested: Mapping[str, str], version_of: Callable[[str], str] = importlib.metadata.version
) -> list[str]:
    """One sentence for each installed distribution whose version lies outside the range it was tested in."""
    problems: list[str] = []
    for name, tested_range in tested.items():
        try:
            version = version_of(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not _in_range(version, tested_range):
            problems.append(f"{name} {version} is outside the range lgov was tested with ({tested_range})")
    return problems


def _in_range(version: str, tested_range: str) -> bool:
    """Compares the release of ``version`` with a range such as ``>=1.4,<2``; other operators than these two are ignored."""
    release = _release(version)
    bounds = [(bound.strip(), _release(bound)) for bound in tested_range.split(",")]
    least = max((limit for bound, limit in bounds if bound.startswith(">=")), default=())
    below = [limit for bound, limit in bounds if bound.startswith("<") and not bound.startswith("<=")]
    return release >= least and all(release < limit for limit in below)


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release, without zeros at its end: those of 1.4 and 1.4.0 are equal."""
    matched = re.search(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in matched[0].split(".")] if matched else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def in_fresh_thread(function: Callable[[], None], timeout_s: float = 60.0) -> None:
    """Runs ``function`` in a thread of its own, where no event loop is running, and raises what it raised.

    Raises `InstrumentationError` when it has not ended after ``timeout_s``: a self-test that hangs (on the lock of a module
    that is still being imported, say) must not leave a process that is neither governed nor stopped.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread below
            raised.append(error)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(run,), name="lgov-instrumentation", daemon=True
    )
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise InstrumentationError(f"the self-test did not end within {timeout_s:g} s")
    if raised:
        raise raised[0]


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def bound(own: Any, instance: Any, owner: type | None = None) -> Any:
    """Returns what reading ``own``, an attribute of a class, at ``instance`` gives; other instrumentations go by that."""
    getter: Any = getattr(type(own), "__get__", None)
    return own if getter is None else getter(own, instance, owner or type(instance))


def wrap_methods(patches: Patches, base: type, wraps: Mapping[str, Wrap]) -> None:
    """Puts ``wraps`` around the methods of these names wherever ``base`` or a class below it defines one.

    An abstract method is left alone. A class that is defined before the patches are undone is treated too.
    """

    def treat(cls: type) -> None:
        for name, wrap in wraps.items():
            method = vars(cls).get(name)
            if callable(method) and not getattr(method, "__isabstractmethod__", False):
                patches.replace(cls, name, wrap(method))

    for cls in subclasses_of(base):
        treat(cls)
    on_subclass(patches, base, treat)


def governed_method(govern: Callable[..., Awaitable[Any]]) -> Wrap:
    """Wraps an asynchronous method: ``govern`` gets the object, its own method, and the arguments."""

    def wrap(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await govern(self, bound(own, self), *args, **kwargs)

        return method

    return wrap


def governed_stream(govern: Callable[..., AsyncGenerator[Any]]) -> Wrap:
    """As `governed_method`, for an asynchronous generator; it is closed with the one that the program reads."""

    def wrap(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        async def method(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
            async with aclosing(govern(self, bound(own, self), *args, **kwargs)) as events:
                async for event in events:
                    yield event

        return method

    return wrap


def flow_method(own: Callable[..., Any], steps: Callable[..., Flow[Any]]) -> Callable[..., Any]:
    """A function like ``own``, synchronous or a coroutine function as that is, which runs the flow ``steps``."""

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        return run_flow(steps(*args, **kwargs))

    @functools.wraps(own)
    async def coroutine_function(*args: Any, **kwargs: Any) -> Any:
        return await arun_flow(steps(*args, **kwargs))

    return coroutine_function if inspect.iscoroutinefunction(own) else function


def on_subclass(patches: Patches, base: type, treat: Callable[[type], None]) -> None:
    """Calls ``treat`` with each class that is defined below ``base`` before the patches are undone."""
    own: Any = vars(base).get("__init_subclass__")

    def init_subclass(cls: type, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, cls)(**kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        treat(cls)

    patches.replace(base, "__init_subclass__", classmethod(init_subclass))


def alive(*bases: type) -> Iterator[Any]:
    """The objects of these classes, and of those below them, that are alive in this process."""
    return (each for each in gc.get_objects() if issubclass(type(each), bases))


def subclasses_of(base: type) -> Iterator[type]:
    """``base`` and every class below it, each once."""
    visited: set[type] = set()
    pending = [base]
    while pending:
        cls = pending.pop()
        if cls not in visited:
            visited.add(cls)
            pending += type.__subclasses__(cls)
            yield cls
