from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core.store import RolloutQueue
from tests.contract.backends import BACKENDS, Place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        names = [name for name in BACKENDS if name != "memory" or "reopen" not in metafunc.fixturenames]
        metafunc.parametrize("place", names, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Opens a store on an empty database."""
    with BACKENDS[request.param](tmp_path) as place:
        yield place


@pytest.fixture
def reopen(place: Place) -> Place:
    """Opens another store on the database of ``store``."""
    return place


@pytest.fixture
def store(place: Place) -> Iterator[RolloutQueue]:
    store = place()
    yield store
    store.close()
