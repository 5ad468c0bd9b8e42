"""LightningSpan: one entry of a flight recorder as a span, in the documented names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

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
