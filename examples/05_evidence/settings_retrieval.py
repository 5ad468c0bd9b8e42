"""Evidence (d), setting `retrieval`: see settings/. `main.py settings --only retrieval` runs the same."""

from __future__ import annotations

from typing import Any

from evidence import Options
from settings import report
from settings.piece import run_setting

SEEDS = 3
draw = report.draw


def run(options: Options) -> dict[str, Any]:
    return run_setting("retrieval", options)


def tables(result: dict[str, Any]) -> str:
    return report.tables(result)
