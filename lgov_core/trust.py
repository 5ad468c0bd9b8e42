"""The places that govern change by their owner's hand: what changed while a governed program ran is refused until trusted.

A run notes in ``RECORD.runs``, beside its record and beside the usual one of its folder, what governs it when it starts, and
removes the note when it ends and all is as it was. Whoever starts next compares every note that is there with the files as
they are now: of runs that go on, that ended after a change, and that were killed. An edit between runs is in no note, and
needs no trust.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from lgov_core._util.files import HeldByAnother, atomic_write, hold
from lgov_core.errors import InstrumentationError
from lgov_core.places import DEFAULT_AUDIT, MARK, NAMES, POLICY_NAMES, PROJECT_FILE, project_settings
from lgov_core.settings import read_written

#: Longer texts are compared by their digests alone, and shown by name.
MAX_TEXT: Final = 200_000
#: The longest note of a run, in bytes.
MAX_NOTE: Final = 256 << 20
#: Of a folder that is searched, or is one of the places, no more entries count: those that are nearest to it.
MAX_ENTRIES: Final = 100_000
_KEPT: Final = DEFAULT_AUDIT.parent.name
_NAMES_BELOW: Final = frozenset((*NAMES, *POLICY_NAMES, PROJECT_FILE))
_NOT_SEARCHED: Final = frozenset({".git", "node_modules"})
_ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was seen: the digest of what it says, and that text, None where it is no text or a key."""

    digest: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class RunChange:
    """A place that governs and is not as it was when a run began (``began``, a date and time in UTC)."""

    path: str
    began: str
    before: Seen
    now: Seen

    @property
    def kind(self) -> str:
        """``appeared``, ``vanished`` or ``changed``."""
        return "appeared" if self.before.digest == _ABSENT else "vanished" if self.now.digest == _ABSENT else "changed"

    def __str__(self) -> str:
        return f"{self.path} {self.kind} while a governed program ran"

    def diff(self) -> str:
        """The change as a unified diff; an empty text where one side is no text."""
        texts = ("" if seen.digest == _ABSENT else seen.text for seen in (self.before, self.now))
        lines = [None if text is None else text.splitlines(keepends=True) for text in texts]
        if lines[0] is None or lines[1] is None:
            return ""
        return "".join(difflib.unified_diff(lines[0], lines[1], f"{self.path} at the start", f"{self.path} now"))


@dataclass(frozen=True, slots=True)
class Below:
    """Folders below which every file with a name that governs counts, as a run may begin in any of them.

    ``apart`` are places there that do not: what lgov keeps, and Python environments. Links are not followed.
    """

    folders: list[str]
    apart: list[str]

    @classmethod
    def of(cls, folders: Iterable[str | Path], kept: Iterable[str]) -> Below:
        """The folders as they are now; ``kept`` are files that lgov writes."""
        below = cls(list(dict.fromkeys(os.path.realpath(folder) for folder in folders)), [])
        holders = {os.path.realpath(os.path.dirname(path)) for path in kept}
        below.apart.extend(path for path in holders if os.path.basename(path) == _KEPT)
        for folder, names in below._walk():
            if "pyvenv.cfg" in names and folder not in below.folders:
                below.apart.append(folder)
        return below

    def places(self) -> Iterator[str]:
        """Yields the places, the nearest first."""
        for folder, names in self._walk():
            yield from (path for name in names & _NAMES_BELOW if (path := f"{folder}/{name}") not in self.apart)

    def _walk(self) -> Iterator[tuple[str, set[str]]]:
        waiting, budget = list(self.folders), MAX_ENTRIES
        for folder in waiting:
            if not budget:
                return
            entries: list[os.DirEntry[str]] = []
            with suppress(OSError), os.scandir(folder) as opened:  # it is gone, or cannot be read
                entries = list(islice(opened, budget))
            budget -= len(entries)
            yield folder, {entry.name for entry in entries}
            if folder in self.apart:  # by now
                continue
            waiting += [
                entry.path
                for entry in entries
                if entry.name not in _NOT_SEARCHED
                and entry.path not in self.apart
                and entry.is_dir(follow_symlinks=False)
            ]


@dataclass(frozen=True, slots=True)
class RunNote:
    """The note of a run: when it began (UTC), the places as they were then, and where further ones may appear."""

    began: str
    files: dict[str, Seen]
    below: Below

    @classmethod
    def read(cls, path: Path) -> RunNote:
        """Reads a note. Raises `OSError`, `ValueError`, `KeyError` and `TypeError`."""
        values: dict[str, Any] = json.loads(read_written(path, limit=MAX_NOTE))
        files = {name: Seen(**seen) for name, seen in values["files"].items()}
        return cls(str(values["began"]), files, Below(**values["below"]))

    def write(self, path: Path) -> None:
        """Writes it. Raises `OSError`."""
        atomic_write(path, json.dumps(asdict(self)).encode())

    def now(self) -> RunNote:
        """Returns the note with the places as they are now."""
        files = {path: _look(path, text=self._has_text(path)) for path in (*self.files, *self.below.places())}
        return RunNote(self.began, files, self.below)

    def changes(self) -> list[RunChange]:
        """The places that are not as they were."""
        was = ((path, self.files.get(path, Seen(_ABSENT)), seen) for path, seen in self.now().files.items())
        return [RunChange(path, self.began, before, now) for path, before, now in was if now.digest != before.digest]

    def _has_text(self, path: str) -> bool:
        before = self.files.get(path, Seen(_ABSENT))
        return before.text is not None or before.digest == _ABSENT


