"""What changed since a browser last asked: the live updates."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import LgovError
from lgov_core.views.web.errors import QueryError
from lgov_core.views.web.window import Shown, Window

#: Seconds that a request may wait: less than its server waits for open requests when it ends.
LONGEST_WAIT_S: Final = 2
#: Seconds between two looks, and for which one look serves everyone who waits.
_LOOK_S: Final = 0.7
#: What a table that grew is called.
_NAMES: Final = {
    "rollouts": "rollouts",
    "attempts": "rollouts",
    "calls": "calls",
    "rewards": "rollouts",
    "spans": "decisions",
}


class Changes:
    """Looks at the sources of a window. For one event loop."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._marks: dict[str, Any] = {}
        self._states: list[dict[str, Any]] = []
        self._looked_at = 0.0
        self._files: dict[str, Any] = {}
        self._of_files: dict[str, dict[str, Any]] = {}

    async def answer(self, since: str | None, wait_s: float) -> dict[str, Any]:
        """What changed since the token ``since``; waits for a change, ``wait_s`` seconds at most."""
        before = None if since is None else _marks_of(since)
        until = time.monotonic() + wait_s
        while True:
            if time.monotonic() - self._looked_at > _LOOK_S:
                self._looked_at = time.monotonic()
                self._marks, self._states = await asyncio.to_thread(self._look)
            changed = [] if before is None else _changed(before, self._marks)
            if before is None or changed or time.monotonic() >= until:
                return {"since": _token(self._marks), "changed": changed, "sources": self._states}
            await asyncio.sleep(min(_LOOK_S, max(until - time.monotonic(), 0.0)) + 0.01)

    def _look(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The marks and states of all sources; a store whose files were not written to is not asked again."""
        marks: dict[str, Any] = {}
        states: list[dict[str, Any]] = []
        for shown in self._window.sources():
            name, state = shown.source.source_id, shown.state()
            states.append({"id": name, **{part: state[part] for part in ("state", "last_write_at", "silent_s")}})
            files = [_stamps(shown.source.approvals), None if state["state"] == "unreadable" else shown.written()]
            if None in files or files != self._files.get(name):
                self._of_files[name] = _marks(shown)
            self._files[name] = files
            marks[name] = {"state": state["state"], **self._of_files[name]}
        return marks, states


def _marks(shown: Shown) -> dict[str, Any]:
    """Numbers that change when something of a source does, by what that is."""
    marks: dict[str, Any] = {"approvals": _stamps(shown.source.approvals)}
    try:
        if shown.source.store is not None:
            pages = shown.store.pages
            found = pages.marks()
            marks |= {name: [seq for table, seq in found.items() if _NAMES[table] == name] for name in _NAMES.values()}
            marks["rollouts"] += [pages.open_attempts()]
        marks["metrics"] = _stamps([shown.source.metrics] if shown.source.metrics is not None else [])
    except LgovError:  # the state says so
        pass
    return marks


def _stamps(paths: Sequence[Path]) -> list[int]:
    """When these files, and SQLite's logs beside them, were last written."""
    beside = [path.with_name(path.name + "-wal") for path in paths]
    return [path.stat().st_mtime_ns for path in (*paths, *beside) if path.exists()]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for source, marks in now.items():
        known = before.get(source, {})
        if what := [name for name, mark in marks.items() if known.get(name) != mark]:
            found.append({"source": source, "what": what})
    return found


def _token(marks: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(marks, separators=(",", ":")).encode()).rstrip(b"=").decode()


def _marks_of(token: str) -> dict[str, Any]:
    try:
        found = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise QueryError("since is not a token of this window", hint="take it from an answer") from error
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise QueryError("since is not a token of this window", hint="take it from an answer")
    return found
