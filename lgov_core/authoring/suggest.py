"""Puts a policy together from recorded tool calls, and judges all of them by it.

For where a call leads (SQL tables, folders, hosts, commands) each argument has candidates, the strictest first. The first that
denies none of the recorded calls is proposed; an argument that is something else than its name says has none.
"""

from __future__ import annotations

import glob
import os.path
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from lgov_core.authoring.replay import RecordedAction
from lgov_core.authoring.rules import (
    COMMANDS,
    ProposedRule,
    ToolActs,
    by_tool,
    described,
    holds,
    is_needed,
    load,
    rule_of,
    schema_of,
)
from lgov_core.errors import PolicyError, counted
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies.flow import FlowPolicy, ValueSource
from lgov_core.policies.network.addresses import KINDS, Address
from lgov_core.policies.path import PATH_ARGUMENTS
from lgov_core.policies.sql.names import GUARDED, READS
from lgov_core.policies.sql.policy import COMMON_DIALECTS, SQL_ARGUMENTS
from lgov_core.policies.sql.reader import SQLTouches
from lgov_core.types import Action, Decision, Point

_LOOKS_LIKE_A_PATH: Final = re.compile(r".*[/\\].*|.*\.\w{1,8}", re.DOTALL)
_URL: Final = re.compile(r"(?i)https?://")
#: Kinds of statement that only some tables may get, and that a rule denies where they were not seen.
_WRITES: Final = sorted(GUARDED - READS - {"PRAGMA", "TRANSACTION"})


def place_candidates(tool: ToolActs, dialects: Sequence[str]) -> Iterator[Iterator[ProposedRule]]:
    """For each argument of ``tool`` that may name a place, its candidates, the strictest first."""
    for argument in tool.argument_names():
        texts = tool.texts(argument)
        if not texts:
            continue
        if argument in SQL_ARGUMENTS:
            yield _sql(tool, argument, texts, dialects)
        if argument in COMMANDS:
            options = {"argument": argument, "cwd": "."}
            yield iter(
                [rule_of("shell", tool, argument, options, ["commands of the table, in the folder of this file"])]
            )
        if all(map(_URL.match, texts)):
            yield _egress(tool, argument, texts)
        elif argument in PATH_ARGUMENTS and all(map(_LOOKS_LIKE_A_PATH.fullmatch, texts)):
            yield _path(tool, argument, texts)


def _sql(tool: ToolActs, argument: str, texts: Counter[str], dialects: Sequence[str]) -> Iterator[ProposedRule]:
    for dialect in dialects:
        reader = SQLTouches(dialect)
        tables: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        for text, count in texts.items():
            its_tables, its_kinds = reader.read(text)
            tables.update(dict.fromkeys(its_tables, count))
            kinds.update(dict.fromkeys(its_kinds, count))
        notes = [f"tables: {_counted(tables)}", f"statements: {_counted(kinds)}"]
        for mode in ("read_only", "guarded"):
            options: dict[str, Any] = {"dialect": dialect, "mode": mode, "argument": argument}
            if mode == "guarded" and (unseen := [kind for kind in _WRITES if kind not in kinds]):
                options["deny"] = unseen
            if texts.total() > 1:
                yield rule_of("sql", tool, argument, {**options, "tables": sorted(map(glob.escape, tables))}, notes)
            yield rule_of("sql", tool, argument, options, [*notes, "not limited to tables: some texts name others"])


def _path(tool: ToolActs, argument: str, texts: Counter[str]) -> Iterator[ProposedRule]:
    try:
        common = os.path.commonpath(texts)
    except ValueError:  # absolute and relative ones
        return
    folder = os.path.dirname(common) if common in texts and os.path.splitext(common)[1] else common
    if texts.total() == 1 and not os.path.isabs(folder):
        folder = ""
    options: dict[str, Any] = {"argument": argument, "roots": [folder or "."]}
    if not os.path.isabs(folder):
        options["cwd"] = "."
    yield rule_of("path", tool, argument, options, [f"{len(texts)} paths"])


def _egress(tool: ToolActs, argument: str, texts: Counter[str]) -> Iterator[ProposedRule]:
    hosts: Counter[str] = Counter()
    schemes: set[str] = set()
    for text, count in texts.items():
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            return
        schemes.add(parts.scheme.lower())
        hosts[host if port is None else f"{host}:{port}"] += count
    notes = [f"hosts: {_counted(hosts)}"]
    options: dict[str, Any] = {"argument": argument, "domains": sorted(hosts), "schemes": sorted(schemes)}
    if texts.total() == 1:
        notes.append("one example: open to every public host; name yours in domains")
        yield rule_of("egress", tool, argument, {**options, "domains": ["*"], "resolve": False}, notes)
    yield rule_of("egress", tool, argument, options, notes)


def _counted(names: Counter[str]) -> str:
    counted = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in counted) or "none"


