"""Values from outside: YAML with line numbers, and values checked against a schema of msgspec types.

`read_yaml` gives plain values only, nothing silently merged, repeated or executed. `checked` names the first mistake, where it
is, and what to write there.

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

from lgov_core.errors import PolicyFileError

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


# ---------------------------------------------------------------------- YAML

#: The place of a value in a document: keys and indexes from the root.
Place = tuple[str | int, ...]
MAX_DEPTH = 32
_SCALARS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "value")
)
MAX_CHARACTERS = 1_000_000


def read_yaml(text: str, source: str) -> tuple[Any, dict[Place, int]]:
    """The value of a YAML text, and the line (from 1) of every place in it.

    Keys are always text (``on:`` is not a truth value). Anchors, merges, tags, dates and repeated keys are errors.
    Raises `PolicyFileError`.
    """
    import yaml

    if len(text) > MAX_CHARACTERS:
        raise PolicyFileError(f"the file is longer than {MAX_CHARACTERS} characters", path=source)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else None
        raise PolicyFileError(f"not YAML: {error.problem}", path=source, line=line) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyFileError(f"not YAML: {error}", path=source) from error
    if root is None:
        return None, {}
    reader = _Reader(source)
    return reader.value(root, ()), reader.lines


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[Place, int] = {}
        self._seen: set[int] = set()

    def value(self, node: Any, location: Place) -> Any:
        """The plain value of ``node``, at ``location``."""
        self.lines[location] = node.start_mark.line + 1
        if id(node) in self._seen:
            raise self._error("an alias (*name) is not supported", node, "write the value out")
        self._seen.add(id(node))
        if len(location) > MAX_DEPTH:
            raise self._error("nested too deeply", node)
        if node.id == "mapping" and node.tag == "tag:yaml.org,2002:map":
            return self._mapping(node, location)
        if node.id == "sequence" and node.tag == "tag:yaml.org,2002:seq":
            return [self.value(item, (*location, index)) for index, item in enumerate(node.value)]
        if node.id == "scalar" and node.tag in _SCALARS:
            return self._scalar(node)
        raise self._error(f"the tag {node.tag} is not supported", node, "leave the tag out")

    def _mapping(self, node: Any, location: Place) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in node.value:
            if key.id != "scalar" or key.tag == "tag:yaml.org,2002:merge":
                raise self._error("a key must be plain text", key, "write key: value")
            name = str(key.value)
            if name in mapping:
                first = self.lines[(*location, name)]
                raise self._error(f"{name} is given twice (first in line {first})", key, "keep one of them")
            mapping[name] = self.value(item, (*location, name))
            self.lines[(*location, name)] = key.start_mark.line + 1
        return mapping

    def _scalar(self, node: Any) -> Any:
        import yaml

        loader = yaml.SafeLoader("")
        try:
            value = loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise self._error(f"{node.value!r} has no meaning", node, "put it in quotes") from error
        finally:
            loader.dispose()
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float) and value - value == 0:  # neither infinite nor NaN
            return value
        raise self._error(f"{node.value!r} is read as {type(value).__name__}", node, "put it in quotes")

    def _error(self, message: str, node: Any, hint: str | None = None) -> PolicyFileError:
        return PolicyFileError(message, path=self.source, line=node.start_mark.line + 1, hint=hint)
