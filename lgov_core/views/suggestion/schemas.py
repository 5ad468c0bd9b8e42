"""A JSON Schema that values have in common: types, and bounds a little wider than what was there.

A text that takes few values over many acts is one of those; any other text, list or number is bounded by the next power
of two, or by the next round number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

#: A text is one of the values there were when there are at most so many, and each was there so often on average.
_FEW: Final = 10
_OFTEN: Final = 5
#: The least bound of a text and of a list.
_TEXT: Final = 16
_LIST: Final = 4
#: Keys of an object beyond which it is a mapping from names, not a form.
_KEYS: Final = 32
_DEPTH: Final = 8


def schema_of(values: Sequence[Any], depth: int = 0) -> dict[str, Any]:
    """The schema of ``values`` (JSON values, at least one; repeated ones count)."""
    kinds = sorted({_kind(value) for value in values})
    if "integer" in kinds and "number" in kinds:
        kinds.remove("integer")
    schema: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    texts = [value for value in values if isinstance(value, str)]
    if texts and len(kinds) == 1 and is_enumerable(texts):
        return {"type": "string", "enum": sorted(set(texts))}
    if texts:
        schema["maxLength"] = _power_of_two(max(map(len, texts)), _TEXT)
    if numbers := [value for value in values if _kind(value) in ("integer", "number")]:
        schema |= {"minimum": min(0, -_round_number(-min(numbers))), "maximum": max(0, _round_number(max(numbers)))}
    if lists := [value for value in values if isinstance(value, list | tuple)]:
        schema["maxItems"] = _power_of_two(max(map(len, lists)), _LIST)
        items = [item for value in lists for item in value]
        if items and depth < _DEPTH:
            schema["items"] = schema_of(items, depth + 1)
    if objects := [value for value in values if isinstance(value, dict)]:
        schema |= _object(objects, depth)
    return schema


def is_enumerable(texts: Sequence[str]) -> bool:
    """Whether so few different texts were given so often that they are taken for all there are."""
    distinct = len(set(texts))
    return distinct <= _FEW and len(texts) >= _OFTEN * max(distinct, 2)


def _object(objects: Sequence[dict[str, Any]], depth: int) -> dict[str, Any]:
    keys = list(dict.fromkeys(key for one in objects for key in one))
    if depth >= _DEPTH or len(keys) > _KEYS:
        return {}
    properties = {key: schema_of([one[key] for one in objects if key in one], depth + 1) for key in keys}
    schema: dict[str, Any] = {"properties": properties} if keys else {}
    if required := [key for key in keys if all(key in one for one in objects)]:
        schema["required"] = required
    return {**schema, "additionalProperties": False}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list | tuple):
        return "array"
    return {str: "string", int: "integer", float: "number"}.get(type(value), "null")


def _power_of_two(most: int, least: int) -> int:
    return max(least, 1 << max(most - 1, 0).bit_length())


def _round_number(most: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... that is not less; 0 for what is not above 0."""
    if most <= 0:
        return 0
    power = 10 ** math.floor(math.log10(most))
    found = next(step * power for step in (1, 2, 5, 10) if step * power >= most)
    return int(found) if found == int(found) else found


def described(schema: dict[str, Any]) -> str:
    """A schema of one argument in a few words, for a comment."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if "enum" in schema:
        return f"one of {len(schema['enum'])} texts"
    bounds = [f"{name} {json.dumps(schema[name])}" for name in ("maxLength", "maximum", "maxItems") if name in schema]
    return " or ".join(kinds) + (f" ({', '.join(bounds)})" if bounds else "")
