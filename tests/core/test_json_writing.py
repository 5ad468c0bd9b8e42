"""What writes JSON on the path of every call gives exactly what the standard library would."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgov_core._util.json_writing import json_writer

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=_VALUES, ascii_only=st.booleans(), spaced=st.booleans(), sort_keys=st.booleans())
def test_it_writes_what_the_standard_library_writes(
    value: Any, ascii_only: bool, spaced: bool, sort_keys: bool
) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    write = json_writer(ascii_only=ascii_only, separators=separators, sort_keys=sort_keys)
    expected = json.dumps(value, ensure_ascii=ascii_only, separators=separators, sort_keys=sort_keys)
    assert write(value) == expected


def test_it_asks_for_what_json_has_no_form_for() -> None:
    assert json_writer(default=lambda value: sorted(value))({"a": {3, 1}}) == '{"a":[1,3]}'
    with pytest.raises(TypeError, match="complex"):
        json_writer()({"a": 1j})


def test_a_number_that_is_not_finite_can_be_refused() -> None:
    assert json_writer()(float("nan")) == "NaN"
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_writer(allow_nan=False)([float("inf")])


def test_what_holds_itself_is_an_error_and_so_it_stays_for_this_value_only() -> None:
    write, value = json_writer(), list[Any]()
    value.append(value)
    with pytest.raises(RecursionError):
        write(value)
    value.clear()
    assert write(value) == "[]"


def test_a_python_without_the_part_in_c_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"b": [1, "ü", None], "a": {"c": 2.5}}
    quick = json_writer(ascii_only=False, sort_keys=True)(value)
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    assert json_writer(ascii_only=False, sort_keys=True)(value) == quick
