"""Evidence (d), setting `maths` on real questions, SmolLM2. `main.py settings --only maths --real` runs the same."""

from __future__ import annotations

from typing import Any

from evidence import Options
from settings import report
from settings.piece import run_setting

SEEDS = 1
draw = report.draw


def run(options: Options) -> dict[str, Any]:
    return run_setting("maths", options, real=True)


def tables(result: dict[str, Any]) -> str:
    return report.tables(result)
