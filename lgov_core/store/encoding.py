"""JSON texts and blobs of numbers, as the tables of a store have them: pure functions.

What cannot be kept exactly raises `StoreError`; nothing is written then.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import eq
from typing import Any

from lgov_core.errors import StoreError
from lgov_core.types import JSONValue


def json_text(value: JSONValue | Mapping[str, Any] | Sequence[Any], what: str) -> str:
    """``value`` as JSON text in ASCII. What JSON cannot hold raises `StoreError` that names ``what``."""
    try:
        return _WRITE(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the {what} cannot be written as JSON: {error}", hint="give plain JSON values") from error


def object_text(values: Mapping[str, str]) -> str:
    """The JSON text of an object, from the JSON texts of its values."""
    return "{" + ",".join(f"{_WRITE(name)}:{text}" for name, text in values.items()) + "}"


def object_values(text: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The inverse of `object_text`: the JSON texts of the values, and the values, by name."""
    texts: dict[str, str] = {}
    values: dict[str, Any] = {}
    end = 0
    while text[end] != "}" and text != "{}":
        name, at = _DECODER.raw_decode(text, end + 1)
        values[name], end = _DECODER.raw_decode(text, at + 1)
        texts[name] = text[at + 1 : end]
    return texts, values


def text_name(name: Any) -> str:
    """``name``, which must be a text."""
    if not isinstance(name, str):
        raise StoreError(f"a request has the name {name!r}, which is not a text", hint="give plain JSON values")
    return name


def readable(text: str) -> str:
    """``text`` as every database can store it: lone surrogates and NUL are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_WRITE = json.JSONEncoder(default=_plain, check_circular=False, separators=(",", ":")).encode
_DECODER = json.JSONDecoder()
_TOKEN_IDS = "token ids are integers from 0, below 2^31"


def token_blob(ids: Sequence[int], what: str = "token ids") -> bytes:
    """Token ids as they are stored. Raises `StoreError` that names ``what`` for what is not an integer from 0, below 2^31."""
    packed = blob("i", ids, what) or b""
    if min(ids, default=0) < 0:
        raise StoreError(f"the {what} cannot be stored: {min(ids)} is below 0", hint=_TOKEN_IDS)
    return packed


def logprob_blob(values: Sequence[float] | None, what: str) -> bytes | None:
    """In 32 bits each where that keeps every one exactly, which it does for what a model computed in 32 bits."""
    if values is not None:
        try:
            single = array("f", values)
        except (TypeError, OverflowError):
            return blob("d", values, what)
        if all(map(eq, single, values)):
            return blob("f", single, what)
    return blob("d", values, what)


def blob(typecode: str, values: Iterable[float] | None, what: str) -> bytes | None:
    """Numbers as little-endian values of an `array.array` type. Raises `StoreError` that names ``what``."""
    if values is None:
        return None
    try:
        packed: array[Any] = array(typecode, values)
    except (TypeError, OverflowError) as error:
        raise StoreError(f"the {what} cannot be stored: {error}", hint=_TOKEN_IDS) from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def numbers(typecode: str, stored: bytes | None) -> tuple[Any, ...] | None:
    """What `blob` was made from."""
    if stored is None:
        return None
    unpacked: array[Any] = array(typecode)
    unpacked.frombytes(stored)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return tuple(unpacked)
