"""The recorded tool calls, those that are needed apart from the rest, and equal ones together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lgov_core.policies.policy_set import DEFAULT_RULE
from lgov_core.types import BLOCKING, Action
from lgov_core.views.replay import RecordedAction


@dataclass(slots=True)
class ToolActs:
    """The needed calls of one tool: ``actions`` once each, with ``counts`` by their index; ``total`` of them were made."""

    name: str
    actions: list[Action] = field(default_factory=list[Action])
    counts: list[int] = field(default_factory=list[int])
    _index: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def total(self) -> int:
        """How many calls there were."""
        return sum(self.counts)

    def add(self, action: Action) -> None:
        """Counts one call."""
        key = json.dumps([action.kind, dict(action.arguments), action.context.get("user_text")], default=repr)
        index = self._index.setdefault(key, len(self.actions))
        if index == len(self.actions):
            self.actions.append(action)
            self.counts.append(0)
        self.counts[index] += 1

    def argument_names(self) -> list[str]:
        """The names of all arguments that were given, in the order in which they were first."""
        return list(dict.fromkeys(name for action in self.actions for name in action.arguments))

    def texts(self, argument: str) -> Counter[str] | None:
        """How often each text was given as ``argument``, by itself or in a list; None where something else was given."""
        found: Counter[str] = Counter()
        for action, count in zip(self.actions, self.counts, strict=True):
            for text in _texts(action.arguments, argument):
                if not isinstance(text, str):
                    return None
                found[text] += count
        return found

    def always_has(self, argument: str) -> bool:
        """Whether every call gave ``argument``."""
        return all(argument in action.arguments for action in self.actions)


def _texts(arguments: Mapping[str, Any], name: str) -> Iterator[Any]:
    value = arguments.get(name, ())
    yield from value if isinstance(value, list | tuple) else (value,)


def is_needed(one: RecordedAction) -> bool:
    """Whether a tool call ran, no rule objected to it (also not in shadow mode), and it did not fail.

    That no rule allows it, which in shadow mode is on record as well, is not an objection.
    """
    objected = one.verdict in BLOCKING and one.verdict_rule != DEFAULT_RULE
    return not objected and one.effect not in BLOCKING and one.status in (None, "ok")


def by_tool(recorded: Iterable[RecordedAction]) -> list[ToolActs]:
    """The calls by tool, the most used first."""
    found: dict[str, ToolActs] = {}
    for one in recorded:
        found.setdefault(one.action.name, ToolActs(one.action.name)).add(one.action)
    return sorted(found.values(), key=lambda tool: (-tool.total, tool.name))
