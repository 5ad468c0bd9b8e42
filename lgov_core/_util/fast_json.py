"""JSON between servers, by orjson where it gives the same as Python's json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson


def read_fast(raw: bytes) -> Any:
    """The value that ``raw`` is. Raises `ValueError`.

    What orjson refuses and Python reads (NaN, a lone surrogate) is read too. Whole numbers beyond 64 bits
    become floats.
    """
    try:
        return orjson.loads(raw)
    except ValueError:
        return json.loads(raw)


def write_fast(value: Mapping[str, Any]) -> bytes:
    """``value`` as JSON in UTF-8. Raises `ValueError` or `TypeError` for what JSON cannot hold."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a number beyond 64 bits, a lone surrogate
        return in_utf8(json.dumps(value, ensure_ascii=False))


def in_utf8(text: str) -> bytes:
    """JSON text as bytes. A lone surrogate, which UTF-8 cannot encode, is written as a JSON escape."""
    return text.encode("utf-8", "backslashreplace")
