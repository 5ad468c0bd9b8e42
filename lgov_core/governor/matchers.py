"""The fields of an action that a condition may ask for, and its comparisons, each in bounded time."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor.patterns import MAX_STEPS, LinearPattern, PatternLimit, pattern_steps
from lgov_core.types import Action, Kind, Point

#: What a field holds when there is nothing.
MISSING: Final = object()

#: Fields that hold text or nothing, and those that hold a mapping.
TEXT_FIELDS: Final = ("point", "name", "kind", "agent", "framework", "text", "session_id", "rollout_id")
_MAPPINGS: Final = ("arguments", "context")
#: The names with which a field may begin.
FIELDS: Final = (*TEXT_FIELDS, *_MAPPINGS)
#: What the agent itself writes; the rest comes from the operator.
_THE_AGENTS = frozenset({"arguments", "name", "kind", "text"})


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its ``name`` for messages, and the steps that lead to it.

    ``textual`` fields hold text or nothing. ``values``, when not empty, are the only texts they can hold.
    ``the_agents`` says that the agent itself chose what is in it.
    """

    name: str
    steps: tuple[str, ...]
    textual: bool
    the_agents: bool
    values: tuple[str, ...] = ()

    def read(self, action: Action) -> Any:
        """Returns the value of the field; `MISSING` when there is none."""
        root, *path = self.steps
        value = getattr(action, root)
        if self.textual:
            return MISSING if value is None else str(value) if root == "point" else value
        for step in path:
            value = _step(value, step)
        return value


def field_of(name: object) -> Field:
    """The field called ``name``: dotted text, or its steps as a list (for a key that holds a dot).

    A step into a list is its index. Raises `PolicyError` for a field that no action has.
    """
    steps: list[Any] = (
        name.split(".") if isinstance(name, str) else list(name) if isinstance(name, list | tuple) else []
    )
    if not steps or not all(isinstance(step, str) and step for step in steps):
        raise PolicyError(f"{name!r} is not a field", hint=f"write one of: {', '.join(FIELDS)}; or arguments.NAME")
    root, path = steps[0], tuple(steps[1:])
    dotted = ".".join(steps)
    if root in TEXT_FIELDS:
        if path:
            raise PolicyError(f"{root} is text and has no {'.'.join(path)}", hint=f"write field: {root}")
        values = {"point": tuple(point.value for point in Point), "kind": get_args(Kind)}.get(root, ())
        return Field(root, (root,), True, root in _THE_AGENTS, values)
    if root not in _MAPPINGS:
        close = difflib.get_close_matches(root.lower(), FIELDS, n=1)
        hint = f"write arguments.{dotted}, or one of: {', '.join(FIELDS)}"
        raise PolicyError(
            f"there is no field {dotted}", hint=f"did you mean {'.'.join((close[0], *path))}?" if close else hint
        )
    return Field(dotted, tuple(steps), False, root in _THE_AGENTS)


