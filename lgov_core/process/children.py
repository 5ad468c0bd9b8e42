"""Python processes that a governed program starts are governed too: by the same policy, on the same record.

`hand_on` puts what a child needs into the environment: ``LGOV_CHILD``, and in front of ``PYTHONPATH`` a folder whose
``sitecustomize`` calls `govern_child` before anything of the child's own runs. A child opens the policy and the record
when it first imports a framework, so that one that never does costs nothing but a few imports. Not reached: a child
started with ``-I``, ``-E`` or ``-S`` or with an environment of its own, and programs that are not Python. Policies that keep
count in memory (costs, rates, loops) count in each process alone.

Every governed process appends a line to one file when it begins and for everything that it starts (`watch_children`), for the
closing report of ``lgov run`` (`read_reports`). A Python program that was started and does not say that it began was not
governed. Other programs have no governor to lose: they are named.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.governance import Governance
from lgov_core.policies.approvals import requests as approval_requests
from lgov_core.process.governed import (
    Blocked,
    FrameworkGuard,
    JudgedCounts,
    append_report,
    end_process,
    installed_adapters,
    say,
)
from lgov_core.process.requests import RequestWatch
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope

if TYPE_CHECKING:
    from lgov_core.governance import OpenGovernance
    from lgov_core.governor import Governor


_PYTHON = re.compile(r"(python|pypy)[\d.]*w?(\.exe)?", re.IGNORECASE)
_WORDS_END = re.compile(r"[\s;&|()<>'\"`]+")
_STARTERS = (platform.__file__, approval_requests.__file__)
_START_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.spawn", "os.system"})


@dataclass(slots=True)
class ChildReports:
    """The reports of the governed processes: the programs that they started, and how many of these were governed or not.

    ``others`` of those started are not Python. ``multiprocessing`` counts governed children that it started, which no event
    announces.
    """

    started: Counter[str] = field(default_factory=Counter[str])
    others: Counter[str] = field(default_factory=Counter[str])
    governed: int = 0
    ungoverned: int = 0
    multiprocessing: int = 0
    judged: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    unevaluated: Counter[str] = field(default_factory=Counter[str])
    blocked: list[Blocked] = field(default_factory=list[Blocked])
    problems: list[str] = field(default_factory=list[str])


def make_reports() -> Path:
    """Makes the file that governed processes append their reports to."""
    handle, name = tempfile.mkstemp(prefix="lgov-children-", suffix=".jsonl")
    os.close(handle)
    return Path(name)


def read_reports(path: Path) -> ChildReports:
    """Reads and removes the file of reports.

    Python that was started is governed when it said itself that it began. A shell whose text names Python counts as such,
    and is governed only when it has replaced itself by a Python that says so.
    """
    reports = ChildReports()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        path.unlink()
    except OSError as error:
        return ChildReports(ungoverned=1, problems=[f"the reports of child processes cannot be read: {error}"])
    # By pid: how many of its Python children have not begun, and whether what replaced itself is Python.
    waiting, replaced = Counter[int](), dict[int, bool]()
    began: list[tuple[int, int]] = []
    for line in lines:
        try:
            line_values: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a child was killed while it wrote
        if "started" in line_values:
            pid, python = line_values["pid"], line_values["python"]
            if pid not in replaced:  # to replace itself it may try several folders
                reports.started[line_values["started"]] += 1
                reports.others[line_values["started"]] += not python
            if line_values["exec"]:
                replaced[pid] = python
            elif python:
                waiting[pid] += 1
        elif "began" in line_values:
            reports.governed += 1
            if line_values["began"] == "multiprocessing":
                reports.multiprocessing += 1
            elif line_values["pid"] in replaced:
                del replaced[line_values["pid"]]
            else:
                began.append((line_values["pid"], line_values["parent"]))
        for framework, point, effect, count in line_values.get("judged", ()):
            reports.judged[framework, point, effect] += count
        reports.blocked += [Blocked(**kind) for kind in line_values.get("blocked", ())]
        reports.unevaluated.update(line_values.get("unevaluated", {}))
        reports.problems += line_values.get("problems", [])
    waiting.subtract(parent for _, parent in began if parent in waiting)
    reports.ungoverned = sum(count for count in waiting.values() if count > 0) + sum(replaced.values())
    return reports


def watch_children(reports: Path, replacing: Callable[[str], object] = lambda name: None) -> None:
    """Reports every program that this process, or a fork of it, starts. An audit hook stays for the life of the process.

    ``replacing`` is called with the program's name before a process, not a fork of it, replaces itself by one.
    """
    own = os.getpid()

    def notice(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _START_EVENTS and not _is_not_the_programs() and not _is_repeated(event):
            name = _program_name(event, arguments)
            if event == "os.exec" and os.getpid() == own:
                replacing(name)
            python = _names_python(event, arguments)
            append_report(reports, {"started": name, "pid": os.getpid(), "exec": event == "os.exec", "python": python})

    sys.addaudithook(notice)


def _is_not_the_programs() -> bool:
    """True if Python's own ``platform`` starts a program (it asks ``uname`` which machine this is), or lgov a notice."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename in _STARTERS:
            return True
        frame = frame.f_back
    return False


