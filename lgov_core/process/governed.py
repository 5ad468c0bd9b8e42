"""The open parts of a governed process: the policy, the audit record, the store, the governor.

``lgov run``, the Python processes that its program starts, the pytest plugin and the OpenTelemetry entry point all open
the same thing; they differ in when, and in what they do when it cannot be opened.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.hookspecs import hookimpl
from lgov_core.process.blocked import BlockedActions

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog
    from lgov_core.confine.inside import BrokeredLog
    from lgov_core.governor import Governor
    from lgov_core.policies import PolicySet
    from lgov_core.process.import_guard import FrameworkGuard
    from lgov_core.scope import RolloutScope
    from lgov_core.store import TraceStore
    from lgov_core.types import Adapter

#: The status of a process that could not be governed (EX_CONFIG of sysexits.h).
CANNOT_GOVERN = 78

DEFAULT_AUDIT = Path(".lgov") / "audit.db"


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What a process is governed by. ``policy`` is a file; ``store`` None keeps no spans.

    ``timeout_s`` bounds a policy that does not promise bounded cost, in seconds. With ``capture_content`` false no
    prompt, argument or result is on a span. ``broker`` is the address of the process that keeps the record of a box.
    ``audit_key`` (the user's key if None) signs the record, ``heads`` is the file for its signed heads (beside it if None), and
    ``air`` a file of reward rules (the built-in ones if None).
    """

    policy: Path
    audit: Path = DEFAULT_AUDIT
    store: str | None = None
    timeout_s: float = 2.0
    capture_content: bool = True
    redact: tuple[str, ...] = ()
    broker: str | None = None
    audit_key: Path | None = None
    heads: Path | None = None
    air: Path | None = None


