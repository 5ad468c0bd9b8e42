"""A setting as a piece of evidence: its seeds one after the other, and the result that they make together."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence import RESULTS, Options, provenance, write_result, write_whole
from settings import report

NAMES = ("sql", "retrieval", "maths")
#: What the versions of a result name beside the usual ones.
FRAMEWORKS = ("langchain", "langgraph", "openai-agents", "autogen-agentchat", "autogen-ext")


def run_setting(
    name: str,
    options: Options,
    *,
    model: str = "tiny",
    real: bool = False,
    development: bool = False,
    updates: int | None = None,
) -> dict[str, Any]:
    """Runs a setting with every seed of ``options``; what a seed gave is kept in the folder, and not run again.

    A seed counts only for the same code and plan; kept seeds that do are part of the result, asked for or not.
    """
    from lgov_core.demo.run import Display
    from settings.known import SETTINGS
    from settings.plan import plan_for
    from settings.run import run_seed

    if real:
        from settings.real import setting as real_setting

        setting = real_setting(name)
    else:
        setting = SETTINGS[name]
    judged = ("values",) if real else ("development",) if development else None
    plan = plan_for(setting, model, quick=options.quick, judged=judged, updates=updates)
    folder = options.folder / f"{name}{_suffix(model, real, '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    key = {"commit": provenance("", options)["commit"], "plan": json.loads(json.dumps(asdict(plan)))}
    found = _kept_seeds(folder, key)
    for seed in options.seeds:
        if seed not in found:
            found[seed] = run_seed(setting, plan, seed, _fresh(folder, seed), Display(), {})
            write_whole(folder / f"seed{seed}.json", json.dumps({"key": key, "run": found[seed]}))
    runs = [found[seed] for seed in sorted(found)]
    return {
        "title": setting.title,
        "framework": setting.framework,
        "score": setting.score,
        "trained": list(setting.trained),
        "frozen": list(setting.frozen),
        "plan": key["plan"],
        "seeds": sorted(found),
        "runs": runs,
        "summary": report.summary(runs),
        "seconds": {name: [one["seconds"] for one in runs]},
    }


def main(arguments: Sequence[str]) -> int:
    """``settings [--setting NAME] [--seed N] [--model NAME] [--quick] [--real]``. Returns the exit status."""
    from settings.run import GateError

    parser = argparse.ArgumentParser(prog="main.py settings", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--setting", choices=NAMES, default=None, help="one of the three (default: all, in this order)")
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        default=None,
        help="may be repeated (default: 0, 1, 2; quick or smollm2: 0)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; shows nothing")
    parser.add_argument(
        "--model", choices=["tiny", "smollm2"], default=None, help="default: tiny; with --real: smollm2"
    )
    parser.add_argument("--real", action="store_true", help="on the questions in the folder of EVIDENCE_DATA")
    parser.add_argument(
        "--development", action="store_true", help="questions for choosing a plan in place of the held-out ones"
    )
    parser.add_argument("--updates", type=int, default=None, help="instead of the plan's")
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are left (runs/evidence-settings)")
    parser.add_argument("--results", type=Path, default=None, help="where JSON and plot go (results/; quick: FOLDER)")
    given = parser.parse_args(arguments)
    kind = "-quick" if given.quick else "-development" if given.development else ""
    folder = given.folder or Path("runs") / f"evidence-settings{kind}"
    model = given.model or ("smollm2" if given.real else "tiny")
    one_seed = given.quick or model == "smollm2"
    seeds = given.seed or ([100] if given.development else [0] if one_seed else [0, 1, 2])
    for name in [given.setting] if given.setting else NAMES:
        options = Options(
            f"settings_{name}{_suffix(model, given.real, '_')}",
            tuple(seeds),
            given.quick,
            1,
            folder.resolve(),
            (given.results or (folder if kind else RESULTS)).resolve(),
        )
        try:
            found = run_setting(
                name, options, model=model, real=given.real, development=given.development, updates=given.updates
            )
        except (GateError, FileNotFoundError) as error:
            print(error, file=sys.stderr)
            return 1
        command = ["python evidence/main.py settings --setting", name, *_flags(given)]
        command += [f"--seed {seed}" for seed in found["seeds"]]
        result = with_provenance(" ".join(command), options, found)
        write_result(result, options, report.draw)
        print(f"{result['title']}\n\n{report.tables(result)}\n")
    return 0


def with_provenance(command: str, options: Options, found: dict[str, Any]) -> dict[str, Any]:
    """A result with where it comes from; the versions name the frameworks too."""
    import importlib.metadata

    origin = provenance(command, options)
    versions = {**origin["versions"], **{name: importlib.metadata.version(name) for name in FRAMEWORKS}}
    return {**origin, "versions": dict(sorted(versions.items())), **found}


def _flags(given: argparse.Namespace) -> list[str]:
    """The options that change what is run."""
    flags = [f"--{name}" for name in ("quick", "real", "development") if getattr(given, name)]
    valued = [(name, getattr(given, name)) for name in ("model", "updates")]
    return [*flags, *(f"--{name} {value}" for name, value in valued if value is not None)]


def _suffix(model: str, real: bool, mark: str) -> str:
    """What tells the results of other models and questions from those of the tiny model on generated ones."""
    return "".join(f"{mark}{part}" for part in ([] if model == "tiny" else [model]) + (["real"] if real else []))


def _kept_seeds(folder: Path, key: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """What finished seeds of the same code and plan gave; none where the code is not that of a commit."""
    kept = [json.loads(path.read_text()) for path in folder.glob("seed*.json")]
    same = [one["run"] for one in kept if one["key"] == key and not key["commit"].endswith("-changed")]
    return {one["seed"]: one for one in same}


def _fresh(folder: Path, seed: int) -> Path:
    """A folder that is not there yet: a run that broke off is not gone on with."""
    number = 1
    while (path := folder / f"seed{seed}-{number}").exists():
        number += 1
    return path
