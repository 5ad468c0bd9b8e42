"""Verifies what a demo run captured: its texts from the tokens, its log-probabilities from the served weights."""

from __future__ import annotations

import contextlib
import json
from itertools import islice
from pathlib import Path

from lgov_core.demo.captured_text import CapturedText
from lgov_core.demo.prepare import POLICIES
from lgov_core.demo.progress import Display
from lgov_core.demo.recompute import Recomputation, RunFolder
from lgov_core.demo.verification import Verification
from lgov_core.errors import SettingsError
from lgov_core.models import load_model
from lgov_core.store import open_store


def read_run(path: Path) -> RunFolder:
    """The model and the warm start of a run folder. Raises `SettingsError` when it is not the folder of a demo run."""
    inner = sorted(found.parent.name for found in path.glob("*/store.sqlite"))
    hint = f"name one of the folders in it: {', '.join(inner)}" if inner else "name a folder like seed0-governed"
    for name in ("config.json", "store.sqlite"):
        if not (path / name).is_file():
            raise SettingsError(f"{path} is not the folder of a demo run: it has no {name}", hint=hint)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        model, warm = str(config["plan"]["model"]), Path(config["warm"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SettingsError(
            f"{path / 'config.json'} does not name the model and the warm start of a demo run"
        ) from error
    if model not in POLICIES:
        raise SettingsError(f"{path / 'config.json'} names model {model!r}", hint=f"known are {', '.join(POLICIES)}")
    # A run that was moved still has its warm start beside it.
    places = (warm, path.resolve().parent / warm.name)
    found = next((place for place in places if (place / "config.json").is_file()), None)
    if found is None:
        raise SettingsError(f"the warm start {warm} of run {path} is gone", hint="without it nothing can be recomputed")
    return RunFolder(path, model, found)


def verify_run(
    path: Path, *, tolerance: float = 1e-3, limit: int | None = None, display: Display | None = None
) -> Verification:
    """Checks every captured call of a run folder, or ``limit`` of them, evenly spread.

    The tokens of each must be exactly the text that was received and sent (`CapturedText`), and its recorded
    log-probabilities must be within ``tolerance`` of those that the weights of its version give. Calls whose weights
    are not kept count as unchecked. Nothing is written. Raises `SettingsError` when ``path`` is not a run folder, other
    `LgovError` when store, model or weights cannot be read.
    """
    run = read_run(path)
    model = load_model(str(run.warm), dtype="float32")
    with contextlib.closing(open_store(run.path / "store.sqlite")) as store:
        recorded = sum(1 for _ in store.calls())
        wanted = recorded if limit is None else min(limit, recorded)
        result = Verification(recorded, tolerance)
        texts = CapturedText(model)
        recomputation = Recomputation(run, model, result)
        with (display or Display(quiet=True)).stage("verify", wanted) as stage:
            for number, call in enumerate(islice(store.calls(), recorded)):
                texts.remember(call)
                # Bresenham's line: true for exactly `wanted` of the numbers, evenly spread.
                if number * wanted // recorded == (number + 1) * wanted // recorded:
                    continue
                result.calls += 1
                problem = texts.problem(call)
                if problem is None:
                    result.decoded_ok += 1
                else:
                    result.decoded_bad += 1
                    result.add(call, problem)
                recomputation.add(call)
                for done in recomputation.run() if recomputation.full else ():
                    stage.to(done)
            for done in recomputation.run():
                stage.to(done)
    return result