def _step(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(step, MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and step.isascii() and step.isdigit():
        index = int(step) if len(step) < 10 else len(value)
        return value[index] if index < len(value) else MISSING
    return MISSING


class ConditionError(Exception):
    """It cannot be determined whether a condition holds. The caller must treat the act as denied.

    ``not_the_agents`` says that what is missing or wrong is none of the agent's doing.
    """

    def __init__(self, message: str, *, not_the_agents: bool = False) -> None:
        super().__init__(message)
        self.not_the_agents = not_the_agents


#: Says whether a value that was read compares as it should. Raises `ConditionError`.
Reading: TypeAlias = Callable[[Any], bool]

_NAMES: Final = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "text", Mapping: "mapping"}


def type_of(value: object) -> str:
    """The type of a value as conditions name it; Python's own name for what is none of theirs."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return "list"
    return next((name for kind, name in _NAMES.items() if isinstance(value, kind)), type(value).__name__)


#: What ``type: NAME`` may name. An integer is a number too.
TYPES: Final = ("text", "number", "integer", "boolean", "list", "mapping", "null")


def _family(value: object) -> str:
    kind = type_of(value)
    return "number" if kind == "integer" else kind


def _error(field: Field, message: str) -> ConditionError:
    return ConditionError(f"{field.name} {message}", not_the_agents=not field.the_agents)


def _value(field: Field, value: Any, expected_kind: str) -> Any:
    """``value``, which must be of the family ``expected_kind``. Raises `ConditionError`."""
    if value is MISSING:
        raise _error(field, f"is missing; it must be given as {expected_kind}")
    kind = _family(value)
    if kind != expected_kind:
        raise _error(field, f"is {kind}, not {expected_kind}")
    return value


def _expects(field: Field, name: str, expected: object, families: tuple[str, ...]) -> str:
    """The family of ``expected``, checked when the condition is made. Raises `PolicyError`."""
    family = _family(expected)
    if family not in families:
        raise PolicyError(
            f"{name} compares with {' or '.join(families)}, not with {expected!r}", hint="check the value"
        )
    if field.textual and family != "text":
        raise PolicyError(f"{field.name} is text and cannot be compared with {expected!r}", hint="put it in quotes")
    if field.values and expected not in field.values:
        raise PolicyError(f"{field.name} is never {expected!r}", hint=f"write one of: {', '.join(field.values)}")
    return family


def same(first: Any, second: Any) -> bool:
    """Returns whether two values are equal and of the same types throughout: 1 is 1.0, but neither true nor "1"."""
    family = _family(first)
    if family != _family(second):
        return False
    if family == "mapping":
        return len(first) == len(second) and all(key in second and same(first[key], second[key]) for key in first)
    if family == "list":
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def _equal(name: str, field: Field, expected: object) -> Reading:
    expected_kind = _expects(field, name, expected, ("text", "number", "boolean", "list", "mapping", "null"))
    return lambda value: same(_value(field, value, expected_kind), expected) is (name == "eq")


def _ordered(name: str, field: Field, expected: object) -> Reading:
    if field.values:
        raise PolicyError(f"{field.name} has no order", hint="write eq or in")
    expected_kind = _expects(field, name, expected, ("text", "number"))
    compare = getattr(operator, name)
    return lambda value: compare(_value(field, value, expected_kind), expected)


def _member(name: str, field: Field, expected: object) -> Reading:
    if not isinstance(expected, list | tuple) or not expected:
        raise PolicyError(f"{name} needs a list with something in it, not {expected!r}", hint=f"write {name}: [...]")
    families = {_expects(field, name, item, ("text", "number", "boolean", "null")) for item in expected}
    members = frozenset((_family(item), item) for item in expected)

    def reading(value: Any) -> bool:
        family = MISSING if value is MISSING else _family(value)
        if family not in families:
            _value(field, value, " or ".join(sorted(families)))
        return ((family, value) in members) is (name == "in")

    return reading


def _starts_or_ends(name: str, field: Field, expected: object) -> Reading:
    affix = _text(name, expected)
    compare = str.startswith if name == "starts_with" else str.endswith
    return lambda value: compare(_value(field, value, "text"), affix)


def _glob(name: str, field: Field, expected: object) -> Reading:
    glob = _text(name, expected)

    def reading(value: Any) -> bool:
        text = _value(field, value, "text")
        if len(text) * len(glob) > MAX_STEPS:
            raise _error(field, f"is longer than {MAX_STEPS // len(glob)} characters, all that its glob may be run on")
        if "\0" in text or text.splitlines() not in ([text], []):
            raise _error(field, "holds a line end or NUL, for which no glob is meant; contains and matches are")
        return fnmatchcase(text, glob)

    return reading


def _matches(name: str, field: Field, expected: object) -> Reading:
    pattern = LinearPattern(name, _text(name, expected))

    def reading(value: Any) -> bool:
        text = _value(field, value, "text")
        try:
            with pattern_steps():
                return pattern.search(text)
        except PatternLimit as error:
            raise _error(field, f"holds {error}") from error
        except UnicodeEncodeError as error:
            raise _error(field, "holds a lone surrogate") from error

    return reading


def _text(name: str, expected: object) -> str:
    if not isinstance(expected, str) or not expected:
        raise PolicyError(f"{name} needs text, not {expected!r}", hint="put it in quotes")
    return expected


def _contains(name: str, field: Field, expected: object) -> Reading:
    if not field.values:
        _expects(field, name, expected, ("text", "number", "boolean", "null"))
    if expected == "" or (field.textual and not isinstance(expected, str)):
        raise PolicyError(f"contains needs text with something in it, not {expected!r}", hint="put it in quotes")

    def reading(value: Any) -> bool:
        family = MISSING if value is MISSING else _family(value)
        if family == "list":
            return any(same(item, expected) for item in value)
        if family in ("mapping", "text") and isinstance(expected, str):
            return expected in value
        return family != "mapping" and bool(_value(field, value, "text, list or mapping"))

    return reading


def _exists(_: str, field: Field, expected: object) -> Reading:
    if not isinstance(expected, bool):
        raise PolicyError(f"exists is true or false, not {expected!r}", hint="write exists: true")
    return lambda value: (value is not MISSING) is expected


def _type(_: str, field: Field, expected: object) -> Reading:
    if not isinstance(expected, str) or expected not in TYPES:
        raise PolicyError(f"{expected!r} is not a type", hint=f"write one of: {', '.join(TYPES)}")

    def reading(value: Any) -> bool:
        if value is MISSING:
            raise _error(field, "is missing")
        return expected in (type_of(value), _family(value))

    return reading


def _length(_: str, field: Field, expected: object) -> Reading:
    length = Field(f"the length of {field.name}", field.steps, False, field.the_agents)
    tests = expected if isinstance(expected, Mapping) else {"eq": expected}
    if not tests:
        raise PolicyError("length is compared with nothing", hint="write length: {le: 100}")
    readings: list[Reading] = []
    for name, limit in tests.items():
        if name not in ("eq", "ne", *_COMPARE):
            raise PolicyError(f"length has no comparison {name!r}", hint=f"write one of: eq, ne, {', '.join(_COMPARE)}")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise PolicyError(f"length is compared with {limit!r}", hint="write a whole number")
        readings.append(OPERATORS[name](name, length, limit))

    def reading(value: Any) -> bool:
        if value is MISSING or _family(value) not in ("text", "list", "mapping"):
            _value(field, value, "text, list or mapping")
        return all(test(len(value)) for test in readings)

    return reading


_COMPARE: Final = ("lt", "le", "gt", "ge")
#: Each makes the reading of one comparison from its name, its field and the value to compare with. Raises `PolicyError`.
OPERATORS: Final[Mapping[str, Callable[[str, Field, object], Reading]]] = {
    **dict.fromkeys(("eq", "ne"), _equal),
    **dict.fromkeys(("in", "not_in"), _member),
    **dict.fromkeys(_COMPARE, _ordered),
    "contains": _contains,
    "glob": _glob,
    "matches": _matches,
    **dict.fromkeys(("starts_with", "ends_with"), _starts_or_ends),
    "exists": _exists,
    "type": _type,
    "length": _length,
}
