"""Rules that recorded tool calls need: which tools, and arguments of which form.

A text that takes few values over many acts is one of those; any other text, list or number is bounded by the next power
of two, or by the next round number.
"""

from __future__ import annotations

import glob
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from lgov_core.authoring.replay import RecordedAction
from lgov_core.errors import PolicyError
from lgov_core.governor.rules import DEFAULT_RULE
from lgov_core.policies import dry_run
from lgov_core.policies.loader import load_policy_text
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.registry import BUILTIN_POLICIES
from lgov_core.types import BLOCKING, Action


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
        counts: Counter[str] = Counter()
        for action, count in zip(self.actions, self.counts, strict=True):
            value = action.arguments.get(argument, ())
            for text in value if isinstance(value, list | tuple) else (value,):
                if not isinstance(text, str):
                    return None
                counts[text] += count
        return counts

    def always_has(self, argument: str) -> bool:
        """Returns whether every call gave ``argument``."""
        return all(argument in action.arguments for action in self.actions)


def is_needed(act: RecordedAction) -> bool:
    """Returns whether a tool call ran, no rule objected to it (also not in shadow mode), and it did not fail.

    That no rule allows it, which in shadow mode is on record as well, is not an objection.
    """
    objected = act.verdict in BLOCKING and act.verdict_rule != DEFAULT_RULE
    return not objected and act.effect not in BLOCKING and act.status in (None, "ok")


def by_tool(recorded: Iterable[RecordedAction]) -> list[ToolActs]:
    """The calls by tool, the most used first."""
    tools: dict[str, ToolActs] = {}
    for act in recorded:
        tools.setdefault(act.action.name, ToolActs(act.action.name)).add(act.action)
    return sorted(tools.values(), key=lambda tool: (-tool.total, tool.name))


#: Characters of a comment's line.
_COMMENT = 300
_WIDTH = 120
#: Arguments that hold a command for a shell.
COMMANDS: Final = ("command", "cmd")


@dataclass(frozen=True, slots=True)
class ProposedRule:
    """A rule of a policy file, and comments that say what it rests on."""

    rule: Mapping[str, Any]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """The rule as YAML, an item of ``rules``, below its comments."""
        comments = "".join(f"  # {_one_line(note)}\n" for note in self.notes)
        written = yaml.safe_dump([dict(self.rule)], sort_keys=False, default_flow_style=None, width=_WIDTH)
        return comments + "".join(f"  {line}\n" for line in written.splitlines())


def rule_of(
    use: str, tool: ToolActs, argument: str | None, options: Mapping[str, Any], notes: Sequence[str]
) -> ProposedRule:
    """A rule for one tool; where the argument it judges was not always given, only for calls that give it."""
    name = tool.name if argument is None else f"{tool.name}: {use} in {argument}"
    rule: dict[str, Any] = {"name": name, "tools": [glob.escape(tool.name)]}
    if argument is not None and not tool.always_has(argument):
        rule["when"] = {"field": ["arguments", argument], "exists": True}
    return ProposedRule({**rule, "use": use, "with": dict(options)}, notes)


def holds(proposed: ProposedRule, actions: Iterable[Action], folder: Path) -> bool:
    """Returns whether a rule can be loaded and denies none of ``actions``. ``folder`` is where the policy file will be."""
    rules = [{"name": " allow", "use": "allow"}, dict(proposed.rule)]
    try:
        policies = load(yaml.safe_dump({"version": 1, "rules": rules}), folder)
    except PolicyError:
        return False
    return not any(policies.judge(action).blocks for action in actions)


def load(text: str, folder: Path) -> PolicySet:
    """The policies in ``text``, as if it were a file in ``folder``. Raises `PolicyFileError`."""
    with dry_run():
        return load_policy_text(text.encode(), str(folder / "policy.yaml"), registry=BUILTIN_POLICIES)[0]


def _one_line(text: str) -> str:
    """``text`` without anything that could end a comment: it may hold what a model wrote."""
    return json.dumps(text)[1:-1].replace('\\"', '"')[:_COMMENT]


#: A text is one of the values there were when there are at most so many, and each was there so often on average.
_FEW: Final = 10
_OFTEN: Final = 5
#: The least bound of a text and of a list.
_TEXT: Final = 16
_LIST: Final = 4
#: Keys of an object beyond which it is a mapping from names, not a form.
_KEYS: Final = 32
_DEPTH: Final = 8


def schema_of(values: Sequence[Any], depth: int = 0) -> dict[str, Any]:
    """The schema of ``values`` (JSON values, at least one; repeated ones count)."""
    kinds = sorted({_kind(value) for value in values})
    if "integer" in kinds and "number" in kinds:
        kinds.remove("integer")
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    texts = [value for value in values if isinstance(value, str)]
    if texts and len(kinds) == 1 and is_enumerable(texts):
        return {"type": "string", "enum": sorted(set(texts))}
    if texts:
        schema["maxLength"] = _power_of_two(max(map(len, texts)), _TEXT)
    if numbers := [value for value in values if _kind(value) in ("integer", "number")]:
        schema |= {"minimum": min(0, -_round_number(-min(numbers))), "maximum": max(0, _round_number(max(numbers)))}
    if lists := [value for value in values if isinstance(value, list | tuple)]:
        schema["maxItems"] = _power_of_two(max(map(len, lists)), _LIST)
        items = [item for value in lists for item in value]
        if items and depth < _DEPTH:
            schema["items"] = schema_of(items, depth + 1)
    if objects := [value for value in values if isinstance(value, dict)]:
        schema |= _object(objects, depth)
    return schema


def is_enumerable(texts: Sequence[str]) -> bool:
    """Returns whether so few different texts were given so often that they are taken for all there are."""
    distinct = len(set(texts))
    return distinct <= _FEW and len(texts) >= _OFTEN * max(distinct, 2)


def _object(objects: Sequence[dict[str, Any]], depth: int) -> dict[str, Any]:
    keys = list(dict.fromkeys(key for item in objects for key in item))
    if depth >= _DEPTH or len(keys) > _KEYS:
        return {}
    properties = {key: schema_of([item[key] for item in objects if key in item], depth + 1) for key in keys}
    schema: dict[str, Any] = {"properties": properties} if keys else {}
    if required := [key for key in keys if all(key in item for item in objects)]:
        schema["required"] = required
    return {**schema, "additionalProperties": False}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list | tuple):
        return "array"
    return {str: "string", int: "integer", float: "number"}.get(type(value), "null")


def _power_of_two(most: int, least: int) -> int:
    return max(least, 1 << max(most - 1, 0).bit_length())


def _round_number(most: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not less; 0 for what is not above 0."""
    if most <= 0:
        return 0
    power = 10 ** math.floor(math.log10(most))
    rounded = next(step * power for step in (1, 2, 5, 10) if step * power >= most)
    return int(rounded) if rounded == int(rounded) else rounded


def described(schema: dict[str, Any]) -> str:
    """A schema of one argument in a few words, for a comment."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "enum" in schema:
        return f"one of {len(schema['enum'])} texts"
    bounds = [f"{name} {json.dumps(schema[name])}" for name in ("maxLength", "maximum", "maxItems") if name in schema]
    return " or ".join(kinds) + (f" ({', '.join(bounds)})" if bounds else "")
