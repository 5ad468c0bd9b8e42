"""FlightRecorder: the audit record under the method names that agent-os programs know."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from lgov_core.audit.entry import AuditEntry
from lgov_core.audit.log import AuditLog
from lgov_core.audit.verify import verify
from lgov_core.errors import AuditError
from lgov_core.types import BLOCKING

VERDICTS: Final = ("allowed", "blocked", "shadow", "error", "pending")
_STARTED: Final = time.strftime("%Y%m%dT%H%M%S", time.gmtime())


def default_record_path() -> Path:
    """The record of this process, in the user's folder for state: where everything goes that is given no other place.

    The same for the whole life of a process, another one for every process; the folder is made when it is missing.
    """
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "lgov" / f"flight-{_STARTED}-{os.getpid()}.db"


class FlightRecorder(AuditLog):
    """An `AuditLog` with the methods of agent-os's recorder; all that `AuditLog` promises holds.

    Without a ``path`` it is `default_record_path`, so that a recorder and a kernel without a path share one record. ``options``
    are those of `AuditLog`. Entries are never updated: the outcome of a trace is an entry of its own, and `get_log` and
    `query_logs` join the two.

    All methods may be called from any thread. Fails closed: raises `AuditError` for an entry that cannot be committed, and the
    caller must then not perform the call.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> None:
        super().__init__(_default_place() if path is None else path, **options)

    # ------------------------------------------------------------------ writing

    def start_trace(
        self,
        agent_id: str,
        tool_name: str,
        tool_args: Mapping[str, Any] | None = None,
        input_prompt: str | None = None,
    ) -> str:
        """Records that ``agent_id`` is about to call a tool; returns the id under which its end is logged."""
        fields = {"agent": str(agent_id), "name": str(tool_name)}
        content = {} if input_prompt is None else {"input_prompt": input_prompt}
        return self.append("trace", fields, arguments=tool_args or {}, content=content)

    def log_success(self, trace_id: str, result: Any = None, execution_time_ms: float | None = None) -> str:
        """Records that the call returned."""
        return self._end(trace_id, "allowed", {"result": result}, execution_time_ms=execution_time_ms)

    def log_violation(
        self, trace_id: str, violation_reason: str, *, policy_name: str | None = None, severity: str | None = None
    ) -> str:
        """Records that the call was blocked, and why."""
        return self._end(trace_id, "blocked", {}, reason=violation_reason, policy=policy_name, severity=severity)

    def log_error(self, trace_id: str, error: Any) -> str:
        """Records that the call failed."""
        return self._end(trace_id, "error", {"error": str(error)})

    def log_shadow_exec(self, trace_id: str, simulated_result: Any = None) -> str:
        """Records that the call was only simulated."""
        return self._end(trace_id, "shadow", {"result": simulated_result})

    def log_signal(self, agent_id: str, signal: str, *, reason: str = "", rollout_id: str | None = None) -> str:
        """Records a signal that was sent to an agent."""
        fields = {"agent": str(agent_id), "name": str(signal), "reason": reason or None, "rollout_id": rollout_id}
        return self.append("signal", fields, arguments=None, content={})

    def _end(self, trace_id: str, verdict: str, content: Mapping[str, Any], **fields: Any) -> str:
        # An end without a beginning is kept too: an answer to a wrong id must not get lost.
        fields |= {"refers_to": trace_id, "verdict": verdict}
        return self.append("trace_end", fields, arguments=None, content=content)

    def flush(self) -> None:
        """Does nothing: every entry is committed when the method that wrote it returns."""

    # ------------------------------------------------------------------ reading

    def get_log(self, *, after: int = 0) -> list[dict[str, Any]]:
        """The events, oldest first, from behind position ``after``: one mapping for each decision, outcome, signal
        and trace.

        A trace carries its end when that has been read with it, and is ``pending`` without; an end whose beginning was
        read before is listed by itself. The outcome of a denied act says nothing new and is left out. Keys:
        ``trace_id``, ``entry_type`` (``policy_check``, ``tool_call``, ``signal``), ``timestamp`` (ISO 8601, UTC),
        ``agent_id``, ``tool_name``, ``tool_args`` (a mapping, None once erased), ``input_prompt``, ``policy_verdict``
        (one of `VERDICTS`), ``policy_name``, ``rule``, ``violation_reason``, ``severity``, ``fault`` (the
        judgement itself failed), ``result``, ``error``, ``execution_time_ms``, ``rollout_id``, ``call_id``,
        ``refers_to``, ``metadata``, ``position`` (of the last entry that is in it), ``entry_hash`` and
        ``previous_hash`` (hex).
        """
        log: dict[str, dict[str, Any]] = {}
        for entry in self.entries(after=after):
            if entry.kind == "erasure" or (entry.kind == "outcome" and entry.status == "denied" and entry.refers_to):
                continue
            begun = log.get(entry.refers_to or "") if entry.kind == "trace_end" else None
            if begun is not None and begun["policy_verdict"] == "pending":
                begun.update(_end_of(entry))
                begun["position"] = entry.position
            else:
                log[entry.entry_id] = _as_mapping(entry)
        return list(log.values())

    def query_logs(
        self,
        agent_id: str | None = None,
        policy_verdict: str | None = None,
        start_time: datetime | None = None,
        end_time: datetime | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """The mappings of `get_log` that fit all conditions, newest first. Times without a zone are UTC.

        Raises `AuditError` for a verdict that does not exist.
        """
        if policy_verdict is not None and policy_verdict not in VERDICTS:
            raise AuditError(f"there is no verdict {policy_verdict!r}", hint=f"one of: {', '.join(VERDICTS)}")
        first, last = (None if time is None else _iso(time) for time in (start_time, end_time))
        entries = [
            entry
            for entry in reversed(self.get_log())
            if (agent_id is None or entry["agent_id"] == agent_id)
            and (policy_verdict is None or entry["policy_verdict"] == policy_verdict)
            and (first is None or entry["timestamp"] >= first)
            and (last is None or entry["timestamp"] <= last)
        ]
        return entries[: max(0, limit)]

    def get_statistics(self) -> dict[str, Any]:
        """``total_actions``, ``by_verdict``, ``top_agents`` (ten at most) and ``avg_execution_time_ms`` (or None)."""
        log = self.get_log()
        agents = Counter(entry["agent_id"] for entry in log if entry["agent_id"] is not None)
        times = [entry["execution_time_ms"] for entry in log if entry["execution_time_ms"] is not None]
        return {
            "total_actions": len(log),
            "by_verdict": dict(Counter(entry["policy_verdict"] for entry in log)),
            "top_agents": [{"agent_id": agent, "count": count} for agent, count in agents.most_common(10)],
            "avg_execution_time_ms": sum(times) / len(times) if times else None,
        }

    def verify_integrity(self) -> dict[str, Any]:
        """``valid``, ``total_entries`` and ``message``; when broken also ``first_tampered_id`` and ``error``.

        Recomputes everything, with this recorder's own key when it signs. See `lgov_core.audit.verify`.
        """
        key = None if self._heads is None else self._heads.signer.public
        report = verify(self.path, key=key)
        answer = {"valid": report.ok, "total_entries": report.entries}
        if report.ok:
            return {**answer, "message": f"{report.entries} entries verified, {report.signed} of them signed"}
        return {**answer, "first_tampered_id": report.first_bad_id or report.first_bad, "error": report.problem}


def _default_place() -> Path:
    path = default_record_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        elsewhere = Path(tempfile.gettempdir()) / path.name
        raise AuditError(
            f"the folder {path.parent} for the audit record cannot be made: {error.strerror or error}",
            hint=f"set XDG_STATE_HOME, or name a place: FlightRecorder({str(elsewhere)!r})",
        ) from error
    return path


# ---------------------------------------------------------------------- entries as mappings


def _as_mapping(entry: AuditEntry) -> dict[str, Any]:
    content, verdict = json.loads(entry.content or "{}"), entry.verdict
    mapping: dict[str, Any] = {
        "trace_id": entry.entry_id,
        "entry_type": {"signal": "signal", "decision": "policy_check"}.get(entry.kind, "tool_call"),
        "timestamp": _time(entry.time_ns),
        "agent_id": entry.agent,
        "tool_name": entry.name,
        "tool_args": None if entry.arguments is None else json.loads(entry.arguments),
        "input_prompt": content.get("input_prompt", content.get("text")),
        "policy_verdict": _verdict(entry),
        "policy_name": verdict["policy"],
        "rule": verdict["rule"],
        "violation_reason": verdict["reason"],
        "severity": verdict["severity"],
        "fault": entry.body.get("fault") is True,
        "result": content.get("result"),
        "error": content.get("error"),
        "execution_time_ms": None,
        "rollout_id": entry.rollout_id,
        "call_id": entry.call_id,
        "refers_to": entry.refers_to,
        "metadata": {"point": entry.point, "kind": entry.kind, "status": entry.status, "effect": entry.effect},
        "position": entry.position,
        "entry_hash": entry.hash.hex(),
        "previous_hash": entry.prev_hash.hex(),
    }
    if entry.body.get("duration_s") is not None:
        mapping["execution_time_ms"] = entry.body["duration_s"] * 1000
    return {**mapping, **_end_of(entry)} if entry.kind == "trace_end" else mapping


def _end_of(entry: AuditEntry) -> dict[str, Any]:
    """The fields that the end of a trace adds to its beginning."""
    content = json.loads(entry.content or "{}")
    verdict = str(entry.body.get("verdict"))
    return {
        "entry_type": "policy_check" if verdict == "blocked" else "tool_call",
        "policy_verdict": verdict,
        "policy_name": entry.policy,
        "violation_reason": entry.reason,
        "severity": entry.severity,
        "result": content.get("result"),
        "error": content.get("error"),
        "execution_time_ms": entry.body.get("execution_time_ms"),
    }


def _verdict(entry: AuditEntry) -> str:
    if entry.kind == "decision":
        if entry.shadowed:
            return "shadow"
        return "blocked" if entry.effect in BLOCKING else "allowed"
    if entry.kind == "outcome":
        return {"ok": "allowed", "denied": "blocked"}.get(entry.status or "", "error")
    return "pending" if entry.kind == "trace" else "allowed"


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat(timespec="microseconds")


def _iso(when: datetime) -> str:
    zoned = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return zoned.isoformat(timespec="microseconds")
