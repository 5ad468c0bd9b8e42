"""Writes JSON on the path of every call: what `json.JSONEncoder` would write, without its setting up anew for each text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any


def json_writer(
    *,
    default: Callable[[Any], Any] | None = None,
    ascii_only: bool = True,
    separators: tuple[str, str] = (",", ":"),
    sort_keys: bool = False,
    allow_nan: bool = True,
) -> Callable[[Any], str]:
    """What gives a value as JSON text; the options are those of `json.JSONEncoder`. Callable from any thread.

    It raises TypeError for what JSON cannot say where ``default`` does not say it, ValueError for a number that is not
    finite unless ``allow_nan``, and RecursionError for a value that is nested too deep or holds itself.
    """
    encoder = json.JSONEncoder(
        default=default,
        ensure_ascii=ascii_only,
        check_circular=False,
        separators=separators,
        sort_keys=sort_keys,
        allow_nan=allow_nan,
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # a Python without that part written in C
        return encoder.encode
    quote = json.encoder.encode_basestring_ascii if ascii_only else json.encoder.encode_basestring
    between, after_key = separators
    write = make(None, encoder.default, quote, None, after_key, between, sort_keys, False, allow_nan)
    return lambda value: "".join(write(value, 0))


_WRITE = json_writer(default=str, ascii_only=False, separators=(", ", ": "))


def json_text(value: Any) -> str:
    """Any value as JSON, for spans; what JSON cannot say is written with ``str``."""
    try:
        plain = type(value) in (dict, list) or not isinstance(value, Mapping)
        return _WRITE(value if plain else dict(value))
    except (TypeError, ValueError, RecursionError):
        return str(value)
