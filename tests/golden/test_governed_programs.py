"""What is decided, shown, sent and delivered in small governed programs stays exactly what it was.

``LGOV_GOLDEN_WRITE=1 pytest tests/golden/test_governed_programs.py`` writes the records anew: do so only where a change is
meant, and give the reason with it.
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
    now = {name: run_case(case, PROGRAMS[framework][program]) for name, case in cases.items()}
    if os.environ.get("LGOV_GOLDEN_WRITE"):
        write(framework, program, now)
        return
    before = records(framework)[program]
    assert now.keys() == before.keys()
    for name in now:
        for part in ("got", "sent", "events"):
            assert now[name][part] == before[name][part], f"{program}: {name}"


def write(framework: str, program: str, now: Any) -> None:
    path = RECORDS / f"{framework}.json.gz"
    RECORDS.mkdir(exist_ok=True)
    every = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    every[program] = now
    path.write_bytes(gzip.compress(json.dumps(every, sort_keys=True).encode(), mtime=0))