class RunWatch:
    """Watches the places that govern from the start of one governed program to its end.

    ``files`` are files and folders, whether they exist or not; those ``below`` with a name that governs count, too. Of ``keys``
    no text is kept. The note lies beside ``audit``, and beside the usual record where that can be written: settings that the
    run changes may name another record. Files of the ``programs`` are in no note (`program_changes`): a person edits them while
    they run, and after they were killed. One thread. Raises `InstrumentationError` where a note cannot be written. Call
    `refuse_untrusted` next, once the policy is loaded.
    """

    def __init__(
        self,
        audit: Path,
        files: Iterable[str],
        run_id: str,
        *,
        keys: Iterable[str] = (),
        below: Below | None = None,
        programs: Iterable[str] = (),
    ) -> None:
        below = below or Below([], [])
        before = {path: _look(path) for path in (*files, *below.places())}
        before |= {path: _look(path, text=False) for path in keys}
        self._at_start = RunNote(datetime.now(UTC).isoformat(" ", "seconds"), before, below)
        self._programs = RunNote(self._at_start.began, {path: _look(path) for path in programs}, Below([], []))
        self._held, self._notes = ExitStack(), list[Path]()
        usual = notes_of(DEFAULT_AUDIT).parent
        self._made = None if usual.exists() else usual
        for folder in dict.fromkeys((notes_of(audit), notes_of(DEFAULT_AUDIT))):
            note = folder / f"{run_id}.json"
            try:
                try:
                    self._held.enter_context(hold(note.with_suffix(".lock")))
                except FileNotFoundError:  # another run, which ended just now, has removed the folder
                    self._held.enter_context(hold(note.with_suffix(".lock")))
                self._at_start.write(note)
                self._notes.append(note)
            except OSError as error:
                if not self._notes:
                    self._held.close()
                    raise InstrumentationError(f"what governs cannot be noted in {folder}: {error}") from error

    def changes(self) -> list[RunChange]:
        """The places that are not as they were at the start, but for what was trusted since."""
        with suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # the note may be gone: the program had the same rights
            self._at_start = RunNote.read(self._notes[0])
        return self._at_start.changes()

    def program_changes(self) -> list[RunChange]:
        """The files of the programs that are not as they were at the start."""
        return self._programs.changes()

    def end(self) -> list[RunChange]:
        """Ends the watch, and returns what changed: the note stays then, and the next start refuses. Raises `OSError`."""
        changes = self.changes()
        if changes:
            files = self._at_start.files | {change.path: change.before for change in changes}
            for note in self._notes:
                RunNote(self._at_start.began, files, Below([], [])).write(note)  # further ones are not of this run
        self._held.close()
        for note in self._notes:
            if not changes:
                note.unlink(missing_ok=True)
            note.with_suffix(".lock").unlink(missing_ok=True)
            with suppress(OSError):  # there are notes
                note.parent.rmdir()
                if self._made is not None:
                    self._made.rmdir()
        return changes


def notes_of(audit: Path) -> Path:
    """The folder of the notes of runs beside a record."""
    return Path(f"{os.path.abspath(audit)}.runs")


def _notes(audit: Path) -> list[Path]:
    folder = notes_of(audit)
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def untrusted(audit: Path) -> list[RunChange]:
    """The changes that were made during runs and are not trusted, one for each place. Forgets runs that left none.

    A note that cannot be read counts as a change of itself. Raises `OSError` where it cannot be seen which there are.
    """
    changes: dict[str, RunChange] = {}
    for note in _notes(audit):
        try:
            made_by_run = RunNote.read(note).changes()
        except FileNotFoundError:
            continue  # that run has just ended
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            made_by_run = [RunChange(str(note), "?", Seen("a note that can be read"), Seen("another"))]
        for change in made_by_run:
            changes.setdefault(change.path, change)
        if not made_by_run:
            _forget(note)
    return list(changes.values())


def is_running(audit: Path) -> bool:
    """Returns whether a governed program with this record runs."""
    try:
        notes = _notes(audit)
    except OSError:  # it cannot be told
        return True
    for note in notes:
        try:
            with hold(note.with_suffix(".lock")):
                note.with_suffix(".lock").unlink(missing_ok=True)
        except HeldByAnother:
            return True
        except OSError:  # it cannot be told
            return True
    return False


