"""The places that govern change by their owner's hand: what changed while a governed program ran is refused until trusted.

A run notes in ``RECORD.runs``, beside its record, what governs it when it starts, and removes the note when it ends and all
is as it was. Whoever starts next compares every note that is there with the files as they are now: of runs that go on, that
ended after a change, and that were killed. An edit between runs is in no note, and needs no trust.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lgov_core._util.files import HeldByAnother, atomic_write, hold
from lgov_core.errors import InstrumentationError
from lgov_core.places import PROJECT_FILE, project_settings

#: Longer texts are compared by their digests alone, and shown by name.
MAX_TEXT: Final = 200_000
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


class RunWatch:
    """Watches the places that govern from the start of one governed program to its end.

    ``files`` are files and folders, whether they exist or not; of ``keys`` no text is kept. The note lies beside ``audit``.
    One thread. Raises `InstrumentationError` where it cannot be written. Call `refuse_untrusted` next, once the
    policy is loaded.
    """

    def __init__(self, audit: Path, files: Iterable[str], run_id: str, *, keys: Iterable[str] = ()) -> None:
        folder = notes_of(audit)
        self._note, self._lock = folder / f"{run_id}.json", folder / f"{run_id}.lock"
        self._before = {path: _look(path) for path in files} | {path: _look(path, text=False) for path in keys}
        self._began = datetime.now(UTC).isoformat(" ", "seconds")
        self._held = ExitStack()
        try:
            try:
                self._held.enter_context(hold(self._lock))
            except FileNotFoundError:  # another run, which ended just now, has removed the folder
                self._held.enter_context(hold(self._lock))
            self._write()
        except OSError as error:
            self._held.close()
            raise InstrumentationError(f"what governs cannot be noted in {folder}: {error}") from error

    def changes(self) -> list[RunChange]:
        """The places that are not as they were at the start, but for what was trusted since."""
        with suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # the note may be gone: the program had the same rights
            self._before = _read(self._note)[1]
        return _changes(self._began, self._before)

    def end(self) -> list[RunChange]:
        """Ends the watch, and returns what changed: the note stays then, and the next start refuses. Raises `OSError`."""
        changes = self.changes()
        if changes:
            self._write()
            self._held.close()
            self._lock.unlink(missing_ok=True)
        else:
            self._remove()
        return changes

    def _write(self) -> None:
        values = {"began": self._began, "files": {path: asdict(seen) for path, seen in self._before.items()}}
        atomic_write(self._note, json.dumps(values).encode())

    def _remove(self) -> None:
        self._note.unlink(missing_ok=True)
        self._held.close()
        self._lock.unlink(missing_ok=True)
        with suppress(OSError):  # other runs have notes there
            self._note.parent.rmdir()


def notes_of(audit: Path) -> Path:
    """The folder of the notes of runs beside a record."""
    return Path(f"{os.path.abspath(audit)}.runs")


def untrusted(audit: Path) -> list[RunChange]:
    """The changes that were made during runs and are not trusted, one for each place. Forgets runs that left none.

    A note that cannot be read counts as a change of itself.
    """
    changes: dict[str, RunChange] = {}
    for note in sorted(notes_of(audit).glob("*.json")):
        try:
            began, before = _read(note)
        except FileNotFoundError:
            continue  # that run has just ended
        except (OSError, ValueError, KeyError, TypeError):
            began, before = "?", {str(note): Seen("a note that can be read")}
        made_by_run = _changes(began, before)
        for change in made_by_run:
            changes.setdefault(change.path, change)
        if not made_by_run:
            _forget(note)
    return list(changes.values())


def is_watched(audit: Path) -> bool:
    """Returns whether a governed program with this record runs, or ended with a change that is not trusted."""
    untrusted(audit)
    return any(notes_of(audit).glob("*.json"))


def refuse_untrusted(audit: Path) -> None:
    """Raises `InstrumentationError` where something that governs changed during a run and is not trusted."""
    changes = untrusted(audit)
    if changes:
        further = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise InstrumentationError(
            f"{changes[0]} (begun {changes[0].began} UTC){further}",
            hint="look at what changed, and accept it, with lgov policy trust; or undo the change",
        )


def trust(audit: Path) -> None:
    """Takes what governs as it is now, for runs that ended and those that go on. Raises `OSError`."""
    for note in sorted(notes_of(audit).glob("*.json")):
        try:
            began, before = _read(note)
        except (OSError, ValueError, KeyError, TypeError):
            note.unlink(missing_ok=True)
            continue
        now = {path: _look(path, text=seen.text is not None or seen.digest == _ABSENT) for path, seen in before.items()}
        values = {"began": began, "files": {path: asdict(seen) for path, seen in now.items()}}
        atomic_write(note, json.dumps(values).encode())
        _forget(note)


def _forget(note: Path) -> None:
    """Removes the note of a run that has ended, however it ended."""
    lock = note.with_suffix(".lock")
    with suppress(HeldByAnother, OSError), hold(lock):
        note.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    with suppress(OSError):  # other runs have notes there
        note.parent.rmdir()


def _read(note: Path) -> tuple[str, dict[str, Seen]]:
    values: dict[str, Any] = json.loads(note.read_bytes())
    return str(values["began"]), {path: Seen(**seen) for path, seen in values["files"].items()}


def _changes(began: str, before: Mapping[str, Seen]) -> list[RunChange]:
    changes: list[RunChange] = []
    for path, seen in before.items():
        now = _look(path, text=seen.text is not None or seen.digest == _ABSENT)
        if now.digest != seen.digest:
            changes.append(RunChange(path, began, seen, now))
    return changes


def _look(path: str, *, text: bool = True) -> Seen:
    """A place as it is. Of ``pyproject.toml`` only lgov's settings count, of a folder the names, sizes and times of its files.

    An empty file governs nothing: it counts as absent.
    """
    try:
        if os.path.isdir(path):
            return Seen(_digest("\n".join(_entries(path)).encode()))
        raw = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Seen(_ABSENT)
    except OSError as error:
        return Seen(f"unreadable: {error.strerror}")
    if os.path.basename(path) == PROJECT_FILE:
        table = project_settings(raw)
        raw = b"" if table is None else json.dumps(table, sort_keys=True, indent=1, default=str).encode()
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
