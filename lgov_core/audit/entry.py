"""What one entry of the audit record says, and its canonical bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, overload

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

    ``kind`` is ``decision`` or ``outcome``, or one of those that a flight recorder or an erasure writes (``trace``,
    ``trace_end``, ``signal``, ``erasure``); ``refers_to`` is the entry id that an outcome or an end belongs to.
    ``position`` counts over the whole record, ``seq`` within the writer's chain; both from 1. ``time_ns`` is Unix time
    and ``monotonic_ns`` the writer's monotonic clock, in nanoseconds. ``arguments`` is canonical JSON, and ``content`` a
    JSON object of what else belongs to the entry (``text``, the replacements of a transform, ``result``, ``error``);
    both None once erased. ``arguments_sha256`` is the SHA-256 (hex) of the entry's secret salt and the stored arguments:
    it stays, and says nothing about them once the salt is erased too. ``effect`` to ``shadowed`` and ``latency_us`` are
    None on an outcome, ``status`` on a decision. ``body`` holds every field that was hashed.
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


def entry_of(row: tuple[Any, ...]) -> AuditEntry:
    """The entry of a row ``(position, body, prev_hash, hash, arguments, content)``."""
    position, text, prev_hash, entry_hash, arguments, content = row
    body: dict[str, Any] = json.loads(text)
    same_name = {
        name: body.get(name)
        for name in AuditEntry.__dataclass_fields__
        if name not in ("position", "arguments", "content", "prev_hash", "hash", "body")
    }
    return AuditEntry(
        position=position,
        arguments=arguments,
        content=content,
        prev_hash=prev_hash,
        hash=entry_hash,
        body=body,
        **same_name,  # type: ignore[arg-type]
    )


def action_fields(action: Action) -> dict[str, Any]:
    """The fields of an entry that say what was about to happen, and to whom."""
    return {
        "point": action.point.value,
        "action_kind": action.kind,
        "name": _short(action.name),
        "agent": _short(action.agent),
        "framework": action.framework,
        "session_id": _short(action.session_id),
        "rollout_id": action.rollout_id,
        "attempt": action.attempt,
        "call_id": _short(action.call_id),
        "parent_id": _short(action.parent_id),
    }


def in_json(fields: Mapping[str, Any]) -> dict[str, str]:
    """Each field's value as JSON; fields that are None are left out."""
    return {name: _WRITE(value) for name, value in fields.items() if value is not None}


class OpenBody(Protocol):
    """The canonical JSON of an entry but for what is known last."""

    def closed(self, entry_id: str, writer: str, seq: int, time_ns: int, monotonic_ns: int) -> str:
        """The whole body: its id, its place in the chain and its times put in."""
        ...


class SortedBody:
    """Any entry's: ``fields``, each as JSON, those about the texts beside it and about the code that wrote it."""

    __slots__ = ("_pieces",)

    def __init__(self, fields: Mapping[str, str], stamp: Stamp, texts: Texts) -> None:
        self._pieces = {name: f'"{name}":{value},' for name, value in fields.items()}
        self._pieces |= {
            "arguments_sha256": texts.arguments,
            "code_version": stamp.code_version,
            "content_sha256": texts.content,
            "format": '"format":2,',
            "policy_digest": stamp.policy_digest,
        }

    def closed(self, entry_id: str, writer: str, seq: int, time_ns: int, monotonic_ns: int) -> str:
        """See `OpenBody`."""
        pieces = self._pieces | {
            "entry_id": f'"entry_id":"{entry_id}",',
            "monotonic_ns": f'"monotonic_ns":{monotonic_ns},',
            "seq": f'"seq":{seq},',
            "time_ns": f'"time_ns":{time_ns},',
            "writer": f'"writer":"{writer}",',
        }
        return "{" + "".join([pieces[name] for name in sorted(pieces)])[:-1] + "}"


