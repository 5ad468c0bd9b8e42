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

from lgov_core.policies.registry import BUILTIN_POLICIES, options_of
from lgov_core.types import Point, PolicyFactory, Severity

#: Where the schema of the built-in policies lies.
SCHEMA_PATH: Final = Path(__file__).with_name("policy-file.schema.json")

_SIMPLE: Final[Mapping[Any, dict[str, Any]]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
}


def policy_file_schema(registry: Mapping[str, PolicyFactory] = BUILTIN_POLICIES) -> dict[str, Any]:
    """The JSON Schema (draft 7) of files whose rules use the policies of ``registry``.

    A file that does not fit it does not load; one that fits may still hold what only the policies themselves can check (an
    unknown dialect, say). A policy under another name, from a plugin, fits with any options. What does not depend on
    code is taken from the file at `SCHEMA_PATH` itself.
    """
    schema: dict[str, Any] = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    rule = schema["definitions"]["rule"]
    rule["properties"]["on"]["items"]["enum"] = [point.value for point in Point]
    rule["properties"]["severity"]["enum"] = [*(level.value for level in Severity), None]
    rule["properties"]["use"]["anyOf"][0]["enum"] = sorted(registry)
    rule["allOf"] = [
        {"if": {"required": ["use"], "properties": {"use": {"const": use}}}, "then": _options(registry[use])}
        for use in sorted(registry)
    ]
    return schema


def _options(factory: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a rule that uses ``factory``, as to its ``with``."""
    made_by = factory.__init__ if isinstance(factory, type) else factory
    hints = get_type_hints(made_by)
    properties: dict[str, Any] = {}
    needed: list[str] = []
    for name, parameter in options_of(factory).items():
        if name == "name":
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return {}
        schema = _of_hint(hints.get(name, Any))
        if schema is None:
            continue  # a file cannot hold it
        if name in getattr(factory, "required_in_files", ()):
            schema = next(choice for choice in schema["anyOf"] if choice != {"type": "null"})
            needed.append(name)
        elif parameter.default is parameter.empty:
            needed.append(name)
        properties[name] = schema
    options: dict[str, Any] = {"type": "object" if needed else ["object", "null"], "additionalProperties": False}
    options["properties"] = properties
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
