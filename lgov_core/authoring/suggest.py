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

from lgov_core._util.schema import read_yaml
from lgov_core.authoring.replay import RecordedAction, in_order
from lgov_core.authoring.rules import (
    COMMANDS,
    CWD_GUESSED,
    PERSONAL,
    ProposedRule,
    ToolActs,
    by_tool,
    checkable_schema,
    described,
    holds,
    is_needed,
    load,
    rule_of,
    schema_of,
    words_of_name,
)
from lgov_core.errors import PolicyError, counted
from lgov_core.governor import Governor
from lgov_core.governor.patterns import matches_any
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies.conversation import MAX_VALUE, MIN_VALUE
from lgov_core.policies.flow import FlowPolicy, ValueSource
from lgov_core.policies.network.addresses import KINDS, Address, leaves_of
from lgov_core.policies.options import folder_joined
from lgov_core.policies.path import PATH_ARGUMENTS
from lgov_core.policies.shell.policy import ShellOptions
from lgov_core.policies.sql.names import GUARDED, READS
from lgov_core.policies.sql.policy import COMMON_DIALECTS, SQL_ARGUMENTS
from lgov_core.policies.sql.reader import SQLTouches
from lgov_core.types import Action, Decision, Effect, Point

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
            yield iter([rule_of("shell", tool, argument, options, [f"commands of the table; {CWD_GUESSED}"])])
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
    notes = [f"{len(texts)} paths"]
    if not os.path.isabs(folder):
        options["cwd"] = "."
        notes.append(CWD_GUESSED)
    yield rule_of("path", tool, argument, options, notes)


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
        notes.append("one example: open to every public host, whose names are not looked up; name yours in domains")
        # What the record decides may not depend on a name server.
        yield rule_of("egress", tool, argument, {**options, "domains": ["*"], "resolve": False}, notes)
    yield rule_of("egress", tool, argument, options, notes)


def _counted(names: Counter[str]) -> str:
    counted = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {count}" for name, count in counted) or "none"


#: Addresses that came from nowhere on record beyond which an argument is one that takes them from anywhere.
_FOREIGN: Final = 20
#: Fields that an argument was taken from beyond which it names what a result has: the model's own is no such name.
_REFERENCES: Final = 3
#: Rollouts from which an order is taken for more than a coincidence.
_ROLLOUTS: Final = 10
_ALWAYS: Final = ("user", "system", "trusted")
_NAMES: Final = ("number", "name")


@dataclass(slots=True)
class _Argument:
    """Where the values of one argument came from, in whatever tool: fields, texts, nowhere.

    ``foreign`` has the addresses of no field, each with its rollouts and texts.
    """

    came: Counter[str] = field(default_factory=Counter[str])
    fields: Counter[str] = field(default_factory=Counter[str])
    address_fields: Counter[str] = field(default_factory=Counter[str])
    foreign: dict[Address, set[str | None]] = field(default_factory=dict[Address, set[str | None]])
    texts: dict[str, str] = field(default_factory=dict[str, str])
    own: int = 0

    def note(self, source: ValueSource, rollout: str | None) -> None:
        """Counts one value of a rollout."""
        by_user, fields = {"user", "system"} & set(source.texts), [name for name in source.texts if ":" in name]
        self.came[(*by_user, *fields, *source.texts, "the model")[0]] += 1
        of_kind = self.address_fields if isinstance(source.value, Address) else self.fields
        if by_user:
            return
        if entries := list(map(_any_tool, fields)):
            of_kind[next((entry for entry in entries if entry in of_kind), entries[0])] += 1
        elif isinstance(source.value, Address):
            self.foreign.setdefault(source.value, set()).update((rollout, *source.texts))
        elif source.texts:
            self.texts[source.texts[0]] = "pointed" if source.pointed else source.texts[0]
        elif len(source.value) - 2 >= MIN_VALUE:  # a shorter one is not looked for, so that nobody knows
            self.own += 1


def _any_tool(field_name: str) -> str:
    """A field of a result as that of any tool; where its name is no name but data, any field of that tool."""
    tool, _, name = field_name.partition(":")
    return f"*:{glob.escape(name)}" if name.isidentifier() or name == "[]" else f"{glob.escape(tool)}:*"


