"""JSON of requests and replies: read strictly, written compactly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from lgov_core.errors import EndpointError


def read_json(raw: bytes) -> Mapping[str, Any]:
    """The JSON object in a request's body.

    Raises `EndpointError` (400) for anything else: NaN and infinities, text that is not UTF-8, a lone surrogate.
    """
    try:
        body = _DECODER.decode(raw.decode())
        if b"\\ud" in raw.lower():  # an escaped surrogate, perhaps without its other half
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise EndpointError("the request contains a lone surrogate, which is not valid text") from error
    except (ValueError, RecursionError) as error:
        raise EndpointError(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise EndpointError(f"the request must be a JSON object, not {type(body).__name__}")
    return cast("dict[str, Any]", body)


def count_values(raw: bytes, limit: int) -> int:
    """How many values, at most, the JSON ``raw`` holds. Raises `EndpointError` (413) for more than ``limit``."""
    bound = sum(map(raw.count, (b",", b"[", b"{")))
    if bound <= limit:
        return bound
    found = 0  # not counting what is inside strings
    for mark in _MARKS.finditer(raw):
        found += mark.end() - mark.start() == 1
        if found > limit:
            raise EndpointError(
                f"the request holds more than {limit} JSON values",
                status=413,
                hint="send less at once, or raise max_values",
            )
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


#: A string, with its end or without, or what comes before a value.
_MARKS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[,\[{]', re.DOTALL)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def json_text(content: Any) -> str:
    """``content`` as JSON without white space. A lone surrogate in it stays one: see `utf8`."""
    return _ENCODER.encode(content)


def utf8(text: str) -> bytes:
    """``text`` in UTF-8; a lone surrogate, which UTF-8 cannot hold, is written as its JSON escape."""
    return text.encode("utf-8", "backslashreplace")
