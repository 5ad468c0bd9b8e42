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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

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
from lgov_core.policies.network.addresses import Address, addresses, covers
from lgov_core.policies.path import PATH_ARGUMENTS
from lgov_core.policies.provenance import strings_in
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


def said_rules(tools: Sequence[ToolActs]) -> list[tuple[ProposedRule, list[Action]]]:
    """Rules by which addresses must be said by the user, each with the actions that it covers.

    One rule for all tools that never named another address, and one for each tool that did, which lists them. None for a
    tool that names too many others, or no address while what the user said is not on record.
    """
    strict: list[ToolActs] = []
    naming = 0
    rules: list[tuple[ProposedRule, list[Action]]] = []
    for tool in tools:
        foreign, count = _foreign(tool)
        if not foreign and all(action.context.get("user_text") for action in tool.actions):
            strict.append(tool)
            naming += count
        elif 0 < len(foreign) <= _FOREIGN:
            rule = {
                "name": f"{tool.name}: said by the user",
                "tools": [glob.escape(tool.name)],
                "use": "provenance",
                "with": {"trusted": sorted({glob.escape(address.form) for address in foreign})},
            }
            named = ", ".join(f"{address.form} {count}" for address, count in foreign.most_common())
            notes = [f"{tool.name}: addresses must come from the user; allowed besides: {named}"]
            rules.append((ProposedRule(rule, notes), tool.actions))
    if strict:
        names = [glob.escape(tool.name) for tool in strict]
        total = sum(tool.total for tool in strict)
        note = f"{naming} of {total} calls name an address (e-mail, URL, path, account, phone), which the user had said"
        rule = {"name": "said by the user", "tools": names, "use": "provenance"}
        rules.insert(0, (ProposedRule(rule, [note]), [action for tool in strict for action in tool.actions]))
    return rules


def _foreign(tool: ToolActs) -> tuple[Counter[Address], int]:
    """The addresses that the user had not said, and how often each was named; and how many calls named any address."""
    foreign: Counter[Address] = Counter()
    naming = 0
    for action, count in zip(tool.actions, tool.counts, strict=True):
        user_addresses = addresses(str(action.context.get("user_text", "")))
        named = [address for name, text in strings_in(action.arguments) for address in addresses(text, name)]
        naming += count if named else 0
        foreign.update(
            {
                address: count
                for address in named
                if not any(covers(user_address, address) for user_address in user_addresses)
            }
        )
    return foreign, naming


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
    needed, rest = [act for act in acts if is_needed(act)], [act for act in acts if not is_needed(act)]
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
        judged = [(act, governor.decide(act.action)) for act in needed]
        others = [(act, governor.decide(act.action)) for act in rest]
    denied = [(act, decision) for act, decision in judged if decision.blocks]
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
