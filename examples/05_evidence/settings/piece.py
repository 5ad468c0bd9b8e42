"""A setting as a piece of evidence: its seeds one after the other, and the result that they make together."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence import RESULTS, Options, provenance, write_result

from settings import report

NAMES = ("sql", "retrieval", "maths")
#: What the versions of a result name beside the usual ones.
FRAMEWORKS = ("langchain", "langgraph", "openai-agents", "autogen-agentchat", "autogen-ext")


def run_setting(name: str, options: Options, *, real: bool = False, updates: int | None = None) -> dict[str, Any]:
    """Runs a setting with every seed of ``options``; what a seed gave is kept in the folder, and not run again.

    A seed that was kept counts only for the same code and plan.
    """
    from lgov_core.demo.progress import Display
    from settings.known import SETTINGS
    from settings.plan import plan_for
    from settings.run import run_seed

    if real:
        from settings.real import setting as real_setting

        setting = real_setting(name)
    else:
        setting = SETTINGS[name]
    plan = plan_for(setting, quick=options.quick, real=real, updates=updates)
    folder = options.folder / (f"{name}-real" if real else name)
    folder.mkdir(parents=True, exist_ok=True)
    key = {"commit": provenance("", options)["commit"], "plan": json.loads(json.dumps(asdict(plan)))}
    runs: list[dict[str, Any]] = []
    for seed in options.seeds:
        kept = folder / f"seed{seed}.json"
        found = _kept(kept, key)
        if found is None:
            found = run_seed(setting, plan, seed, _fresh(folder, seed), Display(), {})
            kept.write_text(json.dumps({"key": key, "run": found}))
        runs.append(found)
    return {
        "title": setting.title,
        "framework": setting.framework,
        "score": setting.score,
        "trained": list(setting.trained),
        "frozen": list(setting.frozen),
        "counts_executed": name == "sql",
        "plan": key["plan"],
        "runs": runs,
        "summary": report.summary(runs),
        "seconds": {name: [one["seconds"] for one in runs]},
    }


def main(arguments: Sequence[str]) -> int:
    """``settings [--only NAME] [--seeds N] [--quick] [--real]``. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="main.py settings", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=NAMES, default=None, help="one of the three (default: all, in this order)")
    parser.add_argument("--seeds", type=int, default=None, help="how many (default: 3; quick or real: 1)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; shows nothing")
    parser.add_argument("--real", action="store_true", help="smollm2 on the questions in ../shared/data")
    parser.add_argument("--updates", type=int, default=None, help="instead of the plan's")
    parser.add_argument("--folder", type=Path, default=None, help="where the runs are left (runs/evidence-settings)")
    parser.add_argument("--results", type=Path, default=None, help="where JSON and plot go (results/; quick: FOLDER)")
    given = parser.parse_args(arguments)
    folder = given.folder or Path("runs") / f"evidence-settings{'-quick' if given.quick else ''}"
    count = given.seeds or (1 if given.quick or given.real else 3)
    command = " ".join(["python examples/05_evidence/main.py settings", *_without_places(arguments)])
    for name in [given.only] if given.only else NAMES:
        options = Options(
            f"settings_{name}{'_real' if given.real else ''}",
            tuple(range(given.first_seed, given.first_seed + count)),
            given.quick,
            1,
            folder.resolve(),
            (given.results or (folder if given.quick else RESULTS)).resolve(),
        )
        found = run_setting(name, options, real=given.real, updates=given.updates)
        result = with_provenance(command, options, found)
        write_result(result, options, report.draw)
        print(f"{result['title']}\n\n{report.tables(result)}\n")
    return 0


def with_provenance(command: str, options: Options, found: dict[str, Any]) -> dict[str, Any]:
    """A result with where it comes from; the versions name the frameworks too."""
    import importlib.metadata

    origin = provenance(command, options)
    versions = {**origin["versions"], **{name: importlib.metadata.version(name) for name in FRAMEWORKS}}
    return {**origin, "versions": dict(sorted(versions.items())), **found}


def _without_places(arguments: Sequence[str]) -> list[str]:
    """The arguments but for the folders, which change nothing in what is run."""
    found: list[str] = []
    rest = iter(arguments)
    for one in rest:
        if one in ("--folder", "--results"):
            next(rest, None)
        elif not one.startswith(("--folder=", "--results=")):
            found.append(one)
    return found


def _kept(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    return kept["run"] if kept["key"] == key and not key["commit"].endswith("-changed") else None


def _fresh(folder: Path, seed: int) -> Path:
    """A folder that is not there yet: a run that broke off is not gone on with."""
    number = 1
    while (path := folder / f"seed{seed}-{number}").exists():
        number += 1
    return path
