"""Variables that several set for a while."""

from __future__ import annotations

import os

import pytest

from lgov_core.client.attempts import environment_variable

NAME = "A_VARIABLE_OF_A_TEST"


@pytest.mark.parametrize("before", [None, "before"])
def test_blocks_that_end_in_any_order_leave_what_was_there(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    first, second = environment_variable(NAME, "first"), environment_variable(NAME, "second")
    first.__enter__()
    second.__enter__()
    assert os.environ[NAME] == "second"
    first.__exit__(None, None, None)
    assert os.environ[NAME] == "second", "it is the newest of those that are open"
    second.__exit__(None, None, None)
    assert os.environ.get(NAME) == before


def test_the_value_of_an_outer_block_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME, raising=False)
    with environment_variable(NAME, "outer"):
        with pytest.raises(ValueError, match="within"), environment_variable(NAME, "inner"):
            raise ValueError("within")
        assert os.environ[NAME] == "outer"
    assert NAME not in os.environ
