"""The parts of every governed process: an open governor, the guard of its imports, a count of its decisions, and how it ends.

``lgov run``, the Python processes that its program starts, the pytest plugin and the OpenTelemetry entry point differ in
when they open their `Governance`, and in what they do when it cannot be opened.

The guard instruments each framework the moment a program imports it: right after its first top-level package has been
loaded and before the importing statement goes on, so that every name the program imports from it is already governed. An
import that merely raised could be tried again, and the second try would find the half-loaded module ungoverned; so a
framework that cannot be instrumented ends the process.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from lgov_core.errors import InstrumentationError, LgovError, PolicyDenied
from lgov_core.hookspecs import hookimpl
from lgov_core.places import policy_beside

if TYPE_CHECKING:
    from lgov_core.governance import Governance
    from lgov_core.governor import Governor
    from lgov_core.types import Action, Adapter, Decision


#: Kinds that are told apart; models choose names. Further ones are only counted.
MAX_KINDS: Final = 100


@dataclass(slots=True)
class Blocked:
    """Actions of one name that one rule blocked in the same way: ``count`` of them.

    ``effect`` is deny or escalate, with ``would-`` in front in shadow mode. ``decision_id`` is the audit entry of the last
    one, and ``approval`` the command that answers its request for approval. ``reason`` is the last one's; it ``varies`` where
    another one's was another.
    """

    effect: str
    point: str
    name: str
    policy: str
    rule: str
    reason: str
    decision_id: str | None
    approval: str
    count: int = 1
    varies: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for kinds that are counted together."""
        return self.effect, self.point, self.name, self.policy, self.rule, self.approval


class BlockedActions:
    """The actions that were blocked, by kind. A request for approval is taken out again once it is answered."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], Blocked] = {}

    def __iter__(self) -> Iterator[Blocked]:
        return iter(list(self._kinds.values()))

    def add(self, action: Action, decision: Decision) -> None:
        """Takes note of a decision, if it blocks or would outside shadow mode."""
        self.answer(answered_requests(decision))
        block = decision if decision.blocks else decision.unenforced
        if block is None or not block.blocks:
            return
        effect = block.effect.label if decision.blocks else f"would-{block.effect.label}"
        approval = next(
            (judged.approval for judged in decision.parts or (decision,) if judged.approval and judged.blocks), ""
        )
        what = (effect, action.point.value, action.name, block.policy, block.rule, block.reason)
        self.merge([Blocked(*what, decision.decision_id, approval)])

    def answer(self, requests: Iterable[str]) -> None:
        """Takes the ``requests`` for approval out again."""
        for key in [key for key, kind in self._kinds.items() if kind.approval in requests]:
            self._kinds.pop(key, None)

    def merge(self, others: Iterable[Blocked]) -> None:
        """Adds what another process blocked."""
        for other in others:
            kind = self._kinds.get(other.key)
            if kind is not None:
                kind.count += other.count
                kind.varies |= other.varies or other.reason != kind.reason
                kind.reason, kind.decision_id = other.reason, other.decision_id
            elif len(self._kinds) < MAX_KINDS:
                self._kinds[other.key] = other

    def as_json(self) -> list[dict[str, Any]]:
        """The kinds as JSON values."""
        return [asdict(kind) for kind in self]


def answered_requests(decision: Decision) -> list[str]:
    """The requests for approval that were answered before ``decision``, which did not wait for them."""
    return [judged.approval for judged in decision.parts or (decision,) if judged.approval and not judged.blocks]


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


#: The status of a process that could not be governed (EX_CONFIG of sysexits.h).
CANNOT_GOVERN = 78


class JudgedCounts:
    """Counts what was judged: by framework, point and effect (``would-deny`` and so on in shadow mode). Safe in any thread.

    ``blocked`` names what was blocked, ``sessions`` the conversations and their rollouts, no more than `MAX_KINDS`. A
    child, also a forked one, may end without a word; so each of its decisions is a line of ``reports`` once it is on
    record, if that is set. ``is_child``: this process is one itself.
    """

    def __init__(self, reports: Path | None = None, *, is_child: bool = False) -> None:
        self.judged: Counter[tuple[str, str, str]] = Counter()
        self.blocked = BlockedActions()
        self.sessions: set[tuple[str | None, str]] = set()
        self.reports = reports
        self._pid = 0 if is_child else os.getpid()

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Counts a decision."""
        if (decision := getattr(event, "decision", None)) is not None and hasattr(event, "at"):
            action = event.action
            would = decision.unenforced
            effect = f"would-{would.effect.label}" if would else decision.effect.label
            key = (action.framework or "", action.point.value, effect)
            if self.reports is not None and os.getpid() != self._pid:
                actions = BlockedActions()
                actions.add(action, decision)
                line = {"judged": [[*key, 1]], "blocked": actions.as_json(), "answered": answered_requests(decision)}
                append_report(self.reports, {**line, "session": [action.rollout_id, action.session_id]})
            else:
                if action.session_id is not None and len(self.sessions) < MAX_KINDS:
                    self.sessions.add((action.rollout_id, action.session_id))
                self.judged[key] += 1
                self.blocked.add(action, decision)


