"""Python on a command line: allowed if it only computes, prints and reads the files that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache

from lgov_core.policies.shell.refusal import Refused, unknown
from lgov_core.policies.shell.table import data, names
from lgov_core.policies.shell.values import is_wild
from lgov_core.policies.shell.workspace import Workspace


@lru_cache(1)
def _allowed() -> tuple[tuple[type[ast.AST], ...], Mapping[str, tuple[str, ...]]]:
    """The node types that a program may have, and the names that it may use of each module."""
    modules = {module: tuple(listed.split()) for module, listed in data()["python"]["modules"].items()}
    return tuple(getattr(ast, name) for name in names("python", "syntax")), modules


def check_python(text: str, workspace: Workspace) -> None:
    """Refuses a Python program unless it uses nothing but its own names and those of ``python`` in ``commands.yaml``.

    ``open`` is given a literal name, and judged as if the command named the file.
    """
    workspace.budget.spend(50 + 20 * len(text))
    try:
        if is_wild(text):
            raise _not_judged("text that is not known")
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_judged("what is not understood") from None
    syntax, known = _allowed()
    builtins, methods = names("python", "builtins"), names("python", "methods")
    modules, imported = _imported(nodes, known)
    workspace.modules(name.partition(".")[0] for name in modules.values())
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    if own & {"open", *modules, *imported, *builtins}:
        raise _not_judged("a name with two meanings")
    callees = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    allowed = {*own, *imported, *builtins, *modules}
    for node in nodes:
        if not isinstance(node, syntax):
            raise _not_judged(type(node).__name__)
        if isinstance(node, ast.Name) and node.id not in allowed:
            if node.id != "open" or id(node) not in callees:
                raise _not_judged(node.id)
            _check_open(callees[id(node)], workspace)
        elif isinstance(node, ast.Attribute):
            used = methods
            if isinstance(node.value, ast.Name) and node.value.id in modules:
                used = (*known.get(modules[node.value.id], ()), *names("python", "versions"))
            elif isinstance(node.value, ast.Name | ast.Attribute):
                used = (*methods, *known["datetime"])
            if not isinstance(node.ctx, ast.Load) or node.attr not in used:
                raise _not_judged(node.attr)


def _imported(nodes: list[ast.AST], known: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, str], set[str]]:
    """The modules by their names here, and names taken out of modules."""
    modules: dict[str, str] = {}
    imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            if any(alias.name not in known.get(node.module or "", ()) for alias in node.names):
                raise _not_judged(f"{node.module}")
            imported.update(alias.asname or alias.name for alias in node.names)
    return modules, imported


def _not_judged(what: str) -> Refused:
    return unknown(f"The Python program uses {what[:40]}, which is not judged; put it into a file of the project.")


def _check_open(call: ast.Call, workspace: Workspace) -> None:
    given = [*call.args, *(each.value for each in call.keywords if each.arg in ("mode", "encoding", "newline"))]
    words = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if not call.args or len(words) != len(call.args) + len(call.keywords):
        raise _not_judged("open without a plain name")
    workspace.read(words[0])
    if re.search(r"[wax+]", "".join(word for word in words[1:] if re.fullmatch(r"[rwaxbt+]+", word))):
        workspace.write(words[0])
