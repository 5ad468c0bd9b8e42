from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core.store import RolloutQueue
from tests.contract.backends import BACKENDS, Place


@pytest.fixture(params=list(BACKENDS))
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Opens another store on the place where ``store`` is."""
    with BACKENDS[request.param](tmp_path) as place:
        yield place


@pytest.fixture
def store(reopen: Place) -> Iterator[RolloutQueue]:
    store = reopen()
    yield store
    store.close()
