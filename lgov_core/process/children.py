"""Python processes that a governed program starts are governed too: by the same policy, on the same record.

`hand_on` puts what a child needs into the environment: ``LGOV_CHILD``, and in front of ``PYTHONPATH`` a folder whose
``sitecustomize`` calls `govern_child` before anything of the child's own runs. A child opens the policy and the record
when it first imports a framework, so that one that never does costs nothing but a few imports. Not reached: a child
started with ``-I``, ``-E`` or ``-S`` or with an environment of its own, and programs that are not Python. Every governed
process reports what it starts and that it began (`lgov_core.process.child_reports`), so that the closing report of
``lgov run`` knows which were not reached. Policies that keep count in memory (costs, rates, loops) count in each process alone.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.governance import Governance
from lgov_core.process.child_reports import watch_children
from lgov_core.process.governed import Tally, append_report, end_process, installed_adapters, say
from lgov_core.process.import_guard import FrameworkGuard
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope

if TYPE_CHECKING:
    from lgov_core.governance import OpenGovernance
    from lgov_core.governor import Governor

VARIABLE = "LGOV_CHILD"
SITE = Path(__file__).parent / "site"
#: How much of a child's command a message shows, in characters.
MAX_COMMAND = 100


def hand_on(governance: Governance, scope: RolloutScope, reports: Path) -> None:
    """Makes the Python processes that this process starts from now on governed. Changes the environment."""
    os.environ[VARIABLE] = json.dumps(
        {"governance": governance.as_json(), "scope": asdict(scope), "reports": str(reports)}
    )
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(SITE)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])


def govern_child() -> None:
    """Puts this process under the policy that its parent handed on. Ends it with 78 when that cannot be done."""
    try:
        child = _Child(json.loads(os.environ[VARIABLE]))
        child.begin()
    except BaseException as error:  # noqa: BLE001 - ungoverned it must not run
        _refuse(f"{type(error).__name__}: {error}")


class _Child:
    """One governed child: its inherited governance, which is opened once a framework is imported."""

    def __init__(self, inherited: dict[str, Any]) -> None:
        from lgov_core.plugins import make_plugin_manager

        self.governance = Governance.of_json(inherited["governance"])
        self.scope = RolloutScope(**inherited["scope"])
        self.reports = Path(inherited["reports"])
        self.manager = make_plugin_manager()
        self.tally = Tally()
        self.tally.reports = self.reports
        self.opened: OpenGovernance | None = None
        self.pid = os.getpid()

    def governor(self) -> Governor:
        """The governor of this process; opened when it is first asked for."""
        if self.opened is None:
            self.opened = self.governance.open(plugins=[self.tally], manager=self.manager)
        return self.opened.governor

    def begin(self) -> None:
        enter_scope(self.scope).__enter__()  # for as long as the process lives
        carry_into_threads()
        FrameworkGuard(installed_adapters(self.manager), self.governor, _refuse).install()
        spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
        started = {"began": "multiprocessing" if spawned else "program", "pid": self.pid, "parent": os.getppid()}
        append_report(self.reports, started)
        watch_children(self.reports)
        atexit.register(self.end)

    def end(self) -> None:
        """Closes everything and reports what was judged here."""
        if os.getpid() != self.pid or self.opened is None:
            return
        problems = [f"{count} failures in {what}" for what, count in sorted(self.opened.governor.failures.items())]
        problems = [f"child process {self.pid}: {problem}" for problem in [*problems, *self.opened.close()]]
        judged = [[*key, count] for key, count in self.tally.judged.items()]
        append_report(self.reports, {"judged": judged, "blocked": self.tally.blocked.as_json(), "problems": problems})


def _refuse(reason: str) -> NoReturn:
    said = " ".join(" ".join(sys.orig_argv[:3]).split())  # the text after -c may have many lines
    what = said if len(said) <= MAX_COMMAND else f"{said[:MAX_COMMAND]}…"
    end_process(lambda: say(f"stopped: {what}, started by a governed program: {reason}"))
