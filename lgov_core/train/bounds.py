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
    """Allowed values: ``least`` and ``most`` included, ``above`` and ``below`` excluded; or a text that is ``one_of``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    one_of: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.one_of:
            return f"one of {', '.join(self.one_of)}"
        limits = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {value:g}" for word, value in limits.items() if value is not None)

    def fits(self, value: Any) -> bool:
        """Whether ``value`` is allowed."""
        if self.one_of:
            return value in self.one_of
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
    """Raises `TrainError` for a `bounded` field of the dataclass ``value`` with another value than its type and bound allow."""
    for one in fields(value):
        bound: Bound | None = one.metadata.get("bound")
        found: Any = getattr(value, one.name)
        kind, optional = kind_of(type(value), one.name)
        if bound is None or (found is None and optional):
            continue
        numeric: Any = int | float if kind is float else int
        right = bool(bound.one_of) or (isinstance(found, numeric) and not isinstance(found, bool) and found == found)
        if not right or not bound.fits(found) or found == math.inf:
            whole = "a whole number " if kind is int else ""
            raise TrainError(f"{type(value).__name__}.{one.name} must be {whole}{bound}, not {found!r}")


@functools.cache
def kind_of(section: type, name: str) -> tuple[Any, bool]:
    """The type of a dataclass's field without ``| None``, and whether None is allowed."""
    wanted = typing.get_type_hints(section)[name]
    if typing.get_origin(wanted) not in (types.UnionType, typing.Union):
        return wanted, False
    (kind,) = (one for one in typing.get_args(wanted) if one is not types.NoneType)
    return kind, True