class Tally:
    """Counts what was judged: by framework, point and effect (``would-deny`` and so on in shadow mode). Safe in any thread.

    ``blocked`` names what was blocked. A forked child counts in memory of its own, and may end without a word; so each of
    its decisions is a line of ``reports``, if that is set.
    """

    def __init__(self) -> None:
        self.judged: Counter[tuple[str, str, str]] = Counter()
        self.blocked = BlockedActions()
        self.reports: Path | None = None
        self._pid = os.getpid()

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Counts a decision."""
        if (decision := getattr(event, "decision", None)) is not None and hasattr(event, "at"):
            action = event.action
            would = decision.unenforced
            effect = f"would-{would.effect.label}" if would else decision.effect.label
            key = (action.framework or "", action.point.value, effect)
            if self.reports is not None and os.getpid() != self._pid:
                one = BlockedActions()
                one.add(action, decision)
                append_report(self.reports, {"judged": [[*key, 1]], "blocked": one.as_json()})
            else:
                self.judged[key] += 1
                self.blocked.add(action, decision)


@dataclass(slots=True)
class GovernedProcess:
    """The open parts. Close it once, at the end; `close` returns what went wrong while closing, in words."""

    options: ProcessOptions
    governor: Governor
    audit: AuditLog | BrokeredLog
    store: TraceStore | None
    tally: Tally
    problems: list[str] = field(default_factory=list[str])

    def trace_connections(self, scope: RolloutScope) -> None:
        """In a box with a trace store: makes spans of the connections that the program asked for, as of ``scope``."""
        if self.options.broker is None or self.store is None:
            return
        from lgov_core.confine.inside import BrokeredLog

        assert isinstance(self.audit, BrokeredLog)
        for span in self.audit.connections(scope.rollout_id, scope.attempt, content=self.options.capture_content):
            self.governor.observe(span)

    def close(self) -> list[str]:
        """Closes everything; goes on when one part cannot be closed."""
        self.governor.close()
        closers: list[Callable[[], None]] = [self.audit.close]
        if self.store is not None:
            closers.append(self.store.close)
        for close in closers:
            try:
                close()
            except LgovError as error:
                self.problems.append(str(error))
        return self.problems


def open_process(options: ProcessOptions, *, plugins: Sequence[object] = (), manager: Any = None) -> GovernedProcess:
    """Opens everything that ``options`` names; ``plugins`` take part beside the installed ones.

    Raises `LgovError` (a policy that does not load, a record or store that cannot be opened); then nothing stays open.
    """
    from lgov_core import air
    from lgov_core.air import AirPlugin, AirRules, RuleSet
    from lgov_core.governor import Governor
    from lgov_core.plugins import make_plugin_manager

    manager = manager if manager is not None else make_plugin_manager()
    # Rules that the program registers are added to the set in use. A plugin that charges denials does that alone.
    charged = any(getattr(plugin, "charges_denials", False) is True for plugin in (*plugins, *manager.get_plugins()))
    given = None if options.air is None else air.load_rules(options.air)
    rules = air.use(given or RuleSet(base=AirRules(denied=0.0) if charged else AirRules()))
    policies, audit = open_policy_and_record(options)
    tally = Tally()
    taking_part: list[object] = [AirPlugin(rules), tally, *plugins]
    store = None
    try:
        if options.store is not None:
            from lgov_core.store import open_store
            from lgov_core.trace.sink import StoreSink

            store = open_store(options.store)
            taking_part.append(StoreSink(store, content=options.capture_content))
        governor = Governor(
            policies,
            plugins=taking_part,
            audit=audit,
            timeout_s=options.timeout_s,
            manager=manager,
            capture_content=options.capture_content,
        )
    except BaseException:
        audit.close()
        if store is not None:
            store.close()
        raise
    return GovernedProcess(options, governor, audit, store, tally)


def open_policy_and_record(options: ProcessOptions) -> tuple[PolicySet, AuditLog | BrokeredLog]:
    """The policies and the record of ``options``; in a box both have the broker behind them. Raises `LgovError`."""
    if options.broker is not None:
        from lgov_core.confine.inside import open_in_box

        return open_in_box(options.broker, options.policy, options.redact)
    from lgov_core.audit import AuditLog, default_signer
    from lgov_core.policies import load_policy_file

    policies = load_policy_file(options.policy)
    make_folder(options.audit.parent)
    log = AuditLog(
        options.audit,
        policy_digest=policies.digest or "",
        signer=default_signer(options.audit_key),
        heads=options.heads,
        redact=options.redact or None,
    )
    return policies, log


def govern_process(
    options: ProcessOptions, refuse: Callable[[str], NoReturn], *, plugins: Sequence[object] = ()
) -> tuple[GovernedProcess, FrameworkGuard]:
    """Opens everything, and makes the guard of the frameworks' imports, which has still to be installed.

    ``refuse`` is called with a sentence when a framework cannot be governed. Raises `LgovError`; then nothing stays open.
    """
    from lgov_core.plugins import make_plugin_manager
    from lgov_core.process.import_guard import FrameworkGuard

    manager = make_plugin_manager()
    adapters = installed_adapters(manager)
    process = open_process(options, plugins=plugins, manager=manager)
    return process, FrameworkGuard(adapters, lambda: process.governor, refuse)


def installed_adapters(manager: Any) -> list[Adapter]:
    """The adapters of all plugins, the built-in ones first. Raises `InstrumentationError` when a plugin does not name one."""
    try:
        adapters: list[Adapter] = manager.hook.lgov_framework()[::-1]  # pluggy asks the last registered first
    except LgovError:
        raise
    except (Exception, SystemExit) as error:
        raise InstrumentationError(
            f"a plugin failed to name its framework: {type(error).__name__}: {error}",
            hint="lgov plugins lists them; repair or uninstall the one that raises",
        ) from error
    return adapters


def make_folder(folder: Path) -> None:
    """Makes the folder of a record. Raises `InstrumentationError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InstrumentationError(f"the folder {folder} for the audit record cannot be made: {error}") from error


def policy_in(folder: Path, program: str) -> Path:
    """The policy file in ``folder``, which is the ``program``'s. Raises `InstrumentationError` when there is none."""
    for name in ("policy.yaml", "policy.yml"):
        if (path := folder / name).is_file():
            return path
    file = program if program.endswith(".py") else "FILE"
    raise InstrumentationError(
        f"no policy was given and there is no policy.yaml in {folder}",
        hint=f"write one with the tools of the program: lgov policy init --agent {file}; or begin with an agent to try:"
        " lgov init; or name a policy with --policy",
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


def append_report(path: Path, said: Mapping[str, Any]) -> None:
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
        os.write(handle, (json.dumps(said) + "\n").encode())
    finally:
        os.close(handle)


def as_counts(tally: Mapping[tuple[str, str, str], int]) -> dict[str, dict[str, dict[str, int]]]:
    """The tally as nested mappings: framework, point, effect."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for (framework, point, effect), count in sorted(tally.items()):
        counts.setdefault(framework, {}).setdefault(point, {})[effect] = count
    return counts