#: Addresses that the user did not say beyond which a tool is one that takes them from anywhere.
_FOREIGN: Final = 20
#: Where a name or a number may come from unless the record says more: not out of a text that strangers write.
_OPEN: Final = ("user", "system", "trusted", "fields")


@dataclass(slots=True)
class _Flows:
    """Where the values of one tool's calls came from, and what neither the user nor a field of a result had."""

    tool: ToolActs
    came: Counter[str] = field(default_factory=Counter[str])
    fields: Counter[str] = field(default_factory=Counter[str])
    foreign: Counter[Address] = field(default_factory=Counter[Address])
    texts: set[str] = field(default_factory=set[str])
    naming: int = 0

    def note(self, action: Action, sources: Iterable[ValueSource]) -> None:
        """Counts the values of one call."""
        named = False
        for source in sources:
            by_user, fields = {"user", "system"} & set(source.texts), [name for name in source.texts if ":" in name]
            self.came[f"{source.argument} from {(*by_user, *fields, *source.texts, 'the model')[0]}"] += 1
            if isinstance(source.value, Address):
                named = True
                if not by_user and fields:
                    self.fields[next((name for name in fields if name in self.fields), fields[0])] += 1
                elif not by_user:
                    self.foreign[source.value] += 1
            elif not (by_user or fields) and source.texts:
                self.texts.add("pointed" if source.pointed else source.texts[0])
        self.naming += named

    def rule(self, kinds: Sequence[str], allow: Iterable[str], values: Iterable[str], why: str) -> ProposedRule:
        """A rule for this tool, with where its values came from."""
        options: dict[str, Any] = {"kinds": list(kinds), "allow": list(allow)}
        if listed := sorted(map(glob.escape, values)):
            options["values"] = listed
        rule = {
            "name": f"{self.tool.name}: {why}",
            "tools": [glob.escape(self.tool.name)],
            "use": "flow",
            "with": options,
        }
        return ProposedRule(rule, [f"{self.tool.name}: {_counted(self.came)}"])


def flow_rules(tools: Sequence[ToolActs], every: Sequence[RecordedAction]) -> list[ProposedRule]:
    """Rules by which values must come from the user, from fields of results, or from where the record has them.

    For addresses one rule for all tools that only got them from the user, and one for each other, with the fields that it got
    them from and what came from elsewhere by name; none for a tool that names too many others, or no address while what
    the user said is not on record. For names and numbers, where results are on record, the same: one rule for all tools, and
    one for each that took some out of the middle of a text.
    """
    trace, flows = FlowPolicy(allow="*"), {tool.name: _Flows(tool) for tool in tools}
    has_results = False
    for act in every:
        for event in act.events:
            trace.observe(event)
            has_results = has_results or bool(getattr(event, "result", None))
        if act.action.name in flows and is_needed(act):
            flows[act.action.name].note(act.action, trace.sources(act.action))
    strict = [of for of in flows.values() if not (of.foreign or of.fields) and all(map(_has_user, of.tool.actions))]
    open_to = [of for of in flows.values() if not of.texts and has_results]
    rules: list[ProposedRule] = []
    if strict:
        naming, total = sum(of.naming for of in strict), sum(of.tool.total for of in strict)
        note = f"{naming} of {total} calls name an address (e-mail, URL, path, account, phone), which the user had said"
        names = [glob.escape(of.tool.name) for of in strict]
        rules.append(ProposedRule({"name": "said by the user", "tools": names, "use": "provenance"}, [note]))
    if open_to:
        names = [glob.escape(of.tool.name) for of in open_to]
        options = {"kinds": ["number", "name"], "allow": list(_OPEN)}
        note = "names and numbers: from the user, from a field of a result, or the model's own; not out of a stranger's text"
        rules.append(
            ProposedRule({"name": "names and numbers", "tools": names, "use": "flow", "with": options}, [note])
        )
    for of in flows.values():
        listed = [address.form for address in of.foreign]
        if of.fields and len(listed) <= _FOREIGN:
            rules.append(of.rule(KINDS, [*_OPEN[:3], *sorted(of.fields)], listed, "addresses"))
        elif 0 < len(listed) <= _FOREIGN:
            rule = {
                "name": f"{of.tool.name}: said by the user",
                "tools": [glob.escape(of.tool.name)],
                "use": "provenance",
                "with": {"trusted": sorted(map(glob.escape, listed))},
            }
            named = ", ".join(f"{address.form} {count}" for address, count in of.foreign.most_common())
            notes = [f"{of.tool.name}: addresses must come from the user; allowed besides: {named}"]
            rules.append(ProposedRule(rule, notes))
        if of.texts and has_results:
            rules.append(of.rule(["number", "name"], [*_OPEN, *sorted(of.texts)], (), "names and numbers"))
    return rules


def _has_user(action: Action) -> bool:
    return bool(action.context.get("user_text"))


