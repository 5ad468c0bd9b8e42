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

A condition may also be written in CEL, by ``cel-expr-python`` (the extra ``cel``). What that library answers is not taken at
its word: its errors come back as values of type ERROR (which Python takes for true), so only a BOOL counts. Comparisons
follow CEL: values of different types are unequal, which is false and no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from lgov_core.errors import PolicyError, suggest_name
from lgov_core.governor.matchers import FIELDS, OPERATORS, TEXT_FIELDS, ConditionError, Reading, field_of
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
            name = str(key).lower()
            meant = next((operator for operator, others in _OTHER_NAMES.items() if name in others.split()), None)
            hint = f"did you mean {meant}?" if meant else suggest_name(name, (*keys, *_COMBINERS))
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


MAX_EXPRESSION: Final = 10_000
MAX_VALUE_DEPTH: Final = 32

#: CEL's functions but the one whose time has no bound.
_LIBRARY: Final = "stdlib: {exclude_functions: [{name: matches}]}"
_PROBLEM = re.compile(r"<input>:\d+:(\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '(\w+)[\w.]*'")


def compile_cel(text: str) -> Callable[[Action], object]:
    """A test of actions by the CEL expression ``text``, whose types are checked here, once.

    The fields that may be asked for are those of the matchers; one that is missing is an error unless ``has()`` asks for
    it. The test returns True or False and raises `ConditionError` for anything else; it runs under the library's budget
    of iterations and may be called from several threads at once. Raises `PolicyError` when the extra is not installed
    and when the expression is wrong.
    """
    try:
        from cel_expr_python import cel
    except ImportError as error:
        raise PolicyError(
            "a condition in CEL needs cel-expr-python, which is not installed",
            hint="run pip install 'lgov[cel]', or write the condition as all/any/not and field",
        ) from error
    if len(text) > MAX_EXPRESSION:
        raise PolicyError(f"the CEL expression is longer than {MAX_EXPRESSION} characters", hint="say it shorter")
    kinds = cel.Type
    of_anything = kinds.Map(kinds.STRING, kinds.DYN)
    variables = {name: kinds.STRING for name in TEXT_FIELDS} | {"arguments": of_anything, "context": of_anything}
    try:
        expression = cel.NewEnv(config=cel.NewEnvConfigFromYaml(_LIBRARY), variables=variables).compile(text)
    except Exception as error:
        raise _explained(text, str(error)) from error
    answer = expression.return_type()
    if answer not in (kinds.BOOL, kinds.DYN):
        raise PolicyError(f"the CEL expression is {answer.name()}, not true or false", hint="compare it with something")

    def test(action: Action) -> object:
        try:
            value = expression.eval(data=_data(action))
            kind, result = value.type(), value.value()
        except ConditionError:
            raise
        except Exception as error:  # the library raises RuntimeError for all that goes wrong
            raise ConditionError(_told(str(error))) from error
        if kind != kinds.BOOL or not isinstance(result, bool):
            raise ConditionError(
                _told(str(result)) if kind == kinds.ERROR else f"it is {kind.name()}, not true or false"
            )
        return result

    return test


def _data(action: Action) -> dict[str, Any]:
    """The action as CEL sees it. What is None is left out, so that asking for it is an error."""
    data: dict[str, Any] = {"arguments": _value(action.arguments, 0), "context": _value(action.context, 0)}
    for name in TEXT_FIELDS:
        value = getattr(action, name)
        if value is not None:
            data[name] = str(value) if name == "point" else value
    return data


def _value(value: Any, depth: int) -> Any:
    if depth > MAX_VALUE_DEPTH:
        raise ConditionError("the arguments are nested too deeply")
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        if value != value:
            raise ConditionError("a number among the arguments is NaN")
        return value
    if isinstance(value, Mapping):
        # A key that is not text cannot be asked for in CEL, and would make the library refuse the whole mapping.
        return {key: _value(item, depth + 1) for key, item in value.items() if isinstance(key, str)}
    if isinstance(value, Sequence):
        return [_value(item, depth + 1) for item in value]
    raise ConditionError(f"the arguments or the context hold a {type(value).__name__}, which CEL cannot read")


def _told(message: str) -> str:
    """The library's message on one line, without what it says about itself."""
    words = " ".join(message.split())
    return re.sub(r"^[A-Z_]+: ", "", words)[:200].rstrip(".")


def _explained(text: str, message: str) -> PolicyError:
    match = _PROBLEM.search(message)
    column, what = (match[1], match[2]) if match else ("", message.partition("\n")[0])
    where = f" at character {column}" if column and len(text) > 1 else ""
    unknown = _UNDECLARED.search(what)
    if unknown is None:
        return PolicyError(
            f"the CEL expression is wrong{where}: {what[:200]}", hint="see https://cel.dev for the language"
        )
    if unknown[1] == "matches":
        return PolicyError(
            "the CEL expression calls matches, whose time has no bound",
            hint="write the condition as {field: arguments.NAME, matches: PATTERN}",
        )
    hint = suggest_name(unknown[1], FIELDS, f"write arguments.{unknown[1]}, or one of: {', '.join(FIELDS)}")
    return PolicyError(f"the CEL expression names {unknown[1]}, which no action has", hint=hint)
