"""Commands print what they printed, and exit as they did (``python -m tests.golden.printed_commands`` writes it anew)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.golden.printed_commands import print_all, read_golden

EVERY = read_golden()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        yield print_all(tmp_path_factory.mktemp("printed"), patch, [case["command"] for case in EVERY])


@pytest.mark.parametrize("number", range(len(EVERY)), ids=[" ".join(case["command"]) for case in EVERY])
def test_a_command_prints_what_it_printed(printed: list[dict[str, Any]], number: int) -> None:
    assert printed[number] == EVERY[number]
