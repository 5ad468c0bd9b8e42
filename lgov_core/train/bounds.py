"""Dataclass fields with bounds: checked when a value is made, and when settings are read."""

from __future__ import annotations

import functools
import math
import types
import typing
from dataclasses import dataclass, field, fields
from typing import Any

from lgov_core.errors import TrainError


@dataclass(frozen=True, slots=True)
class Bound:
    """Allowed numbers: ``least`` and ``most`` included, ``above`` and ``below`` excluded."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        limits = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {value:g}" for word, value in limits.items() if value is not None)

    def fits(self, value: Any) -> bool:
        """Returns whether ``value`` is allowed."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def bounded(default: Any, **bound: Any) -> Any:
    """A dataclass field with a default and a `Bound`."""
    return field(default=default, metadata={"bound": Bound(**bound)})


def check_bounds(value: Any) -> None:
    """Raises `TrainError` for a `bounded` or ``Literal`` field of the dataclass ``value`` with a value that is not allowed."""
    for declared in fields(value):
        bound: Bound | None = declared.metadata.get("bound")
        setting: Any = getattr(value, declared.name)
        kind, optional = kind_of(type(value), declared.name)
        if setting is None and optional:
            continue
        choices = choices_of(kind)
        if choices:
            right, allowed = setting in choices, f"one of {', '.join(choices)}"
        elif bound is not None:
            numbers = (int, float) if kind is float else (int,)
            right = isinstance(setting, numbers) and not isinstance(setting, bool) and math.isfinite(setting)
            right = right and bound.fits(setting)
            allowed = f"{'a whole number ' if kind is int else ''}{bound}"
        else:
            continue
        if not right:
            raise TrainError(f"{type(value).__name__}.{declared.name} must be {allowed}, not {setting!r}")


@functools.cache
def kind_of(section: type, name: str) -> tuple[Any, bool]:
    """The type of a dataclass's field without ``| None``, and whether None is allowed."""
    annotation = typing.get_type_hints(section)[name]
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return annotation, False
    (kind,) = (member for member in typing.get_args(annotation) if member is not types.NoneType)
    return kind, True


def choices_of(kind: Any) -> tuple[str, ...]:
    """The texts that a ``Literal`` allows; none for another type."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
