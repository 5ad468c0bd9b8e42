"""Work that takes longer than an answer may: the audit record verified, a policy file replayed, a source examined."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import VerifyReport, in_words, verify
from lgov_core.authoring.replay import Change, Replay, from_audit, from_store, replay_file
from lgov_core.errors import LgovError, PolicyError
from lgov_core.store import TraceStore
from lgov_core.train.diagnosis import Report, examine
from lgov_core.train.diagnosis.evidence import Evidence
from lgov_core.train.diagnosis.examine import examine_evidence
from lgov_core.views.pages.sources import OpenSource, Source
from lgov_core.views.pages.timeline import text_of

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
        self._work: Background[Report] = Background()

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
