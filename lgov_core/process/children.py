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

from lgov_core.process.child_reports import watch_children
from lgov_core.process.governed import (
    ProcessOptions,
    append_report,
    end_process,
    installed_adapters,
    open_process,
    say,
)
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope

if TYPE_CHECKING:
    from lgov_core.governor import Governor
    from lgov_core.process.governed import GovernedProcess

VARIABLE = "LGOV_CHILD"
SITE = Path(__file__).parent / "site"
_PATHS = ("policy", "audit", "audit_key", "heads", "air")
#: How much of a child's command a message shows, in characters.
MAX_COMMAND = 100


def hand_on(options: ProcessOptions, scope: RolloutScope, reports: Path) -> None:
    """Makes the Python processes that this process starts from now on governed. Changes the environment."""
    os.environ[VARIABLE] = json.dumps(
        {
            **asdict(options),
            **{name: str(path.resolve()) for name in _PATHS if (path := getattr(options, name)) is not None},
            "store": _absolute(options.store),
            **asdict(scope),
            "reports": str(reports),
        }
    )
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(SITE)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])


def _absolute(store: str | None) -> str | None:
    """A store in a file, wherever the child's working folder is; an address stays as it is."""
    if store is None or ("://" in store and not store.startswith("sqlite:///")):
        return store
    return str(Path(store.removeprefix("sqlite:///")).resolve())


def govern_child() -> None:
    """Puts this process under the policy that its parent handed on. Ends it with 78 when that cannot be done."""
    try:
        child = _Child(json.loads(os.environ[VARIABLE]))
        child.begin()
    except BaseException as error:  # noqa: BLE001 - ungoverned it must not run
        _refuse(f"{type(error).__name__}: {error}")


class _Child:
    """One governed child: its inherited options, and what it has opened once a framework was imported."""

    def __init__(self, inherited: dict[str, Any]) -> None:
        self.options = ProcessOptions(
            Path(inherited["policy"]),
            Path(inherited["audit"]),
            inherited["store"],
            inherited["timeout_s"],
            inherited["capture_content"],
            tuple(inherited["redact"]),
            inherited["broker"],
            *(None if inherited[name] is None else Path(inherited[name]) for name in ("audit_key", "heads", "air")),
        )
        self.scope = RolloutScope(
            inherited["rollout_id"], inherited["attempt"], inherited["session_id"], inherited["task_id"]
        )
        self.reports = Path(inherited["reports"])
        self.process: GovernedProcess | None = None
        self.pid = os.getpid()

    def begin(self) -> None:
        from lgov_core.plugins import make_plugin_manager
        from lgov_core.process.import_guard import FrameworkGuard

        manager = make_plugin_manager()

        def opened() -> Governor:
            if self.process is None:
                self.process = open_process(self.options, manager=manager)
                self.process.tally.reports = self.reports
            return self.process.governor

        enter_scope(self.scope).__enter__()  # for as long as the process lives
        carry_into_threads()
        FrameworkGuard(installed_adapters(manager), opened, _refuse).install()
        spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
        said = {"began": "multiprocessing" if spawned else "program", "pid": self.pid, "parent": os.getppid()}
        append_report(self.reports, said)
        watch_children(self.reports)
        atexit.register(self.end)

    def end(self) -> None:
        if os.getpid() != self.pid or self.process is None:
            return
        problems = [f"{count} failures in {what}" for what, count in sorted(self.process.governor.failures.items())]
        problems += self.process.close()
        judged = [[*key, count] for key, count in self.process.tally.judged.items()]
        problems = [f"child process {self.pid}: {problem}" for problem in problems]
        blocked = self.process.tally.blocked.as_json()
        append_report(self.reports, {"judged": judged, "blocked": blocked, "problems": problems})


def _refuse(reason: str) -> NoReturn:
    said = " ".join(" ".join(sys.orig_argv[:3]).split())  # the text after -c may have many lines
    what = said if len(said) <= MAX_COMMAND else f"{said[:MAX_COMMAND]}…"
    end_process(lambda: say(f"stopped: {what}, started by a governed program: {reason}"))