def flow_rules(tools: Sequence[ToolActs], every: Sequence[RecordedAction]) -> Iterator[list[ProposedRule]]:
    """Rules by which values come from the user, or from where the record has them; the strictest of each first.

    What was seen of an argument counts for all tools that have one of this name: fields of results by their name, and texts
    by their tool. A name or number may always be from a field whose name is in that of the argument (``id`` in
    ``file_id``); an address only from fields that were seen, and what came from elsewhere is listed, but for one that may be
    a person's and that one rollout had, out of no text. A person is asked about values from other fields or from no text.
    Names and numbers are limited only where results are on record. No rule for a tool of which it is not on record what the
    user said.
    """
    arguments, named = _arguments_of(every)
    covered = [tool for tool in tools if all(map(_has_user, tool.actions))]
    limits = {} if len(covered) == len(tools) else {"tools": [glob.escape(tool.name) for tool in covered]}
    has_results = any(getattr(event, "result", None) for act in every for event in act.events)

    if covered:
        yield [_flow_rule("addresses", KINDS, arguments, named, limits)]
    if covered and has_results:
        yield [_flow_rule("names and numbers", _NAMES, arguments, named, limits, pointed=way) for way in (True, False)]


def _traced(every: Sequence[RecordedAction]) -> Iterator[tuple[RecordedAction, Sequence[ValueSource]]]:
    """Each recorded call with where its values came from; without, if it was not needed."""
    trace = FlowPolicy(allow="*")
    return in_order(every, trace.observe, lambda act: trace.sources(act.action) if is_needed(act) else ())


def _arguments_of(every: Sequence[RecordedAction]) -> tuple[dict[str, _Argument], dict[str, None]]:
    """The record of each argument, and the names of the fields of results."""
    arguments, named = dict[str, _Argument](), dict[str, None]()
    for act, sources in _traced(every):
        for event in act.events:
            named |= {name: None for name, _ in leaves_of(getattr(event, "result", None) or "") if name.isidentifier()}
        for source in sources:
            if isinstance(source.value, Address) or len(source.value) - 2 <= MAX_VALUE:
                arguments.setdefault(source.argument, _Argument()).note(source, act.action.rollout_id)
        for schema in act.offered.values():
            for name in (schema or {}).get("properties", {}):
                arguments.setdefault(name, _Argument())
    return arguments, named


def _flow_rule(
    name: str,
    kinds: Sequence[str],
    arguments: Mapping[str, _Argument],
    fields: Iterable[str],
    limits: Mapping[str, Any],
    *,
    pointed: bool = True,
) -> ProposedRule:
    """A rule for the values of some ``kinds``, with where those of each argument came from; ``fields`` are names of any."""
    options: dict[str, Any] = {"otherwise": "approve", "asks": ["fields", "model"]}
    for argument, seen in arguments.items():
        key, entries = glob.escape(argument), set[str]()
        entries |= set(seen.address_fields if kinds is KINDS else seen.fields)
        if kinds is not KINDS:
            entries |= {how if pointed else glob.escape(tool) for tool, how in seen.texts.items()}
            entries |= {f"*:{name}" for name in fields if _is_like(name, argument)}
            if not seen.own and seen.fields.total() >= _REFERENCES:
                options.setdefault("deny", {})[key] = "*"
        elif len(seen.foreign) > _FOREIGN:
            entries.add("*")
        else:
            listed = [address for address, of in seen.foreign.items() if address.kind not in PERSONAL or len(of) > 1]
            if listed:
                options.setdefault("values", {})[key] = sorted(glob.escape(address.form) for address in listed)
        if entries:
            options.setdefault("allow", {})[key] = [*_ALWAYS, *sorted(entries)]
    notes = [f"{argument}: from {_counted(seen.came)}" for argument, seen in arguments.items() if seen.came]
    return ProposedRule({"name": name, **limits, "use": "flow", "with": {"kinds": list(kinds), **options}}, notes)


def order_rules(every: Sequence[RecordedAction]) -> Iterator[ProposedRule]:
    """Rules by which a tool is called only after another one has returned, which every call of it needed on record.

    The other one had the same argument (not a short one, like a limit), or returned what this one was called with and the
    user had not said. Of fewer than ten rollouts nothing follows.
    """
    rollouts: dict[str, set[str | None]] = {}
    before: dict[str | None, list[Action]] = {}
    links: dict[str, set[tuple[str, str]]] = {}
    for act, sources in _traced(every):
        if not is_needed(act) or act.action.rollout_id is None:
            continue
        call, earlier = act.action, before.setdefault(act.action.rollout_id, [])
        linked = {
            (other.name, name)
            for other in earlier
            for name, value in call.arguments.items()
            if len(str(value)) >= MIN_VALUE and name in other.arguments and other.arguments[name] == value
        }
        came = set[str]().union(*(source.texts for source in sources if not {"user", "system"} & {*source.texts}))
        linked |= {(other.name, "") for other in earlier if other.name in came}
        rollouts.setdefault(call.name, set()).add(call.rollout_id)
        links[call.name] = links.get(call.name, linked) & linked
        earlier.append(call)
    for tool, linked in links.items():
        count = len(rollouts[tool])
        for other, same in sorted(linked) if count >= _ROLLOUTS else ():
            if other == tool or (not same and any(way[0] == other and way[1] for way in linked)):
                continue
            how = f"with the same {same}" if same else "which returned what it was called with"
            rule = {"name": f"{tool}: after {other}", "tools": [glob.escape(tool)], "use": "order"}
            after = {"tool": glob.escape(other), **({"same": same} if same else {})}
            note = f"{tool}: in {count} rollouts each call came after one of {other}, {how}"
            yield ProposedRule({**rule, "with": {"after": after}}, [note])


