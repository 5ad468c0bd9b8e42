"""20,000 random policy sets judge as they did: decisions, parts, the audit record's bytes, what each policy was asked.

``decisions.json`` holds a digest of each block of cases and some cases in full. Write it anew with ``python
tests/golden/test_decisions.py`` where a change of decisions is meant, and say why in the commit.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from decision_cases import BLOCK, CASES, SAMPLED_EVERY, line

RECORD = Path(__file__).parent / "decisions.json"
BLOCKS = CASES // BLOCK
#: Of these blocks every run checks all cases; the slow tests check all blocks.
EVERY = 1 if os.environ.get("LGOV_TEST_SLOW") else 10


def digest(block: int) -> str:
    """SHA-256 of the results of one block of cases, in hex."""
    cases = range(block * BLOCK, (block + 1) * BLOCK)
    return hashlib.sha256("\n".join(map(line, cases)).encode()).hexdigest()


def record() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


@pytest.mark.parametrize("case", range(0, CASES, SAMPLED_EVERY))
def test_a_case_is_judged_as_it_was(case: int) -> None:
    assert json.loads(line(case)) == record()["sample"][str(case)]


@pytest.mark.parametrize("block", range(0, BLOCKS, EVERY))
def test_a_block_is_judged_as_it_was(block: int) -> None:
    assert digest(block) == record()["blocks"][block]


def main() -> None:
    with ProcessPoolExecutor(2) as pool:
        blocks = list(pool.map(digest, range(BLOCKS)))
    sample = {str(case): json.loads(line(case)) for case in range(0, CASES, SAMPLED_EVERY)}
    RECORD.write_text(json.dumps({"blocks": blocks, "sample": sample}, indent=0) + "\n")


if __name__ == "__main__":
    main()
