"""An audit record in the forms that other systems read: JSON lines, CloudEvents 1.0, OCSF 1.3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from lgov_core._util.atomic_file import write_lines
from lgov_core.audit.entry import AuditEntry
from lgov_core.errors import ExportError

Format = Literal["jsonl", "cloudevents", "ocsf"]
FORMATS: Final[tuple[Format, ...]] = ("jsonl", "cloudevents", "ocsf")

_BLOCKING: Final = frozenset({"deny", "escalate"})
#: OCSF severity_id: 1 informational, 2 low, 3 medium, 4 high, 5 critical.
_SEVERITY: Final = {"low": 2, "medium": 3, "high": 4, "critical": 5}
#: OCSF API Activity, of the category Application Activity; activity 99 is "Other".
_CLASS, _CATEGORY, _ACTIVITY = 6003, 6, 99


def lines(entries: Iterable[AuditEntry], form: Format) -> Iterator[str]:
    """Each entry as one line of JSON, without its line feed."""
    write: Callable[[AuditEntry], Mapping[str, Any]] = {"jsonl": plain, "cloudevents": cloud_event, "ocsf": ocsf}[form]
    for entry in entries:
        yield json.dumps(write(entry), ensure_ascii=True, allow_nan=False)


def plain(entry: AuditEntry) -> dict[str, Any]:
    """Everything that was hashed, with the texts (null once erased), position and hashes."""
    return {
        **entry.body,
        "position": entry.position,
        "arguments": _loaded(entry.arguments),
        "content": _loaded(entry.content),
        "prev_hash": entry.prev_hash.hex(),
        "hash": entry.hash.hex(),
    }


def cloud_event(entry: AuditEntry) -> dict[str, Any]:
    """A CloudEvents 1.0 event in structured JSON mode; the data is that of `plain`."""
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": entry.entry_id,
        "source": f"urn:lgov:audit:{entry.writer}",
        "type": f"dev.lgov.audit.{entry.kind}",
        "time": datetime.fromtimestamp(entry.time_ns / 1e9, UTC).isoformat(),
        "datacontenttype": "application/json",
        "data": plain(entry),
    }
    if entry.rollout_id is not None:
        event["subject"] = quote(entry.rollout_id)
    return event


def ocsf(entry: AuditEntry) -> dict[str, Any]:
    """An OCSF 1.3 API Activity (class 6003): who (the agent) did what (the tool), and whether it was let."""
    denied = entry.effect in _BLOCKING or entry.status == "denied"
    failed = entry.status not in (None, "ok", "denied")
    severity = _SEVERITY.get(entry.severity or "", 1) if denied else 1
    event: dict[str, Any] = {
        "class_uid": _CLASS,
        "class_name": "API Activity",
        "category_uid": _CATEGORY,
        "category_name": "Application Activity",
        "activity_id": _ACTIVITY,
        "activity_name": entry.point or entry.kind,
        "type_uid": _CLASS * 100 + _ACTIVITY,
        "time": entry.time_ns // 1_000_000,
        "severity_id": severity,
        "status_id": 2 if denied or failed else 1,
        "status_detail": entry.reason or entry.status,
        "message": entry.reason or f"{entry.kind} {entry.name or ''}".strip(),
        "metadata": {
            "version": "1.3.0",
            "uid": entry.entry_id,
            "correlation_uid": entry.refers_to or entry.call_id,
            "product": {"name": "lgov", "vendor_name": "lgov", "version": entry.code_version},
        },
        "actor": {"app_name": entry.agent or "agent"},
        "api": {
            "operation": entry.name or entry.kind,
            "service": {"name": entry.framework or "lgov"},
            "request": {"uid": entry.call_id or entry.entry_id},
        },
        "src_endpoint": {"name": entry.agent or "agent"},
    }
    if session := entry.session_id or entry.rollout_id:
        event["actor"]["session"] = {"uid": session}
    if entry.kind == "decision":
        event["metadata"]["profiles"] = ["security_control"]  # which the next three belong to
        event["action_id"] = 2 if denied else 1  # OCSF: 1 allowed, 2 denied
        event["disposition_id"] = 2 if denied else 1  # 1 allowed, 2 blocked
        event["policy"] = {"name": entry.policy, "uid": entry.policy_digest, "desc": entry.rule}
    return {**_known(event), "unmapped": plain(entry)}


def _known(event: Mapping[str, Any]) -> dict[str, Any]:
    """``event`` without what is None: an attribute of OCSF that is not known is left out."""
    return {
        name: _known(value) if isinstance(value, dict) else value for name, value in event.items() if value is not None
    }


def write_file(path: Path, entries: Iterable[AuditEntry], form: Format) -> int:
    """Writes all entries to a new file that then takes the place of ``path``; returns how many.

    See `atomic_file` for what it does not take the place of. Raises `ExportError`.
    """
    return write_lines(path, lines(entries, form), ExportError)


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