class _DecisionBody:
    """A decision's: what stands before, between and behind ``entry_id``, ``monotonic_ns``, ``seq`` and ``time_ns``."""

    __slots__ = ("_begin", "_end", "_middle", "_rest")

    def __init__(self, begin: str, middle: str, rest: str, end: str) -> None:
        self._begin, self._middle, self._rest, self._end = begin, middle, rest, end

    def closed(self, entry_id: str, writer: str, seq: int, time_ns: int, monotonic_ns: int) -> str:
        """See `OpenBody`."""
        return (
            f'{{{self._begin}"entry_id":"{entry_id}",{self._middle}"monotonic_ns":{monotonic_ns},{self._rest}"seq":{seq}'
            f',{self._end}"time_ns":{time_ns},"writer":"{writer}"}}'
        )


def decision_body(action: Action, decision: Decision, stamp: Stamp, texts: Texts) -> OpenBody:
    """The body of an entry about a decision: what was decided, by which policies.

    As `SortedBody` would write it, at a fraction of the cost: this is on the path of every act.
    """
    parts, latency_us, reason, name = decision.parts, decision.latency_us, decision.reason, action.name
    abort, shadowed = decision.abort, decision.shadowed
    several = ""
    if len(parts) > 1 or (parts and parts[0].effect is not decision.effect):
        several = f'"parts":{_WRITE([_part(part) for part in parts])},'
    agent = "" if action.agent is None else _named("agent", action.agent)
    attempt = "" if action.attempt is None else f'"attempt":{_number(action.attempt)},'
    call_id = "" if action.call_id is None else _named("call_id", action.call_id)
    framework = "" if action.framework is None else _named("framework", action.framework)
    parent_id = "" if action.parent_id is None else _named("parent_id", action.parent_id)
    rollout_id = "" if action.rollout_id is None else f'"rollout_id":{_QUOTE(action.rollout_id)},'
    session_id = "" if action.session_id is None else _named("session_id", action.session_id)
    return _DecisionBody(
        f'"abort":{"true" if abort else "false"},"action_kind":{_QUOTE(action.kind)},{agent}{texts.arguments}{attempt}'
        f'{call_id}{stamp.code_version}{texts.content}"effect":{_EFFECT[decision.effect]},',
        f'{_FAULT if decision.fault else ""}"format":2,{framework}"kind":"decision"'
        f',"latency_us":{_number(round(latency_us, 3))},',
        f'"name":{_QUOTE(name if len(name) <= _FIELD_LIMIT else _short(name))},{parent_id}{several}'
        f'"point":{_QUOTE(action.point)},"policy":{_QUOTE(decision.policy)},{stamp.policy_digest}'
        f'"reason":{_QUOTE(reason if len(reason) <= _FIELD_LIMIT else _short(reason))},{rollout_id}'
        f'"rule":{_QUOTE(decision.rule)},',
        f'{session_id}"severity":{_QUOTE(decision.severity)},"shadowed":{"true" if shadowed else "false"},',
    )


def _named(name: str, value: str) -> str:
    return f'"{name}":{_QUOTE(value if len(value) <= _FIELD_LIMIT else _short(value))},'


class Stamp(NamedTuple):
    """What every entry says about the code that wrote it: fields of a body, each with its name and a comma."""

    policy_digest: str
    code_version: str


def stamp_of(policy_digest: str, code_version: str) -> Stamp:
    """The fields as JSON."""
    return Stamp(f'"policy_digest":{_WRITE(policy_digest)},', f'"code_version":{_WRITE(code_version)},')


class Texts(NamedTuple):
    """What an entry says about the texts kept beside it: fields of a body, with their names and commas."""

    arguments: str
    content: str


def texts_of(salt: bytes, arguments: Payload | None, content: Payload | None) -> Texts:
    """The sizes and salted hashes of the texts, as JSON."""
    return Texts(
        "" if arguments is None else _text_fields("arguments", salt, arguments),
        "" if content is None else _text_fields("content", salt, content),
    )


def _text_fields(name: str, salt: bytes, text: Payload) -> str:
    sha256 = hashlib.sha256(salt + text.stored.encode()).hexdigest()
    return f'"{name}_sha256":"{sha256}","{name}_size":{text.size},'


