"""Proposed rules, and whether one denies a recorded call."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from lgov_core.errors import PolicyError
from lgov_core.policies import dry_run
from lgov_core.policies.loader import load_policy_text
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.registry import BUILTIN_POLICIES
from lgov_core.types import Action
from lgov_core.views.suggestion.acts import ToolActs

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
    """Whether a rule can be loaded and denies none of ``actions``. ``folder`` is where the policy file will be."""
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
