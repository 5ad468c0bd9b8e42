"""The fields of one entry of the audit record, and their canonical bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lgov_core._util.canonical import sorted_json
from lgov_core.types import Action, Decision, Effect, ToolOutcome

#: Longer texts are stored as a marker with their size, their hash and their beginning.
PAYLOAD_LIMIT: Final = 64 * 1024
_PAYLOAD_HEAD: Final = 4 * 1024
#: Names, ids and reasons are part of the chain for ever; a model can make them as long as it likes.
_FIELD_LIMIT: Final = 2048


class Payload(NamedTuple):
    """A text kept beside an entry as it is stored, and the length of the text in full.

    ``size`` counts characters of canonical JSON, all of them ASCII. ``stored`` is a marker when the text is too long.
    """

    stored: str
    size: int


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry as it is read back.

    ``kind`` is ``decision`` or ``outcome``, or one of those that a flight recorder, an erasure or a rotation writes
    (``trace``, ``trace_end``, ``signal``, ``erasure``, ``rotation``, ``retirement``), or ``confinement``, the box of a
    program; ``refers_to`` is the entry id that an outcome or an end belongs to.
    ``position`` counts over the whole record, ``seq`` within the writer's chain; both from 1. ``time_ns`` is Unix time
    and ``monotonic_ns`` the writer's monotonic clock, in nanoseconds. ``arguments`` is canonical JSON, and ``content`` a
    JSON object of what else belongs to the entry (``text``, the replacements of a transform, ``result``, ``error``);
    both None once erased. ``arguments_sha256`` is the SHA-256 (hex) of the entry's secret salt and the stored arguments:
    it stays, and says nothing about them once the salt is erased too. ``source`` says who wrote the judged text: ``user``,
    ``system``, ``agent`` or ``tool``. ``effect`` to ``shadowed`` and ``latency_us`` are
    None on an outcome, ``status`` on a decision. ``body`` holds every field that was hashed; ``inside`` is true in it when a
    program in a box said so, and the outside knows nothing but that.
    """

    position: int
    entry_id: str
    writer: str
    seq: int
    kind: str
    time_ns: int
    monotonic_ns: int
    point: str | None
    action_kind: str | None
    name: str | None
    arguments: str | None
    arguments_sha256: str | None
    content: str | None
    agent: str | None
    framework: str | None
    session_id: str | None
    rollout_id: str | None
    attempt: int | None
    call_id: str | None
    source: str | None
    refers_to: str | None
    status: str | None
    effect: str | None
    policy: str | None
    rule: str | None
    reason: str | None
    severity: str | None
    shadowed: bool | None
    policy_digest: str
    code_version: str
    latency_us: float | None
    prev_hash: bytes
    hash: bytes
    body: Mapping[str, Any]

    @property
    def verdict(self) -> Mapping[str, Any]:
        """What the policies decided, enforced or not: ``effect``, ``policy``, ``rule``, ``reason`` and ``severity``.

        Those of the most severe part that shadow mode kept from being enforced, or else the entry's own.
        """
        own = {name: getattr(self, name) for name in ("effect", "policy", "rule", "reason", "severity")}
        shadowed = [part for part in self.body.get("parts") or () if part["shadowed"]]
        return max([own, *shadowed], key=lambda part: Effect[(part["effect"] or "allow").upper()])


def entry_of(row: tuple[Any, ...]) -> AuditEntry:
    """The entry of a row ``(position, body, prev_hash, hash, arguments, content)``."""
    position, text, prev_hash, entry_hash, arguments, content = row
    body: dict[str, Any] = json.loads(text)
    fields: dict[str, Any] = {name: body.get(name) for name in AuditEntry.__dataclass_fields__}
    fields |= {"position": position, "arguments": arguments, "content": content, "body": body}
    return AuditEntry(**fields | {"prev_hash": prev_hash, "hash": entry_hash})


def action_fields(action: Action) -> dict[str, Any]:
    """The fields of an entry that say what was about to happen, and to whom."""
    return {
        "point": action.point,
        "action_kind": action.kind,
        "name": _short(action.name),
        "agent": _short(action.agent),
        "framework": _short(action.framework),
        "session_id": _short(action.session_id),
        "rollout_id": action.rollout_id,
        "attempt": action.attempt,
        "call_id": _short(action.call_id),
        "parent_id": _short(action.parent_id),
        "source": action.source,
    }


def decision_fields(action: Action, decision: Decision) -> dict[str, Any]:
    """The fields of an entry about a decision: what was decided, by which policies."""
    parts = decision.parts
    several = len(parts) > 1 or (parts and parts[0].effect is not decision.effect)
    return {
        "kind": "decision",
        **action_fields(action),
        **_part(decision),
        "abort": decision.abort,
        "policy_digest": decision.policy_digest or None,
        "latency_us": round(decision.latency_us, 3),
        "parts": [_part(part) for part in parts] if several else None,
    }


def _part(decision: Decision) -> dict[str, Any]:
    return {
        "effect": decision.effect.label,
        "policy": decision.policy,
        "rule": decision.rule,
        "reason": _short(decision.reason),
        "severity": decision.severity,
        "shadowed": decision.shadowed,
        **({"fault": True} if decision.fault else {}),
    }


def outcome_fields(outcome: ToolOutcome, decision_id: str | None) -> dict[str, Any]:
    """The fields of an entry about the outcome of an act."""
    return {
        "kind": "outcome",
        **action_fields(outcome.action),
        "refers_to": decision_id,
        "policy_digest": (outcome.decision and outcome.decision.policy_digest) or None,
        "status": outcome.status,
        "error_type": outcome.error_type,
        "started_at": outcome.started_at,
        "duration_s": outcome.duration_s,
    }


def body_text(fields: Mapping[str, Any]) -> str:
    """The canonical JSON of an entry; fields that are None are left out.

    Raises `ValueError` for a number that is not finite: such a body could not be read again.
    """
    return sorted_json({name: value for name, value in fields.items() if value is not None})


def content_payload(values: Mapping[str, Any]) -> Payload | None:
    """The texts that belong to an entry besides the arguments, without those that are None. None without any."""
    given = {name: value for name, value in values.items() if value is not None}
    return payload(given) if given else None


def payload(value: Mapping[str, Any]) -> Payload:
    """``value`` as canonical JSON, replaced by a marker when it is longer than `PAYLOAD_LIMIT`.

    What JSON has no form for is written as its ``repr``. Raises whatever that raises, and `RecursionError` for a value
    that contains itself or is nested too deeply.
    """
    text = canonical(value)
    if len(text) <= PAYLOAD_LIMIT:
        return Payload(text, len(text))
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    marker = {"lgov.cut": {"characters": len(text), "sha256": sha256, "begins": text[:_PAYLOAD_HEAD]}}
    return Payload(canonical(marker), len(text))


def canonical(value: Mapping[str, Any]) -> str:
    """``value`` as JSON with sorted keys, no white space and only ASCII: equal values give equal bytes."""
    return sorted_json(_plain(value))


def _plain(value: Any) -> Any:
    """``value`` in JSON's types: other keys as text, other values as their ``repr``."""
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        items: Mapping[Any, Any] = value
        return {key if isinstance(key, str) else repr(key): _plain(item) for key, item in items.items()}
    if isinstance(value, AbstractSet):
        return [_plain(item) for item in sorted(value, key=repr)]
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_plain(item) for item in value]
    return repr(value)


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= _FIELD_LIMIT:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:_FIELD_LIMIT]}… [{len(text)} characters, SHA-256 {digest}]"
