"""How many tokens a model call may use, before it is made, and how many it says it used, after it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

#: Where adapters and endpoints write how long a reply may be, and how many replies are asked for.
_MOST: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens", "max_new_tokens")
_REPLIES: Final = ("n", "best_of")
_OPTIONS: Final = ("options", "settings", "model_settings", "sampling")
#: More tokens than this are not a count of anything.
_ABSURD: Final = 2**40


def most_input_tokens(arguments: Mapping[str, Any], bytes_per_token: float) -> int:
    """An upper bound for the tokens of a prompt: the bytes of everything in it as JSON, ``bytes_per_token`` to a token.

    No byte-level tokenizer makes more than one token of a byte. Raises `ValueError` or `RecursionError` for what has no
    JSON form.
    """
    text = json.dumps(_with_text_keys(arguments), ensure_ascii=False, default=_other)
    return math.ceil(len(text.encode("utf-8", "surrogatepass")) / bytes_per_token)


def most_output_tokens(arguments: Mapping[str, Any], otherwise: int) -> int:
    """The most tokens that the reply may have: what the call itself says, or ``otherwise``; times the replies asked for."""
    places = [arguments, *(arguments[name] for name in _OPTIONS if isinstance(arguments.get(name), Mapping))]
    said = [count for place in places for name in _MOST if (count := _count(place.get(name))) is not None]
    replies = [count for place in places for name in _REPLIES if (count := _count(place.get(name))) is not None]
    return max(said, default=otherwise) * max(replies, default=1)


def tokens_used(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """The tokens of prompt and reply that a finished call says it used; None when it does not say anything usable.

    A call that says it used nothing at all says nothing usable: every prompt has a token.
    """
    usage = arguments.get("usage")
    if not isinstance(usage, Mapping):
        return None
    read, written = usage.get("input_tokens"), usage.get("output_tokens")
    if type(read) is not int or type(written) is not int:
        return None
    return (read, written) if min(read, written) >= 0 and 0 < read + written < _ABSURD else None


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    return math.ceil(min(value, _ABSURD))  # a limit beyond all measure is not a small one


def _with_text_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()}


def _other(value: object) -> Any:
    return _with_text_keys(value) if isinstance(value, Mapping) else repr(value)
