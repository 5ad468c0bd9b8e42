"""The decisions of an audit record that has no store beside it, as the spans that a store would have."""

from __future__ import annotations

import threading
from pathlib import Path

from lgov_core.audit import AuditEntry, AuditLog
from lgov_core.errors import StoreError
from lgov_core.store import RolloutQueue, open_store
from lgov_core.trace import semconv
from lgov_core.types import Span


class RecordAlone:
    """A store in memory with the decisions of the record at ``path``. Callable from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._read = 0
        self.store: RolloutQueue = open_store("memory://")

    def read(self) -> None:
        """Adds to the store what was written since the last time. Raises `StoreError` and `AuditError`."""
        if not self._path.is_file():
            raise StoreError(f"the audit record {self._path} is gone", hint="it was moved or deleted; put it back")
        with self._lock, AuditLog(self._path, signer=None) as log:
            entries = log.entries(after=self._read)
            if entries:
                self.store.add_spans([_span(entry) for entry in entries if entry.kind == "decision"])
                self._read = entries[-1].position


def _span(entry: AuditEntry) -> Span:
    verdict, at = entry.verdict, entry.time_ns / 1e9
    found = {
        semconv.AGENT_NAME: entry.agent,
        semconv.POINT: entry.point,
        semconv.ACTION_KIND: entry.action_kind,
        semconv.ACTION_NAME: entry.name,
        semconv.TOOL_CALL_ID: entry.call_id,
        semconv.DECISION_ID: entry.entry_id,
        semconv.DECISION_EFFECT: entry.effect,
        semconv.DECISION_POLICY: verdict["policy"],
        semconv.DECISION_RULE: verdict["rule"],
        semconv.DECISION_REASON: verdict["reason"],
        semconv.DECISION_SEVERITY: verdict["severity"],
        semconv.DECISION_WOULD: verdict["effect"] if verdict["effect"] != entry.effect else None,
    }
    name = semconv.DECISION_SPAN_NAME
    return Span(name, entry.entry_id, at, at, semconv.said(found), entry.rollout_id, entry.attempt)
