"""FlightRecorder: the audit record under the method names that agent-os programs know."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final

from lgov_core.audit.log import AuditLog
from lgov_core.audit.reading import AuditEntry
from lgov_core.audit.verify import verify
from lgov_core.errors import AuditError
from lgov_core.types import BLOCKING

VERDICTS: Final = ("allowed", "blocked", "shadow", "error", "pending")
#: The type of each kind of entry that is about an agent; others are about the record itself.
_TYPES: Final = {
    "decision": "policy_check", "signal": "signal", "outcome": "tool_call", "trace": "tool_call", "trace_end": "tool_call",
}  # fmt: skip
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
            if entry.kind not in _TYPES or (entry.kind == "outcome" and entry.status == "denied" and entry.refers_to):
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
        "entry_type": _TYPES[entry.kind],
        "timestamp": _iso(datetime.fromtimestamp(entry.time_ns / 1e9, UTC)),
        "agent_id": entry.agent,
        "tool_name": entry.name,
        "tool_args": None if entry.arguments is None else json.loads(entry.arguments),
        "input_prompt": content.get("input_prompt", content.get("text")),
        "policy_verdict": _verdict_of_entry(entry),
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


def _verdict_of_entry(entry: AuditEntry) -> str:
    if entry.kind == "decision":
        if entry.shadowed:
            return "shadow"
        return "blocked" if entry.effect in BLOCKING else "allowed"
    if entry.kind == "outcome":
        return {"ok": "allowed", "denied": "blocked"}.get(entry.status or "", "error")
    return "pending" if entry.kind == "trace" else "allowed"


def _iso(when: datetime) -> str:
    zoned = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return zoned.isoformat(timespec="microseconds")


#: Characters of the longest text that a span carries of an entry.
TEXT_LIMIT: Final = 1000
_DEPTH: Final = 20
#: Longer integers are written in hexadecimal: Python refuses to write very long ones in decimal.
_INT_BITS: Final = 1024
_PREFIX: Final = "agent_os."

_CONTAINERS: Final = (dict, Mapping, list, tuple, AbstractSet)

POLICY_CHECK: Final = "policy_check"
SIGNAL: Final = "signal"
TOOL_CALL: Final = "tool_call"

#: Verdicts without a finding, without enforcement or without a policy. Every other is a violation.
_HARMLESS: Final = frozenset({"", "allow", "allowed", "pass", "passed", "ok", "shadow", "pending", "error", "none"})
#: Effects of an act that went on although a policy found something.
_FINDINGS: Final = ("warn", "transform")
_RESULTS: Final = {"allow": "allowed", "deny": "denied", "blocked": "denied", "block": "denied"}
#: The fields of an entry for each part of a span; the first that is set counts.
_IDS: Final = ("entry_id", "span_id", "log_id", "trace_id", "id")
_AGENTS: Final = ("agent_id", "agent")
_TIMES: Final = ("timestamp", "time", "start_time", "created_at")
_VERDICTS: Final = ("policy_verdict", "policy_result", "verdict")
_MAPPED: Final = frozenset({"type", "entry_type", *_AGENTS, *_TIMES, "metadata"})


@dataclass(frozen=True)
class LightningSpan:
    """One entry of a flight recorder as a span. Attributes may hold anything; `to_dict` makes them JSON."""

    span_id: str
    trace_id: str
    name: str
    start_time: datetime
    end_time: datetime | None = None
    attributes: dict[str, Any] = field(default_factory=lambda: {})
    events: list[dict[str, Any]] = field(default_factory=lambda: [])

    def to_dict(self) -> dict[str, Any]:
        """The seven fields as JSON values, times in ISO 8601."""
        return {
            "span_id": self.span_id,
            "trace_id": self.trace_id,
            "name": self.name,
            "start_time": self.start_time.isoformat(),
            "end_time": None if self.end_time is None else self.end_time.isoformat(),
            "attributes": plain(self.attributes),
            "events": plain(self.events),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON text: ASCII, without NaN."""
        return json.dumps(self.to_dict(), allow_nan=False)


def entry_of(entry: Any) -> Mapping[str, Any]:
    """An entry as a mapping, whatever the recorder keeps."""
    if isinstance(entry, Mapping):
        return entry
    if is_dataclass(entry) and not isinstance(entry, type):
        return {field.name: getattr(entry, field.name) for field in fields(entry)}
    attributes = {name: getattr(entry, name, None) for name in dir(entry) if not name.startswith("_")}
    return {name: value for name, value in attributes.items() if not callable(value)} or {"entry": entry}


def id_of(entry: Mapping[str, Any]) -> Any:
    """The id of an entry, or None."""
    return _first(entry, _IDS)


def began_at(entry: Mapping[str, Any]) -> datetime:
    """The time of an entry; 1970 where it cannot be read."""
    return _time(_first(entry, _TIMES)) or datetime.fromtimestamp(0, UTC)


def entry_type_of(entry: Mapping[str, Any]) -> str:
    """The type that an entry names (``type``, else ``entry_type``), else the one that its fields imply."""
    for name in ("type", "entry_type"):
        named = entry.get(name)
        if named is not None and named != "":
            return str(getattr(named, "value", named))
    if entry.get("signal_type") is not None or entry.get("signal") is not None:
        return SIGNAL
    if any(entry.get(name) is not None for name in (*_VERDICTS, "policy_name")):
        return POLICY_CHECK
    return TOOL_CALL if entry.get("tool_name") is not None else "unknown"


