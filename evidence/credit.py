"""Evidence (b): which credit makes an agent learn faster that is paid on the way through several turns.

Stated before anything was run: over the held-out walks of all evaluations after the first update (the area under the
learning curve), `return_to_go` is compared with `identical`, `gigpo` with `identical`, and `gigpo` with `return_to_go`; then
the same at the end. No order is claimed; an interval that holds 0 shows no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import walking
from intervals import detectable, difference, interval, shown, shown_detectable, table, verdict
from walking import Arm, Walks

from evidence import Options, run_all
from lgov_core.transitions import CreditRules

SEEDS = 5
ARMS = {
    "identical": Arm(CreditRules(scheme="identical")),
    "return_to_go": Arm(CreditRules(scheme="return_to_go")),
    # Two turns are in the same state if the agent has just been told the same: room and sign.
    "gigpo": Arm(CreditRules(scheme="gigpo", state="observation")),
}
PAIRS = (("return_to_go", "identical"), ("gigpo", "identical"), ("gigpo", "return_to_go"))
FULL = Walks(each_room=True, rooms=5, iterations=8, tasks=4, group=8, held_out=48, every=2)
QUICK = Walks(
    each_room=True,
    rooms=2,
    iterations=2,
    tasks=2,
    group=3,
    held_out=4,
    every=1,
    warm_steps=3,
    logged=16,
    hidden=32,
    layers=1,
)


def walks(quick: bool) -> Walks:
    return QUICK if quick else FULL


def warm(seed: int, folder: Path, quick: bool) -> None:
    walking.warm_up(walks(quick), seed, folder)


def one(arm: str, seed: int, folder: Path, warmed: Path, quick: bool) -> dict[str, Any]:
    return walking.train(walks(quick), ARMS[arm], seed, folder, warmed)


def run(options: Options) -> dict[str, Any]:
    settings = walking.as_values(walks(options.quick))
    runs = run_all(options, list(ARMS), settings)
    return {
        "settings": settings,
        **compared(runs, settings["rooms"], PAIRS),
        "seconds": {arm: [run["seconds"] for run in cells] for arm, cells in runs.items()},
        "runs": runs,
    }


def compared(runs: dict[str, Any], rooms: int, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The share of ``rooms`` passed, by arm: its curve, its mean after the first update, its end, and their differences."""
    share = {arm: walking.shares(cells, "rooms", rooms) for arm, cells in runs.items()}
    steps = [point["step"] for point in runs[pairs[0][0]][0]["curve"]]
    area = {arm: walking.after_the_first(values) for arm, values in share.items()}
    last = {arm: [seed[-1] for seed in values] for arm, values in share.items()}
    return {
        "steps": steps,
        "curves": {
            arm: [interval([seed[at] for seed in values]) for at in range(len(steps))] for arm, values in share.items()
        },
        "area": {arm: interval(values) for arm, values in area.items()},
        "end": {arm: interval(values) for arm, values in last.items()},
        "differences": [
            {
                "first": first,
                "second": second,
                "area": difference(area[first], area[second]),
                "end": difference(last[first], last[second]),
                "area_detectable": detectable(area[first], area[second]),
                "end_detectable": detectable(last[first], last[second]),
            }
            for first, second in pairs
        ],
    }


def tables(result: dict[str, Any]) -> str:
    """The result as tables in Markdown."""
    start = result["curves"]["identical"][0]
    arms = table(
        ["credit", "rooms passed, mean after the first update", "at the end"],
        [[f"`{arm}`", shown(result["area"][arm]), shown(result["end"][arm])] for arm in result["curves"]],
    )
    pairs = table(DIFFERENCE, [difference_row(pair) for pair in result["differences"]])
    return f"Before training: {shown(start)} of the rooms, the same model for all.\n\n{arms}\n\n{pairs}"


_SEEN = ("shows", "could have been seen")
DIFFERENCE = ("difference", "mean after the first update", *_SEEN, "at the end", *_SEEN)


def difference_row(pair: dict[str, Any]) -> list[str]:
    """A difference as a row of a table whose head is ``DIFFERENCE``."""
    texts = [f"`{pair['first']}` - `{pair['second']}`"]
    for when in ("area", "end"):
        texts += [shown(pair[when], signed=True), verdict(pair[when]), shown_detectable(pair[f"{when}_detectable"])]
    return texts


def draw(result: dict[str, Any], path: Path) -> None:
    walking.draw_curves(result, path, [("curves", "rooms passed, share (held-out walks)")], "Credit")
