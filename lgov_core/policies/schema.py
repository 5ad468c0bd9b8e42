"""The JSON Schema of policy files, made from what the policies are made with.

``policy-file.schema.json`` beside this module is the schema of the built-in policies, for editors. Write it anew with
``python -m lgov_core.policies.schema --write`` when a policy gets an option; ``--path`` says where it lies.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from lgov_core.policies.base import PolicyFactory
from lgov_core.policies.conditions.fields import FIELDS
from lgov_core.policies.conditions.matchers import OPERATORS, TYPES
from lgov_core.policies.registry import BUILTIN_POLICIES
from lgov_core.types import Point, Severity

#: Where the schema of the built-in policies lies.
SCHEMA_PATH: Final = Path(__file__).with_name("policy-file.schema.json")

_SIMPLE: Final[Mapping[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
}
_TEXTS: Final = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
_LENGTH: Final = {"type": "integer", "minimum": 0}


def policy_file_schema(registry: Mapping[str, PolicyFactory] = BUILTIN_POLICIES) -> dict[str, Any]:
    """The JSON Schema (draft 7) of files whose rules use the policies of ``registry``.

    A file that does not fit it does not load; one that fits may still hold what only the policies themselves can tell (an
    unknown dialect, say). A policy under another name, from a plugin, fits with any options.
    """
    rule: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "required": ["use"],
        "properties": {
            "name": _about(
                "For messages and the record: the policy that a decision names.", type="string", pattern=r"\S"
            ),
            "on": _about(
                "The points at which it is asked; those that the policy is made for unless said otherwise.",
                type="array",
                items={"enum": [point.value for point in Point]},
                minItems=1,
            ),
            "tools": _about("Globs for the tool's name; all unless said otherwise.", **_TEXTS),
            "agents": _about("Globs for the agent's name; all unless said otherwise.", **_TEXTS),
            "when": {"description": "A condition, or CEL as text.", "anyOf": [{"type": "string"}, _ref("condition")]},
            "use": _about(
                "The policy that judges.", anyOf=[{"enum": sorted(registry)}, {"type": "string", "pattern": r"\S"}]
            ),
            "with": {"description": "What the policy is made with.", "type": ["object", "null"]},
            "severity": _about(
                "Instead of the policy's own, when it blocks.", enum=[*(level.value for level in Severity), None]
            ),
        },
        "allOf": [
            {
                "if": {"required": ["use"], "properties": {"use": {"const": use}}},
                "then": _options(registry[use]),
            }
            for use in sorted(registry)
        ],
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "lgov policy file",
        "type": "object",
        "additionalProperties": False,
        "required": ["version", "rules"],
        "properties": {
            "version": _about("Of the format.", type="integer", const=1),
            "name": _about("For messages and the record.", type="string", pattern=r"\S"),
            "mode": _about("enforce, or shadow: judge and record, block nothing.", enum=["enforce", "shadow"]),
            "default": _about("The answer to an act that no rule covers.", enum=["deny", "allow"]),
            "rules": {"type": "array", "minItems": 1, "items": _ref("rule")},
        },
        "definitions": {"rule": rule, "condition": _condition()},
    }


def _about(description: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, **schema}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


def _condition() -> dict[str, Any]:
    def only(name: str, inner: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": False, "required": [name], "properties": {name: inner}}

    several = {"type": "array", "minItems": 1, "items": _ref("condition")}
    scalar = {"type": ["string", "number", "boolean", "null"]}
    roots = "|".join(FIELDS)
    special: dict[str, dict[str, Any]] = {
        "eq": {},
        "ne": {},
        "in": {"type": "array", "minItems": 1, "items": scalar},
        "not_in": {"type": "array", "minItems": 1, "items": scalar},
        "contains": scalar,
        "exists": {"type": "boolean"},
        "type": {"enum": list(TYPES)},
        "length": {
            "anyOf": [
                _LENGTH,
                {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": False,
                    "properties": dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _LENGTH),
                },
            ]
        },
        **{key: {"type": "string", "minLength": 1} for key in ("glob", "starts_with", "ends_with")},
        **{key: {"type": ["string", "number"]} for key in ("lt", "le", "gt", "ge")},
    }
    comparison = {
        "type": "object",
        "additionalProperties": False,
        "required": ["field"],
        "minProperties": 2,
        "properties": {
            "field": _about(
                f"One of {', '.join(FIELDS)}; arguments.NAME and context.NAME lead further in.",
                anyOf=[{"type": "string", "pattern": rf"^({roots})(\.[^.]+)*$"}, _TEXTS],
            ),
            **{name: special[name] for name in OPERATORS},
        },
    }
    return {"anyOf": [comparison, only("all", several), only("any", several), only("not", _ref("condition"))]}


def _options(factory: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a rule that uses ``factory``, as to its ``with``."""
    made_by = factory.__init__ if isinstance(factory, type) else factory
    hints = get_type_hints(made_by)
    known: dict[str, Any] = {}
    needed: list[str] = []
    for name, parameter in inspect.signature(factory).parameters.items():
        if name in ("self", "name"):
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return {}
        schema = _of_hint(hints.get(name, Any))
        if schema is None:
            continue  # a file cannot hold it
        known[name] = schema
        if parameter.default is parameter.empty:
            needed.append(name)
    options: dict[str, Any] = {"type": "object" if needed else ["object", "null"], "additionalProperties": False}
    options["properties"] = known
    if not needed:
        return {"properties": {"with": options}}
    options["required"] = needed
    return {"required": ["with"], "properties": {"with": options}}


def _of_hint(hint: Any) -> dict[str, Any] | None:
    """The schema of what an annotation admits, or None when none of it can be written in a file."""
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        choices = [schema for schema in map(_of_hint, inner) if schema is not None]
        useful = [schema for schema in choices if schema != {"type": "null"}]
        return {"anyOf": choices} if len(choices) > 1 and useful else (useful[0] if useful else None)
    kind = origin if isinstance(origin, type) else hint
    if not isinstance(kind, type):
        return {}
    if kind is tuple:
        items = {"items": [_of_hint(item) or {} for item in inner]} if inner and inner[-1] is not Ellipsis else {}
        return {"type": "array", **items, **({"minItems": len(inner), "maxItems": len(inner)} if items else {})}
    if issubclass(kind, Mapping):
        return (
            {"type": "object", "additionalProperties": _of_hint(inner[1]) or {}}
            if len(inner) == 2
            else {"type": "object"}
        )
    if issubclass(kind, Sequence):
        return {"type": "array", "items": _of_hint(inner[0]) or {}} if inner else {"type": "array"}
    if kind is os.PathLike:
        return {"type": "string"}
    return None


def schema_text() -> str:
    """The text of ``policy-file.schema.json`` as it must be."""
    return json.dumps(policy_file_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    sys.stdout.write(f"{SCHEMA_PATH}\n" if {"--write", "--path"} & set(sys.argv) else schema_text())
