"""Puts a policy together from recorded tool calls, and judges all of them by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgov_core._util.plurals import counted
from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies.sql.policy import COMMON_DIALECTS
from lgov_core.types import Decision, Point
from lgov_core.views.replay import RecordedAction
from lgov_core.views.suggestion.acts import ToolActs, by_tool, is_needed
from lgov_core.views.suggestion.places import place_candidates
from lgov_core.views.suggestion.rules import ProposedRule, holds, load, rule_of
from lgov_core.views.suggestion.said import said_rules
from lgov_core.views.suggestion.schemas import described, schema_of

Judged = tuple[RecordedAction, Decision]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A proposed policy file and its proof.

    ``text`` is the file, ``tools`` are those it allows. ``needed`` counts the tool calls that it was made for, and ``denied``
    are those of them that it denies: none, or the proposal is wrong. ``rest`` are the other recorded calls (blocked then,
    objected to in shadow mode, or failed), each with what the proposal decides. ``incomplete`` counts calls whose arguments
    are not on record.
    """

    text: str
    tools: Sequence[str]
    needed: int
    denied: Sequence[Judged]
    rest: Sequence[Judged]
    incomplete: int


def suggest(
    recorded: Iterable[RecordedAction | None],
    *,
    source: str,
    folder: Path | None = None,
    dialects: Sequence[str] = COMMON_DIALECTS,
) -> Suggestion:
    """The least-privilege policy for the tool calls in ``recorded`` that ran, were objected to by no policy and did not fail.

    Nothing is run or written. ``source`` names the record in the file's first comment; ``folder`` is where the file will
    be (default: the working directory), from which its relative paths count. SQL is read in the first of ``dialects`` in
    which all of it is understood. Each rule is the strictest of its candidates that denies none of the needed calls.
    Raises `PolicyError` when there is no such call, or for an unknown dialect.
    """
    folder = folder or Path.cwd()
    every = list(recorded)
    acts = [one for one in every if one is not None and one.action.point is Point.PRE_TOOL_CALL]
    needed, rest = [one for one in acts if is_needed(one)], [one for one in acts if not is_needed(one)]
    if not needed:
        raise PolicyError(
            f"there is no tool call in {source} that ran and was not objected to",
            hint="record a run in shadow mode: mode: shadow in the policy file",
        )
    tools = by_tool(needed)
    rules = [rule for tool in tools for rule in _of_tool(tool, folder, dialects)]
    rules += [rule for rule, actions in said_rules(tools) if holds(rule, actions, folder)]
    rules += _rate(acts)
    text = _written(rules, needed, len(acts), source)
    with closing(Governor(load(text, folder), manager=make_plugin_manager(builtin=(), third_party=False))) as governor:
        judged = [(one, governor.decide(one.action)) for one in needed]
        others = [(one, governor.decide(one.action)) for one in rest]
    denied = [(one, decision) for one, decision in judged if decision.blocks]
    return Suggestion(
        text, [tool.name for tool in tools], len(needed), denied, others, sum(one is None for one in every)
    )


def _of_tool(tool: ToolActs, folder: Path, dialects: Sequence[str]) -> list[ProposedRule]:
    """That the tool may be called, with which arguments, and where they may lead."""
    known, found, notes = _schema_rule(tool, folder), list[ProposedRule](), list[str]()
    for candidates in place_candidates(tool, dialects):
        tried = None
        for tried in candidates:
            if holds(tried, tool.actions, folder):
                found.append(tried)
                break
        else:
            if tried is not None and tried.rule["use"] == "shell":  # a query need not be SQL, a command is one
                notes.append("ANY COMMAND of this length: a shell rule would deny some of these calls")
    return [ProposedRule(known.rule, [*known.notes, *notes]), *found]


def _schema_rule(tool: ToolActs, folder: Path) -> ProposedRule:
    values: list[Mapping[str, Any]] = []
    for action, count in zip(tool.actions, tool.counts, strict=True):
        values += [dict(action.arguments)] * count
    schema = schema_of(values)
    total = tool.total
    notes = [f"{tool.name}: {counted(total, 'call')}, {counted(len(tool.actions), 'set')} of arguments"]
    for name, of_it in schema.get("properties", {}).items():
        given = sum(name in one for one in values)
        notes.append(f"  {name}: {described(of_it)}, in {counted(given, 'call')}")
    escaped = {"allow": rule_of("tool", tool, None, {}, ()).rule["tools"]}
    with_schema = rule_of("tool", tool, None, {**escaped, "schemas": {tool.name: schema}}, notes)
    if holds(with_schema, tool.actions, folder):
        return with_schema
    return rule_of("tool", tool, None, escaped, [*notes, "no schema fits its arguments"])


def _rate(acts: Sequence[RecordedAction]) -> list[ProposedRule]:
    """A bound on the calls of one rollout: twice as many as were ever tried. None where calls belong to no rollout."""
    counts = Counter(one.action.rollout_id for one in acts)
    if None in counts:
        return []
    most = max(counts.values())
    options = {"max_calls": 2 * most, "per_seconds": 3600, "per": "rollout"}
    rule = {"name": "calls of a rollout", "use": "rate", "with": options}
    return [ProposedRule(rule, [f"calls of a rollout: {most} at most, in {counted(len(counts), 'rollout')}"])]


def _written(rules: Sequence[ProposedRule], needed: Sequence[RecordedAction], every: int, source: str) -> str:
    rollouts = len({one.action.rollout_id for one in needed})
    of = f"{len(needed)} of {counted(every, 'tool call')}, in {counted(rollouts, 'rollout')}"
    head = ProposedRule({}, [f"Suggested from {source}: {of}."])
    first = head.text().splitlines()[0].strip()
    return (
        f"{first}\n"
        "# It allows these and little more. Read it, widen what is too narrow, and try it on other records:\n"
        "# lgov policy replay FILE STORE. The numbers say how often something was seen.\n"
        "version: 1\nname: suggested\ndefault: deny\nrules:\n" + "\n".join(rule.text() for rule in rules)
    )