class GovernedProcess:
    """A process whose agents are governed from the moment that ``guard`` is installed.

    Opens ``governance``; ``plugins`` take part beside the installed ones. ``refuse`` is called with a sentence when a
    framework cannot be governed, and must end the process. Raises `LgovError`; then nothing stays open. Close it once, at
    the end.
    """

    def __init__(
        self, governance: Governance, refuse: Callable[[str], NoReturn], *, plugins: Sequence[object] = ()
    ) -> None:
        from lgov_core.plugins import make_plugin_manager

        manager = make_plugin_manager()
        adapters = installed_adapters(manager)
        self.governance = governance
        self.tally = JudgedCounts()
        self.opened = governance.open(plugins=[self.tally, *plugins], manager=manager)
        self.guard = FrameworkGuard(adapters, lambda: self.governor, refuse)

    @property
    def governor(self) -> Governor:
        """The governor of every agent of the process."""
        return self.opened.governor

    def close(self) -> list[str]:
        """Closes everything; returns what went wrong while closing, in words."""
        return self.opened.close()


def installed_adapters(manager: Any) -> list[Adapter]:
    """The adapters of all plugins, the built-in ones first. Raises `InstrumentationError` when a plugin does not name one."""
    try:
        adapters: list[Adapter] = manager.hook.lgov_framework()[::-1]  # pluggy asks the last registered first
    except LgovError:
        raise
    except (Exception, SystemExit) as error:
        raise InstrumentationError(
            f"a plugin failed to name its framework: {type(error).__name__}: {error}",
            hint="lgov doctor lists them; repair or uninstall the one that raises",
        ) from error
    return adapters


def why_not_started(what: str, denied: PolicyDenied) -> str:
    """Why ``what``, a program or a server, may not start, for its user: the policy denies it, or the record failed, and how."""
    decision = denied.decision
    failed = [fault.reason for fault in decision.parts if fault.rule == decision.rule == "audit-failed"]
    if failed:
        return f"the start of this {what} cannot be put on record: {failed[-1]}"
    return f"the policy does not let this {what} start: {decision.reason}"


def policy_in(folder: Path, program: str) -> Path:
    """The policy file in ``folder``, which is the ``program``'s. Raises `InstrumentationError` when there is none."""
    if (policy := policy_beside(folder)) is not None:
        return policy
    file = program if program.endswith(".py") else "FILE"
    raise InstrumentationError(
        f"no policy was given and there is no policy.yaml in {folder}",
        hint=f"write one for what the program offers to its model: lgov init -- python {file}; or begin with an agent to"
        " try: lgov init; or name a policy with --policy",
    )


def say(text: str) -> None:
    """Writes a line for people to standard error, if it can be written to: nothing may hang on that."""
    write_error(f"lgov: {text}")


def write_error(line: str) -> None:
    """Writes a line to standard error, which may be closed, full, or not there."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")


def end_process(*last_words: Callable[[], object]) -> NoReturn:
    """Ends the process with 78 at once, after ``last_words``, whatever those raise.

    Not by an exception: the program could catch one and go on ungoverned.
    """
    try:
        for word in (*last_words, lambda: sys.stdout.flush(), lambda: sys.stderr.flush()):
            with suppress(Exception):
                word()
    finally:
        os._exit(CANNOT_GOVERN)


def append_report(path: Path, report: Mapping[str, Any]) -> None:
    """One line for the closing report, appended at once: several processes write to the file.

    Raises `OSError` when too many files are open: a program that opens all it may must not start others unseen.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return  # the program has ended and taken its report with it; the record is what proves
    try:
        os.write(handle, (json.dumps(report) + "\n").encode())
    finally:
        os.close(handle)


def as_counts(tally: Mapping[tuple[str, str, str], int]) -> dict[str, dict[str, dict[str, int]]]:
    """The tally as nested mappings: framework, point, effect."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for (framework, point, effect), count in sorted(tally.items()):
        counts.setdefault(framework, {}).setdefault(point, {})[effect] = count
    return counts
