"""Which calls become transitions: those of some agents or models, or whose spans say something."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.transitions.reading.records import Records
from lgov_core.types import CapturedCall, JSONValue


@dataclass(frozen=True, slots=True)
class Selection:
    """Names or globs (``*``, ``?``, ``[...]``) that have to match as a whole and in case: ``write`` never takes ``rewrite``.

    ``agents`` and ``models``: one of them must match, unless there are none. ``attributes``: for each name, the value on
    the call's span, or on the nearest span above it that has one, must match (lists: any of their values; true and
    false in lower case). All three must hold. Nothing given selects every call of the rollouts to train on; ``held_out`` adds
    those of rollouts that measure the model (`Rollout.held_out`). A call is selected or not by itself: that
    an agent inside another is not selected changes nothing for the other's calls. Immutable.
    """

    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    held_out: bool = False

    @property
    def everything(self) -> bool:
        """Whether it takes every call of a rollout."""
        return not (self.agents or self.models or self.attributes)


class Selecting:
    """A selection at work on ``records``, remembering what it has found. Not safe for use from several threads."""

    def __init__(self, selection: Selection, records: Records) -> None:
        self._selection = selection
        self._records = records
        self._agents: set[str] = set()
        self._models: set[str] = set()
        self._nameless: list[str] = []

    @property
    def held_out(self) -> bool:
        """Whether rollouts that measure the model are selected."""
        return self._selection.held_out

    def takes(self, call: CapturedCall) -> bool:
        """Whether ``call`` is selected."""
        selection = self._selection
        if selection.agents:
            if call.agent is None:
                self._nameless.append(call.response_id)
                return False
            self._agents.add(call.agent)
            if not matches(call.agent, selection.agents):
                return False
        if selection.models:
            self._models.add(call.model)
            if not matches(call.model, selection.models):
                return False
        return not selection.attributes or self._attributes_match(call)

    def missed(self) -> list[Diagnostic]:
        """What was selected and never came up, and the calls without an agent's name."""
        found = [Diagnostic(Finding.AGENT_NOT_KNOWN, response_id) for response_id in self._nameless]
        for patterns, names, finding in (
            (self._selection.agents, self._agents, Finding.UNKNOWN_AGENT),
            (self._selection.models, self._models, Finding.UNKNOWN_MODEL),
        ):
            for pattern in patterns:
                if not any(matches(name, (pattern,)) for name in names):
                    known = ", ".join(sorted(names)[:10]) or "none"
                    found.append(Diagnostic(finding, pattern, f"those on record: {known}"))
        return found

    def _attributes_match(self, call: CapturedCall) -> bool:
        origins, tree = self._records.origins.get(call.response_id, ()), self._records.tree
        spans = [span for span in origins if tree.place(span).rollout_id in (None, call.rollout_id)]
        return all(
            any(matches(text, (pattern,)) for span in spans for text in _texts(tree.nearest(span, name)))
            for name, pattern in self._selection.attributes.items()
        )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether ``name`` is one of ``patterns`` or matches one of them as a whole."""
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _texts(value: JSONValue) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, bool):
        return ("true" if value else "false",)
    if isinstance(value, Sequence):
        items: Sequence[Any] = value
        return [text for item in items for text in _texts(item)]
    return (str(value),)
