"""How much of what is wrong with trainings `lgov doctor RUN` names: ``python -m tests.doctor``.

Real trainings of a tiny model are made, each with one fault of `tests.doctor.kinds`, and as many without. The doctor examines
each as it was after every update. A run is a hit when one of the findings of its kind is among those that it names; any
finding in a run without a fault is a false alarm. Ends with 1 below 95 % hits, or with a false alarm.

The checks were developed with ``--develop``, on other topics, another model and other seeds than those that are judged.

    python -m tests.doctor                    # judge: 50 runs with a fault, and 50 without
    python -m tests.doctor --write            # the same, and the table of evidence/results/README.md
    python -m tests.doctor --develop --kinds "length|random" --clean 5
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from lgov_core.train.loop.figures import wilson_interval
from tests.doctor.kinds import ALGORITHMS, CLEAN, KINDS
from tests.doctor.trainings import Training, examined, run
from tests.doctor.world import DEVELOPED, JUDGED, teach

GOAL: Final = 0.95
#: Updates of a training of usual length. The damage of a fault is the share of them that are made with it.
USUAL: Final = 100
#: Where the table is.
PAGE: Final = Path(__file__).parents[2] / "evidence" / "results" / "README.md"
BEGIN, END = "<!-- python -m tests.doctor --write -->", "<!-- end -->"


@dataclass(frozen=True)
class Result:
    """A run that was examined. ``first`` says after which update a finding of its kind was named; None: never."""

    kind: str
    topic: str
    algorithm: str
    seed: int
    updates: int
    first: int | None
    findings: Sequence[str]
    error: str | None
    seconds: float

    @property
    def hit(self) -> bool:
        return self.first is not None


def trainings(develop: bool, kinds: str, runs: int, clean: int) -> Iterator[tuple[str, Training]]:
    """What is to be trained: kinds with their faults, then those without (the kind "")."""
    topics, seeds = (DEVELOPED, 0) if develop else (JUDGED, 1000)
    # The second time in another order, so that not only the first kinds have two.
    chosen = [kind for kind in KINDS.values() if re.search(kinds, kind.name)]
    chosen += chosen[::2] + chosen[1::2]
    for number in range(runs):
        kind = chosen[number % len(chosen)]
        turn = sum(kind is before for before in chosen[:number])
        at = list(KINDS).index(kind.name) + 2 * turn
        topic, algorithm = topics[at % len(topics)], kind.algorithms[at % len(kind.algorithms)]
        training = Training(topic, seeds + 37 * turn + at, algorithm, kind.tool)
        kind.plant(training)
        yield kind.name, training
    for number in range(clean):
        topic, algorithm = topics[number % len(topics)], ALGORITHMS[number // 2 % len(ALGORITHMS)]
        training = Training(topic, seeds + 500 + number, algorithm, tool=number % 5 == 0, updates=8)
        training.settings["kl_coef"] = (0.1, 0.0)[number % 2]
        CLEAN[number % len(CLEAN)](training)
        yield "", training


def examine_one(kind: str, training: Training, models: dict[str, Path], folder: Path) -> Result:
    began = time.monotonic()
    error = run(training, folder / "run", models[training.model])
    named = examined(folder / "run", folder / "view")
    first: int | None = None
    if kind:
        hits = [step for name, step in named.first.items() if name in KINDS[kind].names and name in named.last]
        first = min(hits, default=None)
        if not KINDS[kind].names and named.updates == 0 and error:
            first = 0  # it was refused before anything was trained
    return Result(
        kind, training.topic, training.algorithm, training.seed, named.updates, first,
        sorted(named.last), error, round(time.monotonic() - began, 1),
    )  # fmt: skip


def models_in(folder: Path, develop: bool, wanted: set[str]) -> dict[str, Path]:
    """The models that trainings begin from; made where they are not there."""
    topics, seed = (DEVELOPED, 0) if develop else (JUDGED, 7)
    made: dict[str, Path] = {}
    for name, mistakes in (("taught", 0.0), ("sloppy", 0.4)):
        place = folder / f"{'develop' if develop else 'judge'}-{name}"
        if name in wanted and not place.exists():
            teach(place, topics, seed=seed, mistakes=mistakes)
        made[name] = place
    return made


def line_of(result: Result) -> str:
    verdict = (
        f"hit at {result.first}" if result.hit else "MISS" if result.kind else "ALARM" if result.findings else "ok"
    )
    run_of = f"[{result.topic} {result.algorithm} {result.seed}] {result.updates} updates, {result.seconds} s"
    return (
        f"{verdict:10} {result.kind or 'no fault'} {run_of}: {', '.join(result.findings)} {(result.error or '')[:90]}"
    )


def table(results: Sequence[Result]) -> str:
    """The table of the documentation."""
    lines = ["| what is wrong | runs | named | at update | by |", "|---|---|---|---|---|"]
    for kind in KINDS.values():
        own = [result for result in results if result.kind == kind.name]
        if own:
            steps = sorted(result.first for result in own if result.first is not None)
            at = "-" if not steps else f"{steps[0]}" if steps[0] == steps[-1] else f"{steps[0]} to {steps[-1]}"
            names = sorted({name for result in own for name in result.findings if name in kind.names})
            by = ", ".join(f"`{name}`" for name in names) or ("refused at the start" if steps else "")
            lines.append(f"| {kind.name} | {len(own)} | {len(steps)} | {at} | {by} |")
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> dict[str, float]:
    faulty, clean = ([result for result in results if bool(result.kind) is wrong] for wrong in (True, False))
    hits = [result for result in faulty if result.hit]
    early = [result for result in hits if (result.first or 0) <= USUAL / 10]
    alarms = sum(bool(result.findings) for result in clean)
    low, high = wilson_interval(len(hits), len(faulty)) if faulty else (1.0, 1.0)
    return {
        "kinds": len({result.kind for result in faulty}), "runs": len(faulty), "hits": len(hits), "early": len(early),
        "low": low, "high": high, "clean": len(clean), "false_alarms": alarms,
        "false_alarms_high": wilson_interval(alarms, len(clean))[1] if clean else 1.0,
    }  # fmt: skip


def sentence(figures: Mapping[str, float]) -> str:
    hits = "{hits} of {runs} runs with a fault are named ({low:.0%} to {high:.0%}, 95 %), {early} of them by update"
    alarms = "{false_alarms} of {clean} runs without a fault have a finding (at most {false_alarms_high:.0%})."
    return f"{hits.format(**figures)} {USUAL // 10}.\n{alarms.format(**figures)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.doctor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--develop", action="store_true", help="the topics and seeds that checks are developed on")
    parser.add_argument("--kinds", default="", help="a pattern of the kinds to run")
    parser.add_argument("--runs", type=int, default=50, help="runs with a fault, the kinds in turn")
    parser.add_argument("--clean", type=int, default=50, help="runs without a fault")
    parser.add_argument("--json", type=Path, help="writes all results there")
    parser.add_argument("--models", type=Path, help="keeps the taught models there")
    parser.add_argument("--write", action="store_true", help="writes the table into evidence/results/README.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as temporary:
        chosen = list(trainings(options.develop, options.kinds, options.runs, options.clean))
        wanted = {training.model for _, training in chosen}
        models = models_in(options.models or Path(temporary), options.develop, wanted)
        for kind, training in chosen:
            result = examine_one(kind, training, models, Path(temporary) / "one")
            shutil.rmtree(Path(temporary) / "one", ignore_errors=True)
            results.append(result)
            print(line_of(result), file=sys.stderr, flush=True)
    figures = summary(results)
    text = f"{table(results)}\n\n{sentence(figures)}\n"
    print(text)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")
    if options.json:
        options.json.write_text(json.dumps({**figures, "results": [asdict(result) for result in results]}, indent=1))
    good = figures["hits"] >= GOAL * figures["runs"] and not figures["false_alarms"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
