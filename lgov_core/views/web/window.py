"""The window: the sources at a path, the work on them that is kept between requests, and what changed in them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import LgovError, StoreError
from lgov_core.settings import without_password
from lgov_core.views.pages.background import AuditState, Diagnosis, PolicyReplay
from lgov_core.views.pages.comparison import ComparedSide, Side, compare, sides_of
from lgov_core.views.pages.sources import OpenSource, Source, find_sources
from lgov_core.views.web.protocol import NotFoundError, QueryError

#: Seconds for which the list of sources is taken as it was.
_SAME_S: Final = 2.0
_COMPARISONS: Final = 8


@dataclass(frozen=True, slots=True)
class WindowOptions:
    """Sources besides those at the path: files that belong to the first source, and policy files that may be replayed."""

    store: str | None = None
    audit: Path | None = None
    approvals: tuple[Path, ...] = ()
    policies: tuple[Path, ...] = ()
    tokenizer: Path | None = None


class Shown(OpenSource):
    """A source with the checks that run beside the answers."""

    def __init__(self, source: Source, options: WindowOptions) -> None:
        super().__init__(source, tokenizer=options.tokenizer)
        self.audit = AuditState(source.audit)
        self.replay = PolicyReplay(source, options.policies)
        self.diagnosis = Diagnosis(self)


class Window:
    """The sources at ``place``. Callable from any thread. Raises `StoreError` when there is none, unless ``may_be_empty``."""

    def __init__(self, place: str, options: WindowOptions | None = None, *, may_be_empty: bool = False) -> None:
        self.place = place
        self.title = without_password(place)
        self._options = options or WindowOptions()
        self._may_be_empty = may_be_empty
        self._lock = threading.Lock()
        self._open: dict[str, Shown] = {}
        self._looked_at = 0.0
        self._comparisons: BoundedDict[Any, Any] = BoundedDict(_COMPARISONS)
        self.sources()

    def sources(self) -> list[Shown]:
        """All sources, new ones too."""
        with self._lock:
            if time.monotonic() - self._looked_at > _SAME_S or not self._open:
                for number, source in enumerate(self._find()):
                    opened = self._open.get(source.source_id)
                    if number == 0:
                        source = replace(
                            source,
                            store=self._options.store or source.store,
                            audit=self._options.audit or source.audit,
                            approvals=tuple(dict.fromkeys((*self._options.approvals, *source.approvals))),
                        )
                    if opened is not None and opened.source.store is not None and source.store is None:
                        continue  # its store is gone, which it says itself
                    if opened is None or opened.source != source:
                        self._open[source.source_id] = Shown(source, self._options)
                self._looked_at = time.monotonic()
            return list(self._open.values())

    def _find(self) -> list[Source]:
        try:
            return find_sources(self.place)
        except StoreError:
            if self._may_be_empty or self._open:
                return []
            raise

    def source(self, source_id: str | None) -> Shown:
        """A source by its id, the first one without. Raises `WindowError` (404)."""
        every = self.sources()
        for opened in every:
            if source_id in (None, opened.source.source_id):
                return opened
        raise NotFoundError(f"there is no source {source_id}", hint="api/sources lists them")

    def approval_files(self) -> Sequence[Path]:
        """The files of approval requests that exist."""
        files = (path for source in self.sources() for path in source.source.approvals)
        return [path for path in dict.fromkeys((*self._options.approvals, *files)) if path.is_file()]

    def sides(self) -> list[Side]:
        """Lists the sides of comparisons, over all sources that can be read."""
        sides: list[Side] = []
        for opened in self.sources():
            try:
                sides += sides_of(opened.source.source_id, opened.store.pages.added_groups())
            except LgovError:  # it has no store, or is shown as unreadable
                continue
        return sides

    def comparison(self, first: str, second: str, channel: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The comparison of two sides by their ids; kept until one of their stores grows. Raises `LgovError`."""
        sides = {side.id: side for side in self.sides()}
        for missing in {first, second} - sides.keys():
            raise NotFoundError(f"there is no side {missing}", hint="api/compare/sides lists them")
        opened = [(sides[name], self.source(sides[name].source)) for name in (first, second)]
        key = (first, second, channel, *(str(source.store.pages.marks()) for _, source in opened))
        if (comparison := self._comparisons.get(key)) is None:
            groups = (source.store.pages.added_groups() for _, source in opened)
            compared = [ComparedSide(side, source.store, of) for (side, source), of in zip(opened, groups, strict=True)]
            comparison = compare(compared[0], compared[1], channel)
            self._comparisons.put(key, comparison)
        return comparison

    def close(self) -> None:
        """Closes every store."""
        with self._lock:
            for opened in self._open.values():
                opened.close()
            self._open.clear()


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
        """Lists what changed since the token ``since``; waits for a change, ``wait_s`` seconds at most."""
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
        for opened in self._window.sources():
            name, state = opened.source.source_id, opened.state()
            states.append({"id": name, **{key: state[key] for key in ("state", "last_write_at", "silent_s")}})
            files = [_stamps(opened.source.approvals), None if state["state"] == "unreadable" else opened.written()]
            if None in files or files != self._files.get(name):
                self._of_files[name] = _marks(opened)
            self._files[name] = files
            marks[name] = {"state": state["state"], **self._of_files[name]}
        return marks, states


def _marks(opened: Shown) -> dict[str, Any]:
    """Numbers that change when something of a source does, by what that is."""
    marks: dict[str, Any] = {"approvals": _stamps(opened.source.approvals)}
    try:
        if opened.source.store is not None:
            pages = opened.store.pages
            seqs = pages.marks()
            marks |= {name: [seq for table, seq in seqs.items() if _NAMES[table] == name] for name in _NAMES.values()}
            marks["rollouts"] += [pages.open_attempts()]
        marks["metrics"] = _stamps([opened.source.metrics] if opened.source.metrics is not None else [])
    except LgovError:  # the state says so
        pass
    return marks


def _stamps(paths: Sequence[Path]) -> list[int]:
    """When these files, and SQLite's logs beside them, were last written."""
    beside = [path.with_name(path.name + "-wal") for path in paths]
    return [path.stat().st_mtime_ns for path in (*paths, *beside) if path.exists()]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = []
    for source, marks in now.items():
        marks_before = before.get(source, {})
        if what := [name for name, mark in marks.items() if marks_before.get(name) != mark]:
            changes.append({"source": source, "what": what})
    return changes


def _token(marks: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(marks, separators=(",", ":")).encode()).rstrip(b"=").decode()


def _marks_of(token: str) -> dict[str, Any]:
    try:
        marks = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise QueryError("since is not a token of this window", hint="take it from an answer") from error
    if not isinstance(marks, dict) or not all(isinstance(mark, dict) for mark in marks.values()):
        raise QueryError("since is not a token of this window", hint="take it from an answer")
    return marks
