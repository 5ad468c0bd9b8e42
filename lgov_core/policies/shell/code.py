"""Programs on a command line: Python that surely only computes, prints and reads what it names, and sed that only edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lgov_core.policies.shell.refusal import Refused, unknown
from lgov_core.policies.shell.values import UNKNOWN, is_wild

if TYPE_CHECKING:
    from lgov_core.policies.shell.session import Session

_VERSIONS = ("__version__", "version", "VERSION", "__name__")
_SYNTAX = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.For, ast.If, ast.While, ast.With, ast.withitem, ast.Assert),
    *(
        ast.comprehension,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
        ast.IfExp,
        ast.Lambda,
        ast.arguments,
    ),
    *(ast.arg, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.JoinedStr, ast.FormattedValue),
    *(ast.List, ast.Tuple, ast.Dict, ast.Set, ast.Subscript, ast.Slice, ast.Starred, ast.keyword, ast.operator),
    *(ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context, ast.Break, ast.Continue, ast.Pass, ast.Import),
    *(ast.ImportFrom, ast.alias, ast.NamedExpr, ast.Call),
)


def check_python(text: str, session: Session) -> None:
    """Refuses a Python program unless it uses nothing but its own names and those of the table's ``python``.

    ``open`` is given a literal name, and judged as if the command named the file.
    """
    session.budget.spend(50 + 20 * len(text))
    try:
        if is_wild(text):
            raise _not_judged("text that is not known")
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _not_judged("what is not understood") from None
    builtins, methods, known = session.table.python
    modules, names = _imported(nodes, known)
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    if own & {"open", *modules, *names, *builtins}:
        raise _not_judged("a name with two meanings")
    opened = [node for node in nodes if isinstance(node, ast.Call) and _is_open(node.func)]
    for call in opened:
        _check_open(call, session)
    allowed, callees = own | names | builtins | set(modules), {id(call.func) for call in opened}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            module = modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
            used = methods if module is None else {*known.get(module, ()), *_VERSIONS}
            dates = (
                module is None and isinstance(node.value, ast.Name | ast.Attribute) and node.attr in known["datetime"]
            )
            if not isinstance(node.ctx, ast.Load) or (node.attr not in used and not dates):
                raise _not_judged(node.attr)
        elif isinstance(node, ast.Name):
            if node.id not in allowed and id(node) not in callees:
                raise _not_judged(node.id)
        elif not isinstance(node, _SYNTAX):
            raise _not_judged(type(node).__name__)


def _imported(nodes: list[ast.AST], known: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, str], set[str]]:
    """The modules by their names here, and names taken out of modules."""
    modules: dict[str, str] = {}
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update({alias.asname or alias.name: alias.name for alias in node.names})
        elif isinstance(node, ast.ImportFrom):
            if any(alias.name not in known.get(node.module or "", ()) for alias in node.names):
                raise _not_judged(f"{node.module}")
            names.update(alias.asname or alias.name for alias in node.names)
    return modules, names


def _not_judged(what: str) -> Refused:
    return unknown(f"The Python program uses {what[:40]}, which is not judged; put it into a file of the project.")


def _is_open(callee: ast.expr) -> bool:
    return isinstance(callee, ast.Name) and callee.id == "open"


def _check_open(call: ast.Call, session: Session) -> None:
    given = [
        *call.args,
        *(keyword.value for keyword in call.keywords if keyword.arg in ("mode", "encoding", "newline")),
    ]
    words = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if not call.args or len(words) != len(call.args) + len(call.keywords):
        raise _not_judged("open without a plain name")
    session.places.read(words[0])
    if re.search(r"[wax+]", "".join(word for word in words[1:] if re.fullmatch(r"[rwaxbt+]+", word))):
        session.places.write(words[0])


_REGEX = r"/(?:\\.|[^/\\\n])*/[IM]*"
_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|{_REGEX})?(?:\s*,\s*(?:[+~]?\d+|\$|{_REGEX}))?\s*!?\s*"
#: ``s`` with its usual separators: a bracket holds no separator, and the flags neither run nor write.
_EDITS = "|".join(
    rf"s{mark}(?:\\.|\[\^?\]?[^]{mark}\\]*\]|[^{mark}\\[])*{mark}(?:\\.|[^{mark}\\])*{mark}[gpIiMm\d]*"
    for mark in ("/", r"\|", "#", ",", "@", "!", ":", "%")
)
_SED = re.compile(
    rf"(?:[;\s]*{_ADDRESS}(?:(?:{_EDITS}|y/(?:\\.|[^/\\])*/(?:\\.|[^/\\])*/|[pdqQPDnNgGhHxlz=]\d*|[btT]\s*\w*|:\s*\w+)\s*(?=[;\n}}]|$)"
    rf"|[aic](?:\\?\n?)[^\n]*(?=\n|$)|#[^\n]*(?=\n|$)|[{{}}]))*[;\s]*",
    re.DOTALL,
)


def check_sed(text: str, session: Session) -> None:
    """Refuses a sed script that does more than editing (``e``, ``r``, ``w``), or is not understood."""
    session.budget.spend(50 + 10 * len(text))
    if UNKNOWN in text or len(text) > 2_000 or _SED.fullmatch(text) is None:
        raise unknown("The sed script does more than editing, or is not understood; write it more simply.")