def _is_repeated(event: str) -> bool:
    """True if ``subprocess`` starts by posix_spawn (from Python 3.13 on) what it has announced already."""
    return event == "os.posix_spawn" and sys._getframe(2).f_code.co_filename == subprocess.__file__


def _names_python(event: str, arguments: tuple[Any, ...]) -> bool:
    """True if a word of what is started is a Python interpreter or a script for one, also in the text for a shell."""
    relevant = arguments[:2] if event == "subprocess.Popen" else arguments  # the rest is its folder and environment
    listed = [list(argument) if isinstance(argument, list | tuple) else [argument] for argument in relevant]
    words: list[str] = []
    for words_of_one in listed:
        texts = [os.fsdecode(argument) for argument in words_of_one if isinstance(argument, str | bytes | os.PathLike)]
        for before, text in zip(["", *texts], texts, strict=False):
            in_shell = event == "os.system" or (before.startswith("-") and before.endswith("c"))
            words += _WORDS_END.split(text) if in_shell else [text]
    return any(_PYTHON.fullmatch(os.path.basename(word)) or _is_python_script(word) for word in words)


def _is_python_script(word: str) -> bool:
    path = shutil.which(word) if word else None
    if path is None:
        return False
    try:
        with open(path, "rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def _program_name(event: str, arguments: tuple[Any, ...]) -> str:
    named = next(
        (argument for argument in arguments if isinstance(argument, (str, bytes, os.PathLike)) and argument), None
    )
    if named is None:
        return event
    text = os.fsdecode(named)
    return text.split()[0] if event == "os.system" and text.split() else os.path.basename(text)


VARIABLE = "LGOV_CHILD"
SITE = Path(__file__).parent / "site"
#: How much of a child's command a message shows, in characters.
MAX_COMMAND = 100


def hand_on(governance: Governance, scope: RolloutScope, reports: Path, *, deny_unevaluated: bool = False) -> None:
    """Makes the Python processes that this process starts from now on governed. Changes the environment."""
    inherited = {"governance": governance.as_json(), "scope": asdict(scope), "reports": str(reports)}
    os.environ[VARIABLE] = json.dumps({**inherited, "deny_unevaluated": deny_unevaluated})
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(SITE)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])


def watch_requests(reports: Path, *, refuses: bool) -> RequestWatch:
    """Watches what this process sends to model servers from now on; what a forked one sends is a line of ``reports``."""
    watch = RequestWatch(refuses=refuses, tell=lambda counts: append_report(reports, {"unevaluated": counts}))
    watch.install()
    return watch


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
        self.tally = JudgedCounts()
        self.tally.reports = self.reports
        self.opened: OpenGovernance | None = None
        self.pid = os.getpid()
        self.watch = watch_requests(self.reports, refuses=inherited["deny_unevaluated"])

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
        if os.getpid() != self.pid:
            return
        if unevaluated := self.watch.unevaluated:
            append_report(self.reports, {"unevaluated": unevaluated})
        if self.opened is None:
            return
        problems = [f"{count} failures in {what}" for what, count in sorted(self.opened.governor.failures.items())]
        problems = [f"child process {self.pid}: {problem}" for problem in [*problems, *self.opened.close()]]
        judged = [[*key, count] for key, count in self.tally.judged.items()]
        append_report(self.reports, {"judged": judged, "blocked": self.tally.blocked.as_json(), "problems": problems})


def _refuse(reason: str) -> NoReturn:
    command = " ".join(" ".join(sys.orig_argv[:3]).split())  # the text after -c may have many lines
    what = command if len(command) <= MAX_COMMAND else f"{command[:MAX_COMMAND]}…"
    end_process(lambda: say(f"stopped: {what}, started by a governed program: {reason}"))
