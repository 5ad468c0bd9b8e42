"""``import lgov_core`` stays light, and so does the base installation."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lgov_core

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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
        "lgov_core.integrations.agent_hooks",
        "lgov_langchain",
        "lgov_langchain.instrumentor",
        "lgov_autogen.instrumentor",
        "lgov_openai_agents.instrumentor",
        "lgov_openai",
        "lgov_openai.instrumentor",
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
    waiting: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            waiting += metadata.requires(name) or ()
    return found


def test_the_base_installation_brings_at_most_fourteen_others() -> None:
    found = base_installation()
    assert {"click", "pluggy", "rich", "sqlglot"} <= found
    assert len(found) <= 14, sorted(found)


@pytest.mark.parametrize("folder", ["_util", "commands", "governor", "instrumentation", "process", "reward"])
def test_what_governs_imports_only_the_base_installation(folder: str) -> None:
    brought = {canonicalize_name(Requirement(one).name) for one in PROJECT["dependencies"]}
    distributions = metadata.packages_distributions()
    foreign = {
        module
        for path in (ROOT / "lgov_core" / folder).rglob("*.py")
        if not path.name.startswith("mcp_")  # `lgov mcp` has an extra of its own
        for module in imported(path) - sys.stdlib_module_names
        if brought.isdisjoint(map(canonicalize_name, distributions.get(module, ())))
    }
    # The environment's own; conditions in CEL; Parquet, where it is asked for; what every framework with typed tools brings.
    assert foreign - {"lgov_core"} <= {"sitecustomize", "cel_expr_python", "pyarrow", "pydantic_core"}


def imported(path: Path) -> set[str]:
    """The top-level modules that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.split(".")[0] for name in names}


def test_contributing_names_what_adapters_may_import() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (adapters,) = (one for one in contracts if one["name"].startswith("Adapters import the documented modules"))
    assert adapters["forbidden_modules"] == ["lgov_core.*"]
    allowed = {rule.removeprefix("** -> ").removesuffix(".*") for rule in adapters["ignore_imports"]}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    said = re.search(r"adapters import only (.*?)$", text, re.M)
    assert said is not None
    assert {f"lgov_core.{name}" for name in re.findall(r"`(\w+)`", said[1])} == allowed
