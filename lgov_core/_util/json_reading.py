"""Reads JSON on the path of every call: what `json.loads` would read, in fewer steps where nothing stands around it."""

from __future__ import annotations

import json
from typing import Any

_decoder: Any = json.JSONDecoder()
_scan = _decoder.scan_once


def json_object(text: Any) -> dict[str, Any] | None:
    """The JSON object that ``text`` is, or None if it is none. Callable from any thread.

    Raises RecursionError for what is nested too deep.
    """
    try:
        if type(text) is str and text[:1] == "{":
            found, end = _scan(text, 0)
            if end == len(text):
                return found
        found = json.loads(text)
    except (ValueError, TypeError, StopIteration):  # the last is how the scanner says that a value is missing
        return None
    return found if isinstance(found, dict) else None