def _number(value: float) -> str:
    """A number as JSON. Raises `ValueError` for one that JSON has no form for: such a body could not be read again."""
    if type(value) is int or (type(value) is float and value - value == 0.0):  # finite: the case that happens, fast
        return repr(value)
    return _WRITE(value)


def _part(part: Decision) -> dict[str, Any]:
    said = {
        "effect": part.effect.label,
        "policy": part.policy,
        "rule": part.rule,
        "reason": _short(part.reason),
        "severity": part.severity.value,
        "shadowed": part.shadowed,
    }
    return {**said, "fault": True} if part.fault else said


def decision_content(action: Action, decision: Decision) -> Payload | None:
    """The texts that belong to a decision besides the arguments, or None."""
    if action.text is None and decision.arguments is None and decision.text is None:
        return None
    content = {"text": action.text, "new_arguments": decision.arguments, "new_text": decision.text}
    return payload({name: value for name, value in content.items() if value is not None})


def outcome_content(outcome: ToolOutcome) -> Payload | None:
    """The texts that belong to an outcome besides the arguments, or None."""
    if outcome.result is None and outcome.error is None:
        return None
    content = {"result": outcome.result, "error": outcome.error}
    return payload({name: value for name, value in content.items() if value is not None})


def payload(value: Mapping[str, Any]) -> Payload:
    """``value`` as canonical JSON, cut to a marker when it is longer than `PAYLOAD_LIMIT`.

    What JSON has no form for is written as its ``repr``. Raises whatever that raises, and `ValueError` or
    `RecursionError` for a value that holds itself or is nested too deep.
    """
    if not value:
        return _NOTHING
    text = canonical(value)
    if len(text) <= PAYLOAD_LIMIT:
        return Payload(text, len(text))
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    marker = {"lgov.cut": {"characters": len(text), "sha256": sha256, "begins": text[:_PAYLOAD_HEAD]}}
    return Payload(canonical(marker), len(text))


def canonical(value: Mapping[str, Any]) -> str:
    """``value`` as JSON with sorted keys, no white space and only ASCII: equal values give equal bytes."""
    if type(value) is dict and (flat := _flat(value)) is not None:
        return flat
    try:
        return _WRITE(value if type(value) is dict else dict(value))
    except (TypeError, ValueError):
        return _WRITE(_plain(value, 0))  # a key that is no string, or a number that is not finite


def _flat(value: dict[Any, Any]) -> str | None:
    """What the encoder would write for names and texts alone, which most arguments are; None for anything else."""
    for name, text in value.items():
        if type(name) is not str or type(text) is not str:
            return None
    return "{" + ",".join([f"{_QUOTE(name)}:{_QUOTE(value[name])}" for name in sorted(value)]) + "}"


def _plain(value: Any, depth: int) -> Any:
    """``value`` in what JSON has: other keys as text, other things as their ``repr``."""
    if depth > 200:
        raise ValueError("nested too deep, or holds itself")
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else repr(key): _plain(item, depth + 1)
            for key, item in value.items()  # pyright: ignore[reportUnknownVariableType]
        }
    if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (bytes, bytearray, memoryview)):
        items = sorted(value, key=repr) if isinstance(value, AbstractSet) else value
        return [_plain(item, depth + 1) for item in items]
    return repr(value)


def _other(value: Any) -> Any:
    """For the fast path: one step towards what JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value, key=repr)
    return repr(value)


_QUOTE = json.encoder.encode_basestring_ascii
_EFFECT = {effect: _QUOTE(effect.label) for effect in Effect}
_FAULT: Final = '"fault":true,'
_WRITE = json.JSONEncoder(
    default=_other, sort_keys=True, allow_nan=False, check_circular=False, separators=(",", ":")
).encode

_NOTHING = Payload("{}", 2)


@overload
def _short(text: str) -> str: ...
@overload
def _short(text: None) -> None: ...
@overload
def _short(text: str | None) -> str | None: ...
def _short(text: str | None) -> str | None:
    if text is None or len(text) <= _FIELD_LIMIT:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:_FIELD_LIMIT]}… [{len(text)} characters, SHA-256 {digest}]"
