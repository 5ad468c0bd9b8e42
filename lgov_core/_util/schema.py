"""Values from outside checked against a schema of msgspec types: the first mistake, where it is, and what to write there.

A schema is made of ``msgspec.Struct(forbid_unknown_fields=True)`` and of ``Annotated`` types whose ``Meta(description=…)``
says what belongs there, in words that follow "must be". The caller knows files and lines: it turns the path of a `Mistake`
into those.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_WHERE: Final = re.compile(r" - at `\$(.*)`\Z", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_WORDS: Final = {"BoolType": "true or false", "IntType": "a whole number", "FloatType": "a number", "StrType": "text"}
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)


class Mistake(ValueError):
    """The first thing that is wrong in a value. ``path`` leads to it; ``expected`` follows "must be".

    ``unknown`` is the name that no schema knows at ``path``, if that is the mistake.
    """

    def __init__(self, path: tuple[str | int, ...], expected: str, unknown: str | None = None) -> None:
        super().__init__(expected)
        self.path, self.expected, self.unknown = path, expected, unknown


def checked(value: Any, schema: type[T], *, strict: bool = True, base: Path | None = None) -> T:
    """``value``, of dicts, lists and scalars, as an instance of ``schema``. Raises `Mistake`.

    A bool is not a number, and a number is not text; without ``strict`` text is read as the number or truth value that it
    names, as a variable of the environment has it. Where the schema says `Path` text is a path, relative to ``base``.
    """
    hooks: Mapping[type, Callable[[Any], Any]] = {Path: lambda text: _path(text, base)}
    try:
        return msgspec.convert(value, schema, strict=strict, dec_hook=lambda kind, raw: hooks[kind](raw))
    except msgspec.ValidationError as error:
        raise _mistake(str(error), schema) from error


def _path(raw: Any, base: Path | None) -> Path:
    if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
        raise ValueError("Expected a path")
    return (base or Path()) / Path(raw).expanduser()


def _mistake(message: str, schema: Any) -> Mistake:
    where = _WHERE.search(message)
    problem = message[: where.start()] if where else message
    steps = [name or index for name, index in _STEP.findall(where[1])] if where else []
    path: tuple[str | int, ...] = tuple(int(step) if step.isdecimal() else step for step in steps)
    within = path
    if "..." in path:  # a key of a mapping, which msgspec does not tell
        path = path[: path.index("...")]
    if unknown := _UNKNOWN.match(problem):
        return Mistake(path, "one of the names that are known here", unknown[1])
    return Mistake(path, _description(schema, within) or problem.removeprefix("Expected ").replace("`", ""))


def _description(schema: Any, path: tuple[str | int, ...]) -> str | None:
    """The description of the innermost type on the way to ``path`` that has one."""
    from msgspec import inspect

    kind: Any = inspect.type_info(schema)
    description: str | None = None
    several = False
    for step in (*path, None):
        while isinstance(kind, inspect.Metadata | inspect.UnionType):
            if isinstance(kind, inspect.Metadata):
                description = (kind.extra_json_schema or {}).get("description", description)
                kind = kind.type
            else:
                types = [item for item in kind.types if not isinstance(item, inspect.NoneType)]
                described = next((item for item in types if isinstance(item, inspect.Metadata)), None)
                kind, several = described or types[0], described is None and len(types) > 1
        if isinstance(kind, inspect.StructType | inspect.DataclassType) and isinstance(step, str):
            kind = next((item.type for item in kind.fields if item.encode_name == step), None)
        elif step is not None:
            kind = getattr(kind, "value_type" if step == "..." else "item_type", None)
    return description or (None if several else _words(kind))


def _words(kind: Any) -> str | None:
    """The values of a simple type in words, with the bounds of a number."""
    from msgspec import inspect

    if isinstance(kind, inspect.LiteralType):
        return f"one of {', '.join(map(str, kind.values))}"
    if isinstance(kind, inspect.CustomType) and kind.cls is Path:
        return "the path of a file"
    words = next((text for simple, text in _WORDS.items() if type(kind).__name__ == simple), None)
    if words is None or not isinstance(kind, inspect.IntType | inspect.FloatType):
        return words
    limits = {"at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
    bounds = [
        f"{word} {limit:g}" for word, limit in limits.items() if limit is not None and abs(limit) < sys.float_info.max
    ]
    return " ".join([words, *([" and ".join(bounds)] if bounds else [])])
