"""What changed since a browser last asked: the live updates."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from typing import Any, Final

from lgov_core.errors import LgovError
from lgov_core.views.web.errors import QueryError
from lgov_core.views.web.window import Shown, Window

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
        marks: dict[str, Any] = {}
        states: list[dict[str, Any]] = []
        for shown in self._window.sources():
            state = shown.state()
            names = ("state", "last_write_at", "silent_s")
            states.append({"id": shown.source.source_id, **{name: state[name] for name in names}})
            marks[shown.source.source_id] = _marks(shown, state["state"])
        return marks, states


def _marks(shown: Shown, state: str) -> dict[str, Any]:
    """Numbers that change when something of a source does, by what that is."""
    marks: dict[str, Any] = {"state": state}
    try:
        if shown.source.store is not None:
            pages = shown.store.pages
            found = pages.marks()
            marks |= {name: [seq for table, seq in found.items() if _NAMES[table] == name] for name in _NAMES.values()}
            marks["rollouts"].append(pages.open_attempts())
        for name, paths in (("metrics", [shown.source.metrics]), ("approvals", shown.source.approvals)):
            files = [path for path in paths if path is not None]
            beside = [path.with_name(path.name + "-wal") for path in files]
            marks[name] = [path.stat().st_mtime_ns for path in (*files, *beside) if path.exists()]
    except (LgovError, OSError):  # the state says so
        pass
    return marks


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
