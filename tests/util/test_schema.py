"""Values from outside that do not fit their schema: where, and what is to be written there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from lgov_core._util.schema import Mistake, checked


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, description="a name")]
    weight: Annotated[float, Meta(ge=0, description="a number of 0 or more")] = 1.0
    file: Path | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    rules: Annotated[list[Rule], Meta(description="a list of rules")] = []
    plain: int = 0


def test_what_fits_is_made(tmp_path: Path) -> None:
    document = checked({"rules": [{"name": "a", "weight": 2, "file": "x"}]}, Document, base=tmp_path)
    assert document == Document([Rule("a", 2.0, tmp_path / "x")])
    assert checked({"plain": "3"}, Document, strict=False) == Document(plain=3)


@pytest.mark.parametrize(
    ("value", "path", "expected", "unknown"),
    [
        ({"rules": [{"name": "a"}, {"name": ""}]}, ("rules", 1, "name"), "a name", None),
        ({"rules": [{"name": "a", "weight": True}]}, ("rules", 0, "weight"), "a number of 0 or more", None),
        ({"rules": {}}, ("rules",), "a list of rules", None),
        ({"plain": "3"}, ("plain",), "a whole number", None),
        ({"rules": [{"name": "a", "wait": 1}]}, ("rules", 0), "one of the names that are known here", "wait"),
        ({"rule": []}, (), "one of the names that are known here", "rule"),
    ],
)
def test_a_mistake_says_where_and_what(value: Any, path: tuple[Any, ...], expected: str, unknown: str | None) -> None:
    with pytest.raises(Mistake) as caught:
        checked(value, Document)
    assert (caught.value.path, caught.value.expected, caught.value.unknown) == (path, expected, unknown)
