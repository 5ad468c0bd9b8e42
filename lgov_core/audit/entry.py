"""Entries of the audit record: their fields and canonical bytes, and what writes them."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from lgov_core._util.json_text import sorted_json
from lgov_core.audit.redaction import Redaction, redaction
from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, ToolOutcome

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
        **({"sources": decision.sources} if decision.sources else {}),
        **({"request": decision.request} if decision.request else {}),
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
    texts = {name: value for name, value in values.items() if value is not None}
    return payload(texts) if texts else None


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


class EntryWriter(ABC):
    """Makes entries: takes out what ``redact`` names, and puts the rest into the fields of the record."""

    def __init__(self, redact: Redaction | Callable[[str, Any], Any] | Iterable[str] | None = None) -> None:
        self._redact = redaction(redact)

    @abstractmethod
    def append_entry(
        self, fields: Mapping[str, Any], arguments: Payload | None, content: Payload | None, prefix: str
    ) -> str:
        """Makes an entry durable and returns its id, which begins with ``prefix``. Raises `AuditError`."""

    def commit(self, action: Action, decision: Decision) -> str:
        """Appends the decision and returns its entry's id once it is durable.

        Raises `AuditError`. Callable from any thread. What the arguments hold besides JSON values is recorded as its
        ``repr``; what is longer than 64 KiB as its beginning, size and SHA-256.
        """
        with recordable(action.name):
            if self._redact is not None:
                action, decision = self._redact.decided(action, decision)
            arguments, fields = payload(action.arguments), decision_fields(action, decision)
            texts = {"text": action.text, "new_arguments": decision.arguments, "new_text": decision.text}
            content = content_payload(texts)
        return self.append_entry(fields, arguments, content, "aud")

    def commit_outcome(self, outcome: ToolOutcome, decision_id: str | None) -> str:
        """Appends the outcome of an act, as an entry that refers to its decision's, and returns the new entry's id.

        The arguments are kept with the decision; the outcome keeps them only when there was none. As `commit` otherwise.
        """
        with recordable(outcome.action.name):
            if self._redact is not None:
                outcome = self._redact.outcome(outcome)
            arguments = payload(outcome.action.arguments) if decision_id is None else None
            fields = outcome_fields(outcome, decision_id)
            content = content_payload({"result": outcome.result, "error": outcome.error})
        return self.append_entry(fields, arguments, content, "out")

    def append(
        self, kind: str, fields: Mapping[str, Any], *, arguments: Mapping[str, Any] | None, content: Mapping[str, Any]
    ) -> str:
        """Appends an entry of another kind, made of ``fields``, and returns its id. Raises `AuditError`."""
        with recordable(kind):
            if self._redact is not None:
                arguments, content = self._redact.texts(arguments, content)
            argument_payload = None if arguments is None else payload(arguments)
            texts = content_payload(content)
        return self.append_entry({"kind": kind, **fields}, argument_payload, texts, kind[:3])


@contextmanager
def recordable(name: str) -> Generator[None]:
    """Turns any exception of the block into the error for an entry that cannot be made."""
    try:
        yield
    except Exception as error:
        raise AuditError(
            f"the arguments of {name[:100]!r} cannot be recorded: {type(error).__name__}: {error}",
            hint="an act that cannot be put on record is not done",
        ) from error
