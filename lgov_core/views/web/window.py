"""The window: the sources at a path, the work on them that is kept between requests, and what changed in them.

Work that takes longer than an answer may runs beside the answers (`Background`): the audit record verified, a policy file
replayed, a source examined.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from lgov_core._util.containers import BoundedDict
from lgov_core.audit import AuditLog
from lgov_core.audit.verify import VerifyReport, in_words, verify
from lgov_core.authoring.replay import Change, Replay, from_audit, from_store, replay_file
from lgov_core.errors import LgovError, PolicyError, StoreError
from lgov_core.policies import ApprovalRequests
from lgov_core.policies.budgets.ledger import Price
from lgov_core.settings import without_password
from lgov_core.store import TraceStore
from lgov_core.train.diagnosis import DiagnosisReport, examine
from lgov_core.train.diagnosis.checks import examine_evidence
from lgov_core.train.diagnosis.evidence import Evidence
from lgov_core.views.governance import model_prices
from lgov_core.views.lists import ComparedSide, Side, compare, sides_of
from lgov_core.views.sources import OpenSource, Source, find_sources
from lgov_core.views.timeline import text_of
from lgov_core.views.web.protocol import NotFoundError, QueryError

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one function at a time in a thread. Callable from any thread.

    ``state`` is ``running``, ``done`` (then ``result`` is set) or ``failed`` (then ``error``).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: Any = None
        self.state = ""
        self.result: T | None = None
        self.error: LgovError | None = None

    def start(self, work: Callable[[], T], key: Any = None, *, again: bool = False) -> None:
        """Starts ``work`` unless it runs, or was done for the same ``key``; with ``again`` also then."""
        with self._lock:
            if self.state == "running" or (self.state and self._key == key and not again):
                return
            self._key, self.state, self.result, self.error = key, "running", None, None
        threading.Thread(target=self._run, args=(work,), name="lgov-view", daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self.result = work()
            self.state = "done"
        except LgovError as error:
            self.error, self.state = error, "failed"
        except Exception as error:  # noqa: BLE001 - shown on the page
            self.error, self.state = LgovError(f"{type(error).__name__}: {error}"), "failed"


_HEADS: Final = 50
_SHOWN: Final = (
    *("problem", "first_bad", "entries", "writers", "erased", "heads_count"),
    *("signed", "unsigned", "key", "key_trusted", "anchored"),
)


class AuditState:
    """Verifies a record beside the answers. Callable from any thread. ``path`` None: there is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._check: Background[tuple[VerifyReport, float]] = Background()

    def answer(self, *, again: bool = False) -> dict[str, Any]:
        """The state, ``checking`` until the check is done. ``again`` starts it anew."""
        path = self._path
        if path is None:
            return self._shown("absent", None)
        self._check.start(lambda: (verify(path), time.time()), again=again)
        check = self._check
        if check.state == "running":
            return self._shown("checking", None)
        if check.result is None:
            return self._shown("broken", None) | {"problem": str(check.error)}
        report, at = check.result
        return self._shown("ok" if report.ok else "broken", report) | {"checked_at": at, "heads": self._heads(path)}

    def _shown(self, state: str, report: VerifyReport | None) -> dict[str, Any]:
        fields = asdict(report or VerifyReport(False, 0))
        fields["heads_count"] = fields.pop("heads")
        return {
            "state": state,
            "place": None if self._path is None else str(self._path),
            "checked_at": None,
            "words": None if report is None else in_words(report),
            "heads": [],
            **{name: fields[name] for name in _SHOWN},
        }

    def _heads(self, path: Path) -> list[dict[str, Any]]:
        try:
            with AuditLog(path, signer=None) as log:
                return [
                    {
                        "number": head["number"],
                        "at": head["time_ns"] / 1e9,
                        "position": head["last"],
                        "key": head["key"],
                    }
                    for head in log.heads(_HEADS)
                ]
        except (LgovError, LookupError, TypeError):
            return []


class PolicyReplay:
    """Replays policy files over one source, beside the answers: ``named``, and those in the run's folder."""

    def __init__(self, source: Source, named: tuple[Path, ...]) -> None:
        self._source = source
        self._named = named
        self._work: Background[Replay] = Background()

    def files(self) -> dict[str, Path]:
        """The policy files that may be replayed, by name."""
        folder = self._source.folder
        own = [] if folder is None else sorted([*folder.glob("*polic*.yaml"), *folder.glob("*polic*.yml")])
        return {path.name: path for path in reversed([*self._named, *own]) if path.is_file()}

    def answer(self, name: str, store: TraceStore, first: int, limit: int, *, again: bool = False) -> dict[str, Any]:
        """The replay of the file ``name``, with changes from ``first`` on. Raises `PolicyError` for one that is not offered."""
        path = self.files().get(name)
        if path is None:
            raise PolicyError(f"there is no policy file {name} to replay", hint="name it with --policy")
        self._work.start(lambda: self._replay(path, store), (path, path.stat().st_mtime_ns), again=again)
        work = self._work
        error, replay, last = work.error, work.result or Replay(), first + limit
        return {
            "state": work.state,
            "policy": name,
            "error": None if error is None else error.as_json(),
            **replay.counts(),
            "items": [_change(change) for change in replay.changes[first:last]],
            "cursor": str(last) if last < len(replay.changes) else None,
        }

    def _replay(self, path: Path, store: TraceStore) -> Replay:
        if self._source.audit is None:
            return replay_file(path, from_store(store))
        with AuditLog(self._source.audit, signer=None) as log:
            return replay_file(path, from_audit(log.entries()))


