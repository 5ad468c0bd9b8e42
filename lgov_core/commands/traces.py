"""``lgov traces`` and ``lgov view``: recorded rollouts in the terminal, and in the browser, which other commands open too."""

from __future__ import annotations

import math
import signal
import threading
import webbrowser
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from lgov_core.commands.group import Exit, console, rewards_text, write_json, write_result, write_table
from lgov_core.commands.options import (
    FILE,
    PATH,
    Where,
    command,
    limit_option,
    moment_option,
    opened_store,
    single,
    store_or_setting,
    where_option,
    yes_option,
)
from lgov_core.errors import EndpointError, counted
from lgov_core.places import DEFAULT_APPROVALS, DEFAULT_AUDIT, policy_beside
from lgov_core.settings import load_settings, without_password
from lgov_core.trace.rollout_spans import attempt_of
from lgov_core.trace.semconv import TASK_ID
from lgov_core.types import Attempt, CapturedCall, Outcome, Rollout

if TYPE_CHECKING:
    from lgov_core.store import Pruned, RolloutQueue, TraceStore
    from lgov_core.views.web.app import MountedWindow


#: Rollouts that an exported page can hold.
_MOST_EXPORTED: Final = 2000
_HOST: Final = "127.0.0.1"


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("place", metavar="PATH", required=False)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8322, show_default=True, help="Port; 0 picks a free one."
)
@click.option("--open/--no-open", "browse", default=True, help="Open the page in a browser.  [default: open]")
@click.option("--export", type=FILE, help="Write one self-contained HTML file instead, and end.")
@click.option("--no-content", is_flag=True, help="With --export: leave out what models, tools and users wrote.")
@click.option(
    "--limit",
    type=click.IntRange(0, _MOST_EXPORTED),
    default=100,
    show_default=True,
    help=f"With --export: number of rollouts; 0 takes all, at most {_MOST_EXPORTED}.",
)
@click.option("--audit", type=PATH, help="Audit record, if it is not in the run's folder.")
@click.option("--approvals", type=PATH, multiple=True, help="File of approval requests; repeatable.")
@click.option("--policy", "policies", type=PATH, multiple=True, help="Policy file that can be replayed; repeatable.")
@click.option("--tokenizer", type=PATH, help="tokenizer.json or its folder, for the texts of tokens.")
def view(
    place: str | None,
    port: int,
    browse: bool,
    export: Path | None,
    no_content: bool,
    limit: int,
    audit: Path | None,
    approvals: tuple[Path, ...],
    policies: tuple[Path, ...],
    tokenizer: Path | None,
    as_json: bool,
) -> None:
    """Look at a store or at runs in the browser: figures, rollouts, tokens, decisions, approvals.

    PATH is a trace store (a path or an address), an audit record, the folder of a run, or a folder of runs; without it the
    store of the settings. The record and the policy file of the settings in force there are shown with it. The page is for this
    machine only (use ssh -L to look from elsewhere): the printed address opens it once. Ctrl-C ends it. With --export no server
    is started.
    """
    try:
        from lgov_core.gateway.operation import logging_by
        from lgov_core.views.governance import approval_files
        from lgov_core.views.web.app import served_window
        from lgov_core.views.web.window import Window, WindowOptions
    except ImportError as error:
        raise EndpointError(f"the window needs {error.name}", hint='pip install "lgov[view]"') from error
    if no_content and export is None:
        raise click.UsageError("--no-content is for --export")
    if place is None:
        place, audit, policies = _from_settings(audit, policies)
    usual_audit, policy, usual_approvals = _around(place)
    policies = policies or policy
    files = (*approvals, *(path for policy in policies for path in approval_files(policy)))
    options = WindowOptions(None, audit, files or (usual_approvals,), policies, tokenizer, usual_audit)
    window = Window(place, options)
    try:
        if export is not None:
            from lgov_core.views.web.export import write_report

            written = write_report(window, export, content=not no_content, limit=limit or _MOST_EXPORTED)
            write_result(written, f"{export}: {written['bytes'] / 1e6:.1f} MB, {written['chosen']}", as_json=as_json)
            return
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
        with (
            logging_by(load_settings()),
            served_window(window, host=_HOST, port=port, say=say_on_stderr) as (server, address),
        ):
            about = {"address": address, "url": server.url, "path": without_password(place)}
            write_result(about, f"the window is open at {address}", as_json=as_json)
            if browse:
                webbrowser.open(address)
            stopped.wait()
    except KeyboardInterrupt:
        click.echo("closed", err=True)
    finally:
        window.close()


