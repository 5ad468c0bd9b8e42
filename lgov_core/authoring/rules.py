"""Rules that recorded tool calls need: which tools, and arguments of which form.

A text that takes few values over many acts is one of those; any other text, list or number of which there are several is
bounded by the next power of two, or by the next round number. A single example limits nothing. `meanings` says what the
arguments of a tool are for, and `meaning_rules` which rules hold them there.
"""

from __future__ import annotations

import glob
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from lgov_core.authoring.replay import RecordedAction
from lgov_core.errors import PolicyError
from lgov_core.governor.options import names
from lgov_core.governor.patterns import matches_any
from lgov_core.governor.rules import DEFAULT_RULE, Rule
from lgov_core.policies import dry_run
from lgov_core.policies.loader import load_policy_text
from lgov_core.policies.network.addresses import addresses
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.registry import BUILTIN_POLICIES, DenyPolicy
from lgov_core.policies.sql.policy import SQL_ARGUMENTS
from lgov_core.policies.tools import ToolPolicy
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


def holds(
    proposed: ProposedRule, actions: Iterable[Action], folder: Path, top: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Returns whether a rule can be loaded and denies none of ``actions``. ``folder`` is where the policy file will be.

    ``top`` is what the file says beside its rules: in a box, commands are judged as there.
    """
    rules = [{"name": " allow", "use": "allow"}, dict(proposed.rule)]
    try:
        policies = load(yaml.safe_dump({"version": 1, **top, "rules": rules}), folder)
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
#: Kinds of addresses that may be a person's.
PERSONAL: Final = ("email", "phone", "account")
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
    if _are_several(texts, _OFTEN):
        schema["maxLength"] = _power_of_two(max(map(len, texts)), _TEXT)
    numbers = [value for value in values if _kind(value) in ("integer", "number")]
    if _are_several(numbers):
        schema |= {"minimum": min(0, -_round_number(-min(numbers))), "maximum": max(0, _round_number(max(numbers)))}
    if lists := [value for value in values if isinstance(value, list | tuple)]:
        if _are_several(lists):
            schema["maxItems"] = _power_of_two(max(map(len, lists)), _LIST)
        items = [item for value in lists for item in value]
        if items and depth < _DEPTH:
            schema["items"] = schema_of(items, depth + 1)
    if objects := [value for value in values if isinstance(value, dict)]:
        schema |= _object(objects, depth)
    return schema


def is_enumerable(texts: Sequence[str]) -> bool:
    """Returns whether so few different texts were given so often that they are taken for all there are.

    Texts with an address that may be a person's are not: a policy names no people.
    """
    distinct = set(texts)
    if len(distinct) > _FEW or len(texts) < _OFTEN * max(len(distinct), 2):
        return False
    return not any(address.kind in PERSONAL for text in distinct for address in addresses(text, ""))


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


def _are_several(values: Iterable[Any], least: int = 2) -> bool:
    """Returns whether ``least`` different values were seen: fewer are examples, which limit nothing."""
    return len({json.dumps(value, default=repr, sort_keys=True) for value in values}) >= least


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


# ---------------------------------------------------------------------- what arguments mean

#: Words of a tool's name that say that its effect cannot be undone: a person approves such a call.
_FINAL: Final = names("cancel charge delete deploy drop email erase pay post publish purge refund remove send wipe")
#: Those that move something to someone, where an argument says how much or to whom.
_MOVES: Final = names("buy donate forward invest invite message notify order sell share trade transfer wire withdraw")
_AMOUNTS: Final = names("amount price total sum payment")
_RECIPIENTS: Final = names("to recipient recipients payee beneficiary iban account account_number cc bcc email phone")
#: First words of the names of tools that only look.
_LOOKS: Final = names(
    "analyze calculate check classify compare count describe draft extract fetch find format get has is list look"
    " lookup parse query read search show summarize validate verify view"
)
_DATABASES: Final = names("sql db database sqlite postgres postgresql mysql duckdb bigquery snowflake")
_SHELLS: Final = names("shell bash sh terminal cmd exec console subprocess powershell")
_RUNS_CODE: Final = names("python repl interpreter execute exec eval run sandbox script code")
_CODE_ARGUMENTS: Final = names("code python script program source_code python_code snippet")
_URL_WORDS: Final = names("url urls uri href link webhook endpoint")
_FILE_WORDS: Final = names("path paths file files filename filepath dir directory folder")
_SHELL_TEXT: Final = re.compile(r"\b(shell|bash|terminal|command[- ]line|subprocess)\b", re.I)
_SQL_TEXT: Final = re.compile(r"\bSQL (query|queries|statement|command)", re.I)

#: What an argument, or a tool as a whole, may mean, and the kinds of rule that hold it.
HOLDING: Final[Mapping[str, tuple[str, ...]]] = {
    "path": ("path",),
    "url": ("egress",),
    "sql": ("sql",),
    "command": ("shell", "box"),
    "code": ("box", "shell"),
    "final": ("approval", "flow"),
}


def meanings(
    name: str, kind: str, schema: Mapping[str, Any] | None, arguments: Sequence[str] = (), description: str = ""
) -> dict[str, list[str]]:
    """Returns the arguments of a tool by their meanings (see `HOLDING`); ``final`` has none where the tool's name says it.

    Empty for hand-offs, agents and hosted tools: their arguments are texts for a model. Without arguments the name says it.
    """
    if kind in ("handoff", "agent", "hosted") or re.match(r"(transfer|hand_?off|handover|delegate)_to_", name):
        return {}
    properties: Mapping[str, Any] = (schema or {}).get("properties", {})
    argument_names = list(properties) or list(arguments)
    tool_words = words_of_name(name)
    meant: dict[str, list[str]] = {}
    for argument in argument_names:
        if meaning := _meaning(argument, properties.get(argument, {}), kind, tool_words, description):
            meant.setdefault(meaning, []).append(argument)
    if not argument_names:
        meant |= {meaning: [] for meaning in _by_name(tool_words)}
    looks = tool_words[:1] and tool_words[0] in _LOOKS
    moved = [argument for argument in argument_names if argument.lower() in (*_AMOUNTS, *_RECIPIENTS)]
    if not looks and any(word in _FINAL or (moved and word in _MOVES) for word in tool_words):
        meant["final"] = moved
    return meant


def _meaning(argument: str, schema: Any, kind: str, tool_words: Sequence[str], description: str) -> str | None:
    words, lower = words_of_name(argument), argument.lower()
    fields: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    choices = [fields, *fields.get("anyOf", ()), fields.get("items") or {}]
    types = {choice.get("type", "string") for choice in choices if isinstance(choice, Mapping)}
    if not types & {"string", "array"} or "enum" in fields or "const" in fields or not words:
        return None
    if lower in SQL_ARGUMENTS and not {"check", "checker", "validate"}.intersection(tool_words):
        named = {*words, *tool_words}.intersection(_DATABASES)
        if named or _SQL_TEXT.search(description):
            return "sql"
    is_shell = kind == "shell" or set(_SHELLS).intersection(tool_words) or _SHELL_TEXT.search(description)
    if lower in COMMANDS and (is_shell or {"run", "execute"}.intersection(tool_words)):
        return "command"
    if set(_RUNS_CODE).intersection(tool_words) and (
        lower in _CODE_ARGUMENTS or words[-1] == "code" or {"repl", "interpreter"}.intersection(tool_words)
    ):
        return "code"
    if words[-1] in _URL_WORDS or any(choice.get("format") in ("uri", "url") for choice in choices):
        return "url"
    return "path" if words[-1] in _FILE_WORDS or lower.endswith(("filename", "filepath")) else None


def _by_name(tool_words: Sequence[str]) -> Iterator[str]:
    """Yields the meanings that a tool of which no argument is known seems to have."""
    spoken = set(tool_words)
    if spoken & {"python", "repl", "code", "script"} and spoken & {"run", "execute", "exec", "eval", "repl"}:
        yield "code"
    elif spoken & set(_SHELLS):
        yield "command"
    elif spoken & {"file", "files", "folder", "directory"}:
        yield "path"
    elif spoken & {"fetch", "browse", "download", "http", "scrape", "url"}:
        yield "url"
    elif spoken & {"sql"}:
        yield "sql"


#: Of a rule's ``cwd`` that nothing stated: a link that the rule sees elsewhere than the tool does leads anywhere.
CWD_GUESSED: Final = "cwd is a guess: name the folder that the tool works in"


def meaning_rules(
    tool: ToolActs, meant: Mapping[str, Sequence[str]], required: Sequence[str], dialect: str, roots: Sequence[str]
) -> list[ProposedRule]:
    """Rules for where the arguments of ``tool`` may lead, by their ``meanings``; each says what it leaves open.

    ``required`` are arguments that every call has. ``roots`` are folders as the policy file writes them.
    """
    rules: list[ProposedRule] = []
    for meaning, arguments in meant.items():
        for use, options, note in _ways(meaning, arguments, dialect, roots):
            rule: dict[str, Any] = {"name": f"{tool.name}: {use}", "tools": [glob.escape(tool.name)]}
            if arguments and use in ("sql", "shell", "egress") and not set(arguments).intersection(required):
                rule["when"] = {"any": [{"field": ["arguments", name], "exists": True} for name in arguments]}
            rules.append(ProposedRule({**rule, "use": use, "with": options}, [note]))
    return rules


def _ways(
    meaning: str, arguments: Sequence[str], dialect: str, roots: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    argument = {"argument": list(arguments)} if arguments else {}
    if meaning == "path":
        note = f"files of these folders; {CWD_GUESSED}; open: what is in them. If the tool expands no ~, $ or *: expand: none"
        yield "path", {**argument, "roots": list(roots), "cwd": roots[-1]}, note
    elif meaning == "url":
        note = (
            "no private or metadata address, nor a name that leads to one (resolve: false where only a proxy knows names);"
            " open: every public host, so name yours in domains, and what a URL carries"
        )
        yield "egress", {**argument, "domains": ["*"], "schemes": ["http", "https"]}, note
    elif meaning == "sql":
        for name in arguments:
            note = "SQL that only reads; open: every table, see tables. mode: guarded also changes rows"
            yield "sql", {"dialect": dialect, "mode": "read_only", "argument": name}, note
    elif meaning == "command":
        note = (
            f"commands that look and edit here; {CWD_GUESSED}; what runs code or sends needs --confine; open: its files"
        )
        yield "shell", {**argument, "cwd": roots[-1]}, note
    elif meaning == "code":
        yield "box", {}, "code runs under lgov run --confine only; open: what it does in the box. Elsewhere: use: allow"
    elif meaning == "final":
        note = "a person approves each call (lgov approvals); where no person can be asked it is denied, and says how to ask"
        yield "approval", {"wait_s": 300, "unattended": "deny"}, note


def words_of_name(name: str) -> list[str]:
    """The words of a name in lower case: ``file_id`` and ``fileId`` have two."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


_KEEPS: Final = names(
    "$ref type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern"
    " maxItems minItems uniqueItems maxProperties minProperties required"
)


def checkable_schema(schema: Any) -> Any:
    """The JSON Schema ``schema`` without notes, formats and keywords that a rule does not check, for the values judged.

    Those are what validation yields: a default is filled in, whatever the schema says of what a model may write.
    """
    if not isinstance(schema, Mapping):
        return schema
    checked: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("properties", "patternProperties", "$defs", "definitions"):
            checked[keyword] = {name: checkable_schema(inner) for name, inner in value.items()}
        elif keyword in ("anyOf", "oneOf", "allOf"):
            checked["anyOf" if keyword == "oneOf" else keyword] = [checkable_schema(inner) for inner in value]
        elif keyword in ("additionalProperties", "not") or (keyword == "items" and "prefixItems" not in schema):
            checked[keyword] = checkable_schema(value)
        elif keyword in _KEEPS:
            checked[keyword] = value
    if "$ref" in checked and len(checked) > 1:
        checked = {**checked, "allOf": [{"$ref": checked.pop("$ref")}, *checked.get("allOf", ())]}
    nullable = checked.get("type") == "null" or {"type": "null"} in checked.get("anyOf", ())
    if "default" in schema and schema["default"] is None and not nullable:
        definitions = {key: checked.pop(key) for key in ("$defs", "definitions") if key in checked}
        checked = {**definitions, "anyOf": [checked, {"type": "null"}]}
    return checked


def open_places(rules: Iterable[Rule]) -> list[str]:
    """For each tool that rules allow by its name, in a sentence, what its arguments may reach and no rule holds."""
    rules = list(rules)
    tools: dict[str, Mapping[str, Any] | None] = {}
    for rule in rules:
        made_with: Mapping[str, Any] = rule.policy.made_with if isinstance(rule.policy, ToolPolicy) else {}
        for tool in _named(made_with.get("allow", ())):
            tools.setdefault(tool, (made_with.get("schemas") or {}).get(tool))
    sentences: list[str] = []
    for tool, schema in tools.items():
        holding = {kind for rule in rules if matches_any(tool, rule.tools) for kind in type(rule.policy).__mro__}
        for meaning, arguments in meanings(tool, "function", schema).items():
            if DenyPolicy not in holding and not holding.intersection(
                BUILTIN_POLICIES[use] for use in HOLDING[meaning]
            ):
                what = {"final": "does what cannot be undone", "code": "runs code"}.get(meaning, f"takes a {meaning}")
                which = f" ({', '.join(arguments)})" if arguments and arguments != [meaning] else ""
                sentences.append(f"{tool} {what}{which} and no {' or '.join(HOLDING[meaning])} rule covers it")
    return sentences


def shut_tools(rules: Iterable[Rule]) -> list[str]:
    """For each tool that a rule permits by its name, in a sentence, the ``tool`` rule that denies it all the same."""
    rules = list(rules)
    sentences: list[str] = []
    for shut in rules:
        if isinstance(shut.policy, ToolPolicy) and shut.condition is None and "*" in shut.agents:
            allow: Sequence[str] = shut.policy.made_with["allow"]
            sentences += [
                f"{shut.name} denies {tool}, which {rule.name} is for: name it in allow, or give {shut.name} tools: {[*allow]}"
                for rule in rules
                for tool in _named(rule.tools if rule.permits else ())
                if matches_any(tool, shut.tools) and not matches_any(tool, allow)
            ]
    return list(dict.fromkeys(sentences))


def _named(patterns: Iterable[str]) -> Iterator[str]:
    """The names among ``patterns``."""
    for pattern in patterns:
        tool = re.sub(r"\[([*?[])\]", r"\1", pattern)
        if glob.escape(tool) == pattern or tool == pattern != "*":
            yield tool
