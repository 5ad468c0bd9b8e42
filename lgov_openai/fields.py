"""What a reply hands the program beside its text and its calls (reasoning, transcripts, citations), for policies."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from lgov_openai.content import JSON

#: Fields of bytes (a recording, a picture, what only the model's server can read), if that is what they hold.
_BYTES = frozenset({"b64_json", "data", "encrypted_content", "result", "signature", "thought_signature"})
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{64,}={0,2}")


def without(value: Any, names: Collection[str | None]) -> JSON:
    """The object ``value`` without the fields ``names``; empty for anything else."""
    return (
        {key: one for key, one in cast(JSON, value).items() if key not in names} if isinstance(value, Mapping) else {}
    )


def texts(value: Any) -> Any:
    """``value`` with its texts alone, in its form (None for an element of a list without any); None if there are none."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, list):
        found = [texts(one) for one in cast(list[Any], value)]
        return found if any(one is not None for one in found) else None
    if not isinstance(value, Mapping):
        return None
    fields = cast(JSON, value).items()
    kept = {key: texts(one) for key, one in fields if not (key in _BYTES and _BASE64.fullmatch(str(one)))}
    return {key: one for key, one in kept.items() if one is not None} or None


def with_texts(value: Any, before: Any, after: Any) -> Any:
    """``value`` with the texts by which ``after`` differs from ``before``, what `texts` gave.

    Raises ValueError for any other difference.
    """
    if before == after:
        return value
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        return {**value, **{key: with_texts(value[key], before[key], after[key]) for key in before}}
    if isinstance(before, list) and isinstance(after, list | tuple) and len(cast(list[Any], before)) == len(after):
        return [with_texts(*each) for each in zip(value, before, after, strict=True)]
    if isinstance(before, str) and isinstance(after, str):
        return after
    raise ValueError("a policy changed more of a reply than its texts")
