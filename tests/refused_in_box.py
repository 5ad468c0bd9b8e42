"""Tests that need what a box refuses, with what that is: `make test-confined` skips them."""

from __future__ import annotations

from typing import Final

REFUSED: Final = {
    "test_two_trainers_on_one_postgresql_store_are_refused_until_the_first_has_ended": (
        "PostgreSQL does not run as root, and a box has no second user to run it as"
    ),
}
