"""What is decided, shown, sent and delivered in small governed programs stays exactly what it was.

``LGOV_GOLDEN_WRITE=1 pytest tests/golden/test_governed_programs.py`` writes the records anew: do so only where a change is
meant, and give the reason with it. Each case is run in every third program, and in all of them with the slow tests.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.golden.governed_programs import CASES, PROGRAMS, run_case
from tests.slow import SLOW

RECORDS = Path(__file__).parent / "governed_programs"
WITHOUT_HANDOFF = ("openai", "endpoint")


@cache
def records(framework: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((RECORDS / f"{framework}.json.gz").read_bytes()))


@pytest.mark.parametrize(
    ("framework", "program"), [(framework, program) for framework, ways in PROGRAMS.items() for program in ways]
)
def test_a_program_is_governed_as_it_was(framework: str, program: str) -> None:
    cases = {name: case for name, case in CASES.items() if not (case.handoff and framework in WITHOUT_HANDOFF)}
    writes = bool(os.environ.get("LGOV_GOLDEN_WRITE"))
    before = {} if writes else records(framework)[program]
    assert writes or cases.keys() == before.keys()
    if not (SLOW or writes):
        first = list(PROGRAMS[framework]).index(program) % 3
        cases = {name: case for number, (name, case) in enumerate(cases.items()) if number % 3 == first}
    now = {name: run_case(case, PROGRAMS[framework][program]) for name, case in cases.items()}
    if writes:
        write(framework, program, now)
        return
    for name in now:
        for part in ("got", "sent", "events"):
            assert now[name][part] == before[name][part], f"{program}: {name}"


def write(framework: str, program: str, now: Any) -> None:
    path = RECORDS / f"{framework}.json.gz"
    RECORDS.mkdir(exist_ok=True)
    every = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    every[program] = now
    path.write_bytes(gzip.compress(json.dumps(every, sort_keys=True).encode(), mtime=0))
