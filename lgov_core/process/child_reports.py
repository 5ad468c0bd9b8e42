"""What governed processes report of the programs that they start, for the closing report of ``lgov run``.

Every governed process appends a line to one file when it begins and for everything that it starts. A Python program that was
started and does not say that it began was not governed. Other programs have no governor to lose: they are named.
"""

from __future__ import annotations

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lgov_core.policies.approvals import notice
from lgov_core.process.blocked import Blocked
from lgov_core.process.governed import append_report

_PYTHON = re.compile(r"(python|pypy)[\d.]*w?(\.exe)?", re.IGNORECASE)
_WORDS_END = re.compile(r"[\s;&|()<>'\"`]+")
_STARTERS = (platform.__file__, notice.__file__)
_START_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.spawn", "os.system"})


@dataclass(slots=True)
class ChildReports:
    """What the governed processes reported: the programs that they started, and how many of these were governed or not.

    ``others`` of those started are not Python. ``multiprocessing`` counts governed children that it started, which no event
    announces.
    """

    started: Counter[str] = field(default_factory=Counter[str])
    others: Counter[str] = field(default_factory=Counter[str])
    governed: int = 0
    ungoverned: int = 0
    multiprocessing: int = 0
    judged: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
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
    found = ChildReports()
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
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # a child was killed while it wrote
        if "started" in said:
            pid, python = said["pid"], said["python"]
            if pid not in replaced:  # to replace itself it may try several folders
                found.started[said["started"]] += 1
                found.others[said["started"]] += not python
            if said["exec"]:
                replaced[pid] = python
            elif python:
                waiting[pid] += 1
        elif "began" in said:
            found.governed += 1
            if said["began"] == "multiprocessing":
                found.multiprocessing += 1
            elif said["pid"] in replaced:
                del replaced[said["pid"]]
            else:
                began.append((said["pid"], said["parent"]))
        for framework, point, effect, count in said.get("judged", ()):
            found.judged[framework, point, effect] += count
        found.blocked += [Blocked(**one) for one in said.get("blocked", ())]
        found.problems += said.get("problems", [])
    waiting.subtract(parent for _, parent in began if parent in waiting)
    found.ungoverned = sum(count for count in waiting.values() if count > 0) + sum(replaced.values())
    return found


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
    """Whether Python's own ``platform`` starts a program (it asks ``uname`` which machine this is), or lgov a notice."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename in _STARTERS:
            return True
        frame = frame.f_back
    return False


def _is_repeated(event: str) -> bool:
    """Whether ``subprocess`` starts by posix_spawn (from Python 3.13 on) what it has announced already."""
    return event == "os.posix_spawn" and sys._getframe(2).f_code.co_filename == subprocess.__file__


def _names_python(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether a word of what is started is a Python interpreter or a script for one, also in the text for a shell."""
    given = arguments[:2] if event == "subprocess.Popen" else arguments  # the rest is its folder and environment
    listed = [list(one) if isinstance(one, list | tuple) else [one] for one in given]
    words: list[str] = []
    for part in listed:
        texts = [os.fsdecode(one) for one in part if isinstance(one, str | bytes | os.PathLike)]
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
    named = next((one for one in arguments if isinstance(one, (str, bytes, os.PathLike)) and one), None)
    if named is None:
        return event
    text = os.fsdecode(named)
    return text.split()[0] if event == "os.system" and text.split() else os.path.basename(text)
