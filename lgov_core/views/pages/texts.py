"""Texts of any length: their beginning in a page, the rest by reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from lgov_core.store import TraceStore
from lgov_core.views.attempt_builder import NotRecorded, read_attempt

Text: TypeAlias = dict[str, Any]
#: Characters of a text in a page, and in one answer of `read_text`.
SHOWN: Final = 4_000
MOST: Final = 1_000_000


def text_of(value: Any, ref: str | None = None) -> Text | None:
    """``value`` (a text, or a JSON value, written as JSON) as a page shows it; ``ref`` finds the rest. None stays None."""
    if value is None:
        return None
    text = value if isinstance(value, str) else as_json(value)
    return {"text": text[:SHOWN], "length": len(text), "ref": ref if len(text) > SHOWN else None}


def as_json(value: Any) -> str:
    """A JSON value as text for people."""
    return json.dumps(dict(value) if isinstance(value, Mapping) else value, ensure_ascii=False, default=str)


def text_ref(rollout_id: str, attempt: int | None, path: str) -> str:
    """The reference to a field of an `AttemptView`; ``path`` is such as ``steps.3.wrote``."""
    return f"{quote(rollout_id, safe='')}~{'' if attempt is None else attempt}~{path}"


def read_text(store: TraceStore, ref: str, first: int, count: int) -> dict[str, Any]:
    """``count`` characters of a text, from ``first`` on. Raises `NotRecorded` where the reference leads to nothing."""
    rollout, _, rest = ref.partition("~")
    attempt, _, path = rest.partition("~")
    unknown = NotRecorded(f"there is no text {ref}", hint="take a ref from an answer of this store")
    if not path or not (attempt.isdecimal() or attempt == ""):
        raise unknown
    value: Any = read_attempt(store, unquote(rollout), int(attempt) if attempt else None)
    for name in path.split("."):
        if is_dataclass(value) and name in {field.name for field in fields(value)}:
            value = getattr(value, name)
        elif isinstance(value, tuple) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise unknown
    if is_dataclass(value) or isinstance(value, tuple):
        raise unknown
    text = value if isinstance(value, str) else as_json(value)
    last = first + min(count, MOST)
    return {"text": text[first:last], "from": first, "length": len(text), "next": last if last < len(text) else None}
