"""Python processes that a governed program starts are governed too: by the same policy, on the same record.

`hand_on` puts what a child needs into the environment: ``LGOV_CHILD``, and in front of ``PYTHONPATH`` a folder whose
``sitecustomize`` calls `govern_child` before anything of the child's own runs. A child opens the policy and the record
when it first imports a framework, so that one that never does costs nothing but a few imports. Not reached: a child
started with ``-I``, ``-E`` or ``-S`` or with an environment of its own, and programs that are not Python. Policies that keep
count in memory (costs, rates, loops) count in each process alone.

Every governed process appends a line to one file when it begins and for everything that it starts (`watch_children`), for the
closing report of ``lgov run`` (`read_reports`). A Python program that was started and does not say that it began was not
governed. Other programs have no governor to lose: they are named. Between a program and the Python that it starts there may
be others (a shell, ``timeout``): who started whom is what the system says of a process's ancestors; ``LGOV_STARTER``, which
is handed on, counts only where these have ended or cannot be asked. Processes that mean to deceive could write to the file.
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
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.errors import InstrumentationError
from lgov_core.governance import Governance
from lgov_core.places import MissedModules
from lgov_core.policies.approvals import notices as approval_notices
from lgov_core.process.governed import (
    Blocked,
    BlockedActions,
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
#: In the text of a shell: by what a Python may not get what is handed on, and what runs a command any number of times.
_ESCAPES = re.compile(
    r"(?<!\S)-\w*[IES]|\benv\s+-|\bunset\b|\bexec\s+-|\bsudo\b|\bsu\b|LGOV_|PYTHONPATH=(?!\S*\$\{?PYTHONPATH)"
    r"|(python|pypy)[\w.]*['\"]?\s+['\"]?\$",
    re.IGNORECASE,
)
_REPEATS = re.compile(r"\b(for|while|until|xargs|parallel|find|eval)\b|\$\(|`|\(\)")
_NEVER = sys.maxsize
#: Ancestors of a process that are looked at.
_ANCESTORS = 32
#: Seconds that a Python which the program started at its very end has to begin.
_START_S = 5.0
_STARTERS = (platform.__file__, approval_notices.__file__)
_START_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.spawn", "os.system"})


@dataclass(slots=True)
class ChildReports:
    """The reports of the governed processes: the programs that they started, and how many of these were governed or not.

    ``others`` of those started are not Python. ``multiprocessing`` counts governed children that it started, which no event
    announces. ``running`` are the governed programs that have not ended.
    """

    started: Counter[str] = field(default_factory=Counter[str])
    others: Counter[str] = field(default_factory=Counter[str])
    governed: int = 0
    running: int = 0
    ungoverned: Counter[str] = field(default_factory=Counter[str])
    multiprocessing: int = 0
    judged: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    unevaluated: Counter[str] = field(default_factory=Counter[str])
    sessions: set[tuple[str | None, str]] = field(default_factory=set[tuple[str | None, str]])
    blocked: BlockedActions = field(default_factory=BlockedActions)
    problems: list[str] = field(default_factory=list[str])


def make_reports() -> Path:
    """Makes the file that governed processes append their reports to."""
    handle, name = tempfile.mkstemp(prefix="lgov-children-", suffix=".jsonl")
    os.close(handle)
    return Path(name)


@dataclass(slots=True)
class _Start:
    """Python that a process started: ``text`` is what it was told, ``needs`` says how many Pythons have to begin there."""

    name: str
    text: str
    needs: int


@dataclass(slots=True)
class _Begun:
    """The Pythons that began in one process which a governed one started, or below it. ``last`` is its last word.

    ``command`` is that of a Python of which only what was handed on says who started it, else empty; it ``is_direct`` where
    that has ended, and so may have started it itself.
    """

    last: str
    is_direct: bool
    command: str
    count: int = 0

    def answers(self, start: _Start, *, exactly: bool) -> bool:
        """Returns whether this may be what ``start`` started, or, with ``exactly``, certainly is."""
        if self.count < start.needs:
            return False
        if self.command:  # where the system cannot be asked, or what is between has ended before what it started
            launcher = start.text.removesuffix(self.command).split()[:1]
            is_told = start.text.endswith(f" {self.command}") and (
                self.is_direct or launcher != self.command.split()[:1]
            )
            return is_told if exactly else "&" in start.text or not os.path.isdir("/proc/self")
        if exactly:
            return f" {start.text}".endswith(f" {self.last}")
        return self.is_direct or any(mark in start.text for mark in "$*?[~")


def read_reports(path: Path) -> ChildReports:
    """Reads and removes the file of reports. Waits for what has been started and is still about to begin.

    Python that was started is governed when it said itself that it began. A text for a shell that names Python counts as
    such; its Pythons are governed when as many began below that shell as the text may have started without what is handed on.
    """
    end = time.monotonic() + _START_S
    try:
        while True:
            alive = _alive(path)
            reports, kinds = _reports_of(path.read_text(encoding="utf-8").splitlines())
            if not reports.ungoverned or alive <= kinds.keys() or time.monotonic() > end:
                break
            time.sleep(_START_S / 100)
        path.unlink()
    except OSError as error:
        unread = f"the reports of child processes cannot be read: {error}"
        return ChildReports(ungoverned=Counter({"?": 1}), problems=[unread])
    reports.running = sum(kinds.get(pid) == "program" for pid in alive)
    return reports


def _alive(reports: Path) -> set[int]:
    """The processes that ``reports`` was handed on to and that have not ended. Empty where the system cannot be asked."""
    handed_on, alive = os.fsencode(reports.name), set[int]()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or it has ended
            if handed_on in environment.read_bytes():
                alive.add(int(environment.parent.name))
    return alive


def _reports_of(lines: Iterable[str]) -> tuple[ChildReports, dict[int, str]]:
    """The reports, and of each governed process what kind it is (see `report_begin`)."""
    reports = ChildReports()
    waiting: dict[int, list[_Start]] = {}
    replaced: dict[int, _Start] = {}
    began: list[dict[str, Any]] = []
    for line in lines:
        try:
            line_values: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a child was killed while it wrote
        if "started" in line_values:
            pid, start = line_values["pid"], _Start(line_values["started"], line_values["text"], line_values["needs"])
            if pid not in replaced:  # to replace itself it may try several folders
                reports.started[line_values["started"]] += 1
                if not start.needs:
                    reports.others[start.name] += 1
            if line_values["exec"]:
                replaced[pid] = start
            elif start.needs:
                waiting.setdefault(pid, []).append(start)
        elif "began" in line_values:
            began.append(line_values)
        for framework, point, effect, count in line_values.get("judged", ()):
            reports.judged[framework, point, effect] += count
        rollout_id, session_id = line_values.get("session") or (None, None)
        if session_id is not None:
            reports.sessions.add((rollout_id, session_id))
        reports.blocked.answer(line_values.get("answered", ()))
        reports.blocked.merge(Blocked(**kind) for kind in line_values.get("blocked", ()))
        reports.unevaluated.update(line_values.get("unevaluated", {}))
        reports.problems += line_values.get("problems", [])
    kinds: dict[int, str] = {line_values["pid"]: line_values["began"] for line_values in began}
    programs = [line_values for line_values in began if line_values["began"] != "multiprocessing"]
    reports.governed, reports.multiprocessing = len(began), len(began) - len(programs)
    reports.ungoverned = _unanswered(waiting, replaced, programs, kinds.keys())
    return reports, kinds


def _unanswered(
    waiting: dict[int, list[_Start]], replaced: dict[int, _Start], programs: list[dict[str, Any]], governed: Set[int]
) -> Counter[str]:
    """The starts (by the process that starts, or replaces itself) that no Python answered by beginning, by name."""
    begun: dict[tuple[int, int], _Begun] = {}  # by who started it, and what process that was
    for program in programs:
        lineage: list[tuple[int, str]] = program["lineage"]
        by, below, command = program["starter"], 0, program["command"]
        for index, (pid, _) in enumerate(lineage):
            if pid in replaced or (index and (pid in waiting or pid in governed)):
                by, below, command = pid, index if pid in replaced else index - 1, ""
                break
        pid, last = lineage[below]
        is_direct = program["is_orphan"] if command else below == 0
        begun.setdefault((by, pid), _Begun(last, is_direct, command)).count += 1
    for pid, start in replaced.items():
        waiting.setdefault(pid, []).append(start)
    for exactly in (True, False):
        # The most telling first: the last word of a short command is in many texts.
        for (by, pid), group in sorted(begun.items(), key=lambda item: -len(item[1].last)):
            starts = waiting.get(by, [])
            answered = next((start for start in starts if group.answers(start, exactly=exactly)), None)
            if answered is not None:
                starts.remove(answered)
                del begun[by, pid]
    return Counter(start.name for starts in waiting.values() for start in starts if start.needs)


def report_begin(reports: Path, starter: int, kind: str = "program") -> None:
    """Says that this process is a Python that is governed, or held in a box; ``starter`` is the process that started it."""
    who = {"pid": os.getpid(), "command": " ".join(sys.orig_argv), "is_orphan": not os.path.isdir(f"/proc/{starter}")}
    append_report(reports, {"began": kind, **who, "lineage": _lineage(), "starter": starter})


def _lineage() -> list[tuple[int, str]]:
    """Returns this process and its ancestors, as far as the system says: the id and the last word of the command of each.

    The word is empty where the process has ended.
    """
    lineage, pid = [(os.getpid(), sys.orig_argv[-1] or " ")], os.getppid()
    while pid > 0 and len(lineage) < _ANCESTORS:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().removesuffix(b"\0").split(b"\0")
            above = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            words, above = [b""], 0
        lineage.append((pid, os.fsdecode(words[-1])))
        pid = above
    return lineage


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
            text, needs = _pythons(event, arguments)
            start = {"started": name, "pid": os.getpid(), "exec": event == "os.exec", "text": text, "needs": needs}
            append_report(reports, start)

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


def _pythons(event: str, arguments: tuple[Any, ...]) -> tuple[str, int]:
    """Returns what is started, as text, and how many Pythons (or scripts for it) have to begin there, also by a shell.

    One is enough where the text for a shell gives each the same environment and options: then all are governed.
    """
    relevant = arguments[:2] if event == "subprocess.Popen" else arguments  # the rest is its folder and environment
    listed = [list(argument) if isinstance(argument, list | tuple) else [argument] for argument in relevant]
    flat = (word for words in listed for word in words)
    words = [os.fsdecode(word) for word in flat if isinstance(word, str | bytes | os.PathLike)]
    pythons, script = 0, ""
    for before, text in zip(["", *words], words, strict=False):
        if event == "os.system" or (not pythons and before.startswith("-") and before.endswith("c")):
            script = text
        elif _is_python(text):
            pythons = 1
    if in_script := sum(map(_is_python, _WORDS_END.split(script))):
        pythons = 1
        if _ESCAPES.search(script):
            pythons = _NEVER if _REPEATS.search(script) else in_script
    return " ".join(words), pythons


def _is_python(word: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(word)) is not None or _is_python_script(word)


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
_STARTER = "LGOV_STARTER"
SITE = Path(__file__).parent / "site"
#: How much of a child's command a message shows, in characters.
MAX_COMMAND = 100


def refuse_to_programs(what: str) -> None:
    """Raises `InstrumentationError` in a process that a governed program started: ``what`` is for a person to do."""
    if VARIABLE in os.environ:
        raise InstrumentationError(
            f"this process was started by a governed program, which may not {what}", hint="do that from your own shell"
        )


def hand_on(governance: Governance, scope: RolloutScope, reports: Path, *, deny_unevaluated: bool = False) -> None:
    """Makes the Python processes that this process starts from now on governed. Changes the environment."""
    inherited = {"governance": governance.as_json(), "scope": asdict(scope), "reports": str(reports)}
    os.environ[VARIABLE] = json.dumps({**inherited, "deny_unevaluated": deny_unevaluated})
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(SITE)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *others])
    _sign()
    os.register_at_fork(after_in_child=_sign)


def _sign() -> None:
    os.environ[_STARTER] = str(os.getpid())


def watch_requests(reports: Path, *, refuses: bool, is_child: bool = False) -> RequestWatch:
    """Watches what this process sends to model servers from now on; what a child sends is a line of ``reports`` at once."""

    def tell(counts: Mapping[str, int]) -> None:
        append_report(reports, {"unevaluated": counts})

    watch = RequestWatch(refuses=refuses, tell=tell, is_child=is_child)
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
        self.tally = JudgedCounts(self.reports, is_child=True)
        self.opened: OpenGovernance | None = None
        self.pid = os.getpid()
        watch_requests(self.reports, refuses=inherited["deny_unevaluated"], is_child=True)

    def governor(self) -> Governor:
        """The governor of this process; opened when it is first asked for."""
        if self.opened is None:
            self.opened = self.governance.open(plugins=[self.tally], manager=self.manager)
        return self.opened.governor

    def begin(self) -> None:
        if MissedModules not in sys.meta_path:
            sys.meta_path.append(MissedModules)
        enter_scope(self.scope).__enter__()  # for as long as the process lives
        carry_into_threads()
        FrameworkGuard(installed_adapters(self.manager), self.governor, _refuse).install()
        spawned = any(word.startswith("from multiprocessing.") for word in sys.orig_argv)
        starter = os.environ.get(_STARTER, "")
        report_begin(
            self.reports, int(starter) if starter.isdecimal() else 0, "multiprocessing" if spawned else "program"
        )
        _sign()
        os.register_at_fork(after_in_child=_sign)
        watch_children(self.reports)
        atexit.register(self.end)

    def end(self) -> None:
        """Closes everything and reports what went wrong here. What was judged is reported already: a signal may end this."""
        if os.getpid() != self.pid:
            return
        if self.opened is None:
            return
        problems = [f"{count} failures in {what}" for what, count in sorted(self.opened.governor.failures.items())]
        problems = [f"child process {self.pid}: {problem}" for problem in [*problems, *self.opened.close()]]
        append_report(self.reports, {"problems": problems})


def _refuse(reason: str) -> NoReturn:
    command = " ".join(" ".join(sys.orig_argv[:3]).split())  # the text after -c may have many lines
    what = command if len(command) <= MAX_COMMAND else f"{command[:MAX_COMMAND]}…"
    end_process(lambda: say(f"stopped: {what}, started by a governed program: {reason}"))
