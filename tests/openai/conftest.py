"""Fixtures of the tests for plain openai."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lgov_core.governor import Governor
from lgov_openai import instrument, uninstrument
from tests.cells import NoErasing, Seen


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def governor(seen: Seen) -> Iterator[Governor]:
    made = Governor([NoErasing(["erase_file"])], plugins=[seen], timeout_s=0.2)
    yield made
    made.close()


@pytest.fixture
def instrumented(governor: Governor) -> Iterator[Governor]:
    instrument(governor)
    yield governor
    uninstrument()
