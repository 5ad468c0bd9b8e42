"""Conditions written in CEL, by ``cel-expr-python`` (the extra ``cel``).

What the library answers is not taken at its word: its errors come back as values of type ERROR (which Python takes for
true), so only a BOOL counts. Comparisons follow CEL: values of different types are unequal, which is false and no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lgov_core._util.words import suggest_name
from lgov_core.errors import PolicyError
from lgov_core.governor.matchers import FIELDS, TEXT_FIELDS, ConditionError
from lgov_core.types import Action

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
