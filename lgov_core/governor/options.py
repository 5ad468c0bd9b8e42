"""Checks on what policies are made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lgov_core.errors import PolicyError


def string_tuple(owner: str, option: str, value: object) -> tuple[str, ...]:
    """``value`` as a tuple when it is a sequence of strings; a lone string is a mistake. Raises `PolicyError`."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise PolicyError(f"{owner}: {option} must be a list of strings, not {value!r}", hint=f"write {option}: [...]")
    for item in value:
        if not isinstance(item, str) or not item:
            raise PolicyError(f"{owner}: {option} holds {item!r}, which is not text", hint="put it in quotes")
    return tuple(value)


def argument_names(owner: str, argument: str | Sequence[str], what: str) -> tuple[str, ...]:
    """The names, one or several, of the tool arguments that hold ``what``. Raises `PolicyError` where there is none."""
    names = (argument,) if isinstance(argument, str) else string_tuple(owner, "argument", argument)
    if not names or not all(names):
        raise PolicyError(f"{owner}: argument is empty", hint=f"name the tool argument that holds {what}")
    return names


def one_of(owner: str, option: str, value: object, choices: Sequence[str]) -> str:
    """``value`` when it is one of ``choices``. Raises `PolicyError`."""
    if not isinstance(value, str) or value not in choices:
        raise PolicyError(f"{owner}: {option} is {value!r}", hint=f"write one of: {', '.join(choices)}")
    return value


def names(text: str) -> tuple[str, ...]:
    """The words of a text: a long list of names, written as prose."""
    return tuple(text.split())


def positive_number(owner: str, option: str, value: object) -> float:
    """``value`` as a float when it is a finite number above 0. Raises `PolicyError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise PolicyError(f"{owner}: {option} is {value!r}", hint=f"write a number above 0, as in {option}: 10")
    return float(value)


def positive_integer(owner: str, option: str, value: object) -> int:
    """``value`` when it is a whole number above 0. Raises `PolicyError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{owner}: {option} is {value!r}", hint=f"write a whole number above 0, as in {option}: 10")
    return value


def require_declared(name: str, options: Mapping[str, object], declared: type) -> None:
    """Raises `TypeError`, as a call of ``name`` would, for a keyword that the TypedDict ``declared`` does not have."""
    if unknown := sorted(options.keys() - declared.__annotations__.keys()):
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}")