def on_record(changes: Iterable[RunChange], answer: str) -> dict[str, Any]:
    """The fields of an entry of the record about changes, which are ``found``, ``refused`` or ``trusted``."""
    kinds = {change.path: change.kind for change in changes}
    return {"name": ", ".join(f"{path} {kind}" for path, kind in kinds.items()), answer: kinds}


class UntrustedChanges(InstrumentationError):
    """A start is refused for ``changes`` that were made during runs."""

    def __init__(self, message: str, hint: str, changes: list[RunChange]) -> None:
        super().__init__(message, hint=hint)
        self.changes = changes


def refuse_untrusted(audit: Path) -> None:
    """Raises `UntrustedChanges` where something that governs changed during a run and is not trusted."""
    for record, changes in untrusted_here(audit):
        if changes:
            further = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
            named = "" if record.absolute().parent.parent in (Path.cwd(), *Path.cwd().parents) else f" {record}"
            raise UntrustedChanges(
                f"{changes[0]} (begun {changes[0].began} UTC){further}",
                f"look at what changed, and accept it, with lgov policy trust{named}; or undo the change",
                changes,
            )


def untrusted_here(audit: Path) -> Iterator[tuple[Path, list[RunChange]]]:
    """Yields what a start in the working folder refuses, by the record of the runs; empty lists among it.

    The runs are those with this record, and, of what lies in the working folder or above it, those with the usual record in
    one of these folders: what a run changed may name another record. A record that a box closes to this process is left to
    the run that made the box. Raises `InstrumentationError` where it cannot be seen.
    """
    here = Path.cwd()
    folders = (here, *here.parents)
    records = {folder / DEFAULT_AUDIT for folder in folders} - {audit.absolute()}
    for record in (audit, *sorted(records)):
        try:
            changes = untrusted(record)
        except OSError as error:
            closed = isinstance(error, PermissionError) and os.path.isdir(MARK)
            if closed and record != audit:
                continue
            raise InstrumentationError(
                f"{notes_of(record)} cannot be read, so it cannot be seen what changed while a program ran: {error}",
                hint="name another record: a box closes that of the run that made it"
                if closed
                else "make the folder readable to this user, or remove it if its runs are yours and ended",
            ) from error
        if record != audit:
            named = ((Path(change.path), change) for change in changes)  # .lgov folders are made by runs
            changes = [change for path, change in named if path.parent in folders and path.name != _KEPT]
        yield record, changes


def trust(audit: Path) -> None:
    """Takes what governs as it is now, for runs that ended and those that go on. Raises `OSError`."""
    for note in _notes(audit):
        try:
            RunNote.read(note).now().write(note)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            note.unlink(missing_ok=True)
            continue
        _forget(note)


def _forget(note: Path) -> None:
    """Removes the note of a run that has ended, however it ended."""
    lock = note.with_suffix(".lock")
    with suppress(HeldByAnother, OSError), hold(lock):
        note.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    with suppress(OSError):  # other runs have notes there
        note.parent.rmdir()


def _look(path: str, *, text: bool = True) -> Seen:
    """A place as it is. Of ``pyproject.toml`` only lgov's settings count, of a ``policy.yaml`` only what has a version, of a
    folder the names, sizes and times of its files.

    An empty file governs nothing: it counts as absent. Of a ``.lgov`` folder only counts whether it exists: runs write into it.
    What is no regular file, or too long for one that a person writes, counts by its kind, size and time, and is not read.
    """
    try:
        status = os.stat(path)
        if os.path.basename(path) == _KEPT:
            return Seen("exists")
        if stat.S_ISDIR(status.st_mode):
            return Seen(_digest("\n".join(islice(_entries(path), MAX_ENTRIES)).encode()))
    except (FileNotFoundError, NotADirectoryError):
        return Seen(_ABSENT)
    except OSError as error:
        return Seen(f"unreadable: {error.strerror}")
    try:
        raw = read_written(path)
    except OSError as error:
        return Seen(f"unreadable: {error.strerror} (mode {status.st_mode:o}, {status.st_size}, {status.st_mtime_ns})")
    if os.path.basename(path) == PROJECT_FILE:
        table = project_settings(raw)
        raw = b"" if table is None else json.dumps(table, sort_keys=True, indent=1, default=str).encode()
    elif os.path.basename(path) in POLICY_NAMES and not (b"version" in raw or b"\\" in raw):
        raw = b""  # of another program
    if not raw:
        return Seen(_ABSENT)
    readable = None
    if text and len(raw) <= MAX_TEXT:
        with suppress(UnicodeDecodeError):
            readable = raw.decode()
    return Seen(_digest(raw), readable)


def _entries(folder: str) -> Iterator[str]:
    """A line for each file below a folder, but for what Python compiles from the others."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            with suppress(OSError):
                status = os.lstat(os.path.join(parent, name))
                yield f"{parent}/{name} {status.st_size} {status.st_mtime_ns} {status.st_mode}"


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
