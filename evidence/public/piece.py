"""The public sets as a piece of evidence, run as the settings are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from settings.piece import Piece, run_piece
from settings.plan import Plan
from settings.setting import Setting

from public import report


def main(arguments: Sequence[str]) -> int:
    """``public [--setting NAME] [--seed N] [--model NAME] [--quick]``. Returns the exit status."""
    return run_piece(PIECE, arguments)


def _find(name: str, real: bool) -> Setting:
    from public.known import SETS

    return SETS[name]


def _facts(name: str, plan: Plan) -> Mapping[str, Any]:
    """The set's numbers and configuration, and how much of what is judged stands in what was trained on."""
    from public.tasks import CONFIGS, NUMBERS, shown_in_training

    package_name, config = CONFIGS[name]
    numbers = {split: list(found) for split, found in NUMBERS.items()}
    return {
        "set": {"name": package_name, "config": config, "numbers": numbers},
        "shown": shown_in_training(name, plan.judged[0]),
    }


PIECE = Piece(
    name="public",
    names=("legs", "equations", "paths"),
    find=_find,
    tables=report.tables,
    model="smollm2",
    seeds=lambda name, _model: (0, 1, 2) if name == "legs" else (0,),
    facts=_facts,
)