def _replayed(text: str, folder: Path, every: Iterable[RecordedAction]) -> Iterator[Judged]:
    """Each recorded call with what a policy decides now, in order, as `lgov_core.authoring.replay.replay` has it."""
    with closing(Governor(load(text, folder), manager=make_plugin_manager(builtin=(), third_party=False))) as governor:
        for act in every:
            for event in act.events:
                governor.observe(event)
            yield act, governor.decide(act.action)


def _holds_in_order(rule: ProposedRule, folder: Path, every: Sequence[RecordedAction]) -> bool:
    """Returns whether a rule that remembers denies none of the needed calls."""
    text = yaml.safe_dump({"version": 1, "rules": [{"name": " allow", "use": "allow"}, dict(rule.rule)]})
    try:
        return not any(decision.blocks and is_needed(act) for act, decision in _replayed(text, folder, every))
    except PolicyError:
        return False


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
    acts = [act for act in every if act is not None and act.action.point is Point.PRE_TOOL_CALL]
    needed = [act for act in acts if is_needed(act)]
    if not needed:
        raise PolicyError(
            f"there is no tool call in {source} that ran and was not objected to",
            hint="record a run in shadow mode: mode: shadow in the policy file",
        )
    tools = by_tool(needed)
    rules = [rule for tool in tools for rule in _of_tool(tool, folder, dialects)]
    rules += [rule for rule in flow_rules(tools, acts) if _holds_in_order(rule, folder, acts)]
    rules += _rate(acts)
    text = _written(rules, needed, len(acts), source)
    replayed = list(_replayed(text, folder, acts))
    denied = [(act, decision) for act, decision in replayed if is_needed(act) and decision.blocks]
    others = [(act, decision) for act, decision in replayed if not is_needed(act)]
    return Suggestion(
        text, [tool.name for tool in tools], len(needed), denied, others, sum(act is None for act in every)
    )


def _of_tool(tool: ToolActs, folder: Path, dialects: Sequence[str]) -> list[ProposedRule]:
    """That the tool may be called, with which arguments, and where they may lead."""
    schema_rule, rules, notes = _schema_rule(tool, folder), list[ProposedRule](), list[str]()
    for candidates in place_candidates(tool, dialects):
        tried = None
        for tried in candidates:
            if holds(tried, tool.actions, folder):
                rules.append(tried)
                break
        else:
            if tried is not None and tried.rule["use"] == "shell":  # a query need not be SQL, a command is one
                notes.append("ANY COMMAND of this length: a shell rule would deny some of these calls")
    return [ProposedRule(schema_rule.rule, [*schema_rule.notes, *notes]), *rules]


def _schema_rule(tool: ToolActs, folder: Path) -> ProposedRule:
    values: list[Mapping[str, Any]] = []
    for action, count in zip(tool.actions, tool.counts, strict=True):
        values += [dict(action.arguments)] * count
    schema = schema_of(values)
    total = tool.total
    notes = [f"{tool.name}: {counted(total, 'call')}, {counted(len(tool.actions), 'set')} of arguments"]
    for name, of_it in schema.get("properties", {}).items():
        present = sum(name in arguments for arguments in values)
        notes.append(f"  {name}: {described(of_it)}, in {counted(present, 'call')}")
    escaped = {"allow": rule_of("tool", tool, None, {}, ()).rule["tools"]}
    with_schema = rule_of("tool", tool, None, {**escaped, "schemas": {tool.name: schema}}, notes)
    if holds(with_schema, tool.actions, folder):
        return with_schema
    return rule_of("tool", tool, None, escaped, [*notes, "no schema fits its arguments"])


def _rate(acts: Sequence[RecordedAction]) -> list[ProposedRule]:
    """A bound on the calls of one rollout: twice as many as were ever tried. None for calls of one rollout, or of none."""
    counts = Counter(act.action.rollout_id for act in acts)
    if None in counts or len(counts) == 1:
        return []
    most = max(counts.values())
    options = {"max_calls": 2 * most, "per_seconds": 3600, "per": "rollout"}
    rule = {"name": "calls of a rollout", "use": "rate", "with": options}
    return [ProposedRule(rule, [f"calls of a rollout: {most} at most, in {counted(len(counts), 'rollout')}"])]


def _written(rules: Sequence[ProposedRule], needed: Sequence[RecordedAction], every: int, source: str) -> str:
    rollouts = len({act.action.rollout_id for act in needed})
    of = f"{len(needed)} of {counted(every, 'tool call')}, in {counted(rollouts, 'rollout')}"
    head = ProposedRule({}, [f"Suggested from {source}: {of}."])
    first = head.text().splitlines()[0].strip()
    return (
        f"{first}\n"
        "# It allows these and little more. Read it, widen what is too narrow, and try it on other records:\n"
        "# lgov policy eval FILE STORE. The numbers say how often something was seen.\n"
        "version: 1\nname: suggested\ndefault: deny\nrules:\n" + "\n".join(rule.text() for rule in rules)
    )
