"""A setting as a piece of evidence: its seeds one after the other, and the result that they make together."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evidence import RESULTS, Options, provenance, write_result, write_whole
from settings import report
from settings.plan import Plan, plan_for
from settings.setting import Setting

#: What the versions of a result name beside the usual ones.
FRAMEWORKS = ("langchain", "langgraph", "openai-agents", "autogen-agentchat", "autogen-ext")


@dataclass(frozen=True)
class Piece:
    """Settings that one command runs: ``find`` gives one by its name (and whether on real questions).

    ``model`` and ``seeds`` are what is run where nothing else is asked for; ``tables`` says what a result looks like.
    """

    name: str
    names: tuple[str, ...]
    find: Callable[[str, bool], Setting]
    tables: Callable[[dict[str, Any]], str]
    model: str
    seeds: Callable[[str, str], Sequence[int]]
    facts: Callable[[str, Plan], Mapping[str, Any]] = lambda _name, _plan: {}


def run_setting(setting: Setting, plan: Plan, options: Options, folder: Path) -> dict[str, Any]:
    """Runs a setting with every seed of ``options``; what a seed gave is kept in ``folder``, and not run again.

    A seed counts only for the same code and plan; kept seeds that do are part of the result, asked for or not. One that
    broke off is continued under the same condition.
    """
    from lgov_core.demo.run import Display
    from settings.run import run_seed

    folder.mkdir(parents=True, exist_ok=True)
    key = {"commit": provenance("", options)["commit"], "plan": json.loads(json.dumps(asdict(plan)))}
    found = _kept_seeds(folder, key)
    for seed in options.seeds:
        if seed not in found:
            found[seed] = run_seed(setting, plan, seed, folder_of(folder, seed, key), Display(), {})
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
        "seconds": {setting.name: [one["seconds"] for one in runs]},
    }


def main(arguments: Sequence[str]) -> int:
    """``settings [--setting NAME] [--seed N] [--model NAME] [--quick] [--real]``. Returns the exit status."""
    return run_piece(SETTINGS_PIECE, arguments)


def run_piece(piece: Piece, arguments: Sequence[str]) -> int:
    """Runs the settings of ``piece`` that the arguments ask for. Returns the exit status."""
    from settings.run import GateError

    given = _parsed(piece, arguments)
    kind = "-quick" if given.quick else "-development" if given.development else ""
    runs = given.folder or Path("runs") / f"evidence-{piece.name}{kind}"
    model = given.model or ("smollm2" if given.real else piece.model)
    for name in [given.setting] if given.setting else piece.names:
        seeds = given.seed or ([100] if given.development else [0] if given.quick else piece.seeds(name, model))
        options = Options(
            f"{piece.name}_{name}{_suffix(model, given.real, '_')}",
            tuple(seeds),
            given.quick,
            1,
            runs.resolve(),
            (given.results or (runs if kind else RESULTS)).resolve(),
        )
        judged = ("values",) if given.real else ("development",) if given.development else None
        try:
            setting = piece.find(name, given.real)
            plan = plan_for(setting, model, quick=given.quick, judged=judged, updates=given.updates)
            found = run_setting(setting, plan, options, options.folder / f"{name}{_suffix(model, given.real, '-')}")
        except (GateError, FileNotFoundError) as error:
            print(error, file=sys.stderr)
            return 1
        command = [f"python evidence/main.py {piece.name} --setting", name, *_flags(given)]
        command += [f"--seed {seed}" for seed in found["seeds"]]
        result = with_provenance(" ".join(command), options, {**found, **piece.facts(name, plan)})
        write_result(result, options, report.draw)
        print(f"{result['title']}\n\n{piece.tables(result)}\n")
    return 0


def _parsed(piece: Piece, arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"main.py {piece.name}", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--setting", choices=piece.names, default=None, help="one of them (default: all, in this order)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        default=None,
        help="may be repeated (default: those of the claim; quick: 0)",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; shows nothing")
    parser.add_argument(
        "--model", choices=["tiny", "smollm2"], default=None, help=f"default: {piece.model}; with --real: smollm2"
    )
    if piece is SETTINGS_PIECE:
        parser.add_argument("--real", action="store_true", help="on the questions in the folder of EVIDENCE_DATA")
    parser.add_argument(
        "--development", action="store_true", help="questions for choosing a plan in place of the held-out ones"
    )
    parser.add_argument("--updates", type=int, default=None, help="instead of the plan's")
    parser.add_argument(
        "--folder", type=Path, default=None, help=f"where the runs are left (runs/evidence-{piece.name})"
    )
    parser.add_argument("--results", type=Path, default=None, help="where JSON and plot go (results/; quick: FOLDER)")
    parser.set_defaults(real=False)
    return parser.parse_args(arguments)


def _setting(name: str, real: bool) -> Setting:
    if real:
        from settings.real import setting

        return setting(name)
    from settings.known import SETTINGS

    return SETTINGS[name]


SETTINGS_PIECE = Piece(
    name="settings",
    names=("sql", "retrieval", "maths"),
    find=_setting,
    tables=report.tables,
    model="tiny",
    seeds=lambda _name, model: (0,) if model == "smollm2" else (0, 1, 2),
)


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


def folder_of(folder: Path, seed: int, key: Mapping[str, Any]) -> Path:
    """The folder of a seed's run: that of one that broke off with the same code and plan, else one that is not there yet."""
    number = 1
    while (path := folder / f"seed{seed}-{number}").exists():
        number += 1
    begun = folder / f"seed{seed}-{number - 1}"
    kept = begun / "key.json"
    if kept.exists() and json.loads(kept.read_text()) == key and not str(key["commit"]).endswith("-changed"):
        return begun
    path.mkdir()
    write_whole(path / "key.json", json.dumps(key))
    return path
