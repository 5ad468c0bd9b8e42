"""What another policy file would have decided about what is on record (`lgov_core.authoring.replay`), for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lgov_core.audit import AuditLog
from lgov_core.authoring.replay import Change, Replay, from_audit, from_store, replay_file
from lgov_core.errors import PolicyError
from lgov_core.store import TraceStore
from lgov_core.views.pages.background import Background
from lgov_core.views.pages.sources import Source
from lgov_core.views.pages.texts import text_of


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
        error, found, last = work.error, work.result or Replay(), first + limit
        return {
            "state": work.state,
            "policy": name,
            "error": None if error is None else error.as_json(),
            **found.counts(),
            "items": [_change(one) for one in found.changes[first:last]],
            "cursor": str(last) if last < len(found.changes) else None,
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
