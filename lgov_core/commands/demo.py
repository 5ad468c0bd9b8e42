"""``lgov demo``."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
import webbrowser
from collections.abc import Generator
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lgov_core.commands.group import write_json, write_table
from lgov_core.commands.options import FOLDER
from lgov_core.commands.traces import mounted_window
from lgov_core.demo.plans import DemoPlan, plan_for
from lgov_core.errors import LgovError, ModelError
from lgov_core.models.load import wait_without_spinning

if TYPE_CHECKING:
    from lgov_core.evaluation.verification import Verification

#: Problems that are written out; the rest is only counted.
_FINDINGS_SHOWN: Final = 5


def _seeds(_context: click.Context, _parameter: click.Parameter, text: str) -> range:
    if (numbers := re.fullmatch(r"(\d+)(?:-(\d+))?", text)) is not None:
        seeds = range(int(numbers[1])) if numbers[2] is None else range(int(numbers[1]), int(numbers[2]) + 1)
        if 1 <= len(seeds) <= 100:
            return seeds
    raise click.BadParameter(f"{text!r} is neither a number of seeds from 1 to 100 nor FIRST-LAST")


@click.command()
@click.option(
    "--model", type=click.Choice(["tiny", "smollm2"]), default="tiny", show_default=True, help="Model to train."
)
@click.option(
    "--seeds", metavar="NUMBER|FIRST-LAST", default="1", show_default=True, callback=_seeds,
    help="Number of seeds from 0 on, or the first and the last of them.",
)  # fmt: skip
@click.option("--ungoverned", is_flag=True, help="Also run every seed with governance off, for comparison.")
@click.option("--quick", is_flag=True, help="A short run, for tests.")
@click.option("--iterations", type=click.IntRange(0), help="Number of updates, instead of the model's plan.")
@click.option("--warm-steps", type=click.IntRange(1), help="Number of warm-start steps, instead of the model's plan.")
@click.option("--folder", type=FOLDER, help="Output folder of the run.")
@click.option("--keep-weights", is_flag=True, help="Keep every version of the weights (smollm2 always does).")
@click.option("--resume", is_flag=True, help="Resume the interrupted run in --folder.")
@click.option("--view", is_flag=True, help="Show the run in the browser while it goes on, and after it until Ctrl-C.")
@click.option(
    "--verify", "verified", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER",
    help="Recompute what this training captured instead (of any run with training.keep_weights), and compare.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
def demo(
    model: str,
    seeds: range,
    ungoverned: bool,
    folder: Path | None,
    resume: bool,
    view: bool,
    verified: Path | None,
    as_json: bool,
    **plan_options: Any,
) -> None:
    """Govern, capture, reward and train a real LangChain agent, and show the difference.

    An agent without lgov code answers questions about pay from a company database. Its model begins poor and
    dangerous; policies judge every query before it runs; the endpoint records exact tokens; GRPO trains the model.

    With --verify the recorded tokens of every call must decode to exactly the text that the model was given and the agent got,
    and the recorded log-probabilities must be those of the weights that were served. Calls whose weights were not kept are
    counted as unchecked. When nothing could be checked, nothing is proved, and the exit status is 1.

    Exit codes: 0 success; 1 the run failed, or --verify found something; 2 usage; 130 interrupted, with a checkpoint written
    (continue with --resume --folder FOLDER).
    """
    if verified is not None:
        sys.exit(_verify(verified, as_json))
    if resume and folder is None:
        raise click.UsageError("--resume needs --folder: the folder of the interrupted run")
    target = folder or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    missing = [name for name in ("torch", "transformers", "langchain", "starlette") if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f'the demo needs {", ".join(missing)}: pip install "lgov[langchain,gateway,train]" (for CPU only: torch first)'
        )
    plan = plan_for(model, **plan_options)
    wait_without_spinning()
    with _window(target) if view else contextlib.nullcontext():
        status = _run(plan, seeds, ungoverned, target, resume, as_json)
    sys.exit(status)


@contextlib.contextmanager
def _window(folder: Path) -> Generator[None]:
    """The window on ``folder``, during the block and after it until Ctrl-C."""
    from lgov_core.gateway.server import served_alone

    mounted = mounted_window(str(folder))
    if mounted is None:
        raise click.ClickException('the window needs pip install "lgov[view]"')
    with contextlib.closing(mounted), served_alone(mounted):
        # A browser of the terminal would hold the run up.
        threading.Thread(target=webbrowser.open, args=(mounted.address,), daemon=True).start()
        yield
        click.echo("the window stays open until Ctrl-C", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def _run(plan: DemoPlan, seeds: range, ungoverned: bool, folder: Path, resume: bool, as_json: bool) -> int:
    from rich.console import Console

    from lgov_core.demo.report import DemoReport, draw_curves, print_table
    from lgov_core.demo.report import as_json as report_json
    from lgov_core.demo.run import Display, RunSpec, run_once
    from lgov_core.models import pull_smollm2, smollm2_folder

    display = Display()
    if plan.model == "smollm2" and not (smollm2_folder() / "config.json").exists():
        display.say("the model is not here yet: lgov models pull smollm2 (about 93 MB)")
        try:
            pull_smollm2()
        except LgovError as error:
            click.echo(f"lgov demo: {error}", err=True)
            return 1
    reports: list[DemoReport] = []
    failed = ""
    for seed, governed in product(seeds, (True, False) if ungoverned else (True,)):
        name = f"seed{seed}-{'governed' if governed else 'ungoverned'}"
        display.say(f"{plan.model}, seed {seed}, {'governed' if governed else 'governance off'}: {folder / name}")
        spec = RunSpec(seed, governed, plan, folder / name, folder / f"seed{seed}-warm", resume)
        try:
            report = run_once(spec, display)
        except KeyboardInterrupt:
            failed = "interrupted"
            break
        except LgovError as error:
            click.echo(f"lgov demo: {error}", err=True)
            failed = error.code
            break
        reports.append(report)
        draw_curves(spec.folder, evaluated=plan.evaluations)
        if report.interrupted:
            failed = "interrupted"
            break
    if reports:
        text = json.dumps(report_json(reports), indent=2)
        (folder / "report.json").write_text(text)
        if as_json:
            click.echo(text)
        else:
            print_table(reports, Console(width=None if sys.stdout.isatty() else 130))
        click.echo(f"look at it: lgov view {folder}", err=True)
    if failed == "interrupted":
        click.echo(f"interrupted; continue with: lgov demo --model {plan.model} --resume --folder {folder}", err=True)
        return 130
    return 1 if failed else 0


# ---------------------------------------------------------------------- verify


def _verify(folder: Path, as_json: bool) -> int:
    missing = [name for name in ("torch", "transformers", "peft", "safetensors") if find_spec(name) is None]
    if missing:
        raise ModelError(f"verifying needs {', '.join(missing)}", hint="pip install 'lgov[train]'")
    from lgov_core.evaluation.verification import verify_run

    verification = verify_run(folder)
    if as_json:
        write_json(verification.as_json())
    else:
        _write_verification(verification)
    return 0 if verification.passed else 1


def _write_verification(verification: Verification) -> None:
    rows = [
        (
            "unknown" if weights.version is None else weights.version,
            *(weights.calls, weights.checked, weights.unchecked, weights.mismatched),
            f"{weights.max_logprob_diff:.1e}" if weights.checked else "",
        )
        for weights in verification.versions
    ]
    write_table(("weights", "calls", "checked", "unchecked", "mismatched", "max difference"), rows)
    for finding in verification.findings[:_FINDINGS_SHOWN]:
        click.echo(
            f"rollout {finding.rollout_id} attempt {finding.attempt} call {finding.response_id}"
            f" (weights {finding.weights_version}): {finding.problem}"
        )
    total = verification.total
    bad = verification.decoded_bad + total.mismatched
    if bad > _FINDINGS_SHOWN:
        click.echo("and more; --json shows the first 20")
    click.echo(
        f"{verification.calls} of {verification.recorded} calls: {verification.decoded_ok} decode to their text,"
        f" {verification.decoded_bad} do not; log-probabilities of {total.checked} checked, {total.mismatched} mismatched,"
        f" {total.unchecked} unchecked; largest difference {total.max_logprob_diff:.1e}, tolerance {verification.tolerance:g}"
    )
    if not total.checked:
        click.echo("nothing could be checked, so nothing is proved")
