"""The JSON of requests and replies: fields read strictly (what is wrong is named, what cannot be honoured is refused)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

from lgov_core._util.json_text import fast_json
from lgov_core.errors import EndpointError


def shown(value: Any) -> str:
    """``value`` as a message shows it, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def flag(body: Mapping[str, Any], name: str) -> bool:
    """A boolean field; absent or null is False. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise EndpointError(f"{name!r} must be true or false, not {shown(value)}")
    return bool(value)


def number(
    body: Mapping[str, Any],
    name: str,
    default: float | None,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    whole: bool = False,
) -> float | None:
    """A number from ``low`` to ``high``, and above ``above``; ``default`` when absent or null. Raises `EndpointError`."""
    value = body.get(name)
    if value is None:
        return default
    right_type = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right_type or not (low <= value <= high and value >= above) or value == above:
        bounds = (
            [f"≥ {low}"] * (low > -math.inf) + [f"> {above}"] * (above > -math.inf) + [f"≤ {high}"] * (high < math.inf)
        )
        kind = "a whole number" if whole else "a number"
        raise EndpointError(f"{name!r} must be {' '.join([kind, *bounds])}, not {shown(value)}")
    return value


def text(body: Mapping[str, Any], name: str, where: str = "") -> str | None:
    """A text field; absent or null is None. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise EndpointError(f"{where}{name!r} must be text, not {shown(value)}")
    return value


def an_object(body: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    """A field that holds an object; absent or null is an empty one. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise EndpointError(f"{where}{name!r} must be an object, not {shown(value)}")
    return cast("Mapping[str, Any]", value or {})


def a_list(body: Mapping[str, Any], name: str, where: str = "") -> list[Any]:
    """A field that holds a list; absent or null is an empty one. Raises `EndpointError` for anything else."""
    value = body.get(name)
    if value is not None and not isinstance(value, list):
        raise EndpointError(f"{where}{name!r} must be a list, not {shown(value)}")
    return cast("list[Any]", value or [])


def model_name(body: Mapping[str, Any]) -> str:
    """The field ``model``. Raises `EndpointError`."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise EndpointError("'model' must be the name of a model", hint="GET /v1/models lists them")
    return model


def refuse(
    body: Mapping[str, Any], names: Collection[str], whose: str, *, unless: Mapping[str, Collection[Any]] | None = None
) -> None:
    """Refuses what ``whose`` cannot honour: the fields ``names``, unless they are absent, null, empty, or in ``unless``.

    Raises `EndpointError` (400) that names the field.
    """
    for name in names:
        value = body.get(name)
        if value is None or value == [] or value == {} or value is False:
            continue
        if unless and value in (unless.get(name) or ()):
            continue
        raise EndpointError(f"{name!r} ({shown(value)}) is not supported by {whose}", hint="leave it out")


def only_known(body: Mapping[str, Any], names: Collection[str], whose: str) -> None:
    """Refuses fields outside ``names`` that are not null. Raises `EndpointError` (400) that names them."""
    unknown = sorted(name for name, value in body.items() if name not in names and value is not None)
    if unknown:
        named = ", ".join(map(repr, unknown[:5]))
        raise EndpointError(
            f"{named} is not a field that {whose} knows", hint="leave it out: nothing is dropped silently"
        )


def read_json(raw: bytes) -> Mapping[str, Any]:
    """The JSON object in a request's body.

    Raises `EndpointError` (400) for anything else: NaN and infinities, text that is not UTF-8, a lone surrogate.
    """
    try:
        body = fast_json(raw)
    except (ValueError, RecursionError):
        body = _read_slowly(raw)
    if not isinstance(body, dict):
        raise EndpointError(f"the request must be a JSON object, not {type(body).__name__}")
    return cast("dict[str, Any]", body)


def _read_slowly(raw: bytes) -> Any:
    """Reads text that the fast reader refuses: says in words why, and reads numbers that are too large for the other."""
    try:
        body = _DECODER.decode(raw.decode())
        if b"\\ud" in raw.lower():  # an escaped surrogate, perhaps without its other half
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise EndpointError("the request contains a lone surrogate, which is not valid text") from error
    except (ValueError, RecursionError) as error:
        raise EndpointError(f"the request is not JSON: {error}") from error
    return body


def count_values(raw: bytes, limit: int) -> int:
    """How many values, at most, the JSON ``raw`` holds. Raises `EndpointError` (413) for more than ``limit``."""
    bound = sum(map(raw.count, (b",", b"[", b"{")))
    if bound <= limit:
        return bound
    count = 0  # not counting what is inside strings
    for mark in _MARKS.finditer(raw):
        count += mark.end() - mark.start() == 1
        if count > limit:
            raise EndpointError(
                f"the request holds more than {limit} JSON values",
                status=413,
                hint="send less at once, or raise max_values",
            )
    return count


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


#: A string, with its end or without, or what comes before a value.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
