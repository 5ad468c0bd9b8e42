"""What every piece of evidence shares: its runs, side by side and by seed, and the file that they end in."""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
PLOTS = ROOT / "docs/evidence"
FRAMEWORKS = ("lgov_langchain", "lgov_openai_agents", "lgov_autogen")
PACKAGES = (
    *("lgov", "torch", "transformers", "tokenizers", "numpy"),
    *("langchain", "langgraph", "openai", "sqlglot", "reasoning-gym"),
)


@dataclass(frozen=True)
class Options:
    """What to run. ``folder`` gets the runs, ``results`` the JSON and the plot."""

    name: str
    seeds: tuple[int, ...]
    quick: bool
    jobs: int
    folder: Path
    results: Path


def provenance(command: str, options: Options) -> dict[str, Any]:
    """Where a result comes from: enough to run it again."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "evidence": options.name,
        "command": command,
        "quick": options.quick,
        "seeds": list(options.seeds),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, no GPU used",
        "versions": versions,
    }


def _commit() -> str:
    """The last commit that changed the code, marked where the code is not exactly that. Results and docs do not count."""
    places = ["lgov_core", *FRAMEWORKS, ":(glob)evidence/*.py", "evidence/settings", "evidence/public"]
    try:
        log = ["git", "log", "-1", "--format=%H", "--", *places]
        head = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True)
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", *places], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("-changed" if changed.stdout.strip() else "")


def run_all(options: Options, arms: Sequence[str], settings: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Runs every arm with every seed, ``options.jobs`` at a time; by arm, what each seed gave.

    The module of the evidence has ``warm(seed, folder, quick)``, run once a seed, and ``one(arm, seed, folder, warm,
    quick)``. A run that is already in the folder, of the same code and settings, is not repeated: so a command that was
    interrupted goes on.
    """
    options.folder.mkdir(parents=True, exist_ok=True)
    key = {"commit": _commit(), "quick": options.quick, "settings": json.loads(json.dumps(settings))}
    done: dict[tuple[str, int], dict[str, Any]] = {}
    if options.jobs == 0:
        for seed in options.seeds:
            _warm(options, seed, key)
            done |= {(arm, seed): _one(options, arm, seed, key) for arm in arms}
        return {arm: [done[arm, seed] for seed in options.seeds] for arm in arms}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        warming = {pool.submit(_warm, options, seed, key): seed for seed in options.seeds}
        running: dict[concurrent.futures.Future[dict[str, Any]], tuple[str, int]] = {}
        while warming or running:
            ended, _ = concurrent.futures.wait([*warming, *running], return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                if future in warming:
                    seed = warming.pop(future)
                    future.result()
                    running |= {pool.submit(_in_pool, options, arm, seed, key): (arm, seed) for arm in arms}
                else:
                    arm, seed = running.pop(future)
                    done[arm, seed] = future.result()
                    print(f"{arm}, seed {seed}: {done[arm, seed]['seconds']} s", file=sys.stderr, flush=True)
    return {arm: [done[arm, seed] for seed in options.seeds] for arm in arms}


def _warm(options: Options, seed: int, key: dict[str, Any]) -> None:
    folder = options.folder / f"warm-seed{seed}"
    if _kept(folder.with_suffix(".json"), key) is None:
        importlib.import_module(options.name).warm(seed, folder, options.quick)
        _keep(folder.with_suffix(".json"), key, {})


def _one(options: Options, arm: str, seed: int, key: dict[str, Any]) -> dict[str, Any]:
    path = options.folder / f"{arm}-seed{seed}.json"
    found = _kept(path, key)
    if found is None:
        # A run that broke off is not gone on with: what it left would be counted twice.
        folder = options.folder / f"{arm}-seed{seed}-{os.getpid()}-{time.time_ns()}"
        warm = options.folder / f"warm-seed{seed}"
        found = importlib.import_module(options.name).one(arm, seed, folder, warm, options.quick)
        _keep(path, key, found)
    return found


def _in_pool(options: Options, arm: str, seed: int, key: dict[str, Any]) -> dict[str, Any]:
    """`_one`, whose error can be sent to the pool's process: those of some libraries cannot."""
    try:
        return _one(options, arm, seed, key)
    except Exception as error:
        raise RuntimeError(f"{arm}, seed {seed}: {type(error).__name__}: {error}") from error


def _kept(path: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    return kept["result"] if kept["key"] == key and not key["commit"].endswith("-changed") else None


def _keep(path: Path, key: dict[str, Any], result: dict[str, Any]) -> None:
    write_whole(path, json.dumps({"key": key, "result": result}))


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def write_result(result: dict[str, Any], options: Options, draw: Callable[[dict[str, Any], Path], None]) -> Path:
    """Writes NAME.json and NAME.png, the plot of a committed result beside the page that shows it."""
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{options.name}.json"
    # A list of plain values stands on one line.
    text = re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), json.dumps(result, indent=1))
    path.write_text(text.replace("[ ", "[").replace(" ]", "]") + "\n")
    draw(result, (PLOTS if options.results == RESULTS else options.results) / f"{options.name}.png")
    return path


def read_result(name: str, folder: Path = RESULTS) -> dict[str, Any] | None:
    """A result that was written, or None."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