def _from_settings(audit: Path | None, policies: tuple[Path, ...]) -> tuple[str, Path | None, tuple[Path, ...]]:
    """The store, or else the audit record, that the settings name; and beside a store the record and the policy file.

    Raises `click.UsageError` where there is neither.
    """
    settings = load_settings()
    record = audit or (settings.audit if settings.audit is not None and settings.audit.is_file() else None)
    if (source := settings.store or (None if record is None else str(record))) is None:
        raise click.UsageError("name a store, an audit record or a run, or set store or audit in lgov.toml")
    policy = () if settings.policy is None or not settings.policy.is_file() else (settings.policy,)
    return source, record if settings.store is not None else None, policies or policy


def _around(address: str) -> tuple[Path | None, tuple[Path, ...], Path]:
    """The audit record and the policy file of a run without options where a store or a run lies, and the usual approvals."""
    path = Path.cwd() if "://" in address else Path(address).absolute()
    folder = path if path.is_dir() else path.parent
    if folder.name == DEFAULT_AUDIT.parent.name:  # what lies there is of a run in the folder around it
        folder = folder.parent
    settings = load_settings(folder=folder)
    record = next(
        (file for file in (settings.audit, folder / DEFAULT_AUDIT) if file is not None and file.is_file()), None
    )
    policy = settings.policy or policy_beside(folder)
    policies = () if policy is None or not policy.is_file() else (policy,)
    return record, policies, folder / DEFAULT_APPROVALS


def mounted_window(
    place: str,
    *,
    store: str | None = None,
    audit: Path | None = None,
    policies: Sequence[Path] = (),
    by_key: bool = False,
) -> MountedWindow | None:
    """A window on ``place``, which may be empty still; approvals are found in the policy files. None without a web server.

    ``by_key`` as in `MountedWindow`.
    """
    try:
        from lgov_core.views.governance import approval_files
        from lgov_core.views.web.app import MountedWindow
        from lgov_core.views.web.window import Window, WindowOptions
    except ImportError:  # trained without the extra gateway
        return None

    files = tuple(path for policy in policies for path in approval_files(policy))
    options = WindowOptions(store=store, audit=audit, approvals=files, policies=tuple(policies))
    return MountedWindow(Window(place, options, may_be_empty=True), say=say_on_stderr, by_key=by_key)


def say_on_stderr(line: str) -> None:
    """Writes a line for people."""
    click.echo(line, err=True)


#: Outcome shown for attempts without a row of their own.
_UNKNOWN: Final = "unknown"
_OUTCOMES: Final = (*(outcome.value for outcome in Outcome), "running", _UNKNOWN)
#: The rewards of each attempt, by rollout and attempt number, by dimension.
_Earned: TypeAlias = Mapping[tuple[str | None, int], Mapping[str, list[float]]]


