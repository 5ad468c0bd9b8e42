"""The endpoint to its clients, its upstreams, its policies and its store: byte for byte what `endpoint_record` holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.golden.endpoint_record import ENGINES, cases, read


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return read()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_endpoint_says_and_judges_what_it_did(record: dict[str, Any], engine: str) -> None:
    expected = {name: case for name, case in record.items() if name.startswith(f"{engine} ")}
    different = {name: case for name, case in cases([engine]) if expected.pop(name, None) != case}
    assert not expected
    shown = {
        name: json.dumps([record.get(name), case], indent=1, ensure_ascii=False) for name, case in different.items()
    }
    assert not shown, f"{len(shown)} cases differ; python -m tests.golden.endpoint_record names the places"
