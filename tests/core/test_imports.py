"""``import lgov_core`` stays light, and so does the base installation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import lgov_core

#: Top-level modules that load when they are first needed, never with lgov itself.
HEAVY = (
    "agent_hooks",
    "agents",
    "autogen_agentchat",
    "autogen_core",
    "cel_expr_python",
    "fastjsonschema",
    "gguf",
    "gymnasium",
    "langchain",
    "langchain_core",
    "langgraph",
    "matplotlib",
    "numpy",
    "openai",
    "peft",
    "psycopg",
    "pyarrow",
    "pydantic",
    "re2",
    "rich",
    "sqlglot",
    "starlette",
    "tokenizers",
    "torch",
    "transformers",
    "tree_sitter",
    "tree_sitter_bash",
    "uvicorn",
    "wrapt",
    "yaml",
)
#: The exported values need these two at most: pluggy for the governor, yaml for policy files.
WITH_NAMES = tuple(name for name in HEAVY if name != "yaml")
#: What belongs to an extra loads what that extra brings.
OF_EXTRAS = {"lgov_core.environment": {"gymnasium", "numpy"}}


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``code``."""
    program = f"{code}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_lgov_loads_nothing_else_of_it() -> None:
    loaded = loaded_by("import lgov_core")
    assert {name for name in loaded if name.startswith("lgov_")} == {"lgov_core"}
    # What an editable or installed environment loads at start-up by itself is not lgov's doing.
    assert loaded - loaded_by("") <= {"lgov_core"} | set(sys.stdlib_module_names) | {
        name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names
    }


@pytest.mark.parametrize("name", lgov_core.__all__)
def test_no_exported_name_loads_anything_heavy(name: str) -> None:
    allowed = OF_EXTRAS.get(lgov_core._HOMES[name], set())
    assert loaded_by(f"from lgov_core import {name}").isdisjoint(set(WITH_NAMES) - allowed)


@pytest.mark.parametrize(
    "module",
    [
        "lgov_core.agent_hooks",
        "lgov_langchain",
        "lgov_langchain.plugin",
        "lgov_autogen.plugin",
        "lgov_openai_agents.plugin",
        "lgov_openai",
        "lgov_openai.plugin",
        "lgov_core.process.run",
    ],
)
def test_adapters_load_no_framework_before_they_are_instrumented(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)


def test_a_governor_with_its_adapters_loads_no_framework() -> None:
    assert loaded_by("from lgov_core import Governor; Governor()").isdisjoint(HEAVY)


def base_installation() -> set[str]:
    """The distributions that ``pip install lgov`` brings on this platform beside lgov."""
    found: set[str] = set()
    waiting = ["lgov"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found - {"lgov"}


def test_the_base_installation_brings_at_most_twelve_others() -> None:
    found = base_installation()
    assert {"click", "pluggy", "rich", "sqlglot"} <= found
    assert len(found) <= 12, sorted(found)


def test_contributing_names_what_adapters_may_import() -> None:
    root = Path(__file__).parents[2]
    contracts = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (adapters,) = (one for one in contracts if one["name"].startswith("Adapters import the documented modules"))
    assert adapters["forbidden_modules"] == ["lgov_core.*"]
    allowed = {rule.removeprefix("** -> ").removesuffix(".*") for rule in adapters["ignore_imports"]}
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    said = re.search(r"adapters import only (.*?)$", text, re.M)
    assert said is not None
    assert {f"lgov_core.{name}" for name in re.findall(r"`(\w+)`", said[1])} == allowed
