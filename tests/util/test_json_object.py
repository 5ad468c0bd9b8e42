"""A JSON object is read as `json.loads` reads it, and what is none is told from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core._util.json_text import json_object


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"a": 1}', ' {"a": 1}', '{"a": 1} ', '{"a": {"b": [1, 2.5, null, true, "x"]}}', '{"a": NaN}', '{"a": 1, "a": 2}',
        '{"a": "zw\\u00f6lf"}', b'{"a": 1}', bytearray(b"{}"),
    ],
)  # fmt: skip
def test_an_object_is_read_as_it_is_everywhere(text: Any) -> None:
    assert repr(json_object(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}x", "{} {}", '{"a"', '{"a":', '{"a":]', '{"a": 1', "{,}", "{1: 2}", '{"a": "\n"}',
        "[]", "null", "1", '"{}"', "NaN", "plain", "\ufeff{}", b"\xff", None, 1, ["{"], {"a": 1},
    ],
)  # fmt: skip
def test_what_is_no_object_is_none(text: Any) -> None:
    assert json_object(text) is None


def test_what_is_nested_too_deep_is_none() -> None:
    assert json_object('{"a":' * 200_000) is None
    assert json_object('{"a":' * 200_000 + "1" + "}" * 200_000) is None
