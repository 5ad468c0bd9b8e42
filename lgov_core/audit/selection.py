"""Which entries of an audit record a reader asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from lgov_core.audit.entry import AuditEntry


@dataclass(frozen=True, slots=True)
class Selection:
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
        """Whether ``entry`` is one of them."""
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
    """Whether the entry is about a tool call, before or after it."""
    return (entry.point or "").endswith("tool_call")


def _mentions(entry: AuditEntry, wanted: str) -> bool:
    reasons = (part["reason"] for part in (entry.verdict, *(entry.body.get("parts") or ())))
    texts = (entry.name, *reasons, *_texts(entry.arguments), *_texts(entry.content))
    return any(wanted in text.casefold() for text in texts if text)


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
