"""Conditions: what a rule's ``when`` says, in typed matchers that are checked when they are made.

::

    when:
      all:
        - {field: arguments.currency, in: [EUR, CHF]}
        - {field: arguments.amount, gt: 100}
        - not: {field: agent, glob: "clerk-*"}

A condition is true or false. A field that is missing, or holds something of another type than the one it is compared
with, makes it neither: that is a `ConditionError`, which denies. ``all`` stops at its first false, ``any`` at its first
true, so that ``{field: arguments.amount, exists: true}`` can guard what follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from lgov_core._util.words import suggest_name
from lgov_core.errors import PolicyError
from lgov_core.governor.matchers import OPERATORS, ConditionError, Reading, field_of
from lgov_core.types import Action

#: How deep conditions may be nested.
MAX_CONDITION_DEPTH: Final = 16

_Test: TypeAlias = Callable[[Action], bool]
_Place: TypeAlias = tuple[str | int, ...]
_COMBINERS = ("all", "any", "not")
#: What other languages call the comparisons; the nearest name would often be another one.
_OTHER_NAMES: Final = {
    "eq": "equals equal is = ==", "ne": "neq not_eq not_equals != <>", "ge": "gte >=", "le": "lte <=",
    "gt": "> greater_than above", "lt": "< less_than below", "not_in": "notin nin", "all": "and all_of",
    "any": "or any_of", "matches": "regex regexp pattern re match =~ ~",
}  # fmt: skip


class Condition:
    """A question about an action whose answer is yes or no.

    ``source`` is what it was made from: a mapping, or CEL as text. Immutable; may be asked from several threads at once.
    """

    __slots__ = ("_test", "source")

    def __init__(self, source: Mapping[str, Any] | str, test: Callable[[Action], object]) -> None:
        self.source = source
        self._test = test

    def holds(self, action: Action) -> bool:
        """Returns whether it is true of ``action``. Raises `ConditionError` when that is undecidable: treat it as a deny."""
        answer = self._test(action)
        if answer is True:
            return True
        if answer is False:
            return False
        raise ConditionError(f"it is {type(answer).__name__}, neither true nor false")


class ConditionProblem(PolicyError):
    """A condition has no meaning. ``place`` leads from the condition to what is wrong in it."""

    def __init__(self, location: _Place, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.place = location


def condition_of(source: object, *, rule: str = "") -> Condition:
    """The condition that ``source`` says: a mapping of matchers, CEL as text, or a `Condition` itself.

    CEL needs the extra ``cel``. Raises `PolicyError` when it is not understood; its message names ``rule``.
    """
    try:
        return source if isinstance(source, Condition) else compiled(source)
    except ConditionProblem as problem:
        where = ".".join(("when", *map(str, problem.place)))
        of = f"rule {rule}: " if rule else ""
        raise PolicyError(f"{of}{where}: {problem.message}", hint=problem.hint) from problem


def compiled(source: object) -> Condition:
    """As `condition_of`, for a mapping or CEL. Raises `ConditionProblem`, which says where in ``source``."""
    if isinstance(source, Mapping):
        return Condition(source, _test_of(source, ()))
    if not isinstance(source, str):
        raise ConditionProblem(
            (),
            f"when is {type(source).__name__}, neither a mapping nor text",
            hint="write when: {field: arguments.NAME, eq: VALUE}, or CEL in quotes",
        )
    from lgov_core.governor.cel import compile_cel

    try:
        return Condition(source, compile_cel(source))
    except PolicyError as error:
        raise ConditionProblem((), error.message, hint=error.hint) from error


def _test_of(node: object, location: _Place) -> _Test:
    if len(location) > 2 * MAX_CONDITION_DEPTH:
        raise ConditionProblem(location, "the condition is nested too deeply", hint="say it with fewer levels")
    if not isinstance(node, Mapping) or not node:
        raise ConditionProblem(
            location, f"{node!r} is not a condition", hint="write all, any, not, or field with a comparison"
        )
    combiners = [key for key in _COMBINERS if key in node]
    if not combiners:
        return _comparison(node, location)
    if len(node) != 1:
        others = ", ".join(str(key) for key in node if key != combiners[0])
        raise ConditionProblem(
            (*location, combiners[0]),
            f"{combiners[0]} is used beside {others}",
            hint="put them into one list under all: or any:",
        )
    ((combiner, inner),) = node.items()
    below = (*location, combiner)
    if combiner == "not":
        negated = _test_of(inner, below)
        return lambda action: not negated(action)
    if not isinstance(inner, list | tuple) or not inner:
        raise ConditionProblem(below, f"{combiner} must be a list of conditions", hint=f"write {combiner}: [...]")
    tests = tuple(_test_of(child, (*below, index)) for index, child in enumerate(inner))
    if combiner == "all":
        return lambda action: all(test(action) for test in tests)
    return lambda action: any(test(action) for test in tests)


def _comparison(node: Mapping[Any, Any], location: _Place) -> _Test:
    keys = (*OPERATORS, "field")
    for key in node:
        if key not in keys:
            what = "comparison" if "field" in node else "key"
            hint = _hint(str(key).lower(), (*keys, *_COMBINERS))
            raise ConditionProblem((*location, key), f"there is no {what} {key!r}", hint=hint)
    if "field" not in node:
        raise ConditionProblem(location, "a comparison does not say of which field", hint="write field: arguments.NAME")
    try:
        field = field_of(node["field"])
    except PolicyError as error:
        raise ConditionProblem((*location, "field"), error.message, hint=error.hint) from error
    operators = [key for key in node if key != "field"]
    if not operators:
        raise ConditionProblem(
            location, f"{field.name} is compared with nothing", hint=f"write one of: {', '.join(OPERATORS)}"
        )
    readings: list[Reading] = []
    for operator in operators:
        try:
            readings.append(OPERATORS[operator](operator, field, node[operator]))
        except PolicyError as error:
            raise ConditionProblem((*location, operator), error.message, hint=error.hint) from error

    def test(action: Action) -> bool:
        value = field.read(action)
        return all(reading(value) for reading in readings)

    return test


def _hint(key: str, keys: Sequence[str]) -> str:
    meant = next((name for name, others in _OTHER_NAMES.items() if key in others.split()), None)
    return f"did you mean {meant}?" if meant else suggest_name(key, keys)
