"""AIR rules in YAML. Every mistake is an error with its line and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from lgov_core._util.schema import Mistake, checked
from lgov_core._util.words import suggest_name
from lgov_core.air.rules import PARAMETERS, AirRule, AirRules, Event, RuleSet
from lgov_core.errors import PolicyFileError, RewardError, RewardFileError
from lgov_core.policies.document import Place, read_yaml

_BUILT_IN: Final = AirRules()
_Number = Annotated[float, Meta(description="a number")]
_YesOrNo = Annotated[bool, Meta(description="true or false")]
_Globs = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, description="a list of globs, at least one")
]


#: msgspec's names of kinds, in words.
_WORDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "object": "a mapping",
    "bool | object": "true or a mapping",
}


class _Values(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The values of calls that no rule covers; see `AirRules`."""

    tool_success: _Number = _BUILT_IN.tool_success
    tool_error: _Number = _BUILT_IN.tool_error
    denied: _Number = _BUILT_IN.denied
    shaped: _YesOrNo = _BUILT_IN.shaped


class _Rule(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One rule; see `AirRule`."""

    on: Annotated[Event, Meta(description=f"one of {', '.join(PARAMETERS)}")]
    reward: _Number
    name: Annotated[str, Meta(pattern=r"\S", description="a text")] | None = None
    tools: _Globs = ("*",)
    agents: _Globs = ("*",)
    shaped: _YesOrNo | None = None
    milestone: Annotated[Literal["call", "tool"], Meta(description="call or tool")] = "call"


class _AirFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A file of AIR rules, or a section of one. ``cap`` is the most that an attempt is paid; null for no bound."""

    version: Annotated[Literal[1], Meta(description="1")]
    cap: Annotated[float, Meta(ge=0, description="a number, 0 or more, or null for no bound")] | None = 1.0
    defaults: bool | _Values = False
    rules: tuple[_Rule, ...] = ()


def _schema() -> dict[str, Any]:
    (written,), parts = msgspec.json.schema_components([_AirFile], ref_template="#/definitions/{name}")
    name = written["$ref"].rpartition("/")[2]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **parts.pop(name),
        "title": "lgov AIR rules",
        "definitions": parts,
    }


#: The JSON Schema (draft 7) of a file of AIR rules, or of a section of one.
AIR_FILE_SCHEMA: Final[dict[str, Any]] = _schema()


def load_rules(path: str | PathLike[str], *, section: str | None = None) -> RuleSet:
    """The AIR rules in a YAML file, or in its top-level ``section``; the rest of the file is then ignored.

    Raises `RewardFileError` with the line for any mistake in them.
    """
    source = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise RewardFileError("there is no such file", path=source, hint="check the path of the AIR rules") from error
    except UnicodeDecodeError as error:
        raise RewardFileError("the file is not UTF-8 text", path=source) from error
    except (OSError, ValueError) as error:
        raise RewardFileError(f"the file cannot be read: {error}", path=source) from error
    try:
        document, lines = read_yaml(text, source)
    except PolicyFileError as error:
        where = ":".join(str(part) for part in (error.path, error.line) if part is not None)
        message = error.message.removeprefix(f"{where}: ")
        raise RewardFileError(message, path=source, line=error.line, hint=error.hint) from error
    root: Place = ()
    if section is not None:
        if not isinstance(document, Mapping) or section not in document:
            raise RewardFileError(f"there is no section {section!r}", path=source)
        document, root = document[section], (section,)
    return _rule_set(document, source, lines, root)


def rules_of(document: Mapping[str, Any], *, source: str = "AIR rules") -> RuleSet:
    """The AIR rules in a document that is in memory; ``source`` names it in errors. Raises `RewardFileError`."""
    return _rule_set(document, source, {}, ())


def _rule_set(document: Any, source: str, lines: Mapping[Place, int], root: Place) -> RuleSet:
    def error(path: Place, message: str, hint: str | None) -> RewardFileError:
        """The error with the line of ``path``, or of the nearest thing around it that has one."""
        path = (*root, *path)
        while path and path not in lines:
            path = path[:-1]
        return RewardFileError(message, path=source, line=lines.get(path), hint=hint)

    try:
        file = checked(document, _AirFile)
    except Mistake as mistake:
        raise error(*_explained(mistake, document)) from None
    path: Place = ("defaults",)
    try:
        values = _Values() if file.defaults is True else file.defaults or None
        base = None if values is None else AirRules(**msgspec.structs.asdict(values))
        path = ("cap",)
        rules = RuleSet(base=base, cap=file.cap)
        for index, rule in enumerate(file.rules):
            path = ("rules", index)
            shaped = rule.on != "denied" if rule.shaped is None else rule.shaped
            name = rule.name or f"rule {index + 1}"
            rules.add(AirRule(name, rule.on, rule.reward, rule.tools, rule.agents, shaped, rule.milestone))
    except RewardError as wrong:
        raise error(path, wrong.message, wrong.hint) from wrong
    if not rules.rules and rules.base is None:
        raise error(("rules",), "nothing is ever paid", "write rules, or defaults: true")
    return rules


def _explained(mistake: Mistake, document: Any) -> tuple[Place, str, str | None]:
    """Returns where a document does not fit the schema, what is wrong there, and what to write instead."""
    path: Place = mistake.path
    struct = _Rule if path[:1] == ("rules",) else _Values if path[:1] == ("defaults",) else _AirFile
    if mistake.unknown is not None:
        keys = struct.__struct_fields__
        hint = suggest_name(mistake.unknown.lower(), keys)
        return (*path, mistake.unknown), f"there is no key {mistake.unknown!r} here", hint
    missing = mistake.expected.removeprefix("Object missing required field ")
    if missing != mistake.expected:
        return path, f"there is no {missing}", f"write {missing}: ..."
    value = document
    for step in path:
        value = value[step]
    plain, _, _ = mistake.expected.partition(", got ")
    expected = _WORDS.get(plain, plain)
    choices = PARAMETERS if path[-1:] == ("on",) else ("call", "tool") if path[-1:] == ("milestone",) else ()
    hint = suggest_name(str(value).lower(), tuple(choices)) if choices else f"it must be {expected}"
    return path, f"{path[-1] if path else 'the document'} is {value!r:.100}", hint