def violated(entry: Mapping[str, Any]) -> bool:
    """Returns whether an entry is a violation: its own ``violated`` says so.

    An entry that names its ``type`` and has no ``violated`` is none. Of the entries of agent-os and lgov, which name an
    ``entry_type``, it is a policy check that found something. A check that failed itself (``fault``) found nothing; a
    verdict that is not known counts as a finding.
    """
    if "violated" in entry or "type" in entry:
        return entry.get("violated") is True
    if entry_type_of(entry) != POLICY_CHECK or entry.get("fault") is True:
        return False
    stated = entry.get("policy_violated")
    if isinstance(stated, bool):
        return stated
    verdict, metadata = _verdict(entry), entry.get("metadata")
    if verdict == "allowed" and isinstance(metadata, Mapping):
        return metadata.get("effect") in _FINDINGS
    return verdict not in _HARMLESS


def policy_of(entry: Mapping[str, Any]) -> str:
    """The name of the policy."""
    return str(entry.get("policy_name") or entry.get("policy") or "unknown")


def span_of(entry: Mapping[str, Any], *, trace_id_prefix: str, number: int) -> LightningSpan:
    """The span of an entry. ``number`` (from 1) names an entry that has no id. Never raises for what an entry holds."""
    kind = entry_type_of(entry)
    agent = _first(entry, _AGENTS)
    attributes: dict[str, Any] = {_PREFIX + "entry_type": kind, _PREFIX + "agent_id": plain(agent)}
    if kind == POLICY_CHECK:
        verdict = _verdict(entry)
        attributes[_PREFIX + "policy_name"] = policy_of(entry)
        attributes[_PREFIX + "policy_result"] = _RESULTS.get(verdict, verdict)
        attributes[_PREFIX + "policy_violated"] = violated(entry)
    elif kind == SIGNAL:
        attributes[_PREFIX + "signal_type"] = short(_first(entry, ("signal_type", "signal", "tool_name")))
        attributes[_PREFIX + "signal_target"] = short(_first(entry, ("signal_target", "target", *_AGENTS)))
    elif kind == TOOL_CALL:
        attributes[_PREFIX + "tool_name"] = short(entry.get("tool_name"))
        attributes[_PREFIX + "tool_args"] = short(_first(entry, ("tool_args", "args")))
        attributes[_PREFIX + "tool_result"] = short(_first(entry, ("tool_result", "result")))
    for key, value in entry.items():
        if key not in _MAPPED and value is not None and not (kind == POLICY_CHECK and key in _VERDICTS):
            attributes.setdefault(_PREFIX + str(key), short(value))
    metadata = entry.get("metadata")
    if isinstance(metadata, Mapping):
        for key, value in metadata.items():
            attributes[f"{_PREFIX}metadata.{key}"] = short(value)
            attributes.setdefault(f"{_PREFIX}{key}", short(value))
    elif metadata is not None:
        attributes[_PREFIX + "metadata"] = short(metadata)
    start = _time(_first(entry, _TIMES))
    if start is None:
        attributes[_PREFIX + "timestamp_unreadable"] = short(_first(entry, _TIMES))
        start = datetime.fromtimestamp(0, UTC)
    named, whose = id_of(entry), _first(entry, (*_AGENTS, "rollout_id"))
    return LightningSpan(
        span_id=str(named) if named is not None else f"entry-{number}",
        trace_id=f"{trace_id_prefix}-{'unknown' if whose is None else short(whose)}",
        name=f"{_PREFIX}{kind}",
        start_time=start,
        end_time=start + _lasted(entry),
        attributes=attributes,
    )


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """``value`` as JSON: what JSON cannot hold becomes its text."""
    kind = type(value)
    if kind is str or kind is bool or value is None:  # nearly all there is
        return value
    if isinstance(value, _CONTAINERS):
        if not depth:
            return "(nested too deep)"
        if isinstance(value, dict | Mapping):
            return {
                key if type(key) is str else str(_plain_scalar(key)): plain(item, depth - 1)
                for key, item in value.items()
            }
        items = [plain(item, depth - 1) for item in value]
        return sorted(items, key=repr) if isinstance(value, AbstractSet) else items
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain_scalar(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _INT_BITS else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    try:
        return value.isoformat() if isinstance(value, datetime) else str(value)
    except Exception:  # noqa: BLE001 - a value that cannot be written must not lose the entry it is in
        return f"<{type(value).__name__}>"


def short(value: Any) -> Any:
    """``value`` as a JSON scalar: containers and others as text, text cut to `TEXT_LIMIT` characters."""
    if type(value) is str:
        return value[:TEXT_LIMIT]
    jsonable = plain(value)
    if isinstance(jsonable, dict | list):
        jsonable = json.dumps(jsonable, ensure_ascii=False)
    return jsonable[:TEXT_LIMIT] if isinstance(jsonable, str) else jsonable


def _first(entry: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((entry[name] for name in names if entry.get(name) is not None), None)


def _verdict(entry: Mapping[str, Any]) -> str:
    value = _first(entry, _VERDICTS)
    return "" if value is None else str(getattr(value, "value", value)).strip().lower()


def _time(value: Any) -> datetime | None:
    """A time out of a datetime, Unix seconds or ISO 8601; without a zone it is UTC."""
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        when = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def _lasted(entry: Mapping[str, Any]) -> timedelta:
    for name, in_ms in (("execution_time_ms", 1.0), ("duration_ms", 1.0), ("duration_s", 1000.0)):
        lasted = entry.get(name)
        if isinstance(lasted, int | float) and not isinstance(lasted, bool) and 0 <= lasted * in_ms < 1e12:
            return timedelta(milliseconds=lasted * in_ms)
    return timedelta(0)
