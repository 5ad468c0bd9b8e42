"""AIR rules in YAML. Every mistake is an error with its line and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from lgov_core._util.suggestions import suggest_name
from lgov_core.air.rules import PARAMETERS, AirRule, AirRules, RuleSet
from lgov_core.errors import PolicyFileError, RewardError, RewardFileError
from lgov_core.policies.document import Place, read_yaml

_GLOBS: Final = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}

#: The JSON Schema (draft 7) of a file of AIR rules, or of a section of one.
AIR_FILE_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "lgov AIR rules",
    "type": "object",
    "additionalProperties": False,
    "required": ["version"],
    "properties": {
        "version": {"description": "Of the format.", "type": "integer", "const": 1},
        "cap": {
            "description": "The most that an attempt is paid; null for no bound.",
            "type": ["number", "null"],
            "minimum": 0,
        },
        "defaults": {
            "description": "What is paid where no rule covers a call; true for the built-in values.",
            "type": ["boolean", "object"],
            "additionalProperties": False,
            "properties": {
                "tool_success": {"type": "number"},
                "tool_error": {"type": "number"},
                "denied": {"type": "number"},
                "shaped": {"type": "boolean"},
            },
        },
        "rules": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["on", "reward"],
                "properties": {
                    "name": {"type": "string", "pattern": r"\S"},
                    "on": {"enum": list(PARAMETERS)},
                    "tools": {"description": "Globs for the tool's (or model's) name.", **_GLOBS},
                    "agents": {"description": "Globs for the agent's name.", **_GLOBS},
                    "reward": {"type": "number"},
                    "shaped": {"type": "boolean"},
                    "milestone": {"enum": ["call", "tool"]},
                },
            },
        },
    },
}


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
        said = error.message.removeprefix(f"{where}: ")
        raise RewardFileError(said, path=source, line=error.line, hint=error.hint) from error
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
    import fastjsonschema

    def error(place: Place, message: str, hint: str | None) -> RewardFileError:
        """The error with the line of ``place``, or of the nearest thing around it that has one."""
        place = (*root, *place)
        while place and place not in lines:
            place = place[:-1]
        return RewardFileError(message, path=source, line=lines.get(place), hint=hint)

    try:
        fastjsonschema.compile(AIR_FILE_SCHEMA, use_default=False)(document)
    except fastjsonschema.JsonSchemaValueException as wrong:
        raise error(*_explained(wrong)) from None
    place: Place = ("defaults",)
    try:
        defaults = document.get("defaults", False)
        base = AirRules(**({} if defaults is True else defaults)) if defaults is not False else None
        place = ("cap",)
        made = RuleSet(base=base, cap=document.get("cap", 1.0))
        for index, rule in enumerate(document.get("rules", ())):
            place = ("rules", index)
            made.add(_rule(rule, index))
    except RewardError as wrong:
        raise error(place, wrong.message, wrong.hint) from wrong
    if not made.rules and made.base is None:
        raise error(("rules",), "nothing is ever paid", "write rules, or defaults: true")
    return made


def _rule(given: Mapping[str, Any], index: int) -> AirRule:
    return AirRule(
        given.get("name", f"rule {index + 1}"),
        given["on"],
        float(given["reward"]),
        tuple(given.get("tools", ("*",))),
        tuple(given.get("agents", ("*",))),
        given.get("shaped", given["on"] != "denied"),
        given.get("milestone", "call"),
    )


def _explained(wrong: Any) -> tuple[Place, str, str | None]:
    """Where a document does not fit the schema, what is wrong there, and what to write instead."""
    place: Place = tuple(int(part) if part.isdigit() else part for part in wrong.path[1:])
    given, rule, wanted = wrong.value, wrong.rule, wrong.rule_definition
    if rule == "additionalProperties":
        known = tuple(wrong.definition["properties"])
        key = next(key for key in given if key not in known)
        return (*place, key), f"there is no key {key!r} here", suggest_name(str(key).lower(), known)
    if rule == "required":
        missing = next(key for key in wanted if key not in given)
        return place, f"there is no {missing}", f"write {missing}: ..."
    message = f"{place[-1] if place else 'the document'} is {given!r:.100}"
    if rule == "enum":
        return place, message, suggest_name(str(given).lower(), tuple(wanted))
    return place, message, f"it {wrong.message.removeprefix(wrong.name).strip()}"
