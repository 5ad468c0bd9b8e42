"""What `make test` leaves out for time and `make test-all` runs."""

from __future__ import annotations

import os

import pytest

#: Whether slow tests run (LGOV_TEST_SLOW=1, which `make test-all` sets).
SLOW = bool(os.environ.get("LGOV_TEST_SLOW"))
slow = pytest.mark.skipif(not SLOW, reason="slow: make test-all, or LGOV_TEST_SLOW=1")


def examples(count: int) -> int:
    """Returns how many examples hypothesis makes up for a test that asks for `count`: at most 50 without slow tests."""
    return count if SLOW else min(count, 50)
