"""The canonical JSON of the audit record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgov_core.audit.entry import body_text, canonical

texts = st.text(max_size=12) | st.sampled_from(["", '"\\', "\ud800", "é\n", "x" * 3000, "\x7f\x00"])


@given(st.dictionaries(texts, texts | st.integers() | st.none() | st.lists(texts, max_size=2), max_size=4))
def test_keys_are_sorted_and_the_text_is_ascii(value: dict[str, Any]) -> None:
    text = canonical(value)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": {2, 1}, "a": MappingProxyType({"x": 1})}, '{"a":{"x":1},"b":[1,2]}'),
        ({"a": float("nan")}, '{"a":"nan"}'),
        ({1: "a", None: b"x"}, '{"1":"a","None":"b\'x\'"}'),
    ],
)
def test_what_json_cannot_hold_is_written_by_its_repr(value: Mapping[Any, Any], text: str) -> None:
    assert canonical(value) == text


def test_the_body_of_an_entry_leaves_out_none_and_refuses_nan() -> None:
    assert body_text({"b": 1, "a": None}) == '{"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        body_text({"latency_us": float("inf")})