def _is_like(name: str, argument: str) -> bool:
    """Returns whether the words of a field's name are in that of an argument."""
    return bool(words := set(words_of_name(name))) and words.issubset(words_of_name(argument))


def _has_user(action: Action) -> bool:
    return bool(action.context.get("user_text"))


def _replayed(text: str, folder: Path, every: Sequence[RecordedAction]) -> Iterator[Judged]:
    """Each recorded call with what a policy decides now, in order, as `lgov_core.authoring.replay.replay` has it."""
    with closing(Governor(load(text, folder), manager=make_plugin_manager(builtin=(), third_party=False))) as governor:
        yield from in_order(every, governor.observe, lambda act: governor.decide(act.action))


def _holds_in_order(
    rule: ProposedRule, folder: Path, every: Sequence[RecordedAction], least: Effect = Effect.ESCALATE
) -> bool:
    """Returns whether a rule that remembers does ``least`` or more to none of the needed calls."""
    text = yaml.safe_dump({"version": 1, "rules": [{"name": " allow", "use": "allow"}, dict(rule.rule)]})
    try:
        return not any(decision.effect >= least and is_needed(act) for act, decision in _replayed(text, folder, every))
    except PolicyError:
        return False


#: Calls of a tool from which the form of its arguments is known.
_MANY: Final = 20
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
    policy: str = "",
    policy_folder: Path | None = None,
) -> Suggestion:
    """The least-privilege policy for the tool calls in ``recorded`` that ran, were objected to by no policy and did not fail.

    Nothing is run or written. ``source`` names the record in the file's first comment; ``folder`` is where the file will
    be (default: the working directory), from which its relative paths count. SQL is read in the first of ``dialects`` in
    which all of it is understood. Each rule is the strictest of its candidates that denies none of the needed calls. Of the
    text of the ``policy`` that they were recorded under it keeps ``confine``, and each box and shell rule that denies none;
    relative folders of these count from ``policy_folder``, where that file lies: where it is None, such a rule is left out.
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
    offered = {name: schema for act in acts for name, schema in act.offered.items()}
    confine, held = _held(policy, tools, folder, policy_folder)
    rules = [rule for tool in tools for rule in _of_tool(tool, folder, dialects, offered.get(tool.name), held)]
    rules += held
    for candidates in flow_rules(tools, acts):
        tried = ((rule, least) for least in (Effect.ESCALATE, Effect.DENY) for rule in candidates)
        if (
            first := next((rule for rule, least in tried if _holds_in_order(rule, folder, acts, least)), None)
        ) is not None:
            rules.append(first)
    rules += [rule for rule in order_rules(acts) if _holds_in_order(rule, folder, acts)]
    rules += _unused(tools, acts)
    rules += _rate(acts)
    text = _written(rules, needed, len(acts), source, confine)
    replayed = list(_replayed(text, folder, acts))
    denied = [(act, decision) for act, decision in replayed if is_needed(act) and decision.effect is Effect.DENY]
    others = [(act, decision) for act, decision in replayed if not is_needed(act)]
    return Suggestion(
        text, [tool.name for tool in tools], len(needed), denied, others, sum(act is None for act in every)
    )


def _held(
    policy: str, tools: Sequence[ToolActs], folder: Path, before: Path | None
) -> tuple[dict[str, Any], list[ProposedRule]]:
    """The key ``confine`` of a policy, and its box and shell rules, for ``tools``, that deny none of their calls in there.

    ``before`` is the folder of that policy, None where it is not known.
    """
    document: Any = read_yaml(policy, "the policy of the record")[0]
    if not isinstance(document, dict):
        return {}, []
    confine, held = {key: document[key] for key in ("confine",) if key in document}, list[ProposedRule]()
    for rule in document.get("rules") or ():
        if rule.get("use") not in ("box", "shell"):
            continue
        options: dict[str, Any] = rule.get("with") or {}
        joined = {name: folder_joined(before or "/", options[name]) for name in ShellOptions.paths if options.get(name)}
        moved = before != folder and any(joined[name] != options[name] for name in joined)
        if moved and before is None:
            continue
        anew: dict[str, Any] = {"with": {**options, **joined}} if moved else {}
        of_it = [tool for tool in tools if matches_any(tool.name, rule.get("tools", ("*",)))]
        kept = ProposedRule(
            {**rule, **anew, "tools": [glob.escape(tool.name) for tool in of_it]}, ["of the policy of the record"]
        )
        actions = [action for tool in of_it for action in tool.actions]
        if of_it and holds(kept, actions, folder, confine):
            held.append(kept)
    return confine, held


def _of_tool(
    tool: ToolActs, folder: Path, dialects: Sequence[str], offered: Any, held: Sequence[ProposedRule]
) -> list[ProposedRule]:
    """That the tool may be called, with which arguments, and where they may lead. No shell rule beside one of ``held``."""
    is_held = any(rule.rule["use"] == "shell" and glob.escape(tool.name) in rule.rule["tools"] for rule in held)
    schema_rule, rules, notes = _schema_rule(tool, folder, offered), list[ProposedRule](), list[str]()
    for candidates in place_candidates(tool, dialects):
        tried = None
        for tried in candidates:
            if is_held and tried.rule["use"] == "shell":
                break
            if holds(tried, tool.actions, folder):
                rules.append(tried)
                break
        else:
            if tried is not None and tried.rule["use"] == "shell":  # a query need not be SQL, a command is one
                notes.append("ANY COMMAND of this length: a shell rule would deny some of these calls")
    return [ProposedRule(schema_rule.rule, [*schema_rule.notes, *notes]), *rules]


def _schema_rule(tool: ToolActs, folder: Path, offered: Any) -> ProposedRule:
    """The tool with the schema of its arguments: of few calls the one that the model was offered, where that is on record."""
    values: list[Mapping[str, Any]] = []
    for action, count in zip(tool.actions, tool.counts, strict=True):
        values += [dict(action.arguments)] * count
    schema, total = schema_of(values), tool.total
    notes = [f"{tool.name}: {counted(total, 'call')}, {counted(len(tool.actions), 'set')} of arguments"]
    for name, of_it in schema.get("properties", {}).items():
        present = sum(name in arguments for arguments in values)
        notes.append(f"  {name}: {described(of_it)}, in {counted(present, 'call')}")
    if total < _MANY and isinstance(offered, Mapping):
        schema = {**checkable_schema(offered), "type": "object", "additionalProperties": False}
    escaped = {"allow": rule_of("tool", tool, None, {}, ()).rule["tools"]}
    with_schema = rule_of("tool", tool, None, {**escaped, "schemas": {tool.name: schema}}, notes)
    if holds(with_schema, tool.actions, folder):
        return with_schema
    return rule_of("tool", tool, None, escaped, [*notes, "no schema fits its arguments"])


def _unused(tools: Sequence[ToolActs], acts: Sequence[RecordedAction]) -> list[ProposedRule]:
    """A rule by which a person is asked about the tools that the model was offered and never called."""
    unused = {name for act in acts for name in act.offered} - {tool.name for tool in tools}
    if not unused:
        return []
    options = {"wait_s": 300, "unattended": "deny"}
    rule = {"name": "never called", "tools": sorted(map(glob.escape, unused)), "use": "approval", "with": options}
    return [ProposedRule(rule, ["offered to the model and never called here: a person approves each call"])]


def _rate(acts: Sequence[RecordedAction]) -> list[ProposedRule]:
    """A bound on the calls of one rollout: twice as many as were ever tried. None for calls of one rollout, or of none."""
    counts = Counter(act.action.rollout_id for act in acts)
    if None in counts or len(counts) == 1:
        return []
    most = max(counts.values())
    options = {"max_calls": 2 * most, "per_seconds": 3600, "per": "rollout"}
    rule = {"name": "calls of a rollout", "use": "rate", "with": options}
    return [ProposedRule(rule, [f"calls of a rollout: {most} at most, in {counted(len(counts), 'rollout')}"])]


def _written(
    rules: Sequence[ProposedRule], needed: Sequence[RecordedAction], every: int, source: str, confine: dict[str, Any]
) -> str:
    rollouts = len({act.action.rollout_id for act in needed})
    of = f"{len(needed)} of {counted(every, 'tool call')}, in {counted(rollouts, 'rollout')}"
    head = ProposedRule({}, [f"Suggested from {source}: {of}."])
    first = head.text().splitlines()[0].strip()
    return (
        f"{first}\n"
        "# It allows these and little more. Read it, widen what is too narrow, and try it on other records:\n"
        "# lgov policy eval FILE STORE. The numbers say how often something was seen.\n"
        "version: 1\nname: suggested\ndefault: deny\n"
        f"{yaml.safe_dump(confine, default_flow_style=None) if confine else ''}rules:\n"
        + "\n".join(rule.text() for rule in rules)
    )
