"""The JSON Schema of policy files, made from what the policies are made with.

``policy-file.schema.json`` beside this module is the schema of the built-in policies, for editors. Write it anew with
``python -m lgov_core.policies.schema --write`` when a policy gets an option; ``--path`` says where it lies.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lgov_core.policies.confinement import ConfineKeys
from lgov_core.policies.options import options_kind
from lgov_core.policies.registry import BUILTIN_POLICIES
from lgov_core.types import Point, PolicyFactory, Severity

#: Where the schema of the built-in policies lies.
SCHEMA_PATH: Final = Path(__file__).with_name("policy-file.schema.json")


def policy_file_schema(registry: Mapping[str, PolicyFactory] = BUILTIN_POLICIES) -> dict[str, Any]:
    """The JSON Schema (draft 7) of files whose rules use the policies of ``registry``.

    A file that does not fit it does not load; one that fits may still hold what only the policies themselves can check (an
    unknown dialect, say). A policy under another name, from a plugin, fits with any options. What does not depend on
    code is taken from the file at `SCHEMA_PATH` itself.
    """
    schema: dict[str, Any] = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    confine = msgspec.json.schema_components([ConfineKeys], ref_template="{name}")[1]["ConfineKeys"]
    schema["properties"]["confine"] = {
        "description": "What lgov run --confine lets the program read, write, reach and use.",
        **{key: value for key, value in confine.items() if key not in ("title", "description", "required")},
    }
    rule = schema["definitions"]["rule"]
    rule["properties"]["on"]["items"]["enum"] = [point.value for point in Point]
    rule["properties"]["severity"]["enum"] = [*(level.value for level in Severity), None]
    rule["properties"]["use"]["anyOf"][0]["enum"] = sorted(registry)
    rule["allOf"] = [
        {
            "if": {"required": ["use"], "properties": {"use": {"const": use}}},
            "then": _options(registry[use], schema["definitions"]),
        }
        for use in sorted(registry)
    ]
    return schema


def _options(factory: PolicyFactory, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a rule that uses ``factory``, as to its ``with``; what its options share goes into ``definitions``."""
    kind = options_kind(factory)
    if kind is None:
        return {}
    types = kind.types_in_files()
    schemas, parts = msgspec.json.schema_components(list(types.values()), ref_template="#/definitions/{name}")
    definitions.update(parts)
    properties = dict(zip(types, schemas, strict=True))
    needed = [option.name for option in msgspec.structs.fields(kind) if option.required and option.name in types]
    for option in kind.needed_in_files:
        properties[option] = next(choice for choice in properties[option]["anyOf"] if choice != {"type": "null"})
        needed.append(option)
    options: dict[str, Any] = {"type": "object" if needed else ["object", "null"], "additionalProperties": False}
    options["properties"] = properties
    if not needed:
        return {"properties": {"with": options}}
    options["required"] = needed
    return {"required": ["with"], "properties": {"with": options}}


def schema_text() -> str:
    """The text of ``policy-file.schema.json`` as it must be."""
    return json.dumps(policy_file_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
    sys.stdout.write(f"{SCHEMA_PATH}\n" if {"--write", "--path"} & set(sys.argv) else schema_text())
