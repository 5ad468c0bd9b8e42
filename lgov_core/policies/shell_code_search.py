"""Searches for files in Python on a command line: which files a loop over ``glob`` goes through."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from lgov_core.policies.shell_words import ANY, STAR


def with_wildcards(pattern: str) -> str | None:
    """A pattern as a word with wildcards; None where it may name anything: it leads up, or has no ending."""
    if (
        ".." in pattern.split("/")
        or "[" in pattern
        or re.search(r"\w\.[A-Za-z]\w{0,9}$|\*\.[A-Za-z]\w{0,9}$", pattern) is None
    ):
        return None
    return pattern.replace("**", "*").replace("*", STAR).replace("?", ANY)


def stored_names(tree: ast.Module) -> Counter[str]:
    """How often each name is given a value or removed."""
    return Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))


def loops(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """The variables of loops with the call whose values they take, sorted perhaps."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            values = node.iter
            if (
                isinstance(values, ast.Call)
                and isinstance(values.func, ast.Name)
                and values.func.id in ("sorted", "list")
            ):
                values = values.args[0] if len(values.args) == 1 and not values.keywords else values
            if isinstance(values, ast.Call):
                yield node.target.id, values


def found_by_glob(tree: ast.Module) -> tuple[dict[str, list[str]], set[int]]:
    """The files behind variables of loops over ``glob.glob("...")``, and the nodes (by id) that only search."""
    functions: set[str] = set()
    modules: set[str] = set()
    settled: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "glob" and not node.level:
            if all(alias.name in ("glob", "iglob") for alias in node.names):
                functions.update(alias.asname or alias.name for alias in node.names)
                settled.add(id(node))
        elif isinstance(node, ast.Import):
            modules.update(alias.asname or alias.name for alias in node.names if alias.name == "glob")
    searching: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _searches(node.func, functions, modules):
            settled.update(id(inner) for inner in ast.walk(node.func))
            searching.add(id(node))
    found: dict[str, list[str]] = {}
    given: Counter[str] = Counter()
    for target, search in loops(tree):
        pattern = search.args[0] if id(search) in searching and search.args else None
        files = (
            with_wildcards(pattern.value)
            if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str)
            else None
        )
        if files is not None and all(keyword.arg == "recursive" for keyword in search.keywords):
            found.setdefault(target, []).append(files)
            given[target] += 1
    stored = stored_names(tree)
    return {
        name: files for name, files in found.items() if stored[name] == given[name] and not _bound(tree, name)
    }, settled


def _searches(node: ast.expr, functions: set[str], modules: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("glob", "iglob") and isinstance(node.value, ast.Name) and node.value.id in modules
    return isinstance(node, ast.Name) and node.id in functions


def _bound(tree: ast.Module, name: str) -> bool:
    """Whether a name is given to an argument, a function, an import or an exception too."""
    fields = ("name", "arg", "asname", "rest")
    return any(
        getattr(node, field, None) == name
        for node in ast.walk(tree)
        if not isinstance(node, ast.keyword)
        for field in fields
    )
