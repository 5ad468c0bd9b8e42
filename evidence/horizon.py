"""Evidence (d): what credit by turn, and AIR, are worth as the horizon grows.

The corridor of evidence (b), each right door paid when it opens, in three lengths: 4 turns for 3 rooms, 8 for 6, 16 for 12. All
lengths of a seed begin with one model, warmed up on walks of 16 turns; each update has as many walks whatever their length.

Stated before anything was run: at each length, over the held-out walks of all evaluations after the first update, and at the
end, `return_to_go` (the default) is compared with `identical`, and `shaped` (the default with AIR as it is unless told
otherwise) with `return_to_go`, which has none. Expected: the first difference grows with the horizon, for a reward that all
turns of a rollout share says less about each of them the more there are; the second is 0 at every length. An interval that
holds 0 shows no difference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import credit
import walking
from credit import DIFFERENCE, compared, difference_row
from intervals import shown, table
from walking import Arm, Walks

from evidence import Options, run_all
from lgov_core.air import AirRules
from lgov_core.transitions import CreditRules

SEEDS = 3
ARMS = {
    "identical": Arm(CreditRules(scheme="identical")),
    "return_to_go": Arm(CreditRules(scheme="return_to_go")),
    "shaped": Arm(CreditRules(scheme="return_to_go"), air=AirRules()),
}
PAIRS = (("return_to_go", "identical"), ("shaped", "return_to_go"))
#: Turns, and the rooms that are to be passed in them.
LENGTHS = {4: 3, 8: 6, 16: 12}


def walks(quick: bool, turns: int) -> Walks:
    sizes = credit.QUICK if quick else replace(credit.FULL, iterations=6, held_out=32, every=3)
    return replace(sizes, turns=turns, rooms=LENGTHS[turns])


def warm(seed: int, folder: Path, quick: bool) -> None:
    walking.warm_up(walks(quick, max(LENGTHS)), seed, folder)


def one(arm: str, seed: int, folder: Path, warmed: Path, quick: bool) -> dict[str, Any]:
    turns, _, name = arm.partition("-")
    return walking.train(walks(quick, int(turns)), ARMS[name], seed, folder, warmed)


def run(options: Options) -> dict[str, Any]:
    settings = {str(turns): walking.as_values(walks(options.quick, turns)) for turns in LENGTHS}
    runs = run_all(options, [f"{turns}-{arm}" for turns in LENGTHS for arm in ARMS], settings)
    return {
        "settings": settings,
        "lengths": {
            str(turns): compared({arm: runs[f"{turns}-{arm}"] for arm in ARMS}, rooms, PAIRS)
            for turns, rooms in LENGTHS.items()
        },
        "seconds": {arm: [run["seconds"] for run in cells] for arm, cells in runs.items()},
        "runs": runs,
    }


def tables(result: dict[str, Any]) -> str:
    """The result as tables in Markdown."""
    lengths = result["lengths"].items()
    arms = table(
        ["turns", "credit", "rooms passed, before", "mean after the first update", "at the end"],
        [
            [turns, f"`{arm}`", shown(of["curves"][arm][0]), shown(of["area"][arm]), shown(of["end"][arm])]
            for turns, of in lengths
            for arm in of["curves"]
        ],
    )
    pairs = [[turns, *difference_row(pair)] for turns, of in lengths for pair in of["differences"]]
    return f"{arms}\n\n{table(['turns', *DIFFERENCE], pairs)}"


def draw(result: dict[str, Any], path: Path) -> None:
    lengths = result["lengths"]
    curves = {turns: of["curves"] for turns, of in lengths.items()}
    steps = next(iter(lengths.values()))["steps"]
    panels = [(turns, f"rooms passed in {turns} turns, share") for turns in lengths]
    walking.draw_curves({**curves, "steps": steps, "seeds": result["seeds"]}, path, panels, "Horizon")
