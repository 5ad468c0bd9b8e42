"""Every public name exists and says what it is; every hook says when it is called and what it costs."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import lgov_core
from lgov_core import errors, hookspecs
from lgov_core.wire.turns import MessageProtocol

ROOT = Path(__file__).parents[2]
PACKAGES = ("lgov_core", "lgov_langchain", "lgov_autogen", "lgov_openai_agents")
#: A user's program, which the demo runs as a file: not part of the library.
NOT_OURS = ROOT / "lgov_core" / "demo" / "agent.py"
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path != NOT_OURS)

HOOKS = [name for name in vars(hookspecs) if name.startswith("lgov_")]
HOOK_LINES = ("When:", "Gets:", "Returns:", "If it raises:", "Cost:")


def public_names() -> list[tuple[str, str]]:
    return [
        (package, name) for package in PACKAGES for name in getattr(importlib.import_module(package), "__all__", ())
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_names_are_sorted_and_unique(package: str) -> None:
    names = list(getattr(importlib.import_module(package), "__all__", ()))
    assert names == sorted(set(names))


def test_the_root_exports_at_most_forty_names() -> None:
    assert 0 < len(lgov_core.__all__) <= 40


@pytest.mark.parametrize(("package", "name"), public_names())
def test_every_exported_name_exists_and_is_documented(package: str, name: str) -> None:
    module = importlib.import_module(package)
    value = getattr(module, name)
    assert name in dir(module)
    if inspect.isclass(value) or inspect.isroutine(value):
        written = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
        assert written
        assert written.strip()


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Governer"):
        _ = lgov_core.Governer  # type: ignore[attr-defined]


def test_the_lazy_names_are_the_exported_ones() -> None:
    assert set(lgov_core._HOMES) == set(lgov_core.__all__)
    for name, home in lgov_core._HOMES.items():
        assert getattr(importlib.import_module(home), name) is getattr(lgov_core, name)


#: Modules of classes whose methods are those of `MessageProtocol`, which describes each once.
IMPLEMENTATIONS = ("chat_turns.py", "responses_turns.py")


def definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """The public classes and functions of a module, and the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("_"):
                        yield f"{node.name}.{inner.name}", inner


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_everything_public_in_them_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if tree.body:
        assert ast.get_docstring(tree), "the module"
    undocumented = [
        name
        for name, node in definitions(tree)
        if not ast.get_docstring(node)  # type: ignore[arg-type]
        and not (path.name in IMPLEMENTATIONS and getattr(MessageProtocol, name.rpartition(".")[2]).__doc__)
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_when_what_and_at_which_cost(name: str) -> None:
    document = inspect.getdoc(getattr(hookspecs, name)) or ""
    lines = document.splitlines()
    assert lines[0].endswith("."), "the first line is a sentence"
    places = [next((at for at, line in enumerate(lines) if line.startswith(word)), -1) for word in HOOK_LINES]
    assert -1 not in places, HOOK_LINES[places.index(-1)]
    assert places == sorted(places)
    for word, at in zip(HOOK_LINES, places, strict=True):
        assert lines[at].removeprefix(word).strip(), word


def test_the_decision_hooks_are_the_hooks_that_judge() -> None:
    judging = [name for name in HOOKS if "action" in inspect.signature(getattr(hookspecs, name)).parameters]
    assert tuple(judging) == hookspecs.DECISION_HOOKS


def test_the_error_tree_is_drawn_in_full_and_every_code_is_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.LgovError)]
    assert len({kind.code for kind in kinds}) == len(kinds)
    for kind in kinds:
        assert f" {kind.__name__} " in (errors.__doc__ or "").replace("\n", " ")