# ---------------------------------------------------------------------- list


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("store", required=False)
@where_option({"run": "ID", "outcome": "|".join(_OUTCOMES)})
@limit_option("Newest entries")
def list_rollouts(store: str | None, where: Where, limit: int, as_json: bool) -> None:
    """Count what is in STORE (a path, an address, a run folder; default: the setting), and list its attempts by their begin.

    Attempts known only from recorded calls and spans have the outcome unknown and belong to no run.
    """
    run_id, outcomes = single(where, "run"), where.get("outcome", ())
    if unknown := next((name for name in outcomes if name not in _OUTCOMES), None):
        raise click.UsageError(f"there is no outcome {unknown}; there are {', '.join(_OUTCOMES)}")
    with opened_store(store_or_setting(store)) as recorded:
        statistics = recorded.statistics()
        rollouts = {rollout.rollout_id: rollout for rollout in recorded.rollouts(run_id=run_id)}
        attempts = [
            (attempt, "running" if attempt.outcome is None else attempt.outcome.value)
            for attempt in recorded.attempts(None if run_id is None else list(rollouts))
        ]
        unannounced = recorded.unopened_attempts()
        attempts += [(attempt, _UNKNOWN) for attempt in unannounced if run_id is None or attempt.rollout_id in rollouts]
        attempts.sort(key=lambda attempt: attempt[0].started_at)
        fitting = [attempt for attempt in attempts if not outcomes or attempt[1] in outcomes]
        newest = fitting[-limit:] if limit else fitting
        earned = _earned(recorded, attempts, {attempt.rollout_id for attempt, _ in newest})
        tasks = {rollout.rollout_id: rollout.task_id for rollout in rollouts.values()}
        without_row = [attempt.rollout_id for attempt, _ in newest if attempt.rollout_id not in tasks]
        for span in recorded.spans(without_row) if without_row else ():
            if span.rollout_id is not None and (task_id := span.attributes.get(TASK_ID)):
                tasks.setdefault(span.rollout_id, str(task_id))
    entries = [
        _entry(attempt, ended, rollouts.get(attempt.rollout_id), tasks.get(attempt.rollout_id), earned)
        for attempt, ended in newest
    ]
    if as_json:
        queue = {state.value: count for state, count in statistics.queue.items()}
        write_json({"store": {**asdict(statistics), "queue": queue}, "attempts": entries})
        return
    click.echo(
        f"{counted(statistics.rollouts, 'rollout')}, and {statistics.named_only} that only calls, spans or rewards name"
    )
    click.echo(f"{counted(statistics.attempts, 'attempt')}, {statistics.open_attempts} of them open")
    click.echo(", ".join(counted(getattr(statistics, f"{name}s"), name) for name in ("call", "reward", "span")))
    for state, count in sorted(statistics.queue.items()):
        click.echo(f"queue: {count} {state.value}")
    if statistics.oldest is not None and statistics.newest is not None:
        click.echo(f"last active: {_date(statistics.oldest)} to {_date(statistics.newest)}")
    click.echo(f"{statistics.size_bytes / 1e6:.1f} MB, {statistics.free_bytes / 1e6:.1f} MB of it free\n")
    columns = ("rollout_id", "attempt", "task_id", "outcome", "seconds")
    rows = [(*(entry[name] for name in columns), rewards_text(entry["rewards"])) for entry in entries]
    write_table(("rollout", "attempt", "task", "outcome", "seconds", "rewards"), rows)
    click.echo(f"{len(newest)} of {counted(len(fitting), 'attempt')}", err=True)


def _entry(
    attempt: Attempt, outcome: str, rollout: Rollout | None, task_id: str | None, earned: _Earned
) -> dict[str, Any]:
    rewards = earned.get((attempt.rollout_id, attempt.attempt), {})
    return {
        "rollout_id": attempt.rollout_id,
        "attempt": attempt.attempt,
        "task_id": task_id,
        "run_id": None if rollout is None else rollout.run_id,
        "outcome": outcome,
        "seconds": None if attempt.ended_at is None else round(attempt.ended_at - attempt.started_at, 3),
        "rewards": {dimension: _total(values) for dimension, values in rewards.items()},
    }


