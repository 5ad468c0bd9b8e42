"""The JSON Schema of policy files: it is the stored one, and says of a file what the loader says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

from lgov_core._util.schema import read_yaml
from lgov_core.errors import PolicyFileError
from lgov_core.policies import BUILTIN_POLICIES, load_policies
from lgov_core.policies.schema import SCHEMA_PATH, policy_file_schema, schema_text

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("lgov_core", "examples", "tests", "docs")
    for path in (ROOT / folder).rglob("*.yaml")
    if "rules:" in path.read_text(encoding="utf-8")
)

fits = fastjsonschema.compile(policy_file_schema())


def test_the_stored_schema_is_that_of_the_policies() -> None:
    assert SCHEMA_PATH.read_text(encoding="utf-8") == schema_text(), "python -m lgov_core.policies.schema --write"
    assert json.loads(schema_text()) == policy_file_schema()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_policy_files_of_this_repository_fit(path: Path) -> None:
    document, _ = read_yaml(path.read_text(encoding="utf-8"), str(path))
    kinds = document.values() if path.name == "policies.yaml" else ()  # of the attack cases: kind, setting, document
    for one in [setting for kind in kinds for setting in kind.values()] or [document]:
        fits(one)


def rule(**more: Any) -> dict[str, Any]:
    return {"version": 1, "rules": [{"use": "deny", **more}]}


FITTING = [
    rule(),
    rule(name="n", on=["output"], tools=["a*"], agents=["b"], severity="low"),
    rule(severity=None),
    rule(**{"with": None}),
    rule(**{"with": {"reason": "no"}}),
    rule(when="name == 'x'"),
    rule(when={"field": "name", "eq": "x"}),
    rule(when={"field": ["arguments", "a.b"], "exists": True}),
    rule(when={"field": "arguments.a.0", "length": {"le": 5}}),
    rule(
        when={
            "all": [
                {"not": {"field": "arguments.a", "in": [1, 2]}},
                {"any": [{"field": "context.a", "gt": 1, "lt": 2}]},
            ]
        }
    ),
    rule(use="sql", **{"with": {"dialect": "sqlite", "argument": ["a", "b"], "tables": None}}),
    rule(use="tool", **{"with": {"allow": ["a"], "schemas": {"a": {"type": "object"}}}}),
    {"version": 1, "name": "n", "mode": "shadow", "default": "allow", "rules": [{"use": "allow"}]},
]


@pytest.mark.parametrize("document", FITTING, ids=str)
def test_what_loads_fits(document: dict[str, Any]) -> None:
    load_policies(document)
    fits(document)


WRONG = [
    {},
    {"version": 1},
    {"version": 2, "rules": [{"use": "deny"}]},
    {"version": True, "rules": [{"use": "deny"}]},
    {"version": 1, "rules": []},
    {"version": 1, "rules": {}},
    {"version": 1, "rules": ["deny"]},
    {"version": 1, "rules": [{}]},
    {"version": 1, "rules": [{"use": "deny"}], "defualt": "deny"},
    {"version": 1, "rules": [{"use": "deny"}], "default": "block"},
    {"version": 1, "rules": [{"use": "deny"}], "mode": "audit"},
    {"version": 1, "rules": [{"use": "deny"}], "name": ""},
    rule(name=" "),
    rule(on=[]),
    rule(on="output"),
    rule(on=["outputs"]),
    rule(tools=[1]),
    rule(tools=[""]),
    rule(agents="x"),
    rule(severity="fatal"),
    rule(tolls=["a"]),
    rule(when=7),
    rule(when={}),
    rule(when={"field": "name"}),
    rule(when={"eq": "x"}),
    rule(when={"field": "nme", "eq": "x"}),
    rule(when={"field": "arguments..x", "eq": "x"}),
    rule(when={"field": "name", "equals": "x"}),
    rule(when={"all": []}),
    rule(when={"all": {"field": "name", "eq": "x"}}),
    rule(when={"all": [{"field": "name", "eq": "x"}], "any": [{"field": "name", "eq": "x"}]}),
    rule(when={"not": [{"field": "name", "eq": "x"}]}),
    rule(when={"field": "arguments.x", "in": "a"}),
    rule(when={"field": "arguments.x", "in": []}),
    rule(when={"field": "arguments.x", "gt": True}),
    rule(when={"field": "arguments.x", "exists": "yes"}),
    rule(when={"field": "arguments.x", "type": "string"}),
    rule(when={"field": "arguments.x", "length": -1}),
    rule(when={"field": "arguments.x", "length": {"about": 1}}),
    rule(when={"field": "arguments.x", "glob": 1}),
    rule(**{"with": ["x"]}),
    rule(**{"with": {"why": "x"}}),
    rule(use="sql"),
    rule(use="sql", **{"with": {}}),
    rule(use="sql", **{"with": {"dialect": "sqlite", "modus": "guarded"}}),
    rule(use="sql", **{"with": {"dialect": "sqlite", "mode": "open"}}),
    rule(use="sql", **{"with": {"dialect": "sqlite", "deny": "DROP"}}),
    rule(use="tool", **{"with": {"allow": "x"}}),
]


@pytest.mark.parametrize("document", WRONG, ids=str)
def test_what_does_not_fit_does_not_load(document: dict[str, Any]) -> None:
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        fits(document)
    with pytest.raises(PolicyFileError):
        load_policies(document)


@pytest.mark.parametrize("use", sorted(BUILTIN_POLICIES))
def test_an_option_that_does_not_exist_fits_nowhere(use: str) -> None:
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        fits(rule(use=use, **{"with": {"no_such_option": 1}}))
    with pytest.raises(PolicyFileError):
        load_policies(rule(use=use, **{"with": {"no_such_option": 1}}))


def test_a_policy_from_a_plugin_fits_with_its_own_options() -> None:
    fits(rule(use="echo", **{"with": {"anything": 1}}))
