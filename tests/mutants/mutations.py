"""Mutants of a source file: each is the file with one small change, made by the operators of mutmut 3.

mutmut's own runner leaves out decorated functions, class bodies and the level of the module, and so ``Decision.blocks`` and
every default of a field. Here the whole file is mutated. Left out is, by principle, what decides nothing: texts for people
(with a space in them, or formatted), the message of what is raised, ``__repr__``, docstrings, annotations, decorators,
imports and assertions. A string is changed once, and an argument becomes None but is not also left out.
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache

import libcst
from libcst import matchers
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

#: Calls and subscripts whose value only a type checker reads.
_TYPES = ("TypeVar", "ParamSpec", "Literal", "Callable", "Annotated", "Mapping", "cast")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file: ``removed`` and ``added`` are the changed lines without indentation, in ``scope``.

    They, and ``number`` among those that read the same, say which one it is. ``function`` is the outermost function or
    method in whose body it is, or empty. ``digest`` is that of this function, or else of the statement at the level of the
    module around it: where that has changed, it is another mutant. ``lines`` are those of the changed expression, of the
    statement around it, and of the one at the level of the module.
    """

    file: str
    scope: str
    removed: str
    added: str
    number: int
    digest: str
    function: str
    lines: tuple[range, range, range]
    _module: libcst.Module
    _index: int
    _node: libcst.CSTNode
    _changed: libcst.CSTNode

    @property
    def key(self) -> str:
        """The text under which its result is kept."""
        return "\n".join((*self.identity, str(self.number), self.digest))

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What a reader recognises it by."""
        return self.file, self.scope, self.removed, self.added

    def source(self) -> str:
        """The text of the mutated file."""
        module = self._module
        statement = module.body[self._index]
        new = self._changed if self._node is statement else statement.deep_replace(self._node, self._changed)
        body = [*module.body[: self._index], new, *module.body[self._index + 1 :]]
        return module.with_changes(body=body).code


@cache
def mutants_of(file: str, source: str) -> list[Mutant]:
    """The mutants of the file named ``file``, which reads ``source``."""
    module = libcst.parse_module(source)
    positions = MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider)

    def lines_of(node: libcst.CSTNode) -> range:
        position: CodeRange = positions[node]  # type: ignore[assignment]
        return range(position.start.line, position.end.line + 1)

    mutants: list[Mutant] = []
    numbers: Counter[tuple[str, str, str]] = Counter()
    for index, statement in enumerate(module.body):
        for scope, function, owner, around, node, changed in _changes(statement):
            before = module.code_for_node(around)
            after = module.code_for_node(changed if node is around else around.deep_replace(node, changed))
            removed, added = _changed_lines(before, after)
            if removed != added and _can_be_read(after):
                numbers[scope, removed, added] += 1
                number = numbers[scope, removed, added]
                digest = _digest(module, owner)
                lines = lines_of(node), lines_of(around), lines_of(statement)
                mutants.append(
                    Mutant(file, scope, removed, added, number, digest, function, lines, module, index, node, changed)
                )
    return mutants


@cache
def _digest(module: libcst.Module, node: libcst.CSTNode) -> str:
    return hashlib.sha256(module.code_for_node(node).strip().encode()).hexdigest()[:16]


def _can_be_read(code: str) -> bool:
    try:
        ast.parse(textwrap.dedent(code))
    except SyntaxError:
        return False
    return True


def _changed_lines(before: str, after: str) -> tuple[str, str]:
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    removed = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    added = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    return removed, added


_Change = tuple[str, str, libcst.CSTNode, libcst.CSTNode, libcst.CSTNode, libcst.CSTNode]


def _changes(statement: libcst.CSTNode) -> Iterator[_Change]:
    """Every change in ``statement``: scope, function, that or ``statement``, the statement around it, the node, its change."""
    pending: list[tuple[str, str, libcst.CSTNode, libcst.CSTNode, libcst.CSTNode]]
    pending = [("", "", statement, statement, statement)]
    while pending:
        scope, function, owner, around, node = pending.pop()
        if _is_left_out(node):
            continue
        if isinstance(node, libcst.FunctionDef | libcst.ClassDef):
            scope = f"{scope}.{node.name.value}".lstrip(".")
        if isinstance(node, libcst.BaseCompoundStatement | libcst.SimpleStatementLine):
            around = node
        for changed in _variants(node):
            yield scope, function, owner, around, node, changed
        if not isinstance(node, libcst.Raise):
            for child in reversed(node.children):
                if not function and isinstance(node, libcst.FunctionDef) and child is node.body:
                    pending.append((scope, scope, node, around, child))
                else:
                    pending.append((scope, function, owner, around, child))


def _variants(node: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    if isinstance(node, libcst.Raise):
        yield libcst.Pass()
        return
    if isinstance(node, libcst.Expr) and isinstance(node.value, libcst.Call | libcst.Await | libcst.Yield):
        yield libcst.Pass()
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for changed in operator(node):
                if not _is_superfluous(node, changed):
                    yield changed
                    if isinstance(node, libcst.BaseString):
                        break


def _is_superfluous(node: libcst.CSTNode, changed: libcst.CSTNode) -> bool:
    """Returns whether the change only takes a text for people, or leaves out an argument that another sets to None."""
    if isinstance(node, libcst.Assign | libcst.AnnAssign):
        return node.value is not None and _is_text(node.value)
    if isinstance(node, libcst.Call) and isinstance(changed, libcst.Call):
        kept = {id(argument) for argument in changed.args}
        return len(changed.args) < len(node.args) or any(
            _is_text(argument.value) for argument in node.args if id(argument) not in kept
        )
    return False


def _is_left_out(node: libcst.CSTNode) -> bool:
    if isinstance(node, libcst.Annotation | libcst.Decorator | libcst.Assert | libcst.Import | libcst.ImportFrom):
        return True
    if isinstance(node, libcst.FunctionDef):
        return node.name.value == "__repr__"
    if isinstance(node, libcst.If):
        return matchers.matches(node.test, matchers.Name("TYPE_CHECKING"))
    if isinstance(node, libcst.AnnAssign):
        return matchers.matches(node.annotation.annotation, matchers.Name("TypeAlias"))
    if isinstance(node, libcst.Assign):
        slots = matchers.matches(node.targets[0].target, matchers.Name("__slots__") | matchers.Name("__all__"))
        return slots or (isinstance(node.value, libcst.Call | libcst.Subscript) and _is_left_out(node.value))
    if isinstance(node, libcst.Call | libcst.Subscript):
        head = node.func if isinstance(node, libcst.Call) else node.value
        return isinstance(head, libcst.Name) and head.value in _TYPES
    return _is_text(node)


def _is_text(node: libcst.CSTNode) -> bool:
    """Returns whether ``node`` is text for people: formatted, or with a space in it."""
    if isinstance(node, libcst.SimpleString):
        return " " in str(node.evaluated_value)
    return isinstance(node, libcst.FormattedString | libcst.ConcatenatedString)
