"""JSON objects from text, and any value as JSON text for people and spans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_encode = json.JSONEncoder(default=str, ensure_ascii=False).encode


def json_object(text: Any) -> dict[str, Any] | None:
    """The JSON object in ``text`` (str, bytes or bytearray), or None if it does not hold exactly one.

    Raises RecursionError for text that is nested too deeply.
    """
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return None
    return value if isinstance(value, dict) else None


def json_text(value: Any) -> str:
    """``value`` as JSON, for spans; a part that JSON has no form for is written with ``str``. Never raises."""
    try:
        return _encode(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError, RecursionError):
        return str(value)