def _change(change: Change) -> dict[str, Any]:
    action = change.recorded.action
    return {
        **change.as_json(),
        "arguments": text_of(action.text if action.text is not None else dict(action.arguments)),
    }


class Diagnosis:
    """Examines a source beside the answers, and anew when it was written to. Callable from any thread."""

    def __init__(self, opened: OpenSource) -> None:
        self._shown = opened
        self._work: Background[DiagnosisReport] = Background()

    def answer(self) -> dict[str, Any]:
        """The findings, ``running`` until they are there."""
        source, work = self._shown.source, self._work
        examined = source.store if source.metrics is None else str(source.folder)
        work.start(
            lambda: examine(examined) if examined else examine_evidence(source.place, Evidence()), self._written()
        )
        report, error = work.result, work.error
        return {
            "state": work.state,
            "error": None if error is None else error.as_json(),
            "checked": [] if report is None else list(report.checked),
            "not_examined": {} if report is None else dict(report.not_examined),
            "findings": [
                {
                    "name": finding.name,
                    "title": finding.name.replace("-", " ").capitalize(),
                    "severity": finding.severity.value,
                    "text": finding.sentence,
                    "fix": finding.advice,
                    "figures": dict(finding.figures),
                    "rollouts": list(finding.rollouts),
                }
                for finding in (() if report is None else report.findings)
            ],
        }

    def _written(self) -> Any:
        """A value that changes when the source does."""
        source = self._shown.source
        try:
            marks = None if source.store is None else self._shown.store.pages.marks()
        except LgovError:
            marks = None
        return marks, None if source.metrics is None else source.metrics.stat().st_mtime_ns


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
    #: The record of a source that has none of its own.
    usual_audit: Path | None = None


class CheckedSource(OpenSource):
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
        self._open: dict[str, CheckedSource] = {}
        self._looked_at = 0.0
        self._comparisons: BoundedDict[Any, Any] = BoundedDict(_COMPARISONS)
        self.sources()

    def sources(self) -> list[CheckedSource]:
        """All sources, new ones too."""
        with self._lock:
            if time.monotonic() - self._looked_at > _SAME_S or not self._open:
                for number, source in enumerate(self._find()):
                    opened = self._open.get(source.source_id)
                    if number == 0:
                        source = replace(
                            source,
                            store=self._options.store or source.store,
                            audit=self._options.audit or source.audit or self._options.usual_audit,
                            approvals=tuple(_files_of((*self._options.approvals, *source.approvals))),
                        )
                    if opened is not None and opened.source.store is not None and source.store is None:
                        continue  # its store is gone, which it says itself
                    if opened is None or opened.source != source:
                        self._open[source.source_id] = CheckedSource(source, self._options)
                self._looked_at = time.monotonic()
            return list(self._open.values())

    def _find(self) -> list[Source]:
        try:
            return find_sources(self.place)
        except StoreError:
            if self._may_be_empty or self._open:
                return []
            raise

    def source(self, source_id: str | None) -> CheckedSource:
        """A source by its id, the first one without. Raises `WindowError` (404)."""
        every = self.sources()
        for opened in every:
            if source_id in (None, opened.source.source_id):
                return opened
        raise NotFoundError(f"there is no source {source_id}", hint="api/sources lists them")

    def approval_files(self) -> Sequence[Path]:
        """The files of approval requests that exist."""
        files = (path for source in self.sources() for path in source.source.approvals)
        return [path for path in _files_of((*self._options.approvals, *files)) if path.is_file()]

    def prices(self) -> Mapping[str, Price]:
        """The prices of models, by name or glob, that the budgets of the policy files say. Raises `LgovError`."""
        return {
            glob: price for policy in self._options.policies if policy.is_file() for glob, price in model_prices(policy)
        }

    def approver(self, key: str) -> str | None:
        """The name of the approver with this key in one of the files; None for any other key."""
        for file in self.approval_files():
            with suppress(LgovError), closing(ApprovalRequests(file)) as requests:
                if (name := requests.approver(key)) is not None:
                    return name
        return None

    def sides(self) -> list[Side]:
        """Lists the sides of comparisons, over all sources that can be read."""
        sides: list[Side] = []
        for opened in self.sources():
            try:
                sides += sides_of(opened.source.source_id, opened.store.pages)
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
                token = base64.urlsafe_b64encode(json.dumps(self._marks, separators=(",", ":")).encode()).rstrip(b"=")
                return {"since": token.decode(), "changed": changed, "sources": self._states}
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


def _marks(opened: CheckedSource) -> dict[str, Any]:
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


def _files_of(paths: Iterable[Path]) -> list[Path]:
    """These files, each once, however it is named."""
    return list(dict.fromkeys(path.resolve() for path in paths))


def _stamps(paths: Sequence[Path]) -> list[int]:
    """When these files, and SQLite's logs beside them, were last written."""
    beside = [path.with_name(path.name + "-wal") for path in paths]
    return [path.stat().st_mtime_ns for path in (*paths, *beside) if path.exists()]


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    changes = {
        source: [name for name, mark in marks.items() if before.get(source, {}).get(name) != mark]
        for source, marks in now.items()
    }
    return [{"source": source, "what": what} for source, what in changes.items() if what]


def _marks_of(token: str) -> dict[str, Any]:
    try:
        marks = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise QueryError("since is not a token of this window", hint="take it from an answer") from error
    if not isinstance(marks, dict) or not all(isinstance(mark, dict) for mark in marks.values()):
        raise QueryError("since is not a token of this window", hint="take it from an answer")
    return marks
