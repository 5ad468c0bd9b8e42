"""JSON, by what a text is for.

`wire_bytes` and `wire_text` are the fast writer, for what is sent, and `json_object` reads it. `canonical_json` gives equal
values one spelling, for what is signed and what an approval or a repetition is recognised by; `sorted_json` is the same for
values that are plain already. `readable_json` writes any value, for spans and people, and never fails.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

import msgspec

#: Containers within containers; what is deeper has no canonical form.
MAX_DEPTH: Final = 100
#: Of a whole number. Python writes out about 14 000.
MAX_BITS: Final = 8192


#: Writes plain JSON values in ASCII with sorted keys and no white space. Signatures and digests cover these bytes: they stay.
sorted_json: Final = json.JSONEncoder(sort_keys=True, allow_nan=False, separators=(",", ":")).encode


class NotCanonical(ValueError):
    """A value that JSON has no unmistakable form for."""


def canonical_json(value: Any) -> str:
    """``value`` as ASCII JSON with sorted keys and no white space: equal texts mean equal values.

    Lists and tuples are the same; 1, 1.0, true and "1" are not. Raises `NotCanonical` for a key that is not text, a number
    that is not finite, anything that is not JSON value, and for more than `MAX_DEPTH` levels.
    """
    return sorted_json(plain_json(value))


def finite(value: Any) -> Any:
    """``value`` with null in place of every number that JSON has no form for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    return value


def fingerprint(value: Any) -> str:
    """SHA-256 of `canonical_json` in hex. Raises `NotCanonical`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def plain_json(value: Any, depth: int = 0) -> Any:
    """``value`` in new dicts, lists and plain scalars. Raises `NotCanonical` as `canonical_json` does."""
    if depth > MAX_DEPTH:
        raise NotCanonical("it is nested too deep, or holds itself")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        if int.bit_length(value) > MAX_BITS:
            raise NotCanonical("it holds a number too long to write out")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotCanonical(f"it holds {value!r}")
        return float(value)
    if isinstance(value, Mapping):
        items: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotCanonical(f"it holds the key {key!r}, which is not text")
            items[str.__str__(key)] = plain_json(item, depth + 1)
        return items
    if isinstance(value, list | tuple):
        return [plain_json(item, depth + 1) for item in value]
    raise NotCanonical(f"it holds {type(value).__name__}, which JSON has no form for")


_TOKEN_IDS: Final = tuple[Annotated[int, msgspec.Meta(ge=0, lt=2**31)], ...]
_DECODE: Final = msgspec.json.Decoder().decode
_ENCODE: Final = msgspec.json.Encoder().encode
_ENCODE_ALL: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ENCODE_READABLE: Final = json.JSONEncoder(default=str, ensure_ascii=False).encode


def json_object(text: Any) -> dict[str, Any] | None:
    """The JSON object in ``text`` (str, bytes or bytearray), or None if it does not hold exactly one, or nests too deeply.

    A lone surrogate in it stays one.
    """
    try:
        value = fast_json(text)
    except (ValueError, TypeError, RecursionError):
        try:
            value = json.loads(text)  # it reads numbers and surrogates that the fast reader refuses
        except (ValueError, TypeError, RecursionError):
            return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


class ReceivedBody(dict[str, Any]):
    """A JSON object with the bytes in which it came, so that it can be passed on exactly.

    ``is_plain``: the fast reader read it, so that the fast writer writes exactly what it holds.
    """

    __slots__ = ("is_plain", "received")

    @classmethod
    def read(cls, received: bytes) -> ReceivedBody | None:
        """The object in ``received``, read as by `json_object`."""
        try:
            value, is_plain = fast_json(received), True
        except (ValueError, RecursionError):
            value, is_plain = json_object(received), False
        if not isinstance(value, dict):
            return None
        body = cls(cast("dict[str, Any]", value))
        body.received, body.is_plain = received, is_plain
        return body


def fast_json(text: bytes | str) -> Any:
    """The JSON value in ``text``. Raises `ValueError` and `RecursionError`, for some numbers and surrogates too."""
    try:
        return _DECODE(text)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def token_ids(value: Any) -> tuple[int, ...] | None:
    """The token ids in a list that was read from JSON: whole numbers from 0, below 2^31; None for anything else."""
    try:
        return msgspec.convert(value, _TOKEN_IDS) if isinstance(value, list | tuple) else None
    except msgspec.ValidationError:
        return None


def wire_bytes(content: Any) -> bytes:
    """``content`` as JSON without white space, in UTF-8; a lone surrogate, which UTF-8 cannot hold, as its JSON escape."""
    try:
        return _ENCODE(content)
    except UnicodeEncodeError:
        return _ENCODE_ALL(content).encode("utf-8", "backslashreplace")


def wire_text(content: Any) -> str:
    """The same as text."""
    return wire_bytes(content).decode()


def readable_json(value: Any) -> str:
    """``value`` as JSON, for spans; a part that JSON has no form for is written with ``str``. Never raises."""
    try:
        return _ENCODE_READABLE(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError, RecursionError):
        return str(value)
