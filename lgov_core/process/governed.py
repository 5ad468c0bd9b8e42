"""What every governed process has: an open governor, the guard of its imports, a count of its decisions, and how it ends.

``lgov run``, the Python processes that its program starts, the pytest plugin and the OpenTelemetry entry point differ in
when they open their `Governance`, and in what they do when it cannot be opened.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.hookspecs import hookimpl
from lgov_core.process.blocked import BlockedActions
from lgov_core.process.import_guard import FrameworkGuard

if TYPE_CHECKING:
    from lgov_core.governance import Governance
    from lgov_core.governor import Governor
    from lgov_core.types import Adapter

#: The status of a process that could not be governed (EX_CONFIG of sysexits.h).
CANNOT_GOVERN = 78


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
        self.tally = Tally()
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
            hint="lgov plugins lists them; repair or uninstall the one that raises",
        ) from error
    return adapters


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
