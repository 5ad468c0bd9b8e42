"""The public names and their signatures are those of ``public_names.json``.

Where one changes on purpose, write the file anew in the same commit, and say why in its message:
``python tests/golden/test_public_names.py --write``.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parent / "public_names.json"
#: The documented modules. Of one without ``__all__`` the names that it defines.
MODULES = (
    "lgov_core",
    "lgov_core.audit",
    "lgov_core.client",
    "lgov_core.compat",
    "lgov_core.emitter",
    "lgov_core.environment",
    "lgov_core.errors",
    "lgov_core.governor",
    "lgov_core.hookspecs",
    "lgov_core.kernel",
    "lgov_core.policies",
    "lgov_core.reward",
    "lgov_core.runner",
    "lgov_core.scope",
    "lgov_core.server",
    "lgov_core.settings",
    "lgov_core.store",
    "lgov_core.testing",
    "lgov_core.trainer",
    "lgov_core.transitions",
    "lgov_core.types",
    "lgov_autogen",
    "lgov_langchain",
    "lgov_openai",
    "lgov_openai_agents",
)
#: Names of documents that a module takes from elsewhere.
DOCUMENTED = {
    "lgov_core.runner": ("GovernedRollout", "PolicyViolationType"),
    "lgov_core.environment": ("EnvironmentConfig",),
    "lgov_core.compat": ("FlightRecorderAdapter",),
}
OBJECT = re.compile(r"<(?:\w+\.)*(\w+) object at 0x[0-9a-f]+>")


def default_text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(str, value)))}}}"
    return OBJECT.sub(r"<\1>", repr(value))


def signature(function: Any) -> str:
    """The parameters without their annotations, which name modules that may move."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "(...)"
    words: list[str] = []
    starred = False
    for at, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
            words.append(f"*{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            words.append("*")
        name = f"**{parameter.name}" if parameter.kind is parameter.VAR_KEYWORD else parameter.name
        given = "" if parameter.default is parameter.empty else f"={default_text(parameter.default)}"
        words.append(f"{name}{given}")
        following = parameters[at + 1].kind if at + 1 < len(parameters) else None
        if parameter.kind is parameter.POSITIONAL_ONLY and following is not parameter.POSITIONAL_ONLY:
            words.append("/")
    return f"({', '.join(words)})"


def described(value: Any) -> Any:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return class_members(value)
    if callable(value):
        return signature(value)
    return "mapping" if isinstance(value, Mapping) else type(value).__name__


def class_members(kind: type) -> dict[str, Any]:
    """How an object is made, and its public attributes, inherited ones from lgov included."""
    if issubclass(kind, enum.Enum):
        return {"enum": {name: member.value for name, member in kind.__members__.items()}}
    # How a protocol is made depends on whether a class of it was made before.
    members: dict[str, Any] = {} if getattr(kind, "_is_protocol", False) else {"": signature(kind)}
    if dataclasses.is_dataclass(kind):
        members["fields"] = [field.name for field in dataclasses.fields(kind)]
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("lgov"):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") and name != "__call__":
                continue
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isroutine(plain):
                members[name] = signature(plain)
            elif isinstance(value, property) or name not in members.get("fields", ()):
                members[name] = "attribute"
    return {name: members[name] for name in sorted(members)}


def names_of(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted({*own, *DOCUMENTED.get(module.__name__, ())})


def public_names(name: str) -> dict[str, Any]:
    module = importlib.import_module(name)
    return {public: described(getattr(module, public)) for public in names_of(module)}


@pytest.mark.parametrize("name", MODULES)
def test_the_public_names_are_those_on_record(name: str) -> None:
    expected = json.loads(FILE.read_text())[name]
    found = public_names(name)
    assert sorted(found) == sorted(expected)
    for public, value in expected.items():
        assert found[public] == value, public


def write() -> None:
    FILE.write_text(json.dumps({name: public_names(name) for name in MODULES}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/golden/test_public_names.py --write")
    write()
