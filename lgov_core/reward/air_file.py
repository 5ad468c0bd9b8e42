"""AIR rules in YAML. Every mistake is an error with its line and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from lgov_core._util.suggestions import suggest_name
from lgov_core.errors import PolicyFileError, RewardError, RewardFileError
from lgov_core.policies.document import Place, read_yaml
from lgov_core.reward.air_rules import PARAMETERS, AirRule, RuleSet
from lgov_core.reward.air_values import AirRules

_TOP: Final = ("version", "cap", "defaults", "rules")
_RULE: Final = ("name", "on", "tools", "agents", "reward", "shaped", "milestone")
_DEFAULTS: Final = ("tool_success", "tool_error", "denied", "shaped")
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
            "anyOf": [
                {"type": "boolean"},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        **{name: {"type": "number"} for name in _DEFAULTS[:3]},
                        "shaped": {"type": "boolean"},
                    },
                },
            ],
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
    return _Reading(source, lines).rule_set(root, document)


def rules_of(document: Mapping[str, Any], *, source: str = "AIR rules") -> RuleSet:
    """The AIR rules in a document that is in memory; ``source`` names it in errors. Raises `RewardFileError`."""
    return _Reading(source, {}).rule_set((), document)


class _Reading:
    """One document on its way to a rule set."""

    def __init__(self, source: str, lines: Mapping[Place, int]) -> None:
        self.source = source
        self.lines = lines

    def rule_set(self, root: Place, document: Any) -> RuleSet:
        top = self.mapping(root, document, _TOP, "the AIR rules")
        version = top.get("version")
        if isinstance(version, bool) or version != 1:
            raise self.error((*root, "version"), f"version is {version!r}", "write version: 1")
        made = self.tried((*root, "cap"), lambda: RuleSet(base=self.base(root, top), cap=top.get("cap", 1.0)))
        rules = top.get("rules", [])
        if not isinstance(rules, list | tuple):
            raise self.error((*root, "rules"), "rules must be a list", "write - on: tool_success and reward: 0.05")
        for index, rule in enumerate(rules):
            place = (*root, "rules", index)
            self.tried(place, lambda rule=rule, place=place, index=index: made.add(self.rule(place, rule, index)))
        if not made.rules and made.base is None:
            raise self.error((*root, "rules"), "nothing is ever paid", "write rules, or defaults: true")
        return made

    def base(self, root: Place, top: Mapping[str, Any]) -> AirRules | None:
        given = top.get("defaults", False)
        if isinstance(given, bool):
            return AirRules() if given else None
        values = self.mapping((*root, "defaults"), given, _DEFAULTS, "defaults")
        for name, value in values.items():
            self.tried((*root, "defaults", name), lambda name=name, value=value: AirRules(**{name: value}))
        return AirRules(**values)

    def rule(self, place: Place, document: Any, index: int) -> AirRule:
        given = self.mapping(place, document, _RULE, "a rule")
        for name in ("on", "reward"):
            if name not in given:
                raise self.error(place, f"the rule has no {name}", f"write {name}: ...")
        reward = given["reward"]
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise self.error((*place, "reward"), f"reward is {reward!r}", "write a number")
        for name in ("tools", "agents"):
            globs = given.get(name, ["*"])
            if not isinstance(globs, list | tuple) or not globs or not all(isinstance(g, str) and g for g in globs):
                raise self.error((*place, name), f"{name} must be a list of globs", f'write {name}: ["*"] for all')
        shaped = given.get("shaped", given["on"] != "denied")
        if not isinstance(shaped, bool):
            raise self.error((*place, "shaped"), f"shaped is {shaped!r}", "write true or false")
        name = given.get("name", f"rule {index + 1}")
        if not isinstance(name, str) or not name.strip():
            raise self.error((*place, "name"), f"name is {name!r}, which is not a text", "put it in quotes")
        for key, known in (("on", tuple(PARAMETERS)), ("milestone", ("call", "tool"))):
            if key in given and given[key] not in known:
                raise self.error(
                    (*place, key), f"{key} is {given[key]!r}", suggest_name(str(given[key]).lower(), known)
                )
        return AirRule(
            name,
            given["on"],
            float(reward),
            tuple(given.get("tools", ("*",))),
            tuple(given.get("agents", ("*",))),
            shaped,
            given.get("milestone", "call"),
        )

    def mapping(self, place: Place, value: Any, known: tuple[str, ...], what: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.error(place, f"{what} must be a mapping", f"write {known[0]}: ...")
        for key in value:
            if key not in known:
                raise self.error((*place, key), f"there is no key {key!r} here", suggest_name(str(key).lower(), known))
        return value

    def tried(self, place: Place, make: Any) -> Any:
        try:
            return make()
        except RewardFileError:
            raise
        except RewardError as error:
            raise self.error(place, error.message, error.hint) from error

    def error(self, place: Place, message: str, hint: str | None = None) -> RewardFileError:
        """The error with the line of ``place``, or of the nearest thing around it that has one."""
        while place and place not in self.lines:
            place = place[:-1]
        return RewardFileError(message, path=self.source, line=self.lines.get(place), hint=hint)
