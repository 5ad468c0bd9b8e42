"""Entries of the audit record as they are read back, and which of them a reader asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from lgov_core.types import Effect


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
        """The verdict of the policies, enforced or not: ``effect``, ``policy``, ``rule``, ``reason`` and ``severity``.

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


@dataclass(frozen=True, slots=True)
class EntrySelection:
    """The entries that fit every field that is set.

    ``since`` and ``before`` are Unix times in seconds. ``tool`` and ``agent`` are globs; only entries about a tool call have
    a tool. ``text`` is looked for in any case: in the arguments and texts of an entry, its name and its reasons.
    """

    rollout_id: str | None = None
    session_id: str | None = None
    since: float | None = None
    before: float | None = None
    tool: str | None = None
    agent: str | None = None
    text: str | None = None

    def holds(self, entry: AuditEntry) -> bool:
        """Returns whether ``entry`` is one of them."""
        return (
            self.rollout_id in (None, entry.rollout_id)
            and self.session_id in (None, entry.session_id)
            and (self.since is None or entry.time_ns >= self.since * 1e9)
            and (self.before is None or entry.time_ns < self.before * 1e9)
            and (self.tool is None or (is_tool_call(entry) and fnmatchcase(entry.name or "", self.tool)))
            and (self.agent is None or fnmatchcase(entry.agent or "", self.agent))
            and (self.text is None or _mentions(entry, self.text.casefold()))
        )


def is_tool_call(entry: AuditEntry) -> bool:
    """Returns whether the entry is about a tool call, before or after it."""
    return (entry.point or "").endswith("tool_call")


def _mentions(entry: AuditEntry, needle: str) -> bool:
    reasons = (verdict["reason"] for verdict in (entry.verdict, *(entry.body.get("parts") or ())))
    texts = (entry.name, *reasons, *_texts(entry.arguments), *_texts(entry.content))
    return any(needle in text.casefold() for text in texts if text)


def _texts(value: Any) -> Iterator[str]:
    """Every text in ``value``, also those in a text that is JSON, as the arguments of a tool call are in a model's reply."""
    if isinstance(value, Mapping):
        items: Mapping[str, Any] = value
        for key, item in items.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
        if value.lstrip().startswith(("{", "[", '"')):
            try:
                yield from _texts(json.loads(value))
            except (ValueError, RecursionError):
                return
    elif value is not None:
        yield str(value)
