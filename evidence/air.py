"""Evidence (c): intermediate rewards (AIR) on a task with a sparse reward, and the farming attack.

Only being out in time is paid: 1, at the end. `look` is the attack: it always succeeds and leads nowhere.

Stated before anything was run: (1) AIR as it is by default (`shaped`) is compared with none (`off`) in the share of held-out
walks that get out, over the evaluations after the first update and at the end; so is a rule of one's own (`progress`). (2) The
farming attack: where each successful call is simply paid, without bounds (`naive`), walks look more and get out less than
with the shaped default; where rewards are shaped, a walk earns 0 in `air`, whatever it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import walking
from intervals import detectable, difference, interval, shown, shown_detectable, table, verdict
from walking import Arm, Walks

from evidence import Options, run_all
from lgov_core.air import AirRules
from lgov_core.transitions import CreditRules

SEEDS = 5
ARMS = {
    "off": Arm(),
    # What lgov does unless told otherwise: paid by progress, taken back at the end.
    "shaped": Arm(air=AirRules()),
    # A rule of one's own, worth as much as the task; it cannot be farmed, so credit need not bound it.
    "progress": Arm(CreditRules(air_cap=None), rules="progress"),
    # The naive way: each successful call paid anew, without bounds.
    "naive": Arm(CreditRules(air_cap=None), air=AirRules(tool_success=0.3, tool_error=0.0, shaped=False), cap=None),
}
PAIRS = (("shaped", "off"), ("progress", "off"), ("naive", "shaped"))
FULL = Walks(each_room=False, rooms=4, iterations=8, tasks=4, group=8, held_out=48, every=2)
QUICK = Walks(
    each_room=False,
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
    out = {arm: walking.shares(found, "out", 1) for arm, found in runs.items()}
    looks = {arm: walking.shares(found, "looks", 1) for arm, found in runs.items()}
    steps = [point["step"] for point in runs["off"][0]["curve"]]
    area = {arm: walking.after_the_first(values) for arm, values in out.items()}
    last = {arm: [seed[-1] for seed in values] for arm, values in out.items()}
    last_looks = {arm: [seed[-1] for seed in values] for arm, values in looks.items()}
    earned = {arm: [run["curve"][-1]["air"] for run in found] for arm, found in runs.items()}
    return {
        "settings": settings,
        "steps": steps,
        "curves": {arm: [interval([seed[at] for seed in out[arm]]) for at in range(len(steps))] for arm in runs},
        "looks": {arm: [interval([seed[at] for seed in looks[arm]]) for at in range(len(steps))] for arm in runs},
        "area": {arm: interval(values) for arm, values in area.items()},
        "end": {arm: interval(values) for arm, values in last.items()},
        "end_looks": {arm: interval(values) for arm, values in last_looks.items()},
        "end_air": {arm: interval(values) for arm, values in earned.items()},
        "differences": [
            {
                "first": first,
                "second": second,
                "area": difference(area[first], area[second]),
                "end": difference(last[first], last[second]),
                "area_detectable": detectable(area[first], area[second]),
                "end_detectable": detectable(last[first], last[second]),
                "looks": difference(last_looks[first], last_looks[second]),
                "looks_detectable": detectable(last_looks[first], last_looks[second]),
            }
            for first, second in PAIRS
        ],
        "seconds": {arm: [run["seconds"] for run in found] for arm, found in runs.items()},
        "runs": runs,
    }


def tables(result: dict[str, Any]) -> str:
    """The result as tables in Markdown."""
    start, seen = result["curves"]["off"][0], result["looks"]["off"][0]
    arms = table(
        ["AIR", "walks that get out, mean after the first update", "at the end", "looks a walk", "`air` a walk"],
        [
            [
                f"`{arm}`",
                shown(result["area"][arm]),
                shown(result["end"][arm]),
                shown(result["end_looks"][arm]),
                shown(result["end_air"][arm]),
            ]
            for arm in result["curves"]
        ],
    )
    pairs = table(
        [
            "difference",
            *(
                part
                for name in ("mean after the first update", "at the end", "looks")
                for part in (name, "shows", "could have been seen")
            ),
        ],
        [
            [
                f"`{pair['first']}` - `{pair['second']}`",
                *(text for name in ("area", "end", "looks") for text in _shows(pair, name)),
            ]
            for pair in result["differences"]
        ],
    )
    before = f"Before training {shown(start)} get out, with {shown(seen)} looks a walk; the same model for all."
    return f"{before}\n\n{arms}\n\n{pairs}"


def _shows(pair: dict[str, Any], name: str) -> tuple[str, str, str]:
    return shown(pair[name], signed=True), verdict(pair[name]), shown_detectable(pair[f"{name}_detectable"])


def draw(result: dict[str, Any], path: Path) -> None:
    panels = [("curves", "walks that get out (held-out)"), ("looks", "looks a walk (held-out)")]
    walking.draw_curves(result, path, panels, "Intermediate rewards")