def _earned(recorded: TraceStore, attempts: Sequence[tuple[Attempt, str]], rollouts: Set[str]) -> _Earned:
    """The rewards of each attempt of ``rollouts``; ``attempts`` are all in the store."""
    attempts_of: dict[str | None, list[Attempt]] = defaultdict(list)
    for attempt, _ in attempts:
        attempts_of[attempt.rollout_id].append(attempt)
    rewards = recorded.rewards(list(rollouts))
    unsure = {rollout_id for rollout_id in rollouts if len(attempts_of[rollout_id]) > 1}
    unsure &= {reward.rollout_id for reward in rewards if reward.attempt is None}
    calls_of: dict[str | None, list[CapturedCall]] = defaultdict(list)
    for call in recorded.calls(list(unsure)) if unsure else ():
        calls_of[call.rollout_id].append(call)
    earned: dict[tuple[str | None, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for reward in rewards:
        number = attempt_of(reward, attempts_of[reward.rollout_id], calls_of[reward.rollout_id])
        earned[reward.rollout_id, number][reward.dimension].append(reward.value)
    return earned


def _total(values: Sequence[float]) -> float:
    """The sum; 0 where only rounding errors are left."""
    total = math.fsum(values)
    return 0.0 if abs(total) <= 1e-12 * math.fsum(map(abs, values)) else total


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


# ---------------------------------------------------------------------- show


@command(Exit.OK, Exit.FINDING, Exit.USAGE)
@click.argument("store")
@click.argument("rollout_id", required=False)
@click.option("--attempt", type=click.IntRange(min=1), help="Attempt number. [default: the last]")
@click.option("--denied", is_flag=True, help="Show the first attempt with a denial.")
@click.option(
    "--tail",
    type=click.IntRange(min=0),
    default=600,
    show_default=True,
    help="Characters to show of each text; 0 shows all.",
)
@click.option("--all-decisions", is_flag=True, help="Also show decisions that allowed a model call or a text.")
def show(
    store: str,
    rollout_id: str | None,
    attempt: int | None,
    denied: bool,
    tail: int,
    all_decisions: bool,
    as_json: bool,
) -> None:
    """Show one attempt in STORE: what the model saw and wrote, each decision, what each tool answered, each reward.

    The beginning of ROLLOUT_ID is enough. It may be left out when STORE holds one rollout.
    """
    from lgov_core.views.attempt_builder import first_denied, read_attempt

    with opened_store(store) as recorded:
        if denied:
            rollout_id = None if rollout_id is None else _full_id(recorded, rollout_id)
            rollout_id, attempt = first_denied(recorded, rollout_id, attempt)
        read = read_attempt(recorded, _full_id(recorded, rollout_id or ""), attempt)
    if as_json:
        write_json(asdict(read))
        return
    from lgov_core.views.show import show_attempt

    show_attempt(read, console(), tail=tail, everything=all_decisions)


def _full_id(recorded: RolloutQueue, beginning: str) -> str:
    """The rollout whose id begins so. Raises `click.UsageError` where that is not one; a whole id is returned in any case."""
    rollout_ids = {attempt.rollout_id for attempt in (*recorded.attempts(), *recorded.unopened_attempts())}
    fitting = {rollout_id for rollout_id in rollout_ids if rollout_id.startswith(beginning)}
    if beginning and (beginning in rollout_ids or not fitting):
        return beginning
    if len(fitting) != 1:
        what = counted(len(fitting), "rollout") + (f" whose id begins with {beginning}" if beginning else "")
        hint = "give an id from lgov traces list, or --denied" if fitting else "nothing is recorded there"
        raise click.UsageError(f"the store holds {what}: {hint}")
    return fitting.pop()


# ---------------------------------------------------------------------- prune


@command(Exit.OK, Exit.FINDING, Exit.USAGE, Exit.INTERRUPTED)
@click.argument("store")
@moment_option("--before", "Rollouts last active before")
@where_option({"run": "ID", "rollout": "ID"})
@click.option("--keep-last", type=click.IntRange(min=0), help="Keep the N most recently active rollouts.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted, and delete nothing.")
@click.option("--vacuum", is_flag=True, help="Return free space to the file system; blocks other writers meanwhile.")
@yes_option
def prune(
    store: str,
    before: float | None,
    where: Where,
    keep_last: int | None,
    dry_run: bool,
    vacuum: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete rollouts in STORE that fit every option given, with their calls, rewards and spans.

    Rollouts that wait or run are kept, those of a killed program until an hour after its last write. With --before, and no
    --where, calls and spans of no rollout are deleted too. --vacuum alone deletes nothing. lgov export keeps a copy.
    """
    choice: dict[str, Any] = {
        "before": before, "run_id": single(where, "run"), "keep_last": keep_last,
        "rollout_ids": set(where.get("rollout", ())) or None,
    }  # fmt: skip
    chosen = any(value is not None for value in choice.values())
    if not chosen and not vacuum:
        raise click.UsageError("give --before, --where run=ID, --where rollout=ID or --keep-last")
    if as_json and not (yes or dry_run):
        raise click.UsageError("--json does not prompt: give --yes or --dry-run with it")
    from lgov_core.process.children import refuse_to_programs
    from lgov_core.store import Pruned

    if not dry_run:
        refuse_to_programs("delete what is recorded")
    pruned = Pruned()
    with opened_store(store) as recorded:
        if chosen:
            pruned = recorded.prune(**choice, dry_run=True)
            if not dry_run:
                if not yes:
                    click.confirm(f"Delete {_pruned_text(pruned)} for good?", abort=True, err=True)
                pruned = recorded.prune(**choice)
        if vacuum and not dry_run:
            recorded.vacuum()
    if as_json:
        write_json({"store": store, "dry_run": dry_run, "vacuum": vacuum and not dry_run, **asdict(pruned)})
        return
    click.echo(f"{'would delete' if dry_run else 'deleted'} {_pruned_text(pruned)}")
    if pruned.spared:
        click.echo(f"spared because they wait or run: {pruned.spared_text()}")


def _pruned_text(pruned: Pruned) -> str:
    names = ("rollout", "attempt", "call", "reward", "span")
    return ", ".join(counted(getattr(pruned, f"{name}s"), name) for name in names)
